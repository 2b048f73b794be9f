"""Plausible wrong answers to the exercises of notebook 10, and right ones that differ from the solution."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

# the floor of a step ------------------------------------------------------------------------------------------


def in_seconds(weight_bytes: float, kv_bytes: float, contexts: Sequence[int], bandwidth: float) -> float:
    return (weight_bytes + kv_bytes * sum(contexts)) / bandwidth


def weights_for_each_text(weight_bytes: float, kv_bytes: float, contexts: Sequence[int], bandwidth: float) -> float:
    return 1000 * sum(weight_bytes + kv_bytes * context for context in contexts) / bandwidth


def padded_to_the_longest(weight_bytes: float, kv_bytes: float, contexts: Sequence[int], bandwidth: float) -> float:
    return 1000 * (weight_bytes + kv_bytes * len(contexts) * max(contexts, default=0)) / bandwidth


def one_key_a_text(weight_bytes: float, kv_bytes: float, contexts: Sequence[int], bandwidth: float) -> float:
    return 1000 * (weight_bytes + kv_bytes * len(contexts)) / bandwidth


def the_longer_of_two(weight_bytes: float, kv_bytes: float, contexts: Sequence[int], bandwidth: float) -> float:
    return 1000 * max(weight_bytes, kv_bytes * sum(contexts)) / bandwidth


def text_by_text(weight_bytes: float, kv_bytes: float, contexts: Sequence[int], bandwidth: float) -> float:
    return math.fsum([weight_bytes / bandwidth, *(n * kv_bytes / bandwidth for n in contexts)]) * 1e3


# what a step takes --------------------------------------------------------------------------------------------


def one_after_the_other(host_ms: float, kernels_ms: Mapping[str, float], faster: Mapping[str, float]) -> float:
    return host_ms + sum(ms / faster.get(group, 1) for group, ms in kernels_ms.items())


def takes_the_gain_off(host_ms: float, kernels_ms: Mapping[str, float], faster: Mapping[str, float]) -> float:
    before = max(host_ms, sum(kernels_ms.values()))
    return before - sum(ms - ms / faster.get(group, 1) for group, ms in kernels_ms.items())


def only_those_named(host_ms: float, kernels_ms: Mapping[str, float], faster: Mapping[str, float]) -> float:
    return max(host_ms, sum(kernels_ms[group] / times for group, times in faster.items() if group in kernels_ms))


def multiplies(host_ms: float, kernels_ms: Mapping[str, float], faster: Mapping[str, float]) -> float:
    return max(host_ms, sum(ms * faster.get(group, 1) for group, ms in kernels_ms.items()))


def never_mind_the_host(host_ms: float, kernels_ms: Mapping[str, float], faster: Mapping[str, float]) -> float:
    return sum(ms / faster.get(group, 1) for group, ms in kernels_ms.items())


def kernels_side_by_side(host_ms: float, kernels_ms: Mapping[str, float], faster: Mapping[str, float]) -> float:
    return max(host_ms, *(ms / faster.get(group, 1) for group, ms in kernels_ms.items()))


def in_a_loop(host_ms: float, kernels_ms: Mapping[str, float], faster: Mapping[str, float]) -> float:
    device_ms = 0.0
    for group in kernels_ms:
        device_ms += kernels_ms[group] / faster[group] if group in faster else kernels_ms[group]
    return device_ms if device_ms > host_ms else host_ms


# rows in vain -------------------------------------------------------------------------------------------------


def forgets_the_next_window(tokens: int, steps: int, foreseen: bool) -> int:
    return -tokens % steps


def the_next_one_always(tokens: int, steps: int, foreseen: bool) -> int:
    return -tokens % steps + steps


def a_whole_one_at_the_edge(tokens: int, steps: int, foreseen: bool) -> int:
    return steps - tokens % steps + (0 if foreseen else steps)


def what_was_used(tokens: int, steps: int, foreseen: bool) -> int:
    return tokens % steps + (0 if foreseen else steps)


def the_wrong_way_round(tokens: int, steps: int, foreseen: bool) -> int:
    return -tokens % steps + (steps if foreseen else 0)


def by_windows(tokens: int, steps: int, foreseen: bool) -> int:
    windows = (tokens + steps - 1) // steps + (not foreseen)
    return windows * steps - tokens


WRONG: dict[str, list[Any]] = {
    "step_floor": [in_seconds, weights_for_each_text, padded_to_the_longest, one_key_a_text, the_longer_of_two],
    "step_time": [
        one_after_the_other,
        takes_the_gain_off,
        only_those_named,
        multiplies,
        never_mind_the_host,
        kernels_side_by_side,
    ],
    "in_vain": [
        forgets_the_next_window,
        the_next_one_always,
        a_whole_one_at_the_edge,
        what_was_used,
        the_wrong_way_round,
    ],
}
RIGHT: dict[str, list[Any]] = {
    "step_floor": [text_by_text],
    "step_time": [in_a_loop],
    "in_vain": [by_windows],
}
