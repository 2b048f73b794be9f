"""Run the kernels of notebook 07's puzzles in Triton's interpreter and watch each load and store.

A wrong kernel gets a message that names its mistake where possible: a load or store outside of a
tensor, an element of the output that no program or several programs store, NaN from a slot without
a token, or numbers that a known mistake gives. Where Triton compiles, the check runs in a process
of its own. Triton is imported when the first kernel is checked.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pagedlab.checks import (
    StillRunning,
    Wrong,
    bounded,
    compare,
    exercise,
    explain,
    first_wrong,
    say,
)

if TYPE_CHECKING:
    import torch

    from pagedlab.lessons.fence import Access, Memory, Outside

    Numbers = dict[str, torch.Tensor]

Cases = dict[str, dict[str, Any]]  # what a case can show -> the arguments that make it
Mistake = Callable[[Any], Any]  # from a puzzle's arguments to a wrong kernel's outputs
Mistakes = dict[str, Mistake]  # by message

# Added to page ids: their slots still fit into 32 bits, the offsets of elements do not.
FAR = (1 << 27) + 12_345
MAX_STEPS = 100_000  # of a kernel in the interpreter
TOLERANCE = 2e-5  # relative and absolute, of fp32 numbers
SPLIT_CASES = [  # batch, KV heads, tokens, multiprocessors
    (1, 8, 16_384, 132),
    (256, 2, 1_024, 132),
    (1, 2, 100, 132),
    (1, 2, 255, 132),
    (32, 8, 4_096, 132),
    (7, 4, 4_096, 132),
    (1, 1, 131_072, 108),
    (200, 2, 512, 108),
    (1, 2, 256, 132),
    (5, 2, 700, 132),
]


def puzzle(name: str, cases: Cases, mistakes: Mistakes, proves: str) -> None:
    """Register the check of a puzzle.

    Args:
        name: of the check and of the puzzle in lessons.puzzles.
        cases: launches to try, small ones first.
        mistakes: known mistakes.
        proves: what a right kernel does.
    """

    def run(answer: Any) -> str:
        from pagedlab.kernels.runtime import INTERPRETED
        from pagedlab.lessons.puzzles import splits_for
        from pagedlab.lessons.tracer import interpreted

        if not INTERPRETED:
            return _verdict(interpreted(f"pagedlab.checks:check.{name}", answer))
        if name == "split":
            compare(answer["my_splits"], splits_for, SPLIT_CASES)
        for title, case in cases.items():
            try:
                _try(name, answer, mistakes, **case)
            except Wrong as wrong:
                wrong.setup = f"{title}."
                raise
        return proves

    run.__name__ = name
    run.__doc__ = f"The kernel of puzzle {name!r} in notebook 07."
    exercise(run)


def _verdict(result: Any) -> str:
    """Return what a result from another process proves, or raise what it found."""
    if result.status == "passed":
        return result.message
    raise Wrong(result.message, result.expected, result.got, *result.operations, setup=result.setup)


def _try(
    name: str, answer: Any, mistakes: Mistakes, far: bool = False, splits: int = 0, **case: Any
) -> None:
    """Launch a puzzle's kernel once and judge what it did.

    Args:
        name: of the puzzle.
        answer: the reader's kernel, or the parts of puzzle 7.
        mistakes: known mistakes.
        far: add `FAR` to all page ids.
        splits: of each sequence in puzzle 7.
        case: arguments of the puzzle's `given`.

    Raises:
        Wrong: If the kernel does anything wrong.
    """
    from pagedlab.lessons.fence import Memory, Outside
    from pagedlab.lessons.puzzles import PUZZLES

    puzzle = PUZZLES[name]
    memory = Memory()
    given = puzzle.given(**case)
    expected = puzzle.expected(given)
    fenced = _fenced(memory, given, far)
    options: dict[str, Any] = {}
    if splits:

        def put(label: str, x: torch.Tensor) -> torch.Tensor:
            return memory.put(label, x.fill_(math.nan))

        options = {"splits": splits, "put": put}
    try:
        with bounded(MAX_STEPS):
            memory.run(lambda: puzzle.launch(answer, fenced, **options))
    except Outside as error:
        raise _outside(error, far) from None
    except (Exception, StillRunning) as error:
        cause = error.__cause__ or error  # Triton's interpreter wraps the kernel's own error
        raise Wrong("Your kernel raises an error.", _first(expected), explain(cause)) from None
    # what puzzle 7 writes between its two kernels
    between = {label: x for label, x in memory.tensors.items() if label not in given}
    _check_stores(memory, between | expected)
    got = {out: fenced[out] for out in expected}
    _check_numbers(name, memory, given, expected, got, mistakes)


def _fenced(memory: Memory, given: dict[str, Any], far: bool) -> dict[str, Any]:
    """Put a kernel's arguments into watched memory, with page ids that are large if `far`."""
    if not far:
        return memory.put_all(given)
    table = "tables" if "tables" in given else "table"
    offset = FAR * given["k_cache"][0].numel()
    return memory.put_all(given | {table: given[table] + FAR}, k_cache=offset, v_cache=offset)


def _check_numbers(
    name: str,
    memory: Memory,
    given: dict[str, Any],
    expected: Numbers,
    got: Numbers,
    mistakes: Mistakes,
) -> None:
    """Raise `Wrong` unless the outputs are right and, in puzzles 6 and 7, keys are loaded once."""
    wrong = _first_difference(expected, got)
    message = _known_mistake(given, expected, got, mistakes) if wrong else ""
    if not message and name in ("grouped", "split"):
        _check_loads(memory, given["k_cache"].shape)
    if not wrong:
        return
    # eight numbers of the row in which the first wrong number is
    first = wrong.column // 8 * 8
    part = slice(first, first + 8)
    columns = f"{first or ''}:{part.stop}"
    where = f"{wrong.out}[{', '.join([*map(str, wrong.row), columns])}]"
    rows = [x[wrong.out][wrong.row][part] for x in (expected, got)]
    raise Wrong(message or _unnamed(got), say(rows[0]), say(rows[1]), where)


class _Place(NamedTuple):
    """Where a number is: the output, the indices of its row, and its index in the row."""

    out: str
    row: tuple[int, ...]
    column: int


def _first_difference(expected: Numbers, got: Numbers) -> _Place | None:
    for out, right in expected.items():
        at = first_wrong(right, got[out], within=TOLERANCE)
        if at:
            return _Place(out, tuple(at[:-1]), at[-1])
    return None


def _first(expected: Numbers) -> str:
    """Return the first number of each output, in words."""
    return "; ".join(
        f"{out}{_index(x.shape, 0)} = {say(x.flatten()[0])}" for out, x in expected.items()
    )


def _outside(error: Outside, far: bool) -> Wrong:
    """Return what to say of a load or store outside of a tensor."""
    inside = f"elements 0 to {error.size - 1} of {error.name}"
    got = f"program {error.program} {error.verb}s {error.where}"
    return Wrong(_reach(error, far), inside, got)


def _reach(error: Outside, far: bool) -> str:
    if far:
        return (
            "The offset of an element does not fit into 32 bits: page ids have to become 64 bits "
            "wide before they\nare multiplied."
        )
    if error.name in ("table", "tables"):
        return (
            "It loads outside of the table: position p is in page table[p // SIZE], and a mask "
            "keeps the rest out."
        )
    if error.element < 0:
        return f"It {error.verb}s before the start of {error.name}: look at the address."
    if error.element > 4 * error.size:
        return f"It {error.verb}s far outside of {error.name}: look at the address."
    return f"It {error.verb}s outside of {error.name}: a mask has to keep that out."


def _index(shape: Sequence[int], element: int) -> list[int]:
    """Return the indices of an element that is given by its place in the flat tensor."""
    return [int(place) for place in np.unravel_index(element, shape)]


def _programs(accesses: Sequence[Access]) -> Mapping[int, list[Any]]:
    """Return the programs that load or store each element, in their order."""
    programs: defaultdict[int, list[Any]] = defaultdict(list)
    for access in accesses:
        for element in access.elements.tolist():
            if access.program not in programs[element]:
                programs[element].append(access.program)
    return programs


def _check_stores(memory: Memory, expected: Numbers) -> None:
    """Raise `Wrong` unless exactly one program stores each element of the outputs."""
    for out, numbers in expected.items():
        programs = _programs(memory.stores[out])
        for element, storing in programs.items():
            if len(storing) > 1:
                message = (
                    f"Two programs store the same element of {out}. Each has its own share: its "
                    "number says\nwhich one, and a mask keeps it from its neighbour's."
                )
                one = f"one program stores {out}{_index(numbers.shape, element)}"
                raise Wrong(message, one, f"programs {storing[0]} and {storing[1]} both do")
        for element in range(numbers.numel()):
            if element not in programs:
                every = f"all {numbers.numel()} elements of {out} stored"
                missing = f"{out}{_index(numbers.shape, element)}"
                some = f"{len(programs)} are; no program stores {missing}"
                raise Wrong(f"Not all of {out} is written.", every, some)


def _check_loads(memory: Memory, shape: Sequence[int]) -> None:
    """Raise `Wrong` if several programs load the same element of the keys."""
    programs = _programs(memory.loads["k_cache"])
    element = max(programs, key=lambda element: len(programs[element]), default=0)
    times = len(programs.get(element, ()))
    if times > 1:
        message = (
            "Several programs load the same keys. Each has its own: those of its KV head, and of "
            "its split."
        )
        some = f"{times} of them load k_cache{_index(shape, element)}"
        raise Wrong(message, "one program for each element of the keys", some)


def _known_mistake(
    given: dict[str, Any], expected: Numbers, got: Numbers, mistakes: Mistakes
) -> str:
    """Return the message of the mistake that gives exactly these numbers, "" if none does."""
    for message, mistake in mistakes.items():
        computed = mistake(SimpleNamespace(**given))
        if not isinstance(computed, tuple):
            computed = (computed,)
        by_name = dict(zip(expected, computed, strict=True))
        if all(_close(got[out], numbers) for out, numbers in by_name.items()):
            return message
    return ""


def _close(got: torch.Tensor, numbers: torch.Tensor) -> bool:
    return bool(got.isclose(numbers, rtol=1e-4, atol=1e-5, equal_nan=True).all())


def _unnamed(got: Numbers) -> str:
    """Return what to say of wrong numbers that no known mistake gives."""
    if any(x.isnan().any() for x in got.values()):
        return (
            "NaN comes out: a slot without a token was read. 0 x NaN is NaN, so masking the scores "
            "is\nnot enough: the load needs a mask, and other=0.0."
        )
    return "It computes something else. The first row that differs:"
