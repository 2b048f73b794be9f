"""Requests: how many tokens of prompt and of output each has, and when it arrives; and prompts that
begin alike.

The traces in data/traces/ are synthetic: drawn by `synthetic` from the percentiles below. They are
those of the Azure LLM inference trace 2023 (Azure Public Dataset, CC-BY 4.0; Patel et al.,
"Splitwise: Efficient Generative LLM Inference Using Phase Splitting", ISCA 2024), one hour of two
services. Where the real CSV files are present, in a folder given or named by PAGEDLAB_TRACES,
`load` reads those instead and says so. To download one into a folder of your choice:

    curl -LO https://raw.githubusercontent.com/Azure/AzurePublicDataset/master/data/AzureLLMInferenceTrace_conv.csv
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pagedlab.shipped import data_folder
from pagedlab.validation import one_of

DATA = data_folder("traces")
PERCENTILES = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9, 100)


class Shape(NamedTuple):
    """Distribution of the lengths in a trace: token counts at `PERCENTILES`, and requests a
    second.
    """

    prompt: Sequence[float]
    output: Sequence[float]
    rate: float
    source: str


def exponential(mean: float) -> tuple[float, ...]:
    """Values at `PERCENTILES` of an exponential distribution: for a data set of which only the mean
    is known.
    """
    # Its end would be infinite: what 1 in 100,000 exceeds stands for it.
    return tuple(
        round(max(1.0, -mean * float(np.log(1 - min(p, 99.999) / 100))), 1) for p in PERCENTILES
    )


_AZURE = "Azure LLM inference trace 2023, {} (CC-BY 4.0; Patel et al., Splitwise, ISCA 2024)"
_MEANS = (
    "mean lengths of {} in Kwon et al., 2023, figure 11; the exponential shape and the rate are "
    "our assumptions"
)
SHAPES = {
    "conversation": Shape(
        prompt=(2, 29, 181, 207, 396, 1020, 1189, 2734.5, 4083, 4142, 6179.2, 14050),
        output=(7, 16, 41, 54, 85, 129, 395, 424, 451, 601, 954, 1000),
        rate=5.53,
        source=_AZURE.format("conversation"),
    ),
    "code": Shape(
        prompt=(3, 17, 75, 147, 578, 1469, 2744.5, 5187.6, 7303.3, 7436, 7437, 7437),
        output=(6, 6, 6, 7, 9, 13, 24, 55, 90, 251.5, 825.3, 1899),
        rate=2.57,
        source=_AZURE.format("code"),
    ),
    "sharegpt": Shape(exponential(161.31), exponential(337.99), 2.0, _MEANS.format("ShareGPT")),
    "alpaca": Shape(exponential(19.31), exponential(58.45), 2.0, _MEANS.format("Alpaca")),
}
_REAL_FILES = {"conversation": "[Aa]zure*_conv.csv", "code": "[Aa]zure*_code.csv"}


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival; three arrays of one length."""

    name: str
    source: str
    seconds: np.ndarray  # [N] arrival, from the first request on
    prompt: np.ndarray  # [N] tokens
    output: np.ndarray  # [N] tokens

    def __len__(self) -> int:
        return len(self.prompt)

    def requests(self) -> list[tuple[int, int]]:
        """(prompt, output) token counts as plain integers, what `simulate` takes."""
        return list(zip(self.prompt.tolist(), self.output.tolist(), strict=True))

    def first(self, n: int) -> Trace:
        """The first `n` requests."""
        return self._pick(np.arange(len(self)) < n)

    def at_most(self, max_length: int) -> Trace:
        """The requests whose prompt and output together have at most `max_length` tokens."""
        return self._pick(self.prompt + self.output <= max_length)

    def _pick(self, mask: np.ndarray) -> Trace:
        return replace(
            self, seconds=self.seconds[mask], prompt=self.prompt[mask], output=self.output[mask]
        )


def synthetic(name: str, num_requests: int, seed: int = 0) -> Trace:
    """Draw a trace from `SHAPES[name]`: lengths by inverse transform, log-linear between the
    percentiles.

    Prompt and output are drawn independently (in the real traces they correlate by -0.11 and 0.00),
    arrivals as a Poisson process. The same seed gives the same trace on every version of Python and
    NumPy.
    """
    shape, chance = SHAPES[one_of("name", name, SHAPES)], random.Random(seed)
    u = np.array([[chance.random() for _ in range(3)] for _ in range(num_requests)]).reshape(-1, 3)
    prompt, output = (
        np.rint(np.exp(np.interp(100 * u[:, i], PERCENTILES, np.log(values)))).astype(int)
        for i, values in enumerate((shape.prompt, shape.output))
    )
    gaps = -np.log(1 - u[:, 2]) / shape.rate
    seconds = np.round(np.cumsum(gaps) - gaps[:1], 3)
    return Trace(name, f"synthetic, shaped by the {shape.source}", seconds, prompt, output)


def shared_prompts(
    num_requests: int,
    num_systems: int = 20,
    chats: float = 0.5,
    vocabulary: int = 4096,
    seed: int = 0,
) -> list[tuple[list[int], list[int]]]:
    """(prompt, answer) token ids of requests that begin alike, as several tenants of one server
    send them.

    A share `chats` of the requests are the next turn of one of the 32 latest chats: the old prompt,
    its answer, a question. The others begin with a system prompt of 64 to 256 tokens, chosen by
    Zipf's law, and in two cases of three with one of its three sets of few-shot examples, 32 to 96
    tokens. Questions have 8 to 40 tokens, answers 8 to 32, and a chat ends once it has 640. All
    lengths are uniform, and made up.
    """
    chance = random.Random(seed)

    def some(fewest: int, most: int) -> list[int]:
        return [chance.randrange(vocabulary) for _ in range(chance.randint(fewest, most))]

    systems = [some(64, 256) for _ in range(num_systems)]
    openings = [[system, *(system + some(32, 96) for _ in range(3))] for system in systems]
    weights = [1 / rank for rank in range(1, num_systems + 1)]
    requests: list[tuple[list[int], list[int]]] = []
    open_chats: list[list[int]] = []
    for _ in range(num_requests):
        if open_chats and chance.random() < chats:
            past = open_chats.pop(chance.randrange(len(open_chats)))
        else:
            plain, *examples = chance.choices(openings, weights)[0]
            past = chance.choice(examples) if chance.random() < 2 / 3 else plain
        prompt, answer = past + some(8, 40), some(8, 32)
        requests.append((prompt, answer))
        if len(prompt) + len(answer) < 640:
            open_chats = [*open_chats[-31:], prompt + answer]
    return requests


def load(name: str = "conversation", folder: str | Path | None = None) -> Trace:
    """The real trace where its CSV is in `folder` or in $PAGEDLAB_TRACES, else the synthetic one
    from data/traces/.
    """
    folder = folder or os.environ.get("PAGEDLAB_TRACES")
    pattern = _REAL_FILES[one_of("name", name, _REAL_FILES)]
    real = sorted(Path(folder).glob(pattern)) if folder else []
    path = real[0] if real else DATA / f"{name}.csv"
    arrived, prompt, output = np.loadtxt(path, delimiter=",", skiprows=1, dtype=str, unpack=True)
    if real:  # dates and times
        arrived = (
            arrived.astype("datetime64[us]") - np.datetime64(arrived[0], "us")
        ) / np.timedelta64(1, "s")
    source = (
        f"real: {SHAPES[name].source}"
        if real
        else f"synthetic, shaped by the {SHAPES[name].source}"
    )
    return Trace(name, source, arrived.astype(float), prompt.astype(int), output.astype(int))


def save(trace: Trace, path: str | Path) -> None:
    """Write a trace as `load` reads it: seconds, prompt and output tokens, one request a line."""
    table = np.column_stack([trace.seconds, trace.prompt, trace.output])
    np.savetxt(
        path,
        table,
        fmt=["%.3f", "%d", "%d"],
        delimiter=",",
        header="seconds,prompt,output",
        comments="",
    )


if __name__ == "__main__":  # python -m pagedlab.lessons.traces: writes what data/traces/ holds
    for shipped in ("conversation", "code"):
        save(synthetic(shipped, 2000), DATA / f"{shipped}.csv")
