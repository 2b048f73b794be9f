"""Plausible wrong answers to the exercises of notebook 11, and right ones that differ from the solution."""

from __future__ import annotations

from typing import Any

import torch

Parts = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

# a part of the MLP ---------------------------------------------------------------------------------------------


def all_by_rows(gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, rank: int, size: int) -> Parts:
    return gate.chunk(size)[rank], up.chunk(size)[rank], down.chunk(size)[rank]


def the_other_way_round(gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, rank: int, size: int) -> Parts:
    return gate.chunk(size, 1)[rank], up.chunk(size, 1)[rank], down.chunk(size, 0)[rank]


def same_part_for_all(gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, rank: int, size: int) -> Parts:
    return gate.chunk(size)[0], up.chunk(size)[0], down.chunk(size, 1)[0]


def whole_on_every_rank(gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, rank: int, size: int) -> Parts:
    return gate, up, down


def gate_and_down_disagree(gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, rank: int, size: int) -> Parts:
    return gate.chunk(size)[rank], up.chunk(size)[rank], down.chunk(size, 1)[size - 1 - rank]


def gate_interleaved(gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, rank: int, size: int) -> Parts:
    """Right for gate, and its partners are dealt in another order."""
    return gate[rank::size], up.chunk(size)[rank], down.chunk(size, 1)[rank]


def divides_the_sum(gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, rank: int, size: int) -> Parts:
    return gate.chunk(size)[rank], up.chunk(size)[rank], down.chunk(size, 1)[rank] / size


def all_interleaved(gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor, rank: int, size: int) -> Parts:
    """Right: any deal of the columns will do, if all three weights are dealt alike."""
    return gate[rank::size], up[rank::size], down[:, rank::size]


# heads ---------------------------------------------------------------------------------------------------------

Heads = tuple[list[int], list[int]]


def block(rank: int, size: int, count: int) -> list[int]:
    return [*range(rank * count // size, (rank + 1) * count // size)]


def never_refuses(rank: int, size: int, num_heads: int, num_kv_heads: int) -> Heads:
    return block(rank, size, num_heads), block(rank, size, num_kv_heads)


def asks_query_heads_only(rank: int, size: int, num_heads: int, num_kv_heads: int) -> Heads | None:
    return None if num_heads % size else never_refuses(rank, size, num_heads, num_kv_heads)


def asks_kv_heads_only(rank: int, size: int, num_heads: int, num_kv_heads: int) -> Heads | None:
    """Right: there are so many query heads for each KV head, so who can share these can share those."""
    return None if num_kv_heads % size else never_refuses(rank, size, num_heads, num_kv_heads)


def deals_heads_in_turn(rank: int, size: int, num_heads: int, num_kv_heads: int) -> Heads | None:
    """Query head h reads KV head h // group: dealt in turn, most of them find it on another rank."""
    if num_heads % size or num_kv_heads % size:
        return None
    return [*range(rank, num_heads, size)], [*range(rank, num_kv_heads, size)]


def every_rank_all_kv_heads(rank: int, size: int, num_heads: int, num_kv_heads: int) -> Heads | None:
    if num_heads % size or num_kv_heads % size:
        return None
    return block(rank, size, num_heads), [*range(num_kv_heads)]


# bytes ---------------------------------------------------------------------------------------------------------


def one_all_reduce_a_layer(num_layers: int, hidden_size: int, dtype_bytes: int, size: int) -> float:
    return num_layers * hidden_size * dtype_bytes * 2 * (size - 1) / size


def payload_only(num_layers: int, hidden_size: int, dtype_bytes: int, size: int) -> float:
    return 2 * num_layers * hidden_size * dtype_bytes


def to_every_other_rank(num_layers: int, hidden_size: int, dtype_bytes: int, size: int) -> float:
    return 2 * num_layers * hidden_size * dtype_bytes * (size - 1)


def sums_but_does_not_spread(num_layers: int, hidden_size: int, dtype_bytes: int, size: int) -> float:
    return 2 * num_layers * hidden_size * dtype_bytes * (size - 1) / size


def in_exact_integers(num_layers: int, hidden_size: int, dtype_bytes: int, size: int) -> int:
    return 4 * num_layers * hidden_size * dtype_bytes * (size - 1) // size


WRONG: dict[str, list[Any]] = {
    "mlp_part": [
        all_by_rows,
        the_other_way_round,
        same_part_for_all,
        whole_on_every_rank,
        gate_and_down_disagree,
        gate_interleaved,
        divides_the_sum,
    ],
    "heads_of_rank": [
        never_refuses,
        asks_query_heads_only,
        deals_heads_in_turn,
        every_rank_all_kv_heads,
    ],
    "wire_bytes": [one_all_reduce_a_layer, payload_only, to_every_other_rank, sums_but_does_not_spread],
}
RIGHT: dict[str, list[Any]] = {
    "mlp_part": [all_interleaved],
    "heads_of_rank": [asks_kv_heads_only],
    "wire_bytes": [in_exact_integers],
}
