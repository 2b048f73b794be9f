"""What notebook 14 measures and draws: a server under load, and engines beside one another.

`simulate` is a model of a server: its steps have lengths by a formula, so a run takes no time and
no model. `peers` reads measured runs of several engines.
"""

import math
import random
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

OURS = "pagedlab"
TIE = 0.02  # two engines whose ratio differs from 1 by no more are tied


class Asked(NamedTuple):
    """A request of a workload.

    Args:
        arrived: when the client sends it, in seconds.
        prompt: tokens of the prompt.
        answer: tokens of the answer.
    """

    arrived: float
    prompt: int
    answer: int


@dataclass
class Served:
    """When a request was sent, admitted, and got its tokens, in seconds.

    Args:
        arrived: when the client sent it.
        admitted: when the engine began its prompt.
        times: when each token was received.
    """

    arrived: float
    admitted: float = math.nan
    times: list[float] = field(default_factory=list)


def workload(arrivals: Sequence[float], shortest: int, longest: int, seed: int = 0) -> list[Asked]:
    """Return a request for each arrival, with prompt and answer of random lengths in a range."""
    rng = random.Random(seed)
    lengths = [(rng.randint(shortest, longest), rng.randint(shortest, longest)) for _ in arrivals]
    return [Asked(arrived, *pair) for arrived, pair in zip(sorted(arrivals), lengths, strict=True)]


def simulate(
    requests: Sequence[Asked], seconds: Callable[[int, int], float], slots: int
) -> list[Served]:
    """Serve requests in the order of their arrival, a step at a time.

    A step has one token of each running request, and the whole prompt of each that it admits.

    Args:
        requests: in the order of their arrival.
        seconds: that a step takes, from the number of its sequences and of its prompt tokens.
        slots: requests that run at once, at most.
    """
    served = [Served(request.arrived) for request in requests]
    coming = deque(zip(requests, served, strict=True))
    left: dict[int, int] = {}  # tokens that a running request still wants
    now = 0.0
    while coming or left:
        if not left:
            now = max(now, coming[0][0].arrived)
        prompt_tokens = 0
        while coming and coming[0][0].arrived <= now and len(left) < slots:
            request, record = coming.popleft()
            record.admitted = now
            left[len(served) - len(coming) - 1] = request.answer
            prompt_tokens += request.prompt
        now += seconds(len(left), prompt_tokens)
        for number in tuple(left):
            served[number].times.append(now)
            left[number] -= 1
            if not left[number]:
                del left[number]
    return served


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` per cent of the values do not exceed."""
    return float(np.percentile(values, percent, method="inverted_cdf"))


def first_tokens(served: Iterable[Served], clock: str = "arrival") -> list[float]:
    """Return each request's seconds to its first token.

    Args:
        served: the requests.
        clock: where it starts, at "arrival" or at "admission".
    """
    return [one.times[0] - (one.arrived if clock == "arrival" else one.admitted) for one in served]


# ------------------------------------------------------------------ engines beside one another


class Compared(NamedTuple):
    """What two runs must have in common before they are compared."""

    host: str
    model: str
    workload: str


class Run(NamedTuple):
    """A measured run of one engine.

    Args:
        host: the machine.
        model: that the engine served.
        workload: the requests.
        engine: its name.
        tokens_per_s: of several seeds the median.
        seeds: the tokens per second of each seed.
    """

    host: str
    model: str
    workload: str
    engine: str
    tokens_per_s: float
    seeds: tuple[float, ...] = ()

    @property
    def compared(self) -> Compared:
        """Its host, model and workload."""
        return Compared(self.host, self.model, self.workload)


def peers(measured: Mapping[str, Any]) -> list[Run]:
    """Return the runs in a file of the form of `h200_peers.json`; of several seeds the median.

    Args:
        measured: the file's contents: hosts "machine A" and so on, in each the engines, in each
            the workloads.
    """
    rates: dict[tuple[Compared, str], list[float]] = {}
    for host, engines in measured.items():
        if not isinstance(engines, dict):
            continue
        for name, engine in engines.items():
            for workload_name, figures in engine.items():
                rate = _rate(figures)
                if rate is not None:
                    row = Compared(host, engine["model"], workload_name.partition(" seed ")[0])
                    rates.setdefault((row, _engine_name(name, engine)), []).append(rate)
    return [
        Run(*row, engine, statistics.median(each), tuple(each))
        for (row, engine), each in rates.items()
    ]


def _engine_name(name: str, engine: Mapping[str, Any]) -> str:
    """Return an engine's name without its model; it says when vLLM ran in one process."""
    bare = name.partition(",")[0]
    way = engine.get("how", "").partition(",")[0]
    return f"{bare} {way}" if way == "in one process" else bare


def _rate(figures: Any) -> float | None:
    """Return a workload's tokens a second; None if this is not a workload."""
    if not isinstance(figures, dict):
        return None
    if "ms a token" in figures:
        return 1000 / figures["ms a token"]
    return figures.get("tokens/s") or figures.get("prompt tokens/s")
