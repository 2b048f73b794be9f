"""Traces of requests: lengths and arrivals. Also prompts that share their beginnings.

The traces are synthetic: drawn from percentiles. Those of "conversation" and "code" are from the
Azure LLM inference trace 2023 (Azure Public Dataset, CC-BY 4.0; Patel et al., "Splitwise: Efficient
Generative LLM Inference Using Phase Splitting", ISCA 2024), one hour of two services.
"""

import json
import random
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pagedlab.arguments import one_of
from pagedlab.shipped import data_folder


class Shape(NamedTuple):
    """Distribution of the lengths in a trace."""

    source: str
    rate: float  # requests a second
    prompt: list[float]  # tokens at `PERCENTILES`
    output: list[float]  # tokens at `PERCENTILES`


_DATA = json.loads((data_folder("traces") / "shapes.json").read_text(encoding="utf-8"))
PERCENTILES = _DATA["percentiles"]
SHAPES = {name: Shape(**shape) for name, shape in _DATA["shapes"].items()}


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

    def first(self, n: int) -> "Trace":
        """Return the first `n` requests."""
        return Trace(self.source, self.rows[:n])

    def at_most(self, max_length: int) -> "Trace":
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


def _lengths(at_percentiles: list[float], u: np.ndarray) -> np.ndarray:
    """Return lengths for uniform numbers, given the lengths at `PERCENTILES`."""
    logs = np.interp(100 * u, PERCENTILES, np.log(at_percentiles))
    return np.rint(np.exp(logs)).astype(int)


def shared_prompts(
    num_requests: int,
    num_systems: int,
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
    requests = []
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
