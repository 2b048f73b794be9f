"""Sample one token from each row of logits, on their device.

A sample depends on the request's seed and the token's position alone, not on other rows or on
earlier samples. So a request gives the same text alone, beside others, or after a preemption.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pagedlab.kernels import compiles_for
from pagedlab.sampling_params import FACTORS, GOLDEN, SamplingParams


def _signed(word: int) -> int:
    """A word of 64 bits as torch's int64 has it."""
    return word - (1 << 64) if word >> 63 else word


STEP = _signed(GOLDEN)
MULTIPLIERS = tuple(_signed(factor) for factor in FACTORS)


class Limits(NamedTuple):
    """The rows that sample from fewer tokens than all.

    Args:
        rows: int64 [S].
        top_k, top_p: float64 [S, 1].
    """

    rows: Tensor
    top_k: Tensor
    top_p: Tensor


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """Return a number in [0, 1) for each pair, float64 [R]: splitmix64 of seed and position.

    Integer arithmetic wraps at 64 bits on every device, so the numbers are the same on all of them.
    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.

    Args:
        seeds, positions: int64 [R].
    """
    bits = _mix(_mix(seeds) + positions)
    return _shift(bits, 11).double() * 2.0**-53


def _mix(x: Tensor) -> Tensor:
    x = x + STEP
    x = (x ^ _shift(x, 30)) * MULTIPLIERS[0]
    x = (x ^ _shift(x, 27)) * MULTIPLIERS[1]
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros; torch fills with the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def sample(
    logits: Tensor, params: Sequence[SamplingParams], seeds: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """Sample one token from each row.

    Args:
        logits: [R, V].
        params: of each row.
        seeds: int64 [R].
        positions: int64 [R], of each new token in its sequence.

    Returns:
        The token ids, int64 [R], and their log-probabilities, fp32 [R], before temperature, top_k
        and top_p.
    """
    is_greedy = not any(p.temperature for p in params)
    limits = None
    if is_greedy:
        temperature = torch.zeros_like(seeds, dtype=torch.float32)
    else:
        temperature = _temperatures(logits, params)
        limits = _limits(logits, params)
    if limits is None and compiles_for(logits.device):
        from pagedlab.kernels.sampling import triton_choose, triton_uniform

        return triton_choose(logits, temperature.float(), triton_uniform(seeds, positions))
    logits = logits.float()
    tokens = logits.argmax(dim=1)
    if not is_greedy:
        probs = _distribution(logits, torch.where(temperature > 0, temperature, 1), limits)
        sampled = invert(probs, uniform(seeds, positions))
        tokens = torch.where(temperature > 0, sampled, tokens)
    logprobs = torch.log_softmax(logits, dim=1).gather(1, tokens[:, None]).squeeze(1)
    return tokens, logprobs


def probabilities(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Return what `sample` samples from, float64 [R, V], for rows with temperatures above 0."""
    return _distribution(logits.float(), _temperatures(logits, params), _limits(logits, params))


def _temperatures(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The temperature of each row, float64 [R]."""
    temperature = torch.tensor([p.temperature for p in params], dtype=torch.float64)
    # or the host would wait for every step in flight
    return temperature.to(logits.device, non_blocking=True)


def _limits(logits: Tensor, params: Sequence[SamplingParams]) -> Limits | None:
    """The rows with top_k or top_p; None if there are none."""
    limited = [row for row, p in enumerate(params) if p.temperature and (p.top_k or p.top_p < 1)]
    if not limited:
        return None
    vocab_size = logits.shape[1]
    numbers = partial(torch.tensor, dtype=torch.float64, device=logits.device)
    top_k = numbers([min(params[row].top_k or vocab_size, vocab_size) for row in limited])
    top_p = numbers([params[row].top_p for row in limited])
    return Limits(torch.tensor(limited, device=logits.device), top_k[:, None], top_p[:, None])


def invert(probs: Tensor, u: Tensor) -> Tensor:
    """Sample one token from each row by inverting the cumulative distribution, int64 [R].

    Args:
        probs: [R, V], with any sum above 0.
        u: [R], uniform in [0, 1).
    """
    cumulative = probs.cumsum(dim=1)
    total = cumulative[:, -1:]
    # Below the total, also after rounding, so that the pick has a probability above zero.
    target = torch.minimum(u[:, None] * total, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True).squeeze(1)


def _distribution(logits: Tensor, temperature: Tensor, limits: Limits | None) -> Tensor:
    """Probabilities [R, V]: temperature first, then top_k, then top_p.

    Only rows with limits are sorted.
    """
    logits = logits.double()
    # From the largest down: however small the temperature, the quotients are 0 or below and never
    # infinite at the top.
    scaled = (logits - logits.amax(dim=1, keepdim=True)) / temperature[:, None]
    if limits is not None:
        rows, top_k, top_p = limits
        # of equal ones, the lower token id first
        order = logits[rows].argsort(dim=1, descending=True, stable=True)
        rank = torch.arange(logits.shape[1], device=logits.device)
        ranked = scaled[rows].gather(1, order).masked_fill(rank >= top_k, float("-inf"))
        probs = torch.softmax(ranked, dim=1)
        likelier = probs.cumsum(dim=1) - probs  # probability of the tokens with a lower rank
        # Rank 0 always stays, so even a tiny top_p leaves one token.
        is_out_ranked = (rank >= top_k) | ((likelier >= top_p) & (rank > 0))
        is_out = torch.empty_like(is_out_ranked).scatter_(1, order, is_out_ranked)
        scaled[rows] = scaled[rows].masked_fill(is_out, float("-inf"))
    return torch.softmax(scaled, dim=1)
