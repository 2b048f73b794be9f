"""Plausible wrong answers to the exercises of notebook 01, and right ones that differ from the solution."""

from __future__ import annotations

from typing import Any

from pagedlab.blocks import blocks_for


def all_of_memory(memory: int, weights: int, bytes_per_token: int, max_length: int) -> int:
    return (memory - weights) // (bytes_per_token * max_length)


def weights_forgotten(memory: int, weights: int, bytes_per_token: int, max_length: int) -> int:
    return memory * 9 // 10 // (bytes_per_token * max_length)


def tokens_not_users(memory: int, weights: int, bytes_per_token: int, max_length: int) -> int:
    return (memory * 9 // 10 - weights) // bytes_per_token


def not_rounded(memory: int, weights: int, bytes_per_token: int, max_length: int) -> float:
    return (memory * 0.9 - weights) / (bytes_per_token * max_length)


def users_by_floats(memory: int, weights: int, bytes_per_token: int, max_length: int) -> int:
    tokens = (memory * 0.9 - weights) / bytes_per_token
    return max(0, int(tokens / max_length))


def full_block_is_empty(num_tokens: int, block_size: int) -> int:
    return block_size - num_tokens % block_size


def tokens_in_last_block(num_tokens: int, block_size: int) -> int:
    return num_tokens % block_size


def always_the_mean(num_tokens: int, block_size: int) -> float:
    return (block_size - 1) / 2


def waste(lengths: list[int], size: int) -> float:
    return 1 - sum(lengths) / sum(blocks_for(n, size) * size for n in lengths)


def smallest_block(lengths: list[int], limit: float) -> int:
    return next((size for size in (2**e for e in range(11)) if waste(lengths, size) < limit), 1)


def limit_included(lengths: list[int], limit: float) -> int:
    return max(size for size in (2**e for e in range(11)) if waste(lengths, size) <= limit)


def by_the_mean_formula(lengths: list[int], limit: float) -> int:
    mean = sum(lengths) / len(lengths)
    return max(size for size in (2**e for e in range(11)) if (size - 1) / 2 < limit * mean)


def stops_at_the_first_above(lengths: list[int], limit: float) -> int:
    size = 1
    while size < 1024 and waste(lengths, size * 2) < limit:
        size *= 2
    return size


def by_division(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size) * block_size - num_tokens


def largest_by_max(lengths: list[int], limit: float) -> int:
    return max((size for size in (2**e for e in range(11)) if waste(lengths, size) < limit), default=1)


WRONG: dict[str, list[Any]] = {
    "users_that_fit": [all_of_memory, weights_forgotten, tokens_not_users, not_rounded],
    "last_block_waste": [full_block_is_empty, tokens_in_last_block, always_the_mean],
    "largest_block": [smallest_block, limit_included, by_the_mean_formula],
    "useless_holes": [list(range(12)), list(range(0, 20, 2)), [0, 0, *range(1, 11)], [-1, *range(11)], [20] * 12],
}
RIGHT: dict[str, list[Any]] = {
    "users_that_fit": [users_by_floats],
    "last_block_waste": [by_division],
    "largest_block": [largest_by_max, stops_at_the_first_above],
    "useless_holes": [[0, 1, 3, 4, 6, 7, 9, 10, 12, 13, 15, 16], [19, 17, 16, 14, 13, 11, 10, 8, 7, 5, 4, 2]],
}
