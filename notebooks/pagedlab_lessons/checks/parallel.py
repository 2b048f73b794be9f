"""Checks of notebook 11: a rank's part of an MLP, the heads it holds, the bytes that it sends."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from pagedlab.recipes.ranks.shards import ring_bytes
from pagedlab_lessons.checks.protocol import Wrong, compared, exercise, first_wrong, say, trying
from pagedlab_lessons.checks.tensors import check_shapes, normal

_SIZES = [
    (2, 2, 1),
    (2, 2, 2),
    (3, 4, 2),
    (4, 6, 3),
    (8, 16, 4),
    (16, 8, 8),
]  # hidden, width, ranks


def _mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Return the output of an MLP, or of a rank's part of one."""
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


@exercise
def mlp_part(answer: Any) -> str:
    """mlp_part(gate, up, down, rank, size): a rank's part of three weights [out, in].

    The outputs of all parts add up to the whole MLP's.
    """
    for hidden, width, size in _SIZES:
        _check_parts(answer, hidden, width, size)
    return (
        "Each rank holds its part of every weight and computes alone; one sum at the end gives the "
        "whole output."
    )


def _check_parts(answer: Any, hidden: int, width: int, size: int) -> None:
    """Raise `Wrong` unless the parts have the right shapes and the right sum."""
    randn = normal()
    weights = [randn(width, hidden), randn(width, hidden), randn(hidden, width)]
    x = randn(3, hidden)
    setup = f"hidden size {hidden}, MLP width {width}, {size} rank{'s' if size > 1 else ''}"
    part = width // size
    shapes = [[part, hidden], [part, hidden], [hidden, part]]
    expected = _mlp(x, *weights)
    total = torch.zeros_like(expected)
    for rank in range(size):
        with trying(f"mlp_part(gate, up, down, rank={rank}, size={size})", setup=setup):
            parts = list(answer(*(weight.clone() for weight in weights), rank, size))
            message = (
                f"A rank holds one part in {size} of each weight: here are the shapes of gate, up "
                "and down."
            )
            check_shapes(shapes, parts, message)
            total += _mlp(x, *parts)
    at = first_wrong(expected, total)
    if at:
        message = "The sum over the ranks is another vector than the whole MLP's."
        step = f"sum of the outputs of the {size} parts, for one token"
        raise Wrong(message, say(expected[at[0]]), say(total[at[0]]), step, setup=setup)


_MODELS = [(2, 1), (2, 2), (8, 2), (14, 2), (15, 5), (24, 6), (32, 8), (64, 8), (28, 4)]


def _share(num_heads: int, rank: int, size: int) -> list[int]:
    """Return the heads of a rank: neighbours."""
    each = num_heads // size
    return list(range(rank * each, (rank + 1) * each))


@compared(
    "Right in all {} cases: every query head finds its KV head on its own rank.",
    [(rank, size, *model) for size in (1, 2, 4, 8) for model in _MODELS for rank in range(size)],
)
def heads_of_rank(
    rank: int, size: int, num_heads: int, num_kv_heads: int
) -> tuple[list[int], list[int]] | None:
    """The query heads and the KV heads of a rank, None if they cannot be shared evenly.

    A KV head is never on two ranks.
    """
    if num_heads % size or num_kv_heads % size:
        return None
    return _share(num_heads, rank, size), _share(num_kv_heads, rank, size)


@compared(
    "Qwen2.5-0.5B in bf16 over two ranks: 84 KiB a token from each to the other. The token's keys "
    "and values,\n"
    "12 KiB, never travel.",
    [(1, 4, 1, 2), (1, 4, 1, 1), (1, 4, 2, 4), (5, 256, 4, 2), (24, 896, 2, 2), (80, 8192, 2, 8)],
)
def wire_bytes(num_layers: int, hidden_size: int, dtype_bytes: int, size: int) -> float:
    """Bytes that each of `size` ranks sends for one token, by ring all-reduce, two a layer."""
    return ring_bytes(2 * num_layers * hidden_size * dtype_bytes, size)
