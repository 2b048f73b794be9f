"""Plausible wrong answers to the exercises of notebook 13, and right ones that differ from the solution."""

import queue
import zlib
from hashlib import sha256

from pagedlab_serve.app import salt_for
from pagedlab_serve.engine_thread import run_loop

# The loop -----------------------------------------------------------------------------------------------------


def goes_on_with_the_inbox_after_none(inbox, busy, step):
    stops = False
    while not stops:
        try:
            while True:
                work = inbox.get(block=not busy() and not stops)
                stops = stops or work is None
                if work is not None:
                    work()
        except queue.Empty:
            if not stops:
                step()


def steps_after_every_batch(inbox, busy, step):
    """It steps although the functions may have added nothing."""
    while True:
        if not busy():
            work = inbox.get()
            if work is None:
                return
            work()
        try:
            while (work := inbox.get(block=False)) is not None:
                work()
            return
        except queue.Empty:
            step()


def looks_before_it_takes(inbox, busy, step):
    """Right: nobody else takes from the inbox, so what is there stays there."""
    while True:
        if busy() and inbox.empty():
            step()
        elif (work := inbox.get()) is None:
            return
        else:
            work()


# The salt -----------------------------------------------------------------------------------------------------


def modulo(tenant, cache_salt):
    """Any two pairs whose numbers differ by the modulus collide."""
    return f"{int.from_bytes(repr((tenant, cache_salt)).encode()) % (2**160 - 47):040x}"


def of_the_tenant_only(tenant, cache_salt):
    return sha256(repr(tenant).encode()).hexdigest() + f"{zlib.crc32(repr(cache_salt).encode())}"


def counted(tenant, cache_salt):
    """Right: the salt says the length of each."""
    return "".join("-" if part is None else f"{len(part)}:{part}" for part in (tenant, cache_salt))


def length_first(tenant, cache_salt):
    return f"{'-' if tenant is None else len(tenant)} {tenant} {'-' if cache_salt is None else '+'} {cache_salt}"


SALT = "json.dumps([tenant, cache_salt])"

# Each is the folded solution with one place changed. By exercise: old text, new text, and special words of the check.
EDITS = {
    "engine_loop": [
        ("inbox.get(block=not busy())", "inbox.get(block=False)", "keeps a core busy"),
        (
            "                work()\n",
            "                work()\n                if busy():\n                    step()\n",
            "The order of events",
        ),
        ("                work()\n", "                pass\n", "it waits at the inbox while there is work to do: A"),
        (
            "            return\n",
            "            while busy():\n                step()\n            return\n",
            "stop at once",
        ),
    ],
    "closed_salt": [
        (SALT, 'f"{tenant}{cache_salt}"', "These two must not share blocks"),
        (SALT, 'f\'"{tenant}", "{cache_salt}"\'', "These two must not share blocks"),
        (SALT, "hash((tenant, cache_salt))", "A salt is a text or None."),
        (
            SALT,
            "str(hash((tenant, cache_salt)))",
            "bits at most",
        ),
        (SALT, 'f"{tenant}|{cache_salt}"', "These two must not share blocks"),
        (SALT, "f\"('{tenant}', '{cache_salt}')\"", "These two must not share blocks"),
        (SALT, "__import__('unicodedata').normalize('NFKC', repr([tenant, cache_salt]))", "must not share blocks"),
        *(
            (SALT, f"__import__('hashlib').md5({SALT}.encode()).hexdigest()[:{n}]", words)
            for n, words in (
                (2, "must not share blocks"),
                (3, "must not share blocks"),
                (16, "64 bits at most"),
            )
        ),
        (SALT, "__import__('hashlib').sha256(f'{tenant}{cache_salt}'.encode()).hexdigest()", "must not share blocks"),
        (SALT, "__import__('hashlib').sha256(f'{tenant}|{cache_salt}'.encode()).hexdigest()", "must not share blocks"),
        (SALT, f"__import__('hashlib').sha256({SALT}.encode()).hexdigest()[:31]", "124 bits at most"),
    ],
}
RIGHT_EDITS = {
    "closed_salt": [
        (SALT, f"__import__('hashlib').md5({SALT}.encode()).hexdigest()"),
        (SALT, "json.dumps({'salt': cache_salt, 'tenant': tenant}, ensure_ascii=False)"),
    ],
}
WRONG = {
    "engine_loop": [
        goes_on_with_the_inbox_after_none,
        steps_after_every_batch,
    ],
    "closed_salt": [modulo, of_the_tenant_only],
}
RIGHT = {
    "engine_loop": [run_loop, looks_before_it_takes],
    "closed_salt": [
        salt_for,
        length_first,
        counted,
    ],
}
