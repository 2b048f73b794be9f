"""Run the kernels of notebook 07's puzzles in Triton's interpreter and watch each load and store.

A wrong kernel gets a message that names its mistake where possible: a load or store outside of a
tensor, an element of the output that no program or several programs store, NaN from a slot without
a token, or numbers that a known mistake gives.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from pagedlab.kernels.runtime import INTERPRETED
from pagedlab_lessons.checks.protocol import Check, Wrong, compare, exercise, first_wrong, say
from pagedlab_lessons.kernels07.puzzles import PUZZLES, splits_for
from pagedlab_lessons.kernels07.watch import Memory, Outside, interpreted
from pagedlab_lessons.readers_code import bounded, explain, text_of

Case = dict[str, Any]  # arguments of a puzzle's `given`
Cases = dict[str, Case]  # by what a case can show
Mistakes = dict[str, Callable[[Any], Any]]  # message -> from a puzzle's arguments to wrong outputs
Numbers = dict[str, torch.Tensor]  # outputs by name

# Added to page ids: their slots still fit into 32 bits, the offsets of elements do not.
FAR = (1 << 27) + 12_345
EMPTY_SPLIT = "A split without keys divides 0 by 0, and NaN weighed with 0 is NaN."  # a mistake
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


def exercise_of_kernels(function: Callable[[Any], str]) -> Check:
    """Register a check of kernels. Where Triton compiles, it runs in a process that interprets."""

    @wraps(function)
    def run(answer: Any) -> Any:
        if INTERPRETED:
            return function(answer)
        return interpreted(f"pagedlab_lessons.checks:check.{function.__name__}", answer)

    return exercise(run)


def puzzle(name: str, cases: Cases, mistakes: Mistakes, proves: str) -> None:
    """Register the check of a puzzle.

    Args:
        name: of the check and of the puzzle.
        cases: launches to try, small ones first.
        mistakes: known mistakes.
        proves: what a right kernel does.
    """

    def run(answer: Any) -> str:
        if name == "split":
            compare(answer["my_splits"], splits_for, SPLIT_CASES)
        _check_decorators(answer)
        try_cases(cases, partial(_try, name, answer, mistakes))
        return proves

    run.__name__ = name
    run.__doc__ = f"The kernel of puzzle {name!r} in notebook 07."
    exercise_of_kernels(run)


def try_cases(cases: Cases, judge: Callable[..., None]) -> None:
    """Judge an answer case by case; a `Wrong` says in which case it was raised."""
    for title, case in cases.items():
        try:
            judge(**case)
        except Wrong as wrong:
            wrong.setup = f"{title}."
            raise


def _try(
    name: str,
    answer: Any,
    mistakes: Mistakes,
    far: bool = False,
    splits: int = 0,
    **case: Any,
) -> None:
    """Launch a puzzle's kernel once and judge what it did.

    Args:
        name: of the puzzle.
        answer: the reader's kernel, or the parts of puzzle 7.
        mistakes: known mistakes.
        far: whether all page ids are large.
        splits: of each sequence in puzzle 7.
        case: arguments of the puzzle's `given`.
    """
    memory = Memory()
    given = PUZZLES[name].given(**case)
    expected = PUZZLES[name].expected(given)
    fenced = put_far(memory, given) if far else memory.put_all(given)
    options: dict[str, Any] = {}
    if splits:
        options = {"splits": splits, "put": lambda label, x: memory.put(label, x.fill_(math.nan))}
    launch = partial(PUZZLES[name].launch, answer, fenced, **options)
    run_watched(memory, launch, answer, 100_000)
    # what puzzle 7 writes between its two kernels
    between = {label: x for label, x in memory.tensors.items() if label not in given}
    check_stores(memory, between | expected)
    check_numbers(memory, given, expected, fenced, mistakes)


def put_far(memory: Memory, given: dict[str, Any]) -> dict[str, Any]:
    """Put a kernel's arguments into watched memory, with page ids that are larger by `FAR`."""
    table = "tables" if "tables" in given else "table"
    offset = FAR * given["k_cache"][0].numel()
    return memory.put_all(given | {table: given[table] + FAR}, k_cache=offset, v_cache=offset)


def run_watched(memory: Memory, launch: Callable[[], object], answer: Any, max_steps: int) -> None:
    """Launch kernels and watch them.

    Args:
        memory: the fenced tensors.
        launch: launches the reader's kernels on them.
        answer: the reader's kernel, or several by name.
        max_steps: after which the kernels count as endless.

    Raises:
        Wrong: If a kernel loads or stores outside of a tensor, raises an error or does not end.
    """
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
        raise Wrong(message, "no error", explain(cause)) from None


def check_numbers(
    memory: Memory,
    given: dict[str, Any],
    expected: Numbers,
    got: Numbers,
    mistakes: Mistakes,
    hint: str = "",
) -> None:
    """Raise `Wrong` unless the outputs are right and grouped kernels load each key once.

    Args:
        memory: of the launch.
        given: the puzzle's arguments.
        expected: the right outputs.
        got: the outputs, and maybe more.
        mistakes: known mistakes.
        hint: the message if the outputs are wrong and no known mistake gives them.
    """
    wrong = [
        (out, at) for out, x in expected.items() if (at := first_wrong(x, got[out], TOLERANCE))
    ]
    message = ""
    nan = any(got[out].isnan().any() for out in expected)
    unwritten = [name for name in memory.loads if nan and _loads_unwritten(memory, name)]
    if wrong:
        message = hint
        for name, mistake in mistakes.items():
            # NaN from memory does not show that 0 was divided by 0.
            if not (unwritten and name == EMPTY_SPLIT) and _gives(mistake, given, expected, got):
                message = name
                break
    if not message and "ROWS" in given:
        _check_loads(memory, given["k_cache"].shape)
    if not wrong:
        return
    out, (*row, column) = wrong[0]
    # eight numbers of the row in which the first wrong number is
    first = column // 8 * 8
    columns = f"{first or ''}:{first + 8}"
    where = f"{out}[{', '.join([*map(str, row), columns])}]"
    rows = [say(x[out][tuple(row)][first : first + 8]) for x in (expected, got)]
    raise Wrong(message or _unnamed(nan, unwritten), *rows, where)


def _gives(
    mistake: Callable[[Any], Any], given: dict[str, Any], expected: Numbers, got: Numbers
) -> bool:
    """Return whether a mistake gives exactly these outputs."""
    computed = mistake(SimpleNamespace(**given))
    outputs = computed if isinstance(computed, tuple) else (computed,)
    pairs = zip((got[out] for out in expected), outputs, strict=True)
    return all(x.isclose(y, rtol=1e-4, atol=1e-5, equal_nan=True).all() for x, y in pairs)


def _loads_unwritten(memory: Memory, name: str) -> bool:
    """Return whether a program loaded an element of a tensor that no program has stored."""
    unwritten = memory.unwritten[name].copy()
    for store in memory.stores[name]:
        unwritten[store.elements] = False
    return any(unwritten[load.elements].any() for load in memory.loads[name])


def _unnamed(nan: bool, unwritten: list[str]) -> str:
    """Return what to say of wrong numbers that no known mistake gives.

    Args:
        nan: whether NaN came out.
        unwritten: tensors of which elements were loaded that nothing has written.
    """
    if not nan:
        return "It computes something else. The first row that differs:"
    if unwritten:
        return (
            f"NaN comes out: elements of {unwritten[0]} were loaded that nothing has written. "
            "0 x NaN is NaN, so masking\nthe scores is not enough: the load needs a mask, and "
            "other=0.0."
        )
    return (
        "NaN comes out of the arithmetic: no load read an unwritten element. Look for 0 / 0, "
        "for\n0 x infinity, and for minus infinity subtracted from itself or used as a weight."
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
    reason = "a mask has to keep that out."
    if not 0 <= error.element <= 4 * error.size:
        reason = "look at the address."
    elif error.name in ("k_cache", "v_cache"):
        reason = "is the mask missing, or the place in the page, p % SIZE?"
    return f"It {error.verb}s outside of {error.name}: {reason}"


def _at(shape: Sequence[int], element: int) -> list[int]:
    """Return the indices of an element that is given by its place in the flat tensor."""
    return [int(place) for place in np.unravel_index(element, shape)]


def _programs(accesses: list[Any]) -> dict[int, list[Any]]:
    """Return the programs that load or store each element, in their order."""
    programs = defaultdict[int, list[Any]](list)
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
                one = f"one program stores {out}{_at(numbers.shape, element)}"
                raise Wrong(message, one, f"programs {storing[0]} and {storing[1]} both do")
        missing = sorted({*range(numbers.numel())} - {*programs})
        if missing:
            every = f"all {numbers.numel()} elements of {out} stored"
            none = f"no program stores {out}{_at(numbers.shape, missing[0])}"
            raise Wrong(f"Not all of {out} is written.", every, f"{len(programs)} are; {none}")


def _check_loads(memory: Memory, shape: Sequence[int]) -> None:
    """Raise `Wrong` if several programs load the same element of the keys."""
    for element, programs in _programs(memory.loads["k_cache"]).items():
        if len(programs) > 1:
            message = (
                "Several programs load the same keys. Each has its own: those of its KV head, and "
                "of its split."
            )
            some = f"{len(programs)} of them load k_cache{_at(shape, element)}"
            raise Wrong(message, "one program for each element of the keys", some)


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
        source = _source(part)
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


def _source(part: Any) -> str:
    """Return a function's or kernel's source, "" if there is none."""
    try:
        return textwrap.dedent(inspect.getsource(getattr(part, "fn", part)))
    except (OSError, TypeError):
        return ""


def _indexed_parameter(source: str) -> str:
    """Return the first parameter that a function indexes with [...], "" if there is none."""
    nodes = [*ast.walk(ast.parse(source))]
    parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
    indexed = [ast.unparse(node.value) for node in nodes if isinstance(node, ast.Subscript)]
    return next((name for name in indexed if name in parameters), "")
