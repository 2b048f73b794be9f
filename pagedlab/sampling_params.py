"""What a caller may ask for: how to continue a prompt, and what is reported of the tokens.

No torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, NamedTuple

from pagedlab.validation import integer, one_of, real, shown, with_methods

# Fields that a request may set while the device samples for it, see accelerate/run_ahead.py. The
# kernel reads temperature, seed and ignore_eos; the host applies the others before or after the
# steps.
ON_DEVICE = frozenset(
    {
        "max_tokens",
        "temperature",
        "n",
        "seed",
        "ignore_eos",
        "stop",
        "length_penalty",
        "early_stopping",
    }
)

# Of splitmix64 (Steele, Lea, Flood, 2014): what is added before each mix, and what is multiplied by
# in it.
GOLDEN = 0x9E3779B97F4A7C15
FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


class TokenLogprob(NamedTuple):
    """The log-probability of one token.

    Args:
        token_id: the token.
        logprob: natural log of the model's probability.
        top: the likeliest tokens in its place and their log-probabilities, best first.
    """

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class SamplingParams:
    """How to continue one prompt. `ValueError` at once if a value makes no sense.

    Args:
        max_tokens: new tokens, at most.
        temperature: 0 takes the likeliest token; above 0 samples.
        top_k: sample from the k likeliest tokens only; 0 for all.
        top_p: sample from the likeliest tokens that together reach this probability.
        n: how many sequences to sample. They share the prompt's blocks, and sequence i samples with
            seed + i.
        beam_width: above 0, search for that many likeliest sequences instead.
        stop: strings that end the text. They are not part of it.
        ignore_eos: go on to max_tokens even after an end-of-text token.
        seed: makes samples repeatable; None makes one from the engine's seed and the request's id.
        length_penalty, early_stopping: rules of a beam search, see `pagedlab.beam`.
        logprobs: report each new token's log-probability and those of the k likeliest tokens in its
            place, before temperature and penalties; None for none.
        prompt_logprobs: the same for each token of the prompt.
        min_p: sample from tokens that have at least this share of the likeliest token's
            probability.
        repetition_penalty: divides positive logits of all tokens that came before, and multiplies
            negative ones.
        presence_penalty: is subtracted once from the logit of each token that is among the new
            ones.
        frequency_penalty: is subtracted for each time that the token is among the new ones.
        logit_bias: {token id: what is added to its logit}.
        stop_token_ids: more tokens that end the text.

    Examples:
        >>> from pagedlab import SamplingParams
        >>> SamplingParams(max_tokens=32, temperature=0.8, top_p=0.95, seed=1).num_sequences
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
    beam_width: int = 0
    stop: tuple[str, ...] | str = ()
    ignore_eos: bool = False
    seed: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = ()  # type: ignore[assignment] # {} once it is checked
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        checked = {
            "max_tokens": integer("max_tokens", self.max_tokens, 1),
            "temperature": real("temperature", self.temperature, 0),
            "top_k": integer("top_k", self.top_k),
            "top_p": real("top_p", self.top_p, 0, 1, above=True),
            "n": integer("n", self.n, 1),
            "beam_width": integer("beam_width", self.beam_width),
            "stop": _texts("stop", self.stop),
            "ignore_eos": one_of("ignore_eos", self.ignore_eos, (False, True)),
            "seed": _optional_whole("seed", self.seed),
            "length_penalty": real("length_penalty", self.length_penalty, -10, 10),
            "early_stopping": one_of("early_stopping", self.early_stopping, (False, True, "never")),
            "logprobs": _optional_whole("logprobs", self.logprobs),
            "prompt_logprobs": _optional_whole("prompt_logprobs", self.prompt_logprobs),
            "min_p": real("min_p", self.min_p, 0, 1),
            "repetition_penalty": real(
                "repetition_penalty", self.repetition_penalty, 0, 100, above=True
            ),
            "presence_penalty": real("presence_penalty", self.presence_penalty, -2, 2),
            "frequency_penalty": real("frequency_penalty", self.frequency_penalty, -2, 2),
            "logit_bias": _biases("logit_bias", self.logit_bias),
            "stop_token_ids": _ids("stop_token_ids", self.stop_token_ids),
        }
        for (
            name,
            value,
        ) in checked.items():  # NumPy's numbers become Python's, which do not overflow
            object.__setattr__(self, name, value)
        if self.temperature == 0 and self.n > 1:
            raise ValueError(
                f"{self.n} texts at temperature 0 would all be the same: set a temperature above 0 "
                "or n=1"
            )
        other = (
            self.n != 1
            or self.temperature != 0
            or self.stop
            or self.adjusts
            or self.reports_logprobs
        )
        if self.beam_width and other:
            takes = "n=1, temperature=0, no stop strings, logprobs or penalties"
            raise ValueError(f"beam search looks for the likeliest texts: it takes {takes}")

    def __hash__(self) -> int:
        values = (getattr(self, each.name) for each in fields(self) if each.name != "logit_bias")
        return hash((*values, frozenset(self.logit_bias.items())))

    @property
    def num_sequences(self) -> int:
        """Sequences that one prompt gets: n samples, or the width of its beam."""
        return self.beam_width or self.n

    @cached_property
    def adjusts(self) -> bool:
        """Whether logits change before a token is sampled, see `pagedlab.logits.adjust`."""
        changes = self.min_p, self.presence_penalty, self.frequency_penalty, self.logit_bias
        return any(changes) or self.repetition_penalty != 1

    @cached_property
    def reports_logprobs(self) -> bool:
        """Whether log-probabilities of new tokens or of the prompt are asked for."""
        return self.logprobs is not None or self.prompt_logprobs is not None

    @cached_property
    def wants_host(self) -> bool:
        """Whether the host must sample for this request, because a field is set that is not in
        `ON_DEVICE`.
        """
        plain = SamplingParams()
        others = (each.name for each in fields(self) if each.name not in ON_DEVICE)
        return any(getattr(self, name) != getattr(plain, name) for name in others)


def _optional_whole(name: str, value: Any) -> int | None:
    return None if value is None else integer(name, value)


def _ids(name: str, value: Any) -> tuple[int, ...]:
    """Token ids, as a tuple."""
    return tuple(integer(name, i) for i in with_methods(name, value, ("__iter__",)))


def _biases(name: str, value: Any) -> dict[int, float]:
    """A bias for each token id."""
    pairs = with_methods(name, value, ("items",)).items() if value != () else ()
    return {integer(name, token): real(name, bias, -100, 100) for token, bias in pairs}


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """One text or several, none of them empty."""
    texts = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    if not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"{name} must be strings with at least one character, got {shown(texts)}")
    return texts


def one_each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    """Return parameters for `count` prompts.

    Args:
        params: one set for all of them, a list with one each, or None for the defaults.
    """
    one = SamplingParams() if params is None else params
    each: list[Any] = list(one) if isinstance(one, (list, tuple)) else [one] * count
    if len(each) != count:
        raise ValueError(
            f"{count} prompts and {len(each)} SamplingParams: give one for all, or one each"
        )
    if wrong := [other for other in each if not isinstance(other, SamplingParams)]:
        raise ValueError(f"sampling must be SamplingParams, got {shown(wrong[0])}")
    return each


def request_seed(engine_seed: int, request_id: int) -> int:
    """The seed of a request that names none: a hash of both numbers, so that no two engines or
    requests draw alike.

    63 bits of splitmix64, as in `sampling.uniform`.
    """
    high, low = divmod(engine_seed, 1 << 64)
    mixed = 0
    for number in (high, low, request_id):
        mixed = mix(mixed ^ number)
    return mixed >> 1


def mix(x: int) -> int:
    """One output of splitmix64, in Python's integers."""
    word = (1 << 64) - 1
    x = (x + GOLDEN) & word
    x = ((x ^ (x >> 30)) * FACTORS[0]) & word
    x = ((x ^ (x >> 27)) * FACTORS[1]) & word
    return x ^ (x >> 31)
