"""Checks of notebook 10: the floor of a decode step, what a change to it would gain, and rows
computed in vain.
"""

from collections.abc import Mapping, Sequence

from pagedlab.checks import compared


@compared(
    "Right: the weights are read once for everybody, keys and values by each text for itself.",
    [
        (0, 1000, [500], 1e9),
        (1e6, 1000, [500], 1e9),
        (1e6, 1000, [500, 100], 1e9),
        (1e6, 1000, [500, 100], 2e9),
    ],
    [(2e6, 3000, [7, 7, 7, 1000], 5e9), (0.99e9, 12 * 1024, [600] * 256, 4.8e12)],
    name="step_floor",
)
def floor_ms(
    weight_bytes: float, kv_bytes: float, contexts: Sequence[int], bandwidth: float
) -> float:
    """Milliseconds a decode step takes at least: its weights are read once, and every text's keys
    and values once.

    Args:
        kv_bytes: of one token. contexts: tokens that each text looks back on. bandwidth: bytes a
            second.
    """
    return 1000 * (weight_bytes + kv_bytes * sum(contexts)) / bandwidth


_ONE, _ALL = {"attention": 2.0}, {"attention": 2.0, "products": 1.0, "other": 4.0}


@compared(
    "Right: the longer of the two is what a step takes. As long as that is the host, faster "
    "kernels gain nothing,\n"
    "and once it is the kernels, a faster host gains nothing.",
    [(0.0, _ONE, {}), (1.0, _ONE, {}), (3.0, _ONE, {}), (0.0, _ONE, {"attention": 2.0})],
    [
        (0.0, _ALL, {}),
        (0.0, _ALL, {"other": 4.0}),
        (0.0, _ALL, {"attention": 2.0, "other": float("inf")}),
    ],
    [(1.0, _ALL, {"sampling": 3.0})],
    [
        (host, _ALL, faster)
        for host in (20.0, 7.0, 5.0)
        for faster in ({}, {"other": 2.0}, {"other": 8.0})
    ],
    name="step_time",
)
def step_ms(host_ms: float, kernels_ms: Mapping[str, float], faster: Mapping[str, float]) -> float:
    """Milliseconds of a step whose host and kernels work side by side, groups of kernels `faster`
    times as fast.
    """
    return max(host_ms, sum(ms / faster.get(group, 1) for group, ms in kernels_ms.items()))


@compared(
    "Right at every edge of a window: the rest of the window in which a text ends, and one window "
    "more\n"
    "if nobody could know.",
    [
        (tokens, steps, foreseen)
        for steps in (8, 1, 5)
        for foreseen in (True, False)
        for tokens in range(1, 18)
    ],
    name="in_vain",
)
def rows_in_vain(tokens: int, steps: int, foreseen: bool) -> int:
    """Rows that are computed for nobody, in windows of `steps`, behind a text that ended with its
    `tokens`-th step.

    An end that was not foreseen is known only when the next window has been sent.
    """
    return -tokens % steps + (0 if foreseen else steps)
