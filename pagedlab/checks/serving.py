"""Checks of notebook 13: the loop that owns the engine, and the salt against the side channel."""

import queue
from collections.abc import Callable
from functools import partialmethod
from itertools import product
from types import FunctionType
from typing import NamedTuple

from pagedlab.checks import StillRunning, Wrong, agree, exercise, explain, trying
from pagedlab.checks.prefix import Served
from pagedlab.prefix import PrefixCache
from pagedlab.serving.engine_thread import run_loop

# The loop -----------------------------------------------------------------------------------------


class Arrival(NamedTuple):
    """A message in a script: its name, the step before which it arrives, the steps it asks for.

    A message that asks for no step, such as a look at the metrics, has 0.
    """

    name: str
    at: int
    steps: int


class Desk:
    """An inbox and an engine in one, and a diary of what a loop does with them.

    Time passes in `step`, and while the loop sleeps in `get`.

    Args:
        script: the messages, in the order of their arrival.
    """

    def __init__(self, script: list[Arrival]) -> None:
        self.coming = list(script)
        self.taken: list[str] = []  # taken out of the inbox and not run yet
        self.left: dict[str, int] = {}  # steps left of each request
        self.now = 0
        self.idle_looks = 0
        self.ended = False  # whether None was taken
        self.diary: list[str] = []

    def _has_message(self) -> bool:
        return bool(self.coming) and self.coming[0].at <= self.now

    def _is_over(self) -> bool:
        return not (self.coming or self.taken or self.left)

    def get(self, block: bool = True, timeout: float | None = None) -> Callable[[], None] | None:
        """Return a message, as `queue.SimpleQueue.get` does; once, after all of them, None."""
        if self._is_over() and not self.ended:
            self.ended = True
            self.diary.append("end")
            return None
        if not self._has_message() and block:
            self._sleep()
        if not self._has_message():
            self._look()
            raise queue.Empty
        arrival = self.coming.pop(0)
        self.taken.append(arrival.name)
        return lambda: self._run(arrival)

    get_nowait = partialmethod(get, block=False)

    def _sleep(self) -> None:
        """Wait for the next message, if one can come while the loop sleeps."""
        if self.ended:
            raise StillRunning("it waits at the inbox after None, which means stop")
        if self.left:
            names = ", ".join(self.left)
            raise StillRunning(f"it waits at the inbox while {names} has tokens to come")
        if self.taken:
            raise StillRunning("it waits at the inbox with a message that it has not run")
        self.now = self.coming[0].at

    def _look(self) -> None:
        """Count looks into an empty inbox by a loop that has nothing to do."""
        if not self.left and not self.taken:
            self.idle_looks += 1
        if self.idle_looks > 20:
            raise StillRunning(
                "with nothing to do it looks into the inbox again and again, and keeps a core busy"
            )

    def empty(self) -> bool:
        """Return whether there is nothing to take, as `queue.SimpleQueue.empty` does."""
        none_is_left = self._is_over() and not self.ended
        return not self._has_message() and not none_is_left

    def _run(self, arrival: Arrival) -> None:
        self.diary.append(arrival.name)
        self.taken.remove(arrival.name)
        if arrival.steps:
            self.left[arrival.name] = arrival.steps

    def busy(self) -> bool:
        """Return whether a request is not finished."""
        return bool(self.left)

    def step(self) -> None:
        """Generate one token for each request."""
        self.diary.append(f"step({', '.join(self.left)})")
        if len(self.diary) > 60:
            raise StillRunning("it calls step() although no request is unfinished")
        self.left = {name: steps - 1 for name, steps in self.left.items() if steps > 1}
        self.now += 1


_SCRIPTS = [
    [],
    [Arrival("A", 0, 2)],
    [Arrival("A", 3, 1)],
    [Arrival("A", 0, 1), Arrival("B", 0, 1)],
    [Arrival("A", 0, 2), Arrival("B", 1, 1)],
    [Arrival("A", 0, 1), Arrival("B", 5, 1)],
    [Arrival("metrics", 0, 0), Arrival("A", 0, 1)],
    [Arrival("A", 0, 3), Arrival("B", 1, 2), Arrival("metrics", 1, 0), Arrival("C", 1, 1)],
]


@exercise
def engine_loop(answer: Callable[..., None]) -> str:
    """loop(inbox, busy, step): run every message in the inbox, then a step, and again.

    If there is no work it sleeps in `inbox.get()`. It ends when it takes None.
    """
    for script in _SCRIPTS:
        right = Desk(script)
        run_loop(right, right.busy, right.step)  # type: ignore[arg-type]
        desk = Desk(script)
        lines = [f"{name} arrives before step {at}, wants {steps}" for name, at, steps in script]
        with trying(*lines):
            try:
                answer(desk, desk.busy, desk.step)
            except (NotImplementedError, KeyboardInterrupt):
                raise
            except BaseException as error:  # exit() and its kin too
                desk.diary.append(f"and then {explain(error)}")
            _compare_diaries(right.diary, desk.diary)
    return (
        "No request waits for the end of another one, nothing runs twice at once, and an idle "
        "engine sleeps."
    )


def _compare_diaries(expected: list[str], got: list[str]) -> None:
    """Raise `Wrong` if the diaries differ; a long one is cut."""
    most = len(expected) + 3
    if len(got) > most:
        got = [*got[:most], "..."]
    agree(" ".join(expected), " ".join(got) or "nothing", "The order of events differs:", str)


# The salt -----------------------------------------------------------------------------------------

_CALLERS: list[tuple[str | None, str | None]] = [
    ("a", None),
    ("b", None),
    ("a", "b"),
    ("a", "c"),
    ("b", "c"),
]
for glue in ("", ":", "/", ",", '", "'):  # what one may put between the two, and a name may hold
    _CALLERS += [("a", f"b{glue}c"), (f"a{glue}b", "c")]
_CALLERS += [*product(("a", None), ("", "None")), *product((None,), ("a", "b", None))]


@exercise
def closed_salt(answer: Callable[[str | None, str | None], str | None]) -> str:
    """salt_for(tenant, cache_salt): requests share blocks only if both are the same.

    The check runs it over the real prefix cache.
    """
    pairs = sorted(product(_CALLERS, _CALLERS), key=_difficulty)
    for first, second in pairs:
        _check_salts(answer, first, second)
    if _relies_on_hash(answer):
        message = (
            "Two names may have one hash, and a spy can look for such a name; a new process has "
            "other hashes."
        )
        expected = "a salt from which both can be read back"
        raise Wrong(message, expected, repr(answer("a", None)), "salt_for('a', None)")
    return (
        f"{len(_CALLERS)} callers, each against each: callers that may share do, and no caller "
        "learns of another's prompt."
    )


def _difficulty(pair: tuple[tuple[str | None, str | None], ...]) -> tuple[bool, int]:
    """Return a key that puts obvious attacks before those with "None" as a name."""
    first, second = pair
    return first != second, max(_CALLERS.index(first), _CALLERS.index(second))


def _check_salts(
    answer: Callable[[str | None, str | None], str | None],
    first: tuple[str | None, str | None],
    second: tuple[str | None, str | None],
) -> None:
    """Raise `Wrong` unless these two callers share blocks exactly if they are the same."""
    lines = [f"serve(prompt, salt=salt_for({a!r}, {b!r}))" for a, b in (first, second)]
    server = Served(PrefixCache, num_blocks=8, block_size=16)
    with trying(*lines, expected="a salt"):
        salts = [answer(*first), answer(*second)]
        for salt in salts:
            if not isinstance(salt, str | None):
                raise Wrong("A salt is a text or None.", "a str", repr(salt), lines[0])
        _, found = [server.serve(range(48), salt=salt) for salt in salts]
        if first == second:
            message = f"These two may share. Their salts: {salts}."
            expected = 32
        else:
            message = f"These two must not share blocks. Their salts: {salts}."
            expected = 0
        agree(expected, found, message, "the second finds {} tokens".format)


def _relies_on_hash(answer: Callable[[str | None, str | None], str | None]) -> bool:
    """Return whether two tenants get one salt if all hashes are equal."""
    code = getattr(answer, "__code__", None)
    if not code or "hash" not in code.co_names:
        return False
    names = {**answer.__globals__, "hash": lambda _: 0}
    same_hashes = FunctionType(code, names, "same", answer.__defaults__, answer.__closure__)
    return same_hashes("a", None) == same_hashes("b", None)
