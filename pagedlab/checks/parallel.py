"""Checks of notebook 11: a rank's part of an MLP, the heads it holds, the bytes that it sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import silu

from pagedlab.checks import (
    Wrong,
    agree,
    compared,
    exercise,
    first_wrong,
    say,
    shape,
    trying,
)
from pagedlab.checks.tensors import normal
from pagedlab.distributed.shards import ring_bytes


@exercise
def mlp_part(answer: Callable[..., Any]) -> str:
    """Rank's part of three weights [out, in] such that the parts' outputs add up to the whole
    MLP's.
    """

    def mlp(
        x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor
    ) -> torch.Tensor:
        return (silu(x @ gate.T) * (x @ up.T)) @ down.T

    randn = normal()
    for hidden, width, size in [(2, 2, 1), (2, 2, 2), (3, 4, 2), (4, 6, 3), (8, 16, 4), (16, 8, 8)]:
        weights, x = (
            (randn(width, hidden), randn(width, hidden), randn(hidden, width)),
            randn(3, hidden),
        )
        setup = f"hidden size {hidden}, MLP width {width}, {size} rank{'s' if size > 1 else ''}"
        expected = mlp(x, *weights)
        total = 0 * expected
        for rank in range(size):
            with trying(f"mlp_part(gate, up, down, rank={rank}, size={size})", setup=setup):
                parts = list(answer(*(weight.clone() for weight in weights), rank, size))
                message = (
                    "A rank holds one part in size of each weight: here are the shapes of gate, up "
                    "and down."
                )
                agree(
                    [[width // size, hidden]] * 2 + [[hidden, width // size]], shape(parts), message
                )
                total += mlp(x, *parts)
        if at := first_wrong(expected, total):
            message = "The sum over the ranks is another vector than the whole MLP's."
            step = f"sum of the outputs of the {size} parts, for one token"
            raise Wrong(message, say(expected[at[0]]), say(total[at[0]]), step, setup=setup)
    return (
        "Each rank holds its part of every weight, computes alone, and one sum at the end makes it "
        "whole."
    )


_MODELS = [(2, 1), (2, 2), (8, 2), (14, 2), (15, 5), (24, 6), (32, 8), (64, 8), (28, 4)]


@compared(
    "Right in all {} cases: every query head finds its KV head on its own rank.",
    [(rank, size, *model) for size in (1, 2, 4, 8) for model in _MODELS for rank in range(size)],
)
def heads_of_rank(
    rank: int, size: int, num_heads: int, num_kv_heads: int
) -> tuple[list[int], list[int]] | None:
    """The query heads and the KV heads of a rank, None if they cannot be shared evenly."""
    if num_heads % size or num_kv_heads % size:
        return None
    heads, kv_heads = num_heads // size, num_kv_heads // size
    return [*range(rank * heads, (rank + 1) * heads)], [
        *range(rank * kv_heads, (rank + 1) * kv_heads)
    ]


@compared(
    "Qwen2.5-0.5B in bf16 over two ranks: 84 KiB a token from each to the other. The token's keys "
    "and values,\n"
    "12 KiB, never travel.",
    [(1, 4, 1, 2), (1, 4, 1, 1), (1, 4, 2, 4), (5, 256, 4, 2), (24, 896, 2, 2), (80, 8192, 2, 8)],
)
def wire_bytes(num_layers: int, hidden_size: int, dtype_bytes: int, size: int) -> float:
    """Bytes that each of `size` ranks sends for one token, by ring all-reduce, two a layer."""
    return ring_bytes(2 * num_layers * hidden_size * dtype_bytes, size)
