"""Checks of notebook 11: a rank's part of an MLP, the heads it holds, the bytes that it sends."""

import torch
from torch import Tensor
from torch.nn.functional import silu

from pagedlab.recipes.ranks.shards import ring_bytes
from pagedlab_lessons.checks import Function, agree, compared, normal, shape


def _sum_of_parts(part: Function, hidden: int, width: int, size: int) -> Tensor:
    """Return the sum over the ranks of the outputs of their parts, for one token."""
    randn = normal()
    x = randn(1, hidden)
    gate, up = randn(2, width, hidden)
    down = randn(hidden, width)
    each = width // size
    total = torch.zeros_like(x)
    for rank in range(size):
        parts = list(part(gate.clone(), up.clone(), down.clone(), rank, size))
        message = f"A rank holds one part in {size} of each weight: the shapes of gate, up, down."
        agree([[each, hidden], [each, hidden], [hidden, each]], shape(parts), message)
        my_gate, my_up, my_down = parts
        total += (silu(x @ my_gate.T) * (x @ my_up.T)) @ my_down.T
    return total


@compared(
    "Each rank holds its part of every weight and computes alone; one sum at the end gives the "
    "whole output.",
    [(2, 2, 1), (2, 2, 2), (3, 4, 2), (4, 6, 3)],
    through=_sum_of_parts,
    told="mlp_part(gate, up, down, rank, {2})  # hidden size {0}, MLP width {1}",
    why="The sum over the ranks has to be the whole MLP's output, here of one token.",
)
def mlp_part(gate: Tensor, up: Tensor, down: Tensor, rank: int, size: int) -> list[Tensor]:
    """A rank's part of three weights [out, in]; the outputs of all parts add up to the MLP's."""
    return [gate.chunk(size)[rank], up.chunk(size)[rank], down.chunk(size, 1)[rank]]


_MODELS = [(2, 1), (2, 2), (8, 2), (15, 5), (24, 6), (28, 4)]


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
    each, kv_each = num_heads // size, num_kv_heads // size
    first, first_kv = rank * each, rank * kv_each
    return [*range(first, first + each)], [*range(first_kv, first_kv + kv_each)]


@compared(
    "Qwen2.5-0.5B in bf16 over two ranks: 84 KiB a token from each to the other. The token's keys "
    "and values,\n"
    "12 KiB, never travel.",
    [(1, 4, 1, 2), (1, 4, 1, 1), (1, 4, 2, 4), (24, 896, 2, 2)],
)
def wire_bytes(num_layers: int, hidden_size: int, dtype_bytes: int, size: int) -> float:
    """Bytes that each of `size` ranks sends for one token, by ring all-reduce, two a layer."""
    return ring_bytes(2 * num_layers * hidden_size * dtype_bytes, size)
