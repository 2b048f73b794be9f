"""Checks of notebook 14: random arrivals, latencies, goodput, engines compared fairly."""

import math
from collections.abc import Sequence
from itertools import accumulate, combinations, pairwise, product

from pagedlab_lessons.checks import compared
from pagedlab_lessons.measuring import OURS, Compared, Run


@compared(
    "Right: the gaps have the given rate on average, and many are shorter and few much longer, as "
    "among people\nwho do not know of one another.",
    [
        (rate, uniforms)
        for uniforms in ([], [0.0], [0.5], [0.5, 0.5], [0.1, 0.9, 0.5, 0.0, 0.99])
        for rate in (1.0, 2.0, 0.5)
    ],
)
def arrivals(rate: float, uniforms: Sequence[float]) -> list[float]:
    """The times at which requests arrive by a Poisson process, in seconds.

    Args:
        rate: requests a second, on average.
        uniforms: a random number from 0 up to 1 for each request; u makes a gap of
            -log(1 - u) / rate seconds.
    """
    gaps = (-math.log(1 - u) / rate for u in uniforms)
    return list(accumulate(gaps, initial=0.0))[1:]


def latencies(arrived: float, admitted: float, times: Sequence[float]) -> tuple[float, float]:
    """The time to first token and the longest gap between two tokens, in seconds.

    Args:
        arrived: when the client sent the request.
        admitted: when the engine began to work on it.
        times: when the client received each token, in order.
    """
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return times[0] - arrived, max(gaps, default=0.0)


compared(
    "Right: both are what the client sees. The time in the queue is a part of the first, and the "
    "longest wait\nbetween two tokens is the second.",
    [
        (0.0, 0.0, [1.0]),
        (0.0, 0.5, [1.0]),
        (2.0, 2.5, [3.0]),
        (0.0, 0.0, [1.0, 1.5]),
        (0.0, 0.0, [4.0, 4.5]),
        (8.0, 9.0, [9.5, 10.0, 10.0, 10.0, 14.0]),
    ],
    mistakes={
        "You started the clock at admission: the client does not know it.": (
            lambda _, admitted, times: latencies(admitted, admitted, times)
        ),
    },
)(latencies)


@compared(
    "Right: a request counts if both latencies are within their limits. Limits and length of the "
    "run belong to\nthe number.",
    [
        ([], (1.0, 1.0), 1.0),
        *(
            ([request], limits, seconds)
            for limits in ((1.0, 1.0), (4.0, 1.0), (1.0, 4.0))
            for request in ((0.5, 0.5), (2.0, 0.5), (0.5, 2.0), (1.0, 0.5), (0.5, 1.0))
            for seconds in (1.0, 2.0, 0.5)
        ),
        ([(2.0, 0.5), (8.0, 0.5)], (4.0, 1.0), 8.0),
    ],
)
def goodput(
    latencies: Sequence[tuple[float, float]], limits: Sequence[float], seconds: float
) -> float:
    """Requests per second that meet the limits on both latencies.

    Args:
        latencies: of each request the time to first token and the longest gap, in seconds.
        limits: on these two, in seconds.
        seconds: that the run took.
    """
    in_time = [first <= limits[0] and gap <= limits[1] for first, gap in latencies]
    return sum(in_time) / seconds


# Runs whose ratio is defined, and others that must not be mixed with them.
_ROWS = [("A", "0.5B", "chat"), ("B", "0.5B", "chat"), ("A", "0.5B", "long"), ("A", "7B", "chat")]
_RUNS = [
    Run(*row, engine, 2.0 ** (7 * i % 11 - 4))
    for i, (row, engine) in enumerate(product(_ROWS, (OURS, "vllm", "llama.cpp")))
]


@compared(
    "Right: each ratio is of one host, one model and one workload, and the peer is the best one "
    "there. Rows without\na peer, or without our engine, have no ratio.",
    [([*runs],) for n in range(4) for runs in combinations(_RUNS, n)],
)
def fair_ratios(runs: Sequence[Run]) -> dict[Compared, float]:
    """Tokens a second of our engine over those of the best other engine.

    A dict from `run.compared`, which is the run's host, model and workload.

    Args:
        runs: each has `host`, `model`, `workload`, `engine` and `tokens_per_s`.
    """
    ours = {run.compared: run.tokens_per_s for run in runs if run.engine == OURS}
    best: dict[Compared, float] = {}
    for run in runs:
        if run.engine != OURS:
            best[run.compared] = max(run.tokens_per_s, best.get(run.compared, 0.0))
    return {row: rate / best[row] for row, rate in ours.items() if row in best}
