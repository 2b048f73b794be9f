"""Search for the smallest sequence of operations on which an answer and a reference differ."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Generator, Sequence
from itertools import cycle, islice
from typing import Any

from pagedlab_lessons.checks.comparing import Wrong, trying

Trial = Generator[Any, str, None]
"""An answer beside a reference, both fresh.

A trial first yields how it was set up. Then it yields the operations that may come next, as lines
of Python, again and again. It is sent one of them, carries it out on both sides, and raises `Wrong`
where the two differ.
"""


def replay(
    start: Callable[[], Trial], operations: Sequence[str], chance: random.Random | None = None
) -> Sequence[str]:
    """Carry out operations in a fresh trial.

    A shrunk sequence can contain an operation whose table no longer exists. It ends the trial.

    Args:
        start: makes the trial.
        operations: lines of Python; with `chance` only their number counts.
        chance: draws each operation from the choices.

    Returns:
        The operations that may come next.

    Raises:
        Wrong: Where answer and reference differ; it carries the operations done so far.
    """
    setup = ""
    done: list[str] = []
    try:
        with trying():
            trial = start()
            setup = next(trial)
            choices = next(trial)
            for operation in operations:
                if chance:
                    operation = chance.choice(choices)
                done.append(operation)
                if operation not in choices:
                    return ()
                choices = trial.send(operation)
            return choices
    except Wrong as wrong:
        wrong.setup = setup
        wrong.operations = tuple(done)
        raise


def search(
    starts: Sequence[Callable[[], Trial]],
    *,
    sequences: int = 400,
    walks: int = 48,
    length: int = 24,
) -> None:
    """Search for a counterexample.

    Short sequences are tried first, shortest first, on the first start: what fails there is
    minimal. Then random walks are tried over all starts, and what fails is shrunk by leaving
    operations out. The same answer always gets the same counterexample.

    Args:
        starts: each makes a trial; the first has few choices.
        sequences: number of short sequences.
        walks: number of random walks.
        length: operations of a walk.

    Raises:
        Wrong: With the smallest counterexample that was found.
    """
    queue: deque[tuple[str, ...]] = deque([()])
    for _ in range(sequences):
        prefix = queue.popleft()
        for choice in replay(starts[0], prefix):
            queue.append((*prefix, choice))
    chance = random.Random(0)
    for start in islice(cycle(starts), walks):
        try:
            replay(start, [""] * length, chance)
        except Wrong as wrong:
            raise _shrunk(start, wrong) from None


def _shrunk(start: Callable[[], Trial], wrong: Wrong) -> Wrong:
    """Return a shorter counterexample: operations are left out as long as it still fails."""
    for i in reversed(range(len(wrong.operations))):
        try:
            replay(start, wrong.operations[:i] + wrong.operations[i + 1 :])
        except Wrong as shorter:
            return _shrunk(start, shorter)
    return wrong
