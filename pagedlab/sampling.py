"""How the next token is drawn from the logits: on their device, a row a request.

A draw depends on the request's seed and the position of the token alone, not on its neighbours in the batch
or on what was drawn before. So a request gives the same text alone, in a crowd, or computed a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from pagedlab.kernels import compiles_for
from pagedlab.sampling_params import FACTORS, GOLDEN, SamplingParams


def _signed(word: int) -> int:
    """A word of 64 bits as torch's int64 has it."""
    return word - (1 << 64) if word >> 63 else word


STEP = _signed(GOLDEN)
MULTIPLIERS = tuple(_signed(factor) for factor in FACTORS)

# Rows that draw from fewer tokens, int64 [S], and their top_k and top_p, float64 [S, 1].
Limits = tuple[Tensor, Tensor, Tensor]


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """A number in [0, 1) for each pair, float64: splitmix64 (Steele, Lea, Flood, 2014) of seed and position.

    seeds, positions: int64 [R]. Integer arithmetic wraps at 64 bits on every device, so the draw is the same.
    """

    def shift(x: Tensor, bits: int) -> Tensor:
        return (x >> bits) & ((1 << (64 - bits)) - 1)  # torch shifts the sign in; the hash needs zeros

    def mix(x: Tensor) -> Tensor:
        x = x + STEP
        x = (x ^ shift(x, 30)) * MULTIPLIERS[0]
        x = (x ^ shift(x, 27)) * MULTIPLIERS[1]
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
