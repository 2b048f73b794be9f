"""What to generate, and how the next token is drawn from the logits: on their device, a row a request.

A draw depends on the request's seed and the position of the token alone, not on its neighbours in the batch
or on what was drawn before. So a request gives the same text alone, in a crowd, or computed a second time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from pagedlab.arguments import one_of, real, shown, whole, with_verbs
from pagedlab.kernels import compiles_for

# Of splitmix64, as int64.
STEP, *FACTORS = (unsigned - (1 << 64) for unsigned in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))

# What `SamplingParams` may ask of a request that the device samples for, see accelerate/windows.py. The kernel reads
# temperature and seed, and ends a text as ignore_eos says; the host does the rest before or after the steps.
ON_DEVICE = frozenset(
    {"max_tokens", "temperature", "n", "seed", "ignore_eos", "stop", "length_penalty", "early_stopping"}
)

# Rows that draw from fewer tokens, int64 [S], and their top_k and top_p, float64 [S, 1].
Limits = tuple[Tensor, Tensor, Tensor]


def _checked(default: Any, check: Callable[..., Any], *limits: Any, **more: Any) -> Any:
    """A field with its default, which may be None; check(name, value, *limits, **more) says what else it must be."""

    def checked(name: str, value: Any) -> Any:
        return None if value is default is None else check(name, value, *limits, **more)

    return field(default=default, metadata={"check": checked})


def _ids(name: str, value: Any) -> tuple[int, ...]:
    """Some token ids."""
    return tuple(whole(name, i) for i in with_verbs(name, value, ("__iter__",)))


def _biases(name: str, value: Any) -> dict[int, float]:
    """What is added to the logits of which token ids."""
    pairs = with_verbs(name, value, ("items",)).items() if value != () else ()
    return {whole(name, token): real(name, bias, -100, 100) for token, bias in pairs}


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """One text or several, none of them empty."""
    texts = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)
    if not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"{name} must be strings with at least one character, got {shown(texts)}")
    return texts


@dataclass(frozen=True)
class SamplingParams:
    """How to continue one prompt. Raises `ValueError` at once if a value makes no sense.

    max_tokens: new tokens at most. temperature: 0 takes the likeliest token, above it draws. top_k: draw from
    the k likeliest only, 0 for all. top_p: draw from the likeliest tokens that together reach this
    probability. n: how many texts to draw; they share the prompt's blocks, and text i draws with seed + i.
    beam_width: above 0, search for that many likeliest texts instead; length_penalty and early_stopping are
    its rules, see `pagedlab.beam`. stop: strings that end the text, not part of it. ignore_eos: go on to
    max_tokens whatever the model says. seed: makes draws repeatable; None takes one from the engine's own. logprobs:
    tell of each new token, prompt_logprobs of each token of the prompt, its log-probability and that of so many of the
    likeliest in its place, as the model itself says: before all that changes the draw. None tells nothing.

    min_p: draw from tokens that have this share of the likeliest one's probability. repetition_penalty divides the
    logits above 0 of all tokens that came before, and multiplies those below; of the new text's tokens,
    presence_penalty is taken off once and frequency_penalty for each time. logit_bias: {token id: what is added}.
    stop_token_ids: more tokens that end the text.
    """

    max_tokens: int = _checked(64, whole, 1)
    temperature: float = _checked(0.0, real, 0)
    top_k: int = _checked(0, whole)
    top_p: float = _checked(1.0, real, 0, 1, above=True)
    n: int = _checked(1, whole, 1)
    beam_width: int = _checked(0, whole)
    stop: tuple[str, ...] | str = _checked((), _texts)
    ignore_eos: bool = _checked(False, one_of, (False, True))
    seed: int | None = _checked(None, whole)
    length_penalty: float = _checked(1.0, real, -10, 10)
    early_stopping: bool | Literal["never"] = _checked(False, one_of, (False, True, "never"))
    logprobs: int | None = _checked(None, whole)
    prompt_logprobs: int | None = _checked(None, whole)
    min_p: float = _checked(0.0, real, 0, 1)
    repetition_penalty: float = _checked(1.0, real, 0, 100, above=True)
    presence_penalty: float = _checked(0.0, real, -2, 2)
    frequency_penalty: float = _checked(0.0, real, -2, 2)
    logit_bias: Mapping[int, float] = _checked((), _biases)
    stop_token_ids: tuple[int, ...] = _checked((), _ids)

    @property
    def adjusts(self) -> bool:
        """Whether logits change before a token is taken, see `choice.adjust`."""
        changes = self.min_p, self.presence_penalty, self.frequency_penalty, self.logit_bias
        return any(changes) or self.repetition_penalty != 1

    @cached_property
    def wants_host(self) -> bool:
        """Whether the host must sample for this request: it asks for something that the device cannot do.

        The device is allowed what `ON_DEVICE` lists. A new field is not among it until somebody adds it there.
        """
        plain = SamplingParams()
        others = (each.name for each in fields(self) if each.name not in ON_DEVICE)
        return any(getattr(self, name) != getattr(plain, name) for name in others)

    def __hash__(self) -> int:
        values = (getattr(self, each.name) for each in fields(self) if each.name != "logit_bias")
        return hash((*values, frozenset(self.logit_bias.items())))

    @property
    def num_texts(self) -> int:
        """Texts that one prompt gets: n samples, or the width of its beam."""
        return self.beam_width or self.n

    def __post_init__(self) -> None:
        for each in fields(self):  # NumPy's numbers become Python's, which do not overflow
            object.__setattr__(self, each.name, each.metadata["check"](each.name, getattr(self, each.name)))
        if self.temperature == 0 and self.n > 1:
            raise ValueError(f"{self.n} texts at temperature 0 would all be the same: set a temperature above 0 or n=1")
        told = (self.logprobs, self.prompt_logprobs) != (None, None)
        if self.beam_width and (self.n != 1 or self.temperature != 0 or self.stop or self.adjusts or told):
            no = "n=1, temperature=0, no stop strings, logprobs or penalties"
            raise ValueError(f"beam search looks for the likeliest texts: it takes {no}")


def request_seed(engine_seed: int, request_id: int) -> int:
    """The seed of a request that names none: a hash of both numbers, so that no two engines or requests draw alike.

    splitmix64 (Steele, Lea, Flood, 2014), as in `uniform`; 63 bits.
    """
    high, low = divmod(engine_seed, 1 << 64)
    mixed = 0
    for number in (high, low, request_id):
        mixed = _mix(mixed ^ number)
    return mixed >> 1


def _mix(x: int) -> int:
    """One output of splitmix64, in Python's integers."""
    word = (1 << 64) - 1
    x = (x + STEP) & word
    x = ((x ^ (x >> 30)) * FACTORS[0]) & word
    x = ((x ^ (x >> 27)) * FACTORS[1]) & word
    return x ^ (x >> 31)


def one_each(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """Parameters for `count` prompts, from one set for all of them, one each, or None for the defaults."""
    one = SamplingParams() if params is None else params
    each: list[Any] = list(one) if isinstance(one, (list, tuple)) else [one] * count
    if len(each) != count:
        raise ValueError(f"{count} prompts and {len(each)} SamplingParams: give one for all, or one each")
    if wrong := [other for other in each if not isinstance(other, SamplingParams)]:
        raise ValueError(f"sampling must be SamplingParams, got {shown(wrong[0])}")
    return each


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """A number in [0, 1) for each pair, float64: splitmix64 (Steele, Lea, Flood, 2014) of seed and position.

    seeds, positions: int64 [R]. Integer arithmetic wraps at 64 bits on every device, so the draw is the same.
    """

    def shift(x: Tensor, bits: int) -> Tensor:
        return (x >> bits) & ((1 << (64 - bits)) - 1)  # torch shifts the sign in; the hash needs zeros

    def mix(x: Tensor) -> Tensor:
        x = x + STEP
        x = (x ^ shift(x, 30)) * FACTORS[0]
        x = (x ^ shift(x, 27)) * FACTORS[1]
        return x ^ shift(x, 31)

    return shift(mix(mix(seeds) + positions), 11).double() * 2.0**-53


def sample(logits: Tensor, params: Sequence[SamplingParams], seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Pick a token a row: logits [R, V] -> (token ids int64 [R], their log-probabilities fp32 [R]).

    `positions` is where each new token will stand. The log-probability is the model's own: of the plain
    softmax, before temperature, top_k and top_p.
    """
    draws = any(p.temperature for p in params)
    temperature, limits = _settings(logits, params) if draws else (torch.zeros_like(seeds, dtype=torch.float32), None)
    if limits is None and compiles_for(logits.device):
        from pagedlab.kernels.sampling import triton_choose, triton_uniform

        return triton_choose(logits, temperature.float(), triton_uniform(seeds, positions))
    logits = logits.float()
    tokens = logits.argmax(dim=1)
    if draws:
        probs = _distribution(logits, torch.where(temperature > 0, temperature, 1), limits)
        tokens = torch.where(temperature > 0, invert(probs, uniform(seeds, positions)), tokens)
    return tokens, torch.log_softmax(logits, dim=1).gather(1, tokens[:, None]).squeeze(1)


def _settings(logits: Tensor, params: Sequence[SamplingParams]) -> tuple[Tensor, Limits | None]:
    """Temperatures, float64 [R], and what limits some rows, if anything does."""
    size, numbers = logits.shape[1], partial(torch.tensor, dtype=torch.float64, device=logits.device)
    temperature = torch.tensor([p.temperature for p in params], dtype=torch.float64)
    temperature = temperature.to(logits.device, non_blocking=True)  # or the host would wait for all that is under way
    some = [i for i, p in enumerate(params) if p.temperature and (p.top_k or p.top_p < 1)]
    if not some:
        return temperature, None
    top_k, top_p = numbers([(min(params[i].top_k or size, size), params[i].top_p) for i in some]).T[..., None]
    return temperature, (torch.tensor(some, device=logits.device), top_k, top_p)


class TokenLogprob(NamedTuple):
    """How likely the model held a token (natural log), and the likeliest in its place, best first."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]]


def likelihoods(logits: Tensor, asked: Sequence[tuple[int, int, int]]) -> Iterator[TokenLogprob]:
    """For each (row, token, k): how likely the token is in that row of logits [R, V], and the k likeliest there."""
    for part in (asked[i : i + 256] for i in range(0, len(asked), 256)):  # the rest of the rows may be many
        rows, tokens, counts = zip(*part, strict=True)
        logprobs = torch.log_softmax(logits[torch.tensor(rows, device=logits.device)].float(), dim=1)
        own = logprobs.gather(1, torch.tensor(tokens, device=logits.device)[:, None]).squeeze(1).tolist()
        ids, best = (x.tolist() for x in reversed(logprobs.topk(min(max(counts), logits.shape[1]), dim=1)))
        for i, (_, token, k) in enumerate(part):
            yield TokenLogprob(token, own[i], list(zip(ids[i], best[i], strict=True))[:k])


def probabilities(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """What `sample` draws from, float64 [R, V], for rows with temperatures above 0."""
    return _distribution(logits.float(), *_settings(logits, params))


def invert(probs: Tensor, u: Tensor) -> Tensor:
    """Draw a token a row, int64 [R]: the cumulative distribution of probs [R, V], of any sum above 0, inverted at u."""
    cumulative = probs.cumsum(dim=1)
    total = cumulative[:, -1:]
    # Below the total, also after rounding, so that the pick has a probability above zero.
    target = torch.minimum(u[:, None] * total, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True).squeeze(1)


def _distribution(logits: Tensor, temperature: Tensor, limits: Limits | None) -> Tensor:
    """Probabilities [R, V]: temperature first, then top_k, then top_p. Only rows with the last two need sorting."""
    logits = logits.double()
    # From the largest down: however small the temperature, the quotients are 0 or below and never infinite at the top.
    scaled = (logits - logits.amax(dim=1, keepdim=True)) / temperature[:, None]
    if limits is not None:
        rows, top_k, top_p = limits
        order = logits[rows].argsort(dim=1, descending=True, stable=True)  # of equals, the first in the vocabulary stay
        rank = torch.arange(logits.shape[1], device=logits.device)
        probs = torch.softmax(scaled[rows].gather(1, order).masked_fill(rank >= top_k, float("-inf")), dim=1)
        before = probs.cumsum(dim=1) - probs  # probability of the tokens likelier than this one
        # Rank 0 always stays, so that no top_p, however small, leaves nothing to draw from.
        gone = (rank >= top_k) | ((before >= top_p) & (rank > 0))
        scaled[rows] = scaled[rows].masked_fill(torch.empty_like(gone).scatter_(1, order, gone), float("-inf"))
    return torch.softmax(scaled, dim=1)
