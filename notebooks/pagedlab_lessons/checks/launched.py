"""The check of notebook 07's puzzle 8: a reader's own kernels, and the function that launches them.

The names and parameters of the kernels are the reader's. The check calls the function, watches what
its programs load and store, and compares what it returns with attention. watched.py runs the
kernels.
"""

from functools import partial
from typing import Any

import torch

from pagedlab_lessons.checks.kernel import (
    GROUPS,
    LARGE_GROUP,
    LOUD,
    OF_ATTENTION,
    OF_SPLIT,
    ONE_HEAD,
)
from pagedlab_lessons.checks.protocol import Wrong, shape
from pagedlab_lessons.checks.watched import (
    Cases,
    check_numbers,
    check_stores,
    exercise_of_kernels,
    put_far,
    run_watched,
    try_cases,
)
from pagedlab_lessons.kernels07.puzzles import BATCH, PUZZLES
from pagedlab_lessons.kernels07.watch import Allocations, Memory

LONG = {"size": 16, "heads": 2, "kv_heads": 1}
CASES: Cases = {
    "One sequence of 8 keys in two pages of 4": {"lengths": (8,), **ONE_HEAD},
    "13 keys; slots past the end hold NaN": {"lengths": (13,), **ONE_HEAD},
    "8 keys, four query heads on two KV heads": {"lengths": (8,)},
    **GROUPS,
    **LOUD,
    "18 query heads on one KV head": LARGE_GROUP,
    "9 keys of 32 dimensions in pages of 8": {"lengths": (9,), "size": 8, "dim": 32, **ONE_HEAD},
    "Three sequences; the rows of the table are tables.stride(0) elements apart, more than its "
    "width": {"wider": 3},
    "9 keys, and page ids beyond 2^27": {"lengths": (9,), "far": True},
    "700 keys; the very last scores highest": {"lengths": (700,), "loudest": 699, **LONG},
    "700 keys and 5 keys: most splits of the short sequence have no keys": {
        "lengths": (700, 5),
        **LONG,
    },
}


@exercise_of_kernels
def launch(answer: Any) -> str:
    """my_attention(q, k_cache, v_cache, tables, seq_lens): attention by the reader's own kernels.

    It runs in Triton's interpreter.
    """
    try_cases(CASES, partial(_try, answer))
    return (
        "Kernel, merge and launch: attention over pages from nothing but torch and triton. A long\n"
        "sequence is shared by several programs, and each key is loaded once."
    )


def _try(answer: Any, far: bool = False, wider: int = 0, **case: Any) -> None:
    """Call the reader's function once and judge what it did.

    Args:
        answer: the function.
        far: whether all page ids are large.
        wider: elements after each row of the tables.
        case: arguments of the puzzle's `given`.
    """
    memory = Memory()
    given = PUZZLES["grouped"].given(**case)
    expected = PUZZLES["grouped"].expected(given)
    inputs = {name: given[name] for name in BATCH}
    width = inputs["tables"].shape[1]
    inputs["tables"] = torch.nn.functional.pad(inputs["tables"], (0, wider))
    fenced = put_far(memory, inputs) if far else memory.put_all(inputs)
    fenced["tables"] = fenced["tables"][:, :width]
    got = {}

    def call() -> None:
        with Allocations(memory):
            got["out"] = answer(*fenced.values())

    run_watched(memory, call, _kernels(answer), 1_000_000)
    _check_result(got["out"], expected["out"], memory)
    hint = ""
    if wider:
        hint = "The rows of the table are tables.stride(0) elements apart, not tables.shape[1]."
    check_numbers(memory, given, expected, got, OF_SPLIT | OF_ATTENTION, hint)
    _check_split(memory, max(given["seq_lens"]))


def _kernels(answer: Any) -> dict[str, Any]:
    """Return the Triton kernels that a function launches, by name."""
    used = {name: answer.__globals__.get(name) for name in answer.__code__.co_names}
    return {name: kernel for name, kernel in used.items() if hasattr(kernel, "fn")}


def _check_result(out: Any, expected: torch.Tensor, memory: Memory) -> None:
    """Raise `Wrong` unless the function returns a tensor of the right shape that a kernel wrote."""
    wanted = f"a tensor {shape(expected)}"
    if out is None:
        raise Wrong("It returns None: is a `return` missing?", wanted, "None")
    if not isinstance(out, torch.Tensor) or out.shape != expected.shape:
        raise Wrong("It returns something of another shape.", wanted, shape(out))
    for name, tensor in memory.tensors.items():
        if tensor.data_ptr() == out.data_ptr() and memory.stores[name]:
            check_stores(memory, {name: out})
            return
    message = "No kernel stores into the tensor that is returned."
    raise Wrong(message, "stores into it", "none")


def _check_split(memory: Memory, keys: int) -> None:
    """Raise `Wrong` if one program reads a long sequence alone."""
    programs = {load.program for load in memory.loads["k_cache"]}
    if keys >= 700 and len(programs) < 2:
        message = "One program reads all 700 keys, and the rest of a GPU would be idle. Split them."
        raise Wrong(message, "2 programs or more load keys", f"only program {programs.pop()} does")
