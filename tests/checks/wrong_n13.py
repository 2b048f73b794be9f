"""Plausible wrong answers to the exercises of notebook 13, and right ones that differ from the solution."""

import queue
import zlib
from hashlib import sha256

from pagedlab_serve.app import salt_for
from pagedlab_serve.engine_thread import run_loop

# The loop -----------------------------------------------------------------------------------------------------


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
        ("                work()\n", "                pass\n", "The order of events"),
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
        (SALT, "str(hash((tenant, cache_salt)))", "bits at most"),
        (SALT, "f\"('{tenant}', '{cache_salt}')\"", "These two must not share blocks"),
        (SALT, "__import__('unicodedata').normalize('NFKC', repr([tenant, cache_salt]))", "must not share blocks"),
        (SALT, f"__import__('hashlib').md5({SALT}.encode()).hexdigest()[:3]", "must not share blocks"),
        (SALT, "__import__('hashlib').sha256(f'{tenant}|{cache_salt}'.encode()).hexdigest()", "must not share blocks"),
        (SALT, f"__import__('hashlib').sha256({SALT}.encode()).hexdigest()[:31]", "124 bits at most"),
    ],
}
RIGHT_EDITS = {
    "closed_salt": [
        (SALT, f"__import__('hashlib').md5({SALT}.encode()).hexdigest()"),
        (SALT, "json.dumps({'salt': cache_salt, 'tenant': tenant}, ensure_ascii=False)"),
    ]
}
WRONG = {"engine_loop": [steps_after_every_batch], "closed_salt": [modulo, of_the_tenant_only]}
RIGHT = {"engine_loop": [run_loop, looks_before_it_takes], "closed_salt": [salt_for, counted]}
