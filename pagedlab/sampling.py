"""Sampling: one token from each row of logits, on the device of the logits.

A sample depends on the request's seed and on the token's position, and on nothing else. So a
request gets the same text alone, in a batch, or after a preemption.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pagedlab.kernels import compiles_for
from pagedlab.sampling_params import FACTORS, GOLDEN, MAX_TOP_K, SamplingParams


def _signed(word: int) -> int:
    """The int64 that has the same 64 bits as this unsigned word."""
    return word - (1 << 64) if word >> 63 else word


NO_TOKEN = -1  # in place of the token of a row whose logits are not finite
ROUNDING = 1e-12  # of sums in float64 over a vocabulary
STEP = _signed(GOLDEN)
FIRST_FACTOR = _signed(FACTORS[0])
SECOND_FACTOR = _signed(FACTORS[1])


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """Return a number in [0, 1) for each seed and position: splitmix64 of both.

    Integer arithmetic wraps at 64 bits on every device, so all devices give the same numbers.
    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.

    Args:
        seeds: int64 [R].
        positions: int64 [R].

    Returns:
        float64 [R].
    """
    bits = _mix(_mix(seeds) + positions)
    return _shift_right(bits, 11).double() * 2.0**-53


def _mix(x: Tensor) -> Tensor:
    x = x + STEP
    x = (x ^ _shift_right(x, 30)) * FIRST_FACTOR
    x = (x ^ _shift_right(x, 27)) * SECOND_FACTOR
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros. Torch fills with the sign bit, so that is masked."""
    mask = (1 << (64 - bits)) - 1
    return (x >> bits) & mask


def sample(
    logits: Tensor, params: Sequence[SamplingParams], seeds: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """Sample one token from each row.

    Args:
        logits: [R, V].
        params: the parameters of each row.
        seeds: int64 [R].
        positions: int64 [R], the position of each new token in its sequence.

    Returns:
        The token ids, int64 [R], and their log-probabilities before temperature, top_k and top_p,
        fp32 [R]. A row with NaN or inf, or with -inf alone, gives `NO_TOKEN` and NaN.
    """
    if compiles_for(logits.device):
        from pagedlab.kernels.sampling import triton_sample, triton_uniform  # needs Triton

        temperature, top_k, top_p, min_p = _columns(logits, params)
        u = triton_uniform(seeds, positions)
        least = min_p if any(p.min_p for p in params) else None
        return triton_sample(logits, temperature, top_k, top_p, u, min_p=least)
    logits = logits.float()
    tokens = logits.argmax(dim=1)
    # `argmax` takes NaN for the largest number.
    is_finite = logits.gather(1, tokens[:, None]).squeeze(1).isfinite()
    if any(p.temperature for p in params):
        temperature = _temperatures(logits, params)
        is_sampled = temperature > 0
        probs = _distribution(logits, torch.where(is_sampled, temperature, 1), params)
        sampled = invert(probs, uniform(seeds, positions))
        tokens = torch.where(is_sampled, sampled, tokens)
    logprobs = torch.log_softmax(logits, dim=1)
    tokens = torch.where(is_finite, tokens, 0)  # `invert` may have left the vocabulary
    logprobs = logprobs.gather(1, tokens[:, None]).squeeze(1)
    return torch.where(is_finite, tokens, NO_TOKEN), logprobs


def probabilities(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Return the distribution that `sample` samples from, float64 [R, V].

    Args:
        logits: [R, V].
        params: the parameters of each row, with temperatures above 0.
    """
    return _distribution(logits.float(), _temperatures(logits, params), params)


def invert(probs: Tensor, u: Tensor) -> Tensor:
    """Sample one token from each row by inverting the cumulative distribution, int64 [R].

    Args:
        probs: [R, V]; each row has a positive sum, which need not be 1.
        u: [R], uniform in [0, 1).
    """
    cumulative = probs.cumsum(dim=1)
    total = cumulative[:, -1:]
    # The target stays below the total after rounding, so the token has a positive probability.
    below_total = total.nextafter(torch.zeros_like(total))
    target = torch.minimum(u[:, None] * total, below_total)
    return torch.searchsorted(cumulative, target, right=True).squeeze(1)


class _Limits(NamedTuple):
    """The rows that have top_k or top_p.

    Args:
        rows: int64 [S].
        top_k: float64 [S, 1].
        top_p: float64 [S, 1].
    """

    rows: Tensor
    top_k: Tensor
    top_p: Tensor


def _limits(logits: Tensor, params: Sequence[SamplingParams]) -> _Limits | None:
    """The rows that have top_k or top_p; None if there are none."""
    vocab_size = logits.shape[1]
    rows, top_k, top_p = [], [], []
    for row, p in enumerate(params):
        if p.temperature and (p.top_k or p.top_p < 1):
            rows.append(row)
            top_k.append([min(p.top_k or vocab_size, vocab_size)])
            top_p.append([p.top_p if p.top_p < 1 else math.inf])  # 1 keeps the unlikeliest, too
    if not rows:
        return None
    return _Limits(
        torch.tensor(rows, device=logits.device),
        torch.tensor(top_k, dtype=torch.float64, device=logits.device),
        torch.tensor(top_p, dtype=torch.float64, device=logits.device),
    )


def _columns(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The temperature, top_k, top_p and min_p of each row, fp32 [4, R]: what the kernels take."""
    columns = [
        [p.temperature for p in params],
        [min(p.top_k, MAX_TOP_K) for p in params],
        [p.top_p for p in params],
        [p.min_p for p in params],
    ]
    # A blocking copy would make the host wait for every step in flight.
    return torch.tensor(columns, dtype=torch.float32).to(logits.device, non_blocking=True)


def _temperatures(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The temperature of each row, float64 [R]."""
    temperature = torch.tensor([p.temperature for p in params], dtype=torch.float64)
    return temperature.to(logits.device, non_blocking=True)


def _distribution(logits: Tensor, temperature: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Apply temperature, top_k, top_p and min_p, in this order.

    Returns:
        Probabilities, float64 [R, V].
    """
    logits = logits.double()
    # Minus the maximum, all logits are 0 or below: no quotient overflows, however small the
    # temperature.
    below_max = logits - logits.amax(dim=1, keepdim=True)
    scaled = below_max / temperature[:, None]
    limits = _limits(logits, params)
    if limits is not None:
        rows = limits.rows
        is_excluded = _is_excluded(logits[rows], scaled[rows], limits)
        scaled[rows] = scaled[rows].masked_fill(is_excluded, float("-inf"))
    if any(p.min_p for p in params):
        # A scaled logit is the logarithm of its probability over the largest one.
        least = torch.tensor([p.min_p for p in params], dtype=torch.float64).log()
        least = least.to(logits.device, non_blocking=True)
        scaled.masked_fill_(scaled < least[:, None], float("-inf"))
    return torch.softmax(scaled, dim=1)


def _is_excluded(logits: Tensor, scaled: Tensor, limits: _Limits) -> Tensor:
    """Which tokens top_k and top_p exclude, bool [S, V].

    Args:
        logits: [S, V] in float64. Tokens are ranked by them; of equal ones the lower id is first.
        scaled: [S, V], logits over temperature.
        limits: the limits of the S rows.
    """
    order = logits.argsort(dim=1, descending=True, stable=True)
    rank = torch.arange(logits.shape[1], device=logits.device)
    beyond_top_k = rank >= limits.top_k
    ranked = scaled.gather(1, order).masked_fill(beyond_top_k, float("-inf"))
    probs = torch.softmax(ranked, dim=1)
    likelier = probs.cumsum(dim=1) - probs  # total probability of the lower ranks
    # Rank 0 stays, however small top_p is. The sums are rounded: of ten equal tokens, eight have a
    # little less than 0.8 in float64.
    beyond_top_p = (likelier >= limits.top_p * (1 - ROUNDING)) & (rank > 0)
    is_excluded = beyond_top_k | beyond_top_p
    return torch.empty_like(is_excluded).scatter_(1, order, is_excluded)
