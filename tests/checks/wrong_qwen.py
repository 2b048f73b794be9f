"""Plausible wrong answers to the exercises of notebook 08."""

from __future__ import annotations

from typing import Any

import torch

# Bytes --------------------------------------------------------------------------------------------------------


def only_what_is_written(lengths: list[int], block_size: int, bytes_per_token: int) -> int:
    return sum(lengths) * bytes_per_token


def one_block_too_many(lengths: list[int], block_size: int, bytes_per_token: int) -> int:
    return sum(length // block_size + 1 for length in lengths) * block_size * bytes_per_token


def a_rectangle(lengths: list[int], block_size: int, bytes_per_token: int) -> int:
    return len(lengths) * -(-max(lengths, default=0) // block_size) * block_size * bytes_per_token


def rounds_the_sum(lengths: list[int], block_size: int, bytes_per_token: int) -> int:
    return -(-sum(lengths) // block_size) * block_size * bytes_per_token


# Attention ----------------------------------------------------------------------------------------------------


def attend(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    block_ids: list[int],
    length: int,
    scale: float,
    diagonal: int = 1,
    cut: bool = True,
) -> Any:
    """The right one, by a boolean mask; the wrong ones below change one thing."""
    k, v = k_cache[block_ids].flatten(0, 1), v_cache[block_ids].flatten(0, 1)
    if cut:
        k, v = k[:length], v[:length]
    future = torch.ones(len(q), len(k), dtype=torch.bool).triu(diagonal + length - len(q))
    return (q @ k.T * scale).masked_fill(future, float("-inf")).softmax(dim=-1) @ v


def forgets_the_scale(q: Any, k: Any, v: Any, block_ids: list[int], length: int, scale: float) -> Any:
    return attend(q, k, v, block_ids, length, 1.0)


def sees_the_future(q: Any, k: Any, v: Any, block_ids: list[int], length: int, scale: float) -> Any:
    return attend(q, k, v, block_ids, length, scale, diagonal=length)


def cannot_see_itself(q: Any, k: Any, v: Any, block_ids: list[int], length: int, scale: float) -> Any:
    return attend(q, k, v, block_ids, length, scale, diagonal=0)


def reads_dirty_slots(q: Any, k: Any, v: Any, block_ids: list[int], length: int, scale: float) -> Any:
    return attend(q, k, v, block_ids, length, scale, cut=False)


def takes_logical_for_physical(q: Any, k: Any, v: Any, block_ids: list[int], length: int, scale: float) -> Any:
    return attend(q, k, v, list(range(len(block_ids))), length, scale)


def queries_at_the_front(q: Any, k_cache: Any, v_cache: Any, block_ids: list[int], length: int, scale: float) -> Any:
    k, v = k_cache[block_ids].flatten(0, 1)[:length], v_cache[block_ids].flatten(0, 1)[:length]
    future = torch.ones(len(q), length, dtype=torch.bool).triu(1)
    return (q @ k.T * scale).masked_fill(future, float("-inf")).softmax(dim=-1) @ v


WRONG: dict[str, list[Any]] = {
    "paged_bytes": [only_what_is_written, one_block_too_many, a_rectangle, rounds_the_sum],
    "attend_one": [
        forgets_the_scale,
        sees_the_future,
        cannot_see_itself,
        reads_dirty_slots,
        takes_logical_for_physical,
        queries_at_the_front,
    ],
}
