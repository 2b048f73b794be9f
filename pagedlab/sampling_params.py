"""Sampling parameters: how to continue a prompt, and which log-probabilities to report.

This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pagedlab.arguments import (
    a_function,
    integer,
    one_of,
    optional_integer,
    real,
    shown,
)

Adjust = Callable[[Any, list[int], list[int]], Any]


class TokenLogprob(NamedTuple):
    """The log-probability of one token.

    Args:
        token_id: the id of the token.
        logprob: the natural logarithm of its probability.
        top: the likeliest tokens at this position and their log-probabilities, best first.
    """

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class SamplingParams:
    """How to continue one prompt.

    Args:
        max_tokens: new tokens, at most.
        temperature: 0 takes the likeliest token; above 0, tokens are sampled.
        top_k: sample from the k likeliest tokens; 0 for all.
        top_p: sample from the likeliest tokens whose probabilities reach this sum.
        n: sequences to sample. They share the blocks of the prompt. Sequence i has seed + i.
        stop: strings that end the text. They are not part of it. () or None for none.
        ignore_eos: continue to max_tokens, even after an end-of-text token.
        seed: makes samples repeatable; None derives one from the engine's seed and the request id.
        logprobs: report each new token's log-probability and those of the k likeliest tokens at
            its position, before temperature and penalties; None for no report.
        min_p: sample from tokens with at least this fraction of the largest probability. Of top_k,
            top_p and min_p, each applies to the tokens that the one before it keeps.
        adjust: a function that changes a row of logits before a token is sampled from it:
            `adjust(logits, prompt_ids, output_ids) -> logits`, fp32 [V] both. None for none.

    Raises:
        ValueError: If a value is out of range, or if values contradict each other.

    Examples:
        >>> from pagedlab import SamplingParams
        >>> SamplingParams(max_tokens=32, temperature=0.8, top_p=0.95, seed=1).n
        1
        >>> SamplingParams(n=4)
        Traceback (most recent call last):
        ValueError: 4 texts at temperature 0 would all be the same: set a temperature above 0 or n=1
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    n: int = 1
    stop: tuple[str, ...] | str = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    min_p: float = 0.0
    adjust: Adjust | None = None

    def __post_init__(self) -> None:
        for name, value in self._checked().items():
            object.__setattr__(self, name, value)
        if self.adjust is not None:
            a_function("adjust", self.adjust, "of logits, prompt_ids and output_ids")
        if self.temperature == 0 and self.n > 1:
            raise ValueError(
                f"{self.n} texts at temperature 0 would all be the same: set a temperature above 0 "
                "or n=1"
            )

    def _checked(self) -> dict[str, Any]:
        """Check every field, and convert NumPy's numbers to Python's."""
        return {
            "max_tokens": integer("max_tokens", self.max_tokens, 1),
            "temperature": real("temperature", self.temperature, 0),
            "top_k": integer("top_k", self.top_k),
            "top_p": real("top_p", self.top_p, 0, 1, above=True),
            "n": integer("n", self.n, 1),
            "stop": _texts(self.stop),
            "ignore_eos": one_of("ignore_eos", self.ignore_eos, (False, True)),
            "seed": optional_integer("seed", self.seed),
            "logprobs": optional_integer("logprobs", self.logprobs),
            "min_p": real("min_p", self.min_p, 0, 1),
        }


def _texts(value: Any) -> tuple[str, ...]:
    """One string or several, none of them empty, as a tuple; None for none."""
    if value is None:
        return ()
    is_several = isinstance(value, Iterable) and not isinstance(value, str)
    texts = tuple(value) if is_several else (value,)
    if not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"stop must be strings with at least one character, got {shown(value)}")
    return texts


def one_each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    """Return a list of parameters, one entry for each prompt.

    Args:
        params: parameters for all prompts, a list with one entry each, or None for the defaults.
        count: the number of prompts.
    """
    one = SamplingParams() if params is None else params
    each: list[Any] = list(one) if isinstance(one, (list, tuple)) else [one] * count
    if len(each) != count or not all(isinstance(other, SamplingParams) for other in each):
        raise ValueError(
            f"sampling must be SamplingParams, or a list of {count}, one for each prompt, got "
            f"{shown(params)}"
        )
    return each


def request_seed(engine_seed: int, request_id: int) -> int:
    """Derive the seed of a request without one, so that engines and requests sample differently.

    It is a hash of both numbers: 63 bits of splitmix64, as in `sampling.uniform`.
    """
    return mix(mix(mix(engine_seed >> 64) ^ engine_seed) ^ request_id) >> 1


def mix(x: int) -> int:
    """One output of splitmix64 (Steele, Lea, Flood, 2014), 64 bits."""
    word = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & word
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & word
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & word
    return x ^ (x >> 31)
