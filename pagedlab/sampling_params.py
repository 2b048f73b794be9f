"""What a caller may ask for: how to continue a prompt, and what is reported of the tokens. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, NamedTuple

from pagedlab.validation import integer, one_of, real, shown, with_methods

# What `SamplingParams` may ask of a request that the device samples for, see accelerate/windows.py. The kernel reads
# temperature and seed, and ends a text as ignore_eos says; the host does the rest before or after the steps.
ON_DEVICE = frozenset(
    {"max_tokens", "temperature", "n", "seed", "ignore_eos", "stop", "length_penalty", "early_stopping"}
)

# Of splitmix64 (Steele, Lea, Flood, 2014): what is added before each mix, and what is multiplied by in it.
GOLDEN = 0x9E3779B97F4A7C15
FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


class TokenLogprob(NamedTuple):
    """How likely the model held a token (natural log), and the likeliest in its place, best first."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class SamplingParams:
    """How to continue one prompt. Raises `ValueError` at once if a value makes no sense.

    max_tokens: new tokens at most.
    temperature: 0 takes the likeliest token, above it draws.
    top_k: draw from the k likeliest tokens only; 0 for all.
    top_p: draw from the likeliest tokens that together reach this probability.
    n: how many texts to draw; they share the prompt's blocks, and text i draws with seed + i.
    beam_width: above 0, search for that many likeliest texts instead.
    stop: strings that end the text; they are not part of it.
    ignore_eos: go on to max_tokens whatever the model says.
    seed: makes draws repeatable; None takes one from the engine's own.
    length_penalty, early_stopping: rules of a beam search, see `pagedlab.beam`.
    logprobs: report each new token's log-probability, and those of this many of the likeliest in its place, as the
        model itself says: before all that changes the draw. None reports nothing.
    prompt_logprobs: the same for each token of the prompt.
    min_p: draw from tokens that have this share of the likeliest token's probability.
    repetition_penalty: divides the logits above 0 of all tokens that came before, and multiplies those below.
    presence_penalty: taken off the logits of the new text's tokens once.
    frequency_penalty: taken off them for each time that they occur.
    logit_bias: {token id: what is added to its logit}.
    stop_token_ids: more tokens that end the text.
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
            "repetition_penalty": real("repetition_penalty", self.repetition_penalty, 0, 100, above=True),
            "presence_penalty": real("presence_penalty", self.presence_penalty, -2, 2),
            "frequency_penalty": real("frequency_penalty", self.frequency_penalty, -2, 2),
            "logit_bias": _biases("logit_bias", self.logit_bias),
            "stop_token_ids": _ids("stop_token_ids", self.stop_token_ids),
        }
        for name, value in checked.items():  # NumPy's numbers become Python's, which do not overflow
            object.__setattr__(self, name, value)
        if self.temperature == 0 and self.n > 1:
            raise ValueError(f"{self.n} texts at temperature 0 would all be the same: set a temperature above 0 or n=1")
        other = self.n != 1 or self.temperature != 0 or self.stop or self.adjusts or self.reports_logprobs
        if self.beam_width and other:
            takes = "n=1, temperature=0, no stop strings, logprobs or penalties"
            raise ValueError(f"beam search looks for the likeliest texts: it takes {takes}")

    def __hash__(self) -> int:
        values = (getattr(self, each.name) for each in fields(self) if each.name != "logit_bias")
        return hash((*values, frozenset(self.logit_bias.items())))

    @property
    def num_sequences(self) -> int:
        """Texts that one prompt gets: n samples, or the width of its beam."""
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
        """Whether the host must sample for this request: it asks for something that the device cannot do.

        The device is allowed what `ON_DEVICE` lists. A new field is not among it until somebody adds it there.
        """
        plain = SamplingParams()
        others = (each.name for each in fields(self) if each.name not in ON_DEVICE)
        return any(getattr(self, name) != getattr(plain, name) for name in others)


def _optional_whole(name: str, value: Any) -> int | None:
    return None if value is None else integer(name, value)


def _ids(name: str, value: Any) -> tuple[int, ...]:
    """Some token ids."""
    return tuple(integer(name, i) for i in with_methods(name, value, ("__iter__",)))


def _biases(name: str, value: Any) -> dict[int, float]:
    """What is added to the logits of which token ids."""
    pairs = with_methods(name, value, ("items",)).items() if value != () else ()
    return {integer(name, token): real(name, bias, -100, 100) for token, bias in pairs}


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """One text or several, none of them empty."""
    texts = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    if not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"{name} must be strings with at least one character, got {shown(texts)}")
    return texts


def one_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """Parameters for `count` prompts, from one set for all of them, one each, or None for the defaults."""
    one = SamplingParams() if params is None else params
    each: list[Any] = list(one) if isinstance(one, (list, tuple)) else [one] * count
    if len(each) != count:
        raise ValueError(f"{count} prompts and {len(each)} SamplingParams: give one for all, or one each")
    if wrong := [other for other in each if not isinstance(other, SamplingParams)]:
        raise ValueError(f"sampling must be SamplingParams, got {shown(wrong[0])}")
    return each


def request_seed(engine_seed: int, request_id: int) -> int:
    """The seed of a request that names none: a hash of both numbers, so that no two engines or requests draw alike.

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
