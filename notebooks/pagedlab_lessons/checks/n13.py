"""Checks of notebook 13: the loop that owns the engine, and the salt against the side channel."""

import queue
import random
import re
from collections.abc import Sequence
from functools import partial, partialmethod
from itertools import product
from math import inf, log2
from string import ascii_lowercase
from typing import Any

from pagedlab_lessons.checks import Function, Wrong, agree, compared, exercise, trying
from pagedlab_lessons.readers_code import StillRunning
from pagedlab_serve.engine_thread import run_loop

# The loop -----------------------------------------------------------------------------------------


# A message: its name, the step before which it arrives, the steps it asks for. A message that asks
# for no step, such as a look at the metrics, has 0.
Arrival = tuple[str, float, int]
NONE = "None"  # the name of None, which means stop; it also comes after all other messages


class Desk:
    """An inbox and an engine in one, and a diary of what a loop does with them.

    Time passes in `step`, and while the loop sleeps in `get`.

    Args:
        script: the messages, in the order of their arrival.
    """

    def __init__(self, script: Sequence[Arrival]) -> None:
        self.coming = [*script, (NONE, inf, 0)]
        self.taken: list[str] = []  # taken out of the inbox and not run yet
        self.left: dict[str, int] = {}  # steps left of each request
        self.now = 0.0
        self.idle_looks = 0
        self.diary: list[str] = []

    def get(self, block: bool = True, timeout: float | None = None) -> Function | None:
        """Return a message, as `queue.SimpleQueue.get` does; after all others, None."""
        if self.empty():
            if not block:
                raise queue.Empty
            work = ", ".join([*self.taken, *self.left])
            if work:
                raise StillRunning(f"it waits at the inbox while there is work to do: {work}")
            if not self.coming:
                raise StillRunning("it waits at the inbox after None, which means stop")
            self.now = self.coming[0][1]  # it sleeps until the next message
        name, _, steps = self.coming.pop(0)
        if name == NONE:
            self.diary.append(NONE)
            return None
        self.taken.append(name)
        return partial(self._run, name, steps)

    get_nowait = partialmethod(get, block=False)

    def empty(self) -> bool:
        """Return whether there is nothing to take, as `queue.SimpleQueue.empty` does."""
        if self.coming and self.coming[0][1] <= self.now:
            return False
        self.idle_looks += not (self.taken or self.left)
        if self.idle_looks > 20:
            raise StillRunning(
                "with nothing to do it looks into the inbox again and again, and keeps a core busy"
            )
        return True

    def _run(self, name: str, steps: int) -> None:
        self.diary.append(name)
        self.taken.remove(name)
        if steps:
            self.left[name] = steps

    def busy(self) -> bool:
        """Return whether a request is not finished."""
        return bool(self.left)

    def step(self) -> None:
        """Generate one token for each request."""
        self.diary.append(f"step({', '.join(self.left)})")
        self.left = {name: steps - 1 for name, steps in self.left.items() if steps > 1}
        self.now += 1


def _diary(loop: Function, *script: Arrival) -> str:
    desk = Desk(script)
    loop(desk, desk.busy, desk.step)
    return " ".join(desk.diary)


@compared(
    "No request waits for the end of another one, nothing runs twice at once, and an idle engine "
    "sleeps.",
    [
        (),
        (("A", 0, 2),),
        (("A", 0, 1), ("B", 0, 1)),
        (("metrics", 0, 0), ("A", 3, 1)),
        (("A", 0, 3), (NONE, 1, 0), ("B", 1, 1)),
        (("A", 0, 3), ("B", 1, 2), ("metrics", 1, 0), ("C", 1, 1)),
    ],
    through=_diary,
    told=lambda *script: "\n".join(
        f"{name} arrives before step {at}, wants {n}" for name, at, n in script
    ),
    why="Step only while busy(). None means: stop at once. The order of events:",
)
def engine_loop(inbox: Any, busy: Any, step: Any) -> None:
    """loop(inbox, busy, step): run every message in the inbox, then a step, and again.

    If there is no work it sleeps in `inbox.get()`. It ends when it takes None.
    """
    run_loop(inbox, busy, step)


# The salt -----------------------------------------------------------------------------------------

Caller = tuple[str | None, str | None]  # tenant and cache_salt

_LONG = 300 * "x"  # an answer may keep the first characters only, or the last
# Names that an answer may take for one name. With a length in front that has no end, 1 and "1..."
# are 11 and "...".
_NAMES = [
    "a",
    "b",
    "c",
    None,
    "",
    "None",
    "null",
    "A",
    "a ",
    " a",
    "\u00e4",
    "a\u0308",
    "fi",
    "\ufb01",
]
_NAMES += ["1", 11 * "a", 11 * "a" + "b", f"{_LONG}a", f"{_LONG}b", f"a{_LONG}", f"b{_LONG}"]
_GLUES = ["", *":/,|-_ \0"]  # what one may put between the two, and a name may hold
_SAMPLES = 400  # names, so that each character of a digest takes all its values
_LETTERS = 100  # of each of these names
_ENOUGH_BITS = 128


@exercise
def closed_salt(answer: Any) -> str:
    """salt_for(tenant, cache_salt): requests share blocks only if both are the same.

    Requests with one salt share blocks.
    """
    # The salt may show what the answer puts between the two.
    glues = re.split("tenant|secret", _salt_of(answer, ("tenant", "secret")) or "")[1:-1]
    pairs = "ab", "bc", "ca"
    names = _NAMES + [glue.join(pair) for glue in (*_GLUES, *glues) for pair in pairs]
    first: dict[str | None, Caller] = {}  # who has a salt
    for caller in product(dict.fromkeys(names), repeat=2):
        salt = _salt_of(answer, caller)
        other = first.setdefault(salt, caller)
        if other != caller:
            message = "These two must not share blocks, and have one salt."
            lines = [f"salt_for({a!r}, {b!r})" for a, b in (other, caller)]
            raise Wrong(message, "two salts", repr(salt), lines)
    chance = random.Random(0)
    spied = ["".join(chance.choices(ascii_lowercase, k=_LETTERS)) for _ in range(_SAMPLES)]
    spied.append(f"{spied[0][:-1]}?")  # like the first but for a letter
    _check_digest(answer, [(name, None) for name in spied])
    _check_digest(answer, [("a", name) for name in spied])
    return (
        f"{len(first)} callers, each against each: callers that may share do, and no caller "
        "learns of another's prompt."
    )


def _salt_of(answer: Any, caller: Caller) -> str | None:
    """Return a caller's salt, if it is one, and the same each time."""
    with trying(f"salt_for({caller[0]!r}, {caller[1]!r})", expected="a salt"):
        salt = answer(*caller)
        if not isinstance(salt, str | None):
            raise Wrong("A salt is a text or None.", "a str", repr(salt))
        agree(salt, answer(*caller), "Two requests of one caller may share blocks.")
    return salt


def _check_digest(answer: Any, callers: Sequence[Caller]) -> None:
    """Raise `Wrong` if the salts of callers whose names are random have too few bits."""
    salts = [_salt_of(answer, caller) or "" for caller in callers]
    columns = [set(column) for column in zip(*salts, strict=False)]
    bits = sum(log2(len(column)) for column in columns)
    vary = [i for i, column in enumerate(columns) if len(column) > 1]
    changed = sum(salts[0][i] != salts[-1][i] for i in vary)
    if bits < _ENOUGH_BITS - 0.1 or (len(vary) < _LETTERS and changed < 0.75 * len(vary)):
        message = (
            f"Of a name of {_LETTERS} letters, the salt keeps {bits:.0f} bits at most; another "
            f"last letter changes {changed} of {len(vary)} characters.\nA spy who has read your "
            "code finds a name with another's salt. Write both values out, or take a\n"
            "cryptographic hash."
        )
        line = "salt_for({!r}, {!r})".format(*callers[0])
        raise Wrong(message, f"{_ENOUGH_BITS} bits, nearly all of them changed", salts[0], [line])
