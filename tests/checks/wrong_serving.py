"""Plausible wrong answers to the exercises of notebook 13, and right ones that differ from the solution."""

import queue

from pagedlab.serving.app import salt_for
from pagedlab.serving.engine_thread import run_loop

# The loop -----------------------------------------------------------------------------------------------------


def never_sleeps(inbox, busy, step):
    while True:
        try:
            while (work := inbox.get(block=False)) is not None:
                work()
            return
        except queue.Empty:
            if busy():
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


def drains_it_first(inbox, busy, step):
    """Right: messages are taken out, and then run."""
    while True:
        taken = [] if busy() else [inbox.get()]
        try:
            while not taken or taken[-1] is not None:
                taken.append(inbox.get(block=False))
        except queue.Empty:
            pass
        for work in taken:
            if work is None:
                return
            work()
        if busy():
            step()


# The salt -----------------------------------------------------------------------------------------------------


def length_first(tenant, cache_salt):
    return f"{'-' if tenant is None else len(tenant)} {tenant} {'-' if cache_salt is None else '+'} {cache_salt}"


SALT = "json.dumps([tenant, cache_salt])"

# Each is the folded solution with one place changed. By exercise: old text, new text, and special words of the check.
EDITS = {
    "engine_loop": [
        ("inbox.get(block=not busy())", "inbox.get(block=False)", "The order of events differs"),
        (
            "                work()\n",
            "                work()\n                if busy():\n                    step()\n",
            "The order of events differs",
        ),
        (
            "                work()\n",
            "                work()\n                while busy():\n                    step()\n",
            "The order of events differs",
        ),
        ("                work()\n", "                pass\n", "The order of events differs"),
        ("queue.Empty", "queue.Full", "The order of events differs"),
        ("block=not busy()", "block=True", "The order of events differs"),
    ],
    "closed_salt": [
        (SALT, '"salt"', "These two must not share blocks"),
        (SALT, "cache_salt", "These two must not share blocks"),
        (SALT, "tenant", "These two must not share blocks"),
        (SALT, "cache_salt or tenant", "These two must not share blocks"),
        (SALT, 'f"{tenant}{cache_salt}"', "These two must not share blocks"),
        (SALT, 'f"{tenant}:{cache_salt}"', "These two must not share blocks"),
        (SALT, 'f\'"{tenant}", "{cache_salt}"\'', "These two must not share blocks"),
        (SALT, "str(__import__('uuid').uuid4())", "These two may share"),
        (SALT, "hash((tenant, cache_salt))", "A salt is a text or None."),
        (
            SALT,
            "str(hash((tenant, cache_salt)))",
            "Two names may have one hash, and a spy can look for such a name; a new process has other hashes.",
        ),
        (SALT, 'json.dumps([tenant or "", cache_salt or ""])', "These two must not share blocks"),
    ],
}
RIGHT_EDITS = {
    "closed_salt": [
        (SALT, "repr((tenant, cache_salt))"),
    ],
}
WRONG = {"engine_loop": [never_sleeps]}
RIGHT = {
    "engine_loop": [run_loop, looks_before_it_takes, drains_it_first],
    "closed_salt": [salt_for, length_first],
}
