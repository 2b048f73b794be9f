"""Traces of requests: lengths and arrivals. Also prompts that share their beginnings.

The traces are synthetic: drawn from percentiles. Those of "conversation" and "code" are from the
Azure LLM inference trace 2023 (Azure Public Dataset, CC-BY 4.0; Patel et al., "Splitwise: Efficient
Generative LLM Inference Using Phase Splitting", ISCA 2024), one hour of two services.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from pagedlab.arguments import one_of

PERCENTILES = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9, 100)


class Shape(NamedTuple):
    """Distribution of the lengths in a trace."""

    prompt: ArrayLike  # tokens at `PERCENTILES`
    output: ArrayLike  # tokens at `PERCENTILES`
    rate: float  # requests a second
    source: str


def exponential(mean: float) -> np.ndarray:
    """Return the values at `PERCENTILES` of an exponential distribution.

    For data sets of which only the mean is known. No length is below 1.

    Args:
        mean: of the distribution.
    """
    # The largest value would be infinite: 1 in 100,000 exceeds the one that is used.
    shares = np.minimum(PERCENTILES, 99.999) / 100
    return np.maximum(1, -mean * np.log(1 - shares)).round(1)


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


@dataclass(frozen=True)
class Trace:
    """Requests in order of arrival.

    Args:
        source: where the lengths are from.
        rows: [N, 3], of each request its arrival in seconds, from the first request on, and its
            tokens of prompt and of output.
    """

    source: str
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def seconds(self) -> np.ndarray:
        """The arrivals, [N]."""
        return self.rows[:, 0]

    def requests(self) -> list[tuple[int, int]]:
        """Return (prompt, output) token counts as plain integers, as `simulate` takes them."""
        return [(int(prompt), int(output)) for _, prompt, output in self.rows]

    def first(self, n: int) -> Trace:
        """Return the first `n` requests."""
        return Trace(self.source, self.rows[:n])

    def at_most(self, max_length: int) -> Trace:
        """Return the requests with at most `max_length` tokens of prompt and output."""
        return Trace(self.source, self.rows[self.rows[:, 1:].sum(1) <= max_length])


def synthetic(name: str, num_requests: int, seed: int = 0) -> Trace:
    """Draw a trace: lengths by inverse transform, log-linear between the percentiles.

    Prompt and output are drawn independently (in the real traces they correlate by -0.11 and 0.00),
    arrivals as a Poisson process. The same seed gives the same trace on every version of Python and
    NumPy.

    Args:
        name: one of `SHAPES`.
        num_requests: how many.
        seed: another one gives another trace.
    """
    shape = SHAPES[one_of("name", name, SHAPES)]
    chance = random.Random(seed)
    drawn = [chance.random() for _ in range(3 * num_requests)]
    of_prompt, of_output, of_gap = np.reshape(drawn, (-1, 3)).T
    gaps = -np.log(1 - of_gap) / shape.rate
    seconds = np.round(np.cumsum(gaps) - gaps[:1], 3)
    lengths = _lengths(shape.prompt, of_prompt), _lengths(shape.output, of_output)
    source = f"synthetic, shaped by the {shape.source}"
    return Trace(source, np.column_stack([seconds, *lengths]))


def _lengths(at_percentiles: ArrayLike, u: np.ndarray) -> np.ndarray:
    """Return lengths for uniform numbers, given the lengths at `PERCENTILES`."""
    logs = np.interp(100 * u, PERCENTILES, np.log(at_percentiles))
    return np.rint(np.exp(logs)).astype(int)


def shared_prompts(
    num_requests: int,
    num_systems: int = 20,
    chats: float = 0.5,
    vocabulary: int = 4096,
    seed: int = 0,
) -> list[tuple[list[int], list[int]]]:
    """Return requests with shared beginnings, as several tenants of one server send them.

    A share `chats` of the requests are the next turn of one of the 32 latest chats: the old prompt,
    its answer, a question. The others begin with a system prompt of 64 to 256 tokens, chosen by
    Zipf's law. In two cases of three one of its three sets of few-shot examples follows, 32 to 96
    tokens. Questions have 8 to 40 tokens, answers 8 to 32, and a chat ends at 640 tokens. All
    lengths are uniform and made up.

    Args:
        num_requests: how many.
        num_systems: number of system prompts.
        chats: share of requests that continue a chat.
        vocabulary: number of different token ids.
        seed: another one gives other requests.

    Returns:
        (prompt, answer) token ids of each request.
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
        prompt = past + some(8, 40)
        answer = some(8, 32)
        requests.append((prompt, answer))
        if len(prompt) + len(answer) < 640:
            open_chats = [*open_chats[-31:], prompt + answer]
    return requests


def load(name: str = "conversation") -> Trace:
    """Return 2,000 requests, the same ones each time.

    Args:
        name: one of `SHAPES`.
    """
    return synthetic(name, 2000)
