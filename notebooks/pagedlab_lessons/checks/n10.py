"""Checks of notebook 10: the floor of a decode step, the gain of a change, wasted rows."""

from collections.abc import Mapping, Sequence

from pagedlab_lessons.checks import compared


@compared(
    "Right: the weights are read once for all sequences, keys and values once for each.",
    [
        (1e6, 1000, [500], 1e9),
        (1e6, 1000, [500, 100], 2e9),
        (0.99e9, 12 * 1024, [600] * 256, 4.8e12),
    ],
    name="step_floor",
)
def floor_ms(
    weight_bytes: float, kv_bytes: float, contexts: Sequence[int], bandwidth: float
) -> float:
    """Milliseconds that a decode step takes at least.

    Its weights are read once, and the keys and values of each sequence once.

    Args:
        weight_bytes: of the model.
        kv_bytes: of one token.
        contexts: tokens of each sequence.
        bandwidth: bytes a second.
    """
    return 1000 * (weight_bytes + kv_bytes * sum(contexts)) / bandwidth


_ALL = {"attention": 2.0, "products": 1.0, "other": 4.0}


@compared(
    "Right: the longer of the two is what a step takes. As long as that is the host, faster "
    "kernels gain nothing,\n"
    "and once it is the kernels, a faster host gains nothing.",
    [
        (host, kernels, faster)
        for kernels in ({"attention": 2.0}, _ALL)
        for faster in ({}, {"attention": 4.0}, {"other": 2.0, "sampling": 3.0})
        for host in (0.0, 1.0, 5.0, 20.0)
    ],
    name="step_time",
)
def step_ms(host_ms: float, kernels_ms: Mapping[str, float], faster: Mapping[str, float]) -> float:
    """Milliseconds of a step whose host and kernels work side by side.

    Args:
        host_ms: of the host.
        kernels_ms: of each group of kernels.
        faster: how many times as fast some groups become; other groups stay as they are, and
            groups without kernels change nothing.
    """
    kernels = sum(ms / faster.get(group, 1) for group, ms in kernels_ms.items())
    return max(host_ms, kernels)


@compared(
    "Right at every edge of a window: the rest of the window in which a sequence ends, and one "
    "window more\n"
    "if the end was not foreseen.",
    [
        (tokens, steps, foreseen)
        for steps in (8, 1, 5)
        for foreseen in (True, False)
        for tokens in range(1, 18)
    ],
)
def wasted_rows(tokens: int, steps: int, foreseen: bool) -> int:
    """Rows that are wasted after the end of a sequence.

    Args:
        tokens: steps of the sequence.
        steps: of a window.
        foreseen: whether the end was known in advance; otherwise it is known only when the next
            window has been sent.
    """
    return -tokens % steps + (0 if foreseen else steps)
