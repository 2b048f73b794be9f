"""Run the kernels of notebook 07's puzzles in Triton's interpreter and watch each load and store.

A wrong kernel gets a message that names its mistake where possible: a load or store outside of a
tensor, an element of the output that no program or several programs store, NaN from a slot without
a token, or numbers that a known mistake gives. Where Triton compiles, the check runs in a process
of its own. Triton is imported when the first kernel is checked.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pagedlab_lessons.checks.protocol import Wrong, compare, exercise, first_wrong, say
from pagedlab_lessons.readers_code import bounded, explain, text_of

if TYPE_CHECKING:
    import torch

    from pagedlab_lessons.fence import Access, Memory, Outside

    Numbers = dict[str, torch.Tensor]

Cases = dict[str, dict[str, Any]]  # what a case can show -> the arguments that make it
Mistake = Callable[[Any], Any]  # from a puzzle's arguments to a wrong kernel's outputs
Mistakes = dict[str, Mistake]  # by message

# Added to page ids: their slots still fit into 32 bits, the offsets of elements do not.
FAR = (1 << 27) + 12_345
EMPTY_SPLIT = "A split without keys divides 0 by 0, and NaN weighed with 0 is NaN."  # a mistake
MAX_STEPS = 100_000  # of the kernels of a launch in the interpreter
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
        from pagedlab_lessons.puzzles import splits_for
        from pagedlab_lessons.tracer import interpreted

        if not INTERPRETED:
            return verdict(interpreted(f"pagedlab_lessons.checks:check.{name}", answer))
        if name == "split":
            compare(answer["my_splits"], splits_for, SPLIT_CASES)
        _check_decorators(answer)
        try_cases(cases, partial(_try, name, answer, mistakes))
        return proves

    run.__name__ = name
    run.__doc__ = f"The kernel of puzzle {name!r} in notebook 07."
    exercise(run)


def try_cases(cases: Cases, judge: Callable[..., None]) -> None:
    """Judge an answer case by case; a `Wrong` says in which case it was raised."""
    for title, case in cases.items():
        try:
            judge(**case)
        except Wrong as wrong:
            wrong.setup = f"{title}."
            raise


def verdict(result: Any) -> str:
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
    from pagedlab_lessons.fence import Memory
    from pagedlab_lessons.puzzles import PUZZLES

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
    run_watched(memory, lambda: puzzle.launch(answer, fenced, **options), answer, expected)
    # what puzzle 7 writes between its two kernels
    between = {label: x for label, x in memory.tensors.items() if label not in given}
    check_stores(memory, between | expected)
    got = {out: fenced[out] for out in expected}
    judged = Judged(memory, given, expected, got, once=name in ("grouped", "split"))
    check_numbers(judged, mistakes)


def _fenced(memory: Memory, given: dict[str, Any], far: bool) -> dict[str, Any]:
    """Put a kernel's arguments into watched memory, with page ids that are large if `far`."""
    if not far:
        return memory.put_all(given)
    table = "tables" if "tables" in given else "table"
    offset = FAR * given["k_cache"][0].numel()
    return memory.put_all(given | {table: given[table] + FAR}, k_cache=offset, v_cache=offset)


def run_watched(
    memory: Memory,
    launch: Callable[[], object],
    answer: Any,
    expected: Numbers,
    max_steps: int = MAX_STEPS,
) -> None:
    """Launch kernels and watch them.

    Args:
        memory: the fenced tensors.
        launch: launches the reader's kernels on them.
        answer: the reader's kernel, or several by name.
        expected: the right outputs.
        max_steps: after which the kernels count as endless.

    Raises:
        Wrong: If a kernel loads or stores outside of a tensor, raises an error or does not end.
    """
    from pagedlab_lessons.fence import Outside

    try:
        with bounded(max_steps):
            memory.run(launch)
    except Outside as error:
        raise _outside(error) from None
    except (Wrong, KeyboardInterrupt):
        raise
    except BaseException as error:  # exit() and its kin too
        cause = error.__cause__ or error  # Triton's interpreter wraps the kernel's own error
        message = _beginners_mistake(answer, cause) or "Your kernel raises an error."
        raise Wrong(message, _first(expected), explain(cause)) from None


@dataclass
class Judged:
    """The arguments of a launch and the tensors that it computed.

    Args:
        memory: the fenced tensors.
        given: the puzzle's arguments.
        expected: the right outputs.
        got: the outputs.
        once: whether each key has to be loaded by one program.
    """

    memory: Memory
    given: dict[str, Any]
    expected: Numbers
    got: Numbers
    once: bool


def check_numbers(judged: Judged, mistakes: Mistakes, hint: str = "") -> None:
    """Raise `Wrong` unless the outputs are right and keys are loaded once, if they have to be.

    Args:
        judged: the launch.
        mistakes: known mistakes.
        hint: the message if the outputs are wrong and no known mistake gives them.
    """
    expected = judged.expected
    got = judged.got
    wrong = _first_difference(expected, got)
    message = ""
    if wrong:
        if _nan_was_loaded(got, judged.memory):
            # NaN comes from memory, so it does not show that 0 was divided by 0.
            mistakes = {name: mistake for name, mistake in mistakes.items() if name != EMPTY_SPLIT}
        message = _known_mistake(judged.given, expected, got, mistakes) or hint
    if not message and judged.once:
        _check_loads(judged.memory, judged.given["k_cache"].shape)
    if not wrong:
        return
    # eight numbers of the row in which the first wrong number is
    first = wrong.column // 8 * 8
    part = slice(first, first + 8)
    columns = f"{first or ''}:{part.stop}"
    where = f"{wrong.out}[{', '.join([*map(str, wrong.row), columns])}]"
    rows = [x[wrong.out][wrong.row][part] for x in (expected, got)]
    message = message or _unnamed(got, judged.memory)
    raise Wrong(message, say(rows[0]), say(rows[1]), where)


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


def _outside(error: Outside) -> Wrong:
    """Return what to say of a load or store outside of a tensor."""
    cut = error.cut
    if cut:
        message = (
            "The offset of an element does not fit into 32 bits, so its upper bits are lost: make "
            "the page id\n64 bits wide, or a product of it that still fits."
        )
        inside = f"{cut.name}{[*cut.element]} is at offset {cut.meant:,}"
        got = f"program {error.program} {error.verb}s at offset {cut.got:,}, outside of {cut.name}"
        return Wrong(message, inside, got)
    inside = f"elements 0 to {error.size - 1} of {error.name}"
    got = f"program {error.program} {error.verb}s {error.where}"
    return Wrong(_reach(error), inside, got)


def _reach(error: Outside) -> str:
    if error.name in ("table", "tables"):
        return (
            "It loads outside of the table: position p is in page table[p // SIZE], and a mask "
            "keeps the rest out."
        )
    if error.element < 0:
        return f"It {error.verb}s before the start of {error.name}: look at the address."
    if error.element > 4 * error.size:
        return f"It {error.verb}s far outside of {error.name}: look at the address."
    if error.name in ("k_cache", "v_cache"):
        return (
            f"It {error.verb}s outside of {error.name}: is the mask missing, or the place in the "
            "page, p % SIZE?"
        )
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


def check_stores(memory: Memory, expected: Numbers) -> None:
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


def _nan_was_loaded(got: Numbers, memory: Memory) -> str:
    """Return the tensor of which unwritten elements were loaded, if NaN came out; else ""."""
    if any(x.isnan().any() for x in got.values()):
        return next((name for name in memory.loads if _loads_unwritten(memory, name)), "")
    return ""


def _unnamed(got: Numbers, memory: Memory) -> str:
    """Return what to say of wrong numbers that no known mistake gives."""
    if not any(x.isnan().any() for x in got.values()):
        return "It computes something else. The first row that differs:"
    name = _nan_was_loaded(got, memory)
    if name:
        return (
            f"NaN comes out: elements of {name} were loaded that nothing has written. 0 x NaN "
            "is NaN, so masking\nthe scores is not enough: the load needs a mask, and "
            "other=0.0."
        )
    return (
        "NaN comes out of the arithmetic: no load read an unwritten element. Look for 0 / 0, "
        "for\n0 x infinity, and for minus infinity subtracted from itself or used as a weight."
    )


def _loads_unwritten(memory: Memory, name: str) -> bool:
    """Return whether a program loaded an element of a tensor that no program has stored."""
    unwritten = memory.unwritten[name].copy()
    for store in memory.stores[name]:
        unwritten[store.elements] = False
    return any(unwritten[load.elements].any() for load in memory.loads[name])


# What a PyTorch user writes first -----------------------------------------------------------------


def _check_decorators(answer: Any) -> None:
    """Raise `Wrong` if a kernel has no `@triton.jit`."""
    for name, kernel in _parts(answer).items():
        if name != "my_splits" and inspect.isfunction(kernel):
            called = kernel.__name__
            message = f"{called} is a plain Python function: write @triton.jit above its def."
            raise Wrong(message, f"{called} is a Triton kernel", f"{called} is a Python function")


def _parts(answer: Any) -> dict[str, Any]:
    """Return the kernels and functions of an answer by name."""
    return answer if isinstance(answer, dict) else {"answer": answer}


def _beginners_mistake(answer: Any, error: BaseException) -> str:
    """Return a sentence for an error that a PyTorch user meets first, "" for all others."""
    said = text_of(error)
    if "'function' object is not subscriptable" in said:
        return "A kernel is launched that has no @triton.jit above its def."
    if "arange" in said and "constexpr" in said:
        return (
            "tl.arange takes numbers that are known when the kernel is compiled (tl.constexpr).\n"
            "Use a tile of constant size, and mask the elements past the end."
        )
    for part in _parts(answer).values():
        source = _source(getattr(part, "fn", part))
        name = _indexed_parameter(source)
        if name:
            return (
                f"{name}[...] indexes a tensor. In a kernel {name} is an address: "
                f"tl.load({name} + i) reads,\ntl.store({name} + i, value) writes."
            )
        if "torch." in source and isinstance(error, (NameError, TypeError)):
            return (
                "A kernel calls torch: inside a kernel only Triton's functions work (tl.exp, "
                "tl.sum)."
            )
    return ""


def _source(function: Callable[..., Any]) -> str:
    """Return a function's source, "" if there is none."""
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return ""


def _indexed_parameter(source: str) -> str:
    """Return the first parameter that a function indexes with [...], "" if there is none."""
    parameters: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg):
            parameters.add(node.arg)
    for node in ast.walk(ast.parse(source)):
        indexed = node.value if isinstance(node, ast.Subscript) else None
        if isinstance(indexed, ast.Name) and indexed.id in parameters:
            return indexed.id
    return ""
