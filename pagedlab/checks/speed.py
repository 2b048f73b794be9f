"""Checks of notebook 10: the floor of a decode step, what a change to it would gain, and rows computed in vain.

`floor_ms`, `step_ms` and `rows_in_vain` are right answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pagedlab.checks import compare, exercise


def floor_ms(weight_bytes: float, kv_bytes: float, contexts: Sequence[int], bandwidth: float) -> float:
    """Milliseconds a decode step takes at least: its weights are read once, and every text's keys and values once.

    kv_bytes: of one token. contexts: tokens that each text looks back on. bandwidth: bytes a second.
    """
    return 1000 * (weight_bytes + kv_bytes * sum(contexts)) / bandwidth


def step_ms(host_ms: float, kernels_ms: Mapping[str, float], faster: Mapping[str, float]) -> float:
    """Milliseconds of a step whose host and kernels work side by side, if some groups of kernels were `faster` times
    as fast."""
    return max(host_ms, sum(ms / faster.get(group, 1) for group, ms in kernels_ms.items()))


def rows_in_vain(tokens: int, steps: int, foreseen: bool) -> int:
    """Rows that are computed for nobody, in windows of `steps`, behind a text that ended with its `tokens`-th step.

    An end that was not foreseen is known only when the next window has been sent.
    """
    return -tokens % steps + (0 if foreseen else steps)


@exercise
def step_floor(answer: Callable[[float, float, Sequence[int], float], float]) -> str:
    """Milliseconds of a step from the bytes that it must read."""
    cases = [
        *[(0, 1000, [500], 1e9), (1e6, 1000, [500], 1e9), (1e6, 1000, [500, 100], 1e9)],
        *[(1e6, 1000, [500, 100], 2e9), (2e6, 3000, [7, 7, 7, 1000], 5e9), (0.99e9, 12 * 1024, [600] * 256, 4.8e12)],
    ]
    compare(answer, floor_ms, cases)
    return "Right: the weights are read once for everybody, keys and values by each text for itself."


@exercise
def step_time(answer: Callable[[float, Mapping[str, float], Mapping[str, float]], float]) -> str:
    """Milliseconds of a step when groups of its kernels are so many times as fast."""
    kernels = {"attention": 2.0, "products": 1.0, "other": 4.0}
    cases: list[tuple[float, dict[str, float], dict[str, float]]] = [(0.0, {"attention": 2.0}, {})]
    cases += [(1.0, {"attention": 2.0}, {}), (3.0, {"attention": 2.0}, {})]
    cases += [(0.0, {"attention": 2.0}, {"attention": 2.0}), (0.0, kernels, {}), (0.0, kernels, {"other": 4.0})]
    cases += [(0.0, kernels, {"attention": 2.0, "other": float("inf")}), (1.0, kernels, {"sampling": 3.0})]
    cases += [(host, kernels, faster) for host in (20.0, 7.0, 5.0) for faster in ({}, {"other": 2.0}, {"other": 8.0})]
    compare(answer, step_ms, cases)
    return (
        "Right: the longer of the two is what a step takes. As long as that is the host, faster kernels gain nothing,\n"
        "and once it is the kernels, a faster host gains nothing."
    )


@exercise
def in_vain(answer: Callable[[int, int, bool], int]) -> str:
    """Rows computed behind the end of a text, in windows of so many steps."""
    cases = [(tokens, steps, foreseen) for steps in (8, 1, 5) for foreseen in (True, False) for tokens in range(1, 18)]
    compare(answer, rows_in_vain, cases)
    return (
        "Right at every edge of a window: the rest of the window in which a text ends, and one window more\n"
        "if nobody could know."
    )
