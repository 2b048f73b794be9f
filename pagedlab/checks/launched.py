"""The check of notebook 07's eighth puzzle: a reader's own kernels, and the function that launches them.

The names and parameters of the kernels are the reader's. The check calls the function, watches what its
programs load and store, and compares what it returns with attention. watched.py runs the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pagedlab.checks import Wrong, exercise, first_wrong, say, shape
from pagedlab.checks.kernel import OF_ATTENTION, merge_mistakes
from pagedlab.checks.watched import (
    FAR,
    loaded_once,
    named_mistake,
    run_watched,
    stored_once,
    unnamed_mistake,
)

if TYPE_CHECKING:
    import torch

ONE_HEAD = {"heads": 1, "kv_heads": 1}
LONG = {"size": 16, "heads": 2, "kv_heads": 1}
CASES: dict[str, dict[str, Any]] = {
    "One sequence of 8 keys in two pages of 4": {"lengths": (8,), **ONE_HEAD},
    "13 keys; slots past the end hold NaN": {"lengths": (13,), **ONE_HEAD},
    "8 keys, four query heads on two KV heads": {"lengths": (8,)},
    "Three query heads on one KV head": {"lengths": (9,), "heads": 3, "kv_heads": 1},
    "Three sequences; the rows of the table are tables.stride(0) elements apart, more than its width": {
        "wider": 3
    },
    "9 keys, and page ids beyond 2^27": {"lengths": (9,), "far": True},
    "700 keys; the very last scores highest": {"lengths": (700,), "loudest": 699, **LONG},
    "700 keys and 5 keys: most splits of the short sequence have no keys": {
        "lengths": (700, 5),
        **LONG,
    },
}


@exercise
def launch(answer: Any) -> str:
    """Kernel, merge and launch of the reader's own, in the interpreter."""
    from pagedlab.kernels.runtime import INTERPRETED
    from pagedlab.lessons.tracer import interpreted

    if not INTERPRETED:
        result = interpreted("pagedlab.checks:check.launch", answer)
        if result.status == "passed":
            return str(result.message)
        steps = result.operations
        raise Wrong(result.message, result.expected, result.got, *steps, setup=result.setup)
    for said, case in CASES.items():
        try:
            _try(answer, **case)
        except Wrong as wrong:
            wrong.setup = f"{said}."
            raise
    return (
        "Kernel, merge and launch: attention over pages from nothing but torch and triton. A long\n"
        "sequence is shared by several programs, and each key is loaded once."
    )


def _try(answer: Any, far: bool = False, wider: int = 0, **case: Any) -> None:
    """Call the reader's function on one case; `Wrong` unless it is right."""
    from pagedlab.lessons.fence import Allocations, Memory
    from pagedlab.lessons.puzzles import PUZZLES

    puzzle, memory = PUZZLES["grouped"], Memory()
    given = puzzle.given(**case)
    expected = puzzle.expected(given)
    q, keys, values, tables, lengths = (
        given[name] for name in ("q", "k_cache", "v_cache", "tables", "seq_lens")
    )
    offset = FAR * keys[0].numel() if far else 0
    width = tables.shape[1]
    wide = tables.new_zeros(len(tables), width + wider)
    wide[:, :width] = tables + (FAR if far else 0)
    arguments = (
        memory.put("q", q),
        memory.put("k_cache", keys, offset),
        memory.put("v_cache", values, offset),
        memory.put("tables", wide)[:, :width],
        memory.put("seq_lens", lengths),
    )
    returned: list[Any] = []

    def call() -> None:
        with Allocations(memory):
            returned.append(answer(*arguments))

    run_watched(memory, call, _kernels(answer), expected, far, most_steps=1_000_000)
    out = _result(returned[0], expected["out"], memory)
    hint = "The rows of the table are tables.stride(0) elements apart, not tables.shape[1]."
    _compare(out, expected, given, memory, hint if wider else "")
    _is_split(memory, max(case.get("lengths", (0,))))


def _kernels(answer: Callable[..., Any]) -> dict[str, Any]:
    """The Triton kernels that a function launches, by name."""
    used = {name: answer.__globals__.get(name) for name in answer.__code__.co_names}
    return {name: kernel for name, kernel in used.items() if hasattr(kernel, "fn")}


def _result(out: Any, expected: torch.Tensor, memory: Any) -> torch.Tensor:
    """What the function returned, if it is a tensor of the right shape and a kernel has run."""
    import torch

    wanted = f"a tensor {shape(expected)}"
    if out is None:
        raise Wrong("It returns None: is a `return` missing?", wanted, "None")
    if not isinstance(out, torch.Tensor) or out.shape != expected.shape:
        raise Wrong("It returns something of another shape.", wanted, shape(out))
    if not any(memory.stores.values()):
        raise Wrong("No kernel has stored anything: is it launched?", "a launch", "no store")
    storage = out.untyped_storage().data_ptr()
    for name, tensor in memory.tensors.items():
        if tensor.untyped_storage().data_ptr() == storage:
            if not memory.stores[name]:
                message = "No kernel stores into the tensor that is returned."
                raise Wrong(message, "stores into it", "none")
            stored_once(memory, {name: out})
    return out


def _compare(
    out: torch.Tensor,
    expected: dict[str, torch.Tensor],
    given: dict[str, Any],
    memory: Any,
    hint: str,
) -> None:
    """`Wrong` for the first row that differs, with the name of the mistake if it is known."""
    at = first_wrong(expected["out"], out, within=2e-5)
    if not at:
        loaded_once(memory, given["k_cache"].shape)
        return
    got = {"out": out}
    message = named_mistake(given, expected, got, merge_mistakes() | OF_ATTENTION) or hint
    if not message:
        loaded_once(memory, given["k_cache"].shape)
    *row, i = at
    part = slice(i // 8 * 8, i // 8 * 8 + 8)
    where = f"out[{', '.join(map(str, row))}, {part.start}:{part.stop}]"
    both = (say(x[tuple(row)][part]) for x in (expected["out"], out))
    raise Wrong(message or unnamed_mistake(got, memory), *both, where)


def _is_split(memory: Any, keys: int) -> None:
    """`Wrong` if one program reads a long sequence alone."""
    programs = {load.program for load in memory.loads["k_cache"]}
    if keys >= 700 and len(programs) < 2:
        message = "One program reads all 700 keys, and the rest of a GPU would be idle. Split them."
        raise Wrong(message, "2 programs or more load keys", f"only program {programs.pop()} does")
