"""Checks of kernels: run them in Triton's interpreter, and watch each load and store.

A wrong kernel gets a message that names its mistake where possible: a load or store outside of a
tensor, an element of the output that no program or several programs store, NaN from a slot without
a token, or numbers that a known mistake gives.
"""

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from pagedlab.kernels.runtime import INTERPRETED
from pagedlab_lessons.checks import (
    CheckResult,
    Function,
    Wrong,
    check,
    compare,
    register,
    same,
    shape,
    shown,
    trying,
)
from pagedlab_lessons.kernels07.puzzles import BATCH, PUZZLES, Given, splits_for
from pagedlab_lessons.kernels07.watch import Memory, Outside, interpreted

Cases = dict[str, Given]  # by what a case can show: arguments of a puzzle's `given`
Mistakes = dict[str, Function]  # message -> from a puzzle's arguments to wrong outputs
Numbers = dict[str, torch.Tensor]  # outputs by name

# Added to page ids: their slots still fit into 32 bits, the offsets of elements do not.
FAR = (1 << 27) + 12_345
TOLERANCE = 2e-5  # relative and absolute, of fp32 numbers
SPLIT_CASES = [  # batch, KV heads, tokens, multiprocessors
    (1, 8, 16_384, 132),
    (256, 2, 1_024, 132),
    (1, 2, 255, 132),
    (1, 2, 256, 132),
    (5, 2, 700, 108),
]
CROWDED = {  # what to say if several programs load or store an element of a tensor
    "store": "Two programs store the same element of {}. Each has its own share: its number says\n"
    "which one, and a mask keeps it from its neighbour's.",
    "load": "Several programs load the same keys. Each has its own: those of its KV head, and of "
    "its split.",
}
# What a PyTorch user writes first, by a part of the error that it raises.
BEGINNERS = {
    "'function' object": "A kernel is launched that has no @triton.jit above its def.",
    "tl.constexpr": "tl.arange takes numbers that are known when the kernel is compiled "
    "(tl.constexpr).\nUse a tile of constant size, and mask the elements past the end.",
    "object is not iterable": "x[...] does not index a tensor. In a kernel x is an address: "
    "tl.load(x + i) reads,\ntl.store(x + i, value) writes.",
    "must be Tensor": "A kernel calls torch: inside a kernel only Triton's functions work (tl.exp, "
    "tl.sum).",
}


def puzzle(name: str, cases: Cases, mistakes: Mistakes, proves: str) -> None:
    """Register the check of a puzzle. Where Triton compiles, a process that interprets runs it.

    Args:
        name: of the check and of the puzzle.
        cases: launches to try, small ones first.
        mistakes: known mistakes.
        proves: what a right kernel does.
    """

    def run(answer: Any) -> Any:
        if not INTERPRETED:
            return _judged_there(name, answer)
        if name == "split":
            compare(answer["my_splits"], splits_for, SPLIT_CASES)
        for title, case in cases.items():
            try:
                _try(name, answer, mistakes, **case)
            except Wrong as wrong:
                wrong.setup = f"{title}."
                raise
        return proves

    run.__doc__ = f"The kernel of puzzle {name!r} in notebook 07."
    register(name, run, run)


@interpreted
def _judged_there(name: str, answer: Any) -> CheckResult:
    """Return the result of a check. Another process looks it up by its name."""
    return getattr(check, name)(answer)


def _try(
    name: str,
    answer: Any,
    mistakes: Mistakes,
    far: bool = False,
    splits: int = 3,
    **case: Any,
) -> None:
    """Launch a puzzle's kernel once and judge what it did.

    Args:
        name: of the puzzle; "launch" is puzzle 8.
        answer: the reader's kernel, the parts of puzzle 7, or the function of puzzle 8.
        mistakes: known mistakes.
        far: whether all page ids are large.
        splits: of each sequence in puzzle 7.
        case: arguments of the puzzle's `given`.
    """
    memory = Memory()
    puzzle = PUZZLES.get(name, PUZZLES["grouped"])
    given = puzzle.given(**case)
    expected = puzzle.expected(given)
    offset = FAR * given["k_cache"][0].numel() if far else 0
    moved = {each: given[each] + FAR for each in ("table", "tables") if far and each in given}
    fenced = memory.put_all(given | moved, k_cache=offset, v_cache=offset)
    if name == "launch":
        _watch(memory, lambda: fenced.update(out=answer(*(fenced[part] for part in BATCH))), far)
        written = [_returned(memory, expected["out"], fenced["out"])]
    else:
        memory.names = iter(["logs", "parts"])
        _watch(memory, lambda: puzzle.launch(answer, fenced, splits), far)
        # what puzzle 7 writes between its two kernels comes first
        written = [*(label for label in memory.tensors if label not in given), *expected]
    for label in written:
        _check_shares(memory, "store", label)
    _check_numbers(memory, given, expected, fenced, mistakes)
    programs = {load.program for load in memory.accesses["load", "k_cache"]}
    if name == "launch" and max(given["seq_lens"]) >= 700 and len(programs) < 2:
        message = "One program reads all 700 keys, and the rest of a GPU would be idle. Split them."
        raise Wrong(message, "2 programs or more load keys", "1 program does")


def _returned(memory: Memory, expected: torch.Tensor, out: Any) -> str:
    """Return the name that `memory` has for what the function of puzzle 8 returns."""
    if shape(out) != shape(expected):
        message = f"It has to return a tensor {shape(expected)}: is a `return` missing?"
        raise Wrong(message, "a tensor of this shape", repr(out))
    labels = (label for label, x in memory.tensors.items() if x.data_ptr() == out.data_ptr())
    return next(labels, "out")


def _watch(memory: Memory, launch: Callable[[], object], is_far: bool) -> None:
    """Launch kernels and watch them.

    Args:
        memory: watches.
        launch: launches them.
        is_far: whether page ids are large.

    Raises:
        Wrong: If a kernel loads or stores outside of a tensor, raises an error or does not end.
    """
    try:
        with trying(message="Your kernel raises an error."):
            try:
                memory.run(launch)
            except Outside as error:
                raise _outside(error, is_far) from None
            except Exception as error:  # the interpreter wraps the kernel's own error
                raise error.__cause__ or error from None
    except Wrong as wrong:
        for part, said in BEGINNERS.items():
            if part in str(wrong.got):
                wrong.message = said
        raise


def _check_numbers(
    memory: Memory, given: Given, expected: Numbers, got: Numbers, mistakes: Mistakes
) -> None:
    """Raise `Wrong` unless the outputs are right and grouped kernels load each key once.

    Args:
        memory: of the launch.
        given: the puzzle's arguments.
        expected: the right outputs.
        got: the outputs, and maybe more.
        mistakes: known mistakes.
    """
    wrong = [out for out, x in expected.items() if not same(x, got[out], TOLERANCE)]
    known = (name for name, gives in mistakes.items() if _gives(gives, given, expected, got))
    message = next(known, "") if wrong else ""
    if not message and "ROWS" in given:
        _check_shares(memory, "load", "k_cache")
    for out in wrong[:1]:
        message = message or _unnamed(memory, bool(got[out].isnan().any()))
        raise Wrong(message, *shown(expected[out], got[out], TOLERANCE), [out])


def _gives(mistake: Function, given: Given, expected: Numbers, got: Numbers) -> bool:
    """Return whether a mistake gives exactly these outputs."""
    computed = mistake(SimpleNamespace(**given))
    outputs = computed if isinstance(computed, tuple) else (computed,)
    pairs = zip((got[out] for out in expected), outputs, strict=True)
    return all(x.isclose(y, rtol=1e-4, atol=1e-5, equal_nan=True).all() for x, y in pairs)


def _unnamed(memory: Memory, is_nan: bool) -> str:
    """Return what to say of wrong numbers that no known mistake gives."""
    if not is_nan:
        return "It computes something else. The first row that differs:"
    if memory.empty_load:
        return (
            f"NaN comes out: elements of {memory.empty_load} were loaded that nothing has written. "
            "0 x NaN is NaN, so masking\nthe scores is not enough: the load needs a mask, and "
            "other=0.0."
        )
    return (
        "NaN comes out of the arithmetic. Look for 0 / 0, as in a split without keys, for\n"
        "0 x infinity, and for minus infinity subtracted from itself or used as a weight."
    )


def _outside(error: Outside, is_far: bool) -> Wrong:
    """Return what to say of a load or store outside of a tensor.

    Args:
        error: the load or store.
        is_far: whether page ids are large. Cases with small ones have passed.
    """
    got = f"program {error.program} {error.verb}s {error.where}"
    if is_far:
        message = (
            "The offset of an element does not fit into 32 bits, so its upper bits are lost: make "
            "the page id\n64 bits wide, or a product of it that still fits."
        )
        return Wrong(message, "an offset of more than 2^31 in a cache", got)
    hint = "a mask has to keep that out."
    if error.name in ("table", "tables"):
        hint = "position p is in page table[p // SIZE], and a mask keeps the rest out."
    elif error.name in ("k_cache", "v_cache"):
        hint = "is the mask missing, or the place in the page, p % SIZE?"
    inside = f"elements 0 to {error.size - 1} of {error.name}"
    return Wrong(f"It {error.verb}s outside of {error.name}: {hint}", inside, got)


def _check_shares(memory: Memory, verb: str, name: str) -> None:
    """Raise `Wrong` unless one program stores each element of a tensor, or at most one loads it.

    Args:
        memory: of the launch.
        verb: "store" or "load".
        name: of the tensor.
    """
    accesses = memory.accesses[verb, name]
    pairs = {(element, access.program) for access in accesses for element in [*access.elements]}
    programs = Counter(element for element, _ in pairs)
    x = memory.tensors[name]
    for element in range(x.numel()):
        count = programs[element]
        if count == 1 or (verb == "load" and not count):
            continue
        message = CROWDED[verb] if count else "Not all of {} is written."
        place = f"{name}{[*map(int, np.unravel_index(element, x.shape))]}"
        raise Wrong(message.format(name), f"one program {verb}s {place}", f"{count} programs do")
