"""Sampling: from a step's rows of logits to the next tokens of its sequences.

A sample depends on the sequence's seed and on the token's position, and on nothing else. So a
request gets the same text alone, in a batch, or after a preemption.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from typing import NamedTuple

import torch
from torch import Tensor

from pagedlab.outputs import NO_TOKEN, NewTokens
from pagedlab.sampling_params import FACTORS, GOLDEN, SamplingParams, TokenLogprob
from pagedlab.scheduler import Chunk, Sequence


def _signed(word: int) -> int:
    """The int64 that has the same 64 bits as this unsigned word."""
    return word - (1 << 64) if word >> 63 else word


ROUNDING = 1e-12  # of sums in float64 over a vocabulary
STEP = _signed(GOLDEN)
FIRST_FACTOR = _signed(FACTORS[0])
SECOND_FACTOR = _signed(FACTORS[1])


# A step's tokens ----------------------------------------------------------------------------------


class NextToken(NamedTuple):
    """One token to sample.

    Args:
        logits: the index of its row of logits.
        sequence: whose next token it is.
        seed: what it is sampled with.
        position: the position of the new token in the sequence.
    """

    logits: int
    sequence: Sequence
    seed: int
    position: int


# Samples a token from each row [R, V] for its parameters, seeds [R] and positions [R].
Sampler = Callable[[Tensor, Seq[SamplingParams], Tensor, Tensor], tuple[Tensor, Tensor]]


def next_tokens(chunks: Iterable[Chunk]) -> list[NextToken]:
    """The tokens to sample in a step, in the order of the chunks.

    The last row of a prompt is sampled once more for each sample that is to be forked.
    """
    rows = list[NextToken]()
    end = 0
    for chunk in chunks:
        sequence = chunk.sequence
        first = chunk.stop - chunk.num_rows + 1
        for i in range(chunk.num_rows):
            rows.append(NextToken(end + i, sequence, sequence.seed, first + i))
        end += chunk.num_rows
        if chunk.is_last:
            for nth in range(1, 1 + sequence.num_to_fork):
                rows.append(NextToken(end - 1, sequence, sequence.seed + nth, chunk.stop))
    return rows


def sample_chunks(
    logits: Tensor, chunks: Iterable[Chunk], sample: Sampler
) -> dict[Sequence, NewTokens]:
    """Sample the next tokens of a step. No sequence is changed.

    Args:
        logits: [R, V], `num_rows` rows for each chunk.
        chunks: what the step computed.
        sample: samples a token from each row: `sample_rows`, or one like it.
    """
    rows = next_tokens(chunks)
    if not rows:
        return {}
    index = [row.logits for row in rows]  # a row is sampled once more for each fork
    if index != list(range(len(logits))):
        logits = logits[index]
    adjusted = _adjust(logits, rows)
    tokens, logprobs = _sample(adjusted, rows, sample)
    if adjusted is not logits:
        logprobs = _logprobs_of(logits, tokens)
        tokens = torch.where(logprobs.isnan(), NO_TOKEN, tokens)
    # One transfer: the host waits for the device once.
    ids, scores = torch.stack([tokens.double(), logprobs.double()]).tolist()
    return _by_sequence(rows, logits, [int(token) for token in ids], scores)


def _sample(logits: Tensor, rows: Seq[NextToken], sample: Sampler) -> tuple[Tensor, Tensor]:
    """Sample a token from each row of logits [R, V]."""
    seeds = [row.seed % 2**63 for row in rows]
    positions = [row.position for row in rows]
    numbers = torch.tensor([seeds, positions], dtype=torch.int64)
    params = [row.sequence.params for row in rows]
    return sample(logits, params, *numbers.to(logits.device, non_blocking=True))


def _by_sequence(
    rows: Seq[NextToken], logits: Tensor, token_ids: list[int], logprobs: list[float]
) -> dict[Sequence, NewTokens]:
    """Give each sequence its tokens, with a report if its request asks for one."""
    sampled: dict[Sequence, NewTokens] = {}
    for i, row in enumerate(rows):
        new = sampled.setdefault(row.sequence, NewTokens())
        new.token_ids.append(token_ids[i])
        new.logprobs.append(logprobs[i])
        if row.sequence.params.logprobs is not None:
            new.reports.append(_report(logits[i], row.sequence.params.logprobs, token_ids[i]))
    return sampled


def _adjust(logits: Tensor, rows: Seq[NextToken]) -> Tensor:
    """Apply each request's `adjust` to its rows [R, V], as fp32.

    Returns:
        `logits` itself if no request has one. A row whose `adjust` raises is NaN.
    """
    if all(row.sequence.params.adjust is None for row in rows):
        return logits
    logits = logits.to(torch.float32, copy=True)
    for i, row in enumerate(rows):
        sequence = row.sequence
        adjust = sequence.params.adjust
        if adjust is None:
            continue
        prompt_ids = sequence.token_ids[: sequence.num_prompt_tokens]
        try:
            logits[i] = adjust(logits[i], prompt_ids, sequence.output_ids)
        except Exception as error:
            warnings.warn(f"adjust of {sequence.name} raised {error!r}", stacklevel=2)
            logits[i] = torch.nan
    return logits


def _logprobs_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """The log-probability of one token [R] for each row of logits [R, V]."""
    logprobs = torch.log_softmax(logits.float(), dim=1)
    return logprobs.gather(1, tokens.clamp(min=0)[:, None]).squeeze(1)


def _report(logits: Tensor, count: int, token: int) -> TokenLogprob:
    """What a request is told of a token: its log-probability, and the likeliest tokens."""
    logprobs = torch.log_softmax(logits.float(), dim=0)
    best, ids = logprobs.topk(min(count, len(logprobs)))
    top = list(zip(ids.tolist(), best.tolist(), strict=True))
    return TokenLogprob(token, logprobs[max(token, 0)].item(), top)


# Random numbers -----------------------------------------------------------------------------------


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


# A token from each row ----------------------------------------------------------------------------


def sample_rows(
    logits: Tensor, params: Seq[SamplingParams], seeds: Tensor, positions: Tensor
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
    logits = logits.float()
    tokens = logits.argmax(dim=1)
    # `argmax` takes NaN for the largest number.
    is_finite = logits.gather(1, tokens[:, None]).squeeze(1).isfinite()
    if any(p.temperature for p in params):
        temperature = _column([p.temperature for p in params], logits)
        is_sampled = temperature > 0
        probs = _distribution(logits, torch.where(is_sampled, temperature, 1), params)
        sampled = invert(probs, uniform(seeds, positions))
        tokens = torch.where(is_sampled, sampled, tokens)
    tokens = torch.where(is_finite, tokens, 0)  # `invert` may have left the vocabulary
    logprobs = _logprobs_of(logits, tokens)
    return torch.where(is_finite, tokens, NO_TOKEN), logprobs


def probabilities(logits: Tensor, params: Seq[SamplingParams]) -> Tensor:
    """Return the distribution that `sample_rows` samples from, float64 [R, V].

    Args:
        logits: [R, V].
        params: the parameters of each row, with temperatures above 0.
    """
    temperature = _column([p.temperature for p in params], logits)
    return _distribution(logits.float(), temperature, params)


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


def _column(values: list[float], logits: Tensor) -> Tensor:
    """A number for each row, float64 [R]. The host does not wait."""
    return torch.tensor(values, dtype=torch.float64).to(logits.device, non_blocking=True)


def _distribution(logits: Tensor, temperature: Tensor, params: Seq[SamplingParams]) -> Tensor:
    """Apply temperature, top_k, top_p and min_p, in this order.

    Returns:
        Probabilities, float64 [R, V].
    """
    logits = logits.double()
    # Minus the maximum, all logits are 0 or below: no quotient overflows, however small the
    # temperature.
    scaled = (logits - logits.amax(dim=1, keepdim=True)) / temperature[:, None]
    limited = [i for i, p in enumerate(params) if p.temperature and (p.top_k or p.top_p < 1)]
    if limited:
        rows = torch.tensor(limited, device=logits.device)
        is_excluded = _is_excluded(logits[rows], scaled[rows], [params[i] for i in limited])
        scaled[rows] = scaled[rows].masked_fill(is_excluded, -torch.inf)
    if any(p.min_p for p in params):
        # A scaled logit is the logarithm of its probability over the largest one.
        least = _column([p.min_p for p in params], logits).log()
        scaled.masked_fill_(scaled < least[:, None], -torch.inf)
    return torch.softmax(scaled, dim=1)


def _is_excluded(logits: Tensor, scaled: Tensor, params: Seq[SamplingParams]) -> Tensor:
    """Which tokens top_k and top_p exclude, bool [S, V].

    Args:
        logits: [S, V] in float64. Tokens are ranked by them; of equal ones the lower id is first.
        scaled: [S, V], logits over temperature.
        params: the parameters of the S rows.
    """
    vocabulary = logits.shape[1]
    top_k = _column([min(p.top_k or vocabulary, vocabulary) for p in params], logits)
    top_p = _column([p.top_p if p.top_p < 1 else math.inf for p in params], logits)
    order = logits.argsort(dim=1, descending=True, stable=True)
    rank = torch.arange(vocabulary, device=logits.device)
    beyond_top_k = rank >= top_k[:, None]
    ranked = scaled.gather(1, order).masked_fill(beyond_top_k, -torch.inf)
    probs = torch.softmax(ranked, dim=1)
    likelier = probs.cumsum(dim=1) - probs  # total probability of the lower ranks
    # Rank 0 stays, however small top_p is. The sums are rounded: of ten equal tokens, eight have a
    # little less than 0.8 in float64.
    beyond_top_p = (likelier >= top_p[:, None] * (1 - ROUNDING)) & (rank > 0)
    is_excluded = beyond_top_k | beyond_top_p
    return torch.empty_like(is_excluded).scatter_(1, order, is_excluded)
