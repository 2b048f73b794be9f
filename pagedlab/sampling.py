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
from pagedlab.sampling_params import SamplingParams, TokenLogprob, mix
from pagedlab.scheduler import Chunk, Sequence

ROUNDING = 1e-12  # of sums in float64 over a vocabulary


# A step's tokens ----------------------------------------------------------------------------------


class NextToken(NamedTuple):
    """One token to sample.

    Args:
        row: the index of its row of logits.
        sequence: whose next token it is.
        position: the position of the new token in the sequence.
    """

    row: int
    sequence: Sequence
    position: int


# Samples a token from each row [R, V] for its parameters and its number in [0, 1).
Sampler = Callable[[Tensor, Seq[SamplingParams], Seq[float]], Tensor]


def next_tokens(chunks: Iterable[Chunk]) -> list[NextToken]:
    """The tokens to sample in a step, in the order of the chunks.

    The last row of a prompt is sampled for each of its samples.
    """
    wanted = list[NextToken]()
    row = 0
    for chunk in chunks:
        for position in range(chunk.stop - chunk.num_rows + 1, chunk.stop + 1):
            for sequence in (chunk.sequence, *chunk.sequence.forks):
                wanted.append(NextToken(row, sequence, position))
            row += 1
    return wanted


def sample_chunks(
    logits: Tensor, chunks: Iterable[Chunk], sample: Sampler
) -> dict[Sequence, NewTokens]:
    """Sample the next tokens of a step. No sequence is changed.

    Args:
        logits: [R, V], `num_rows` rows for each chunk.
        chunks: what the step computed.
        sample: samples a token from each row: `sample_rows`, or one like it.
    """
    wanted = next_tokens(chunks)
    if not wanted:
        return {}
    if len(wanted) > len(logits):  # that of a prompt is sampled for several sequences
        logits = logits[[each.row for each in wanted]]
    params = [each.sequence.params for each in wanted]
    # Temperature 0 draws nothing.
    numbers = [
        uniform(each.sequence.seed, each.position) if each.sequence.params.temperature else 0.0
        for each in wanted
    ]
    tokens = sample(_adjust(logits, wanted), params, numbers).tolist()
    sampled: dict[Sequence, NewTokens] = {}
    for i, (each, token) in enumerate(zip(wanted, tokens, strict=True)):
        new = sampled.setdefault(each.sequence, NewTokens())
        new.token_ids.append(token)
        count = each.sequence.params.logprobs
        if count is not None:
            new.reports.append(report(logits[i], count, token))
    return sampled


def _adjust(logits: Tensor, wanted: Seq[NextToken]) -> Tensor:
    """Apply each request's `adjust` to its rows [R, V], as fp32.

    Returns:
        `logits` itself if no request has one. A row whose `adjust` raises is NaN.
    """
    asked = [
        (row, each.sequence, adjust)
        for row, each in enumerate(wanted)
        if (adjust := each.sequence.params.adjust)
    ]
    if asked:
        logits = logits.to(torch.float32, copy=True)
    for row, sequence, adjust in asked:
        prompt_ids = sequence.token_ids[: sequence.num_prompt_tokens]
        try:
            logits[row] = adjust(logits[row], prompt_ids, sequence.output_ids)
        except Exception as error:
            warnings.warn(f"adjust of {sequence.name} raised {error!r}", stacklevel=2)
            logits[row] = torch.nan
    return logits


def report(logits: Tensor, count: int, token: int) -> TokenLogprob:
    """Return the log-probability of a token, and the likeliest tokens.

    Args:
        logits: [V].
        count: how many of the likeliest tokens.
        token: the token.
    """
    logprobs = torch.log_softmax(logits.float(), dim=0)
    best, ids = logprobs.topk(min(count, len(logprobs)))
    top = list(zip(ids.tolist(), best.tolist(), strict=True))
    return TokenLogprob(token, logprobs[max(token, 0)].item(), top)


# A token from each row ----------------------------------------------------------------------------


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1) for a seed and a position: 53 bits of splitmix64 of both.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    return (mix(mix(seed % 2**63) + position) >> 11) * 2.0**-53


def sample_rows(logits: Tensor, params: Seq[SamplingParams], numbers: Seq[float]) -> Tensor:
    """Sample one token from each row.

    Args:
        logits: [R, V].
        params: the parameters of each row.
        numbers: a number in [0, 1) for each row, see `uniform`.

    Returns:
        The token ids, int64 [R]; `NO_TOKEN` for a row with NaN or inf, or with -inf alone.
    """
    logits = logits.float()
    tokens = logits.argmax(dim=1)
    # `argmax` takes NaN for the largest number.
    is_finite = logits.gather(1, tokens[:, None]).squeeze(1).isfinite()
    if any(p.temperature for p in params):
        sampled = invert(probabilities(logits, params), _column(numbers, logits))
        is_greedy = _column([p.temperature for p in params], logits) == 0
        tokens = torch.where(is_greedy, tokens, sampled)
    return torch.where(is_finite, tokens, NO_TOKEN)


def probabilities(logits: Tensor, params: Seq[SamplingParams]) -> Tensor:
    """Return the distribution of each row's token, float64 [R, V].

    Temperature, top_k, top_p and min_p are applied in this order. Temperature 0 counts as 1.

    Args:
        logits: [R, V].
        params: the parameters of each row.
    """
    logits = logits.double()
    temperature = _column([p.temperature or 1.0 for p in params], logits)
    # Minus the maximum, all logits are 0 or below: no quotient overflows, however small the
    # temperature.
    scaled = (logits - logits.amax(dim=1, keepdim=True)) / temperature[:, None]
    if any(p.top_k or p.top_p < 1 or p.min_p for p in params):
        scaled = _limited(scaled, params)
    return torch.softmax(scaled, dim=1)


def _limited(scaled: Tensor, params: Seq[SamplingParams]) -> Tensor:
    """Set the logits that top_k, top_p and min_p exclude to -inf.

    Args:
        scaled: float64 [R, V], logits over temperature, at most 0. Tokens are ranked by them; of
            equal ones the lower id is first.
        params: the parameters of each row.
    """
    ranked, order = scaled.sort(dim=1, descending=True, stable=True)
    vocabulary = ranked.shape[1]
    rank = torch.arange(vocabulary, device=ranked.device)
    top_k = _column([min(p.top_k or vocabulary, vocabulary) for p in params], ranked)
    ranked = ranked.masked_fill(rank >= top_k[:, None], -torch.inf)
    probs = torch.softmax(ranked, dim=1)
    likelier = probs.cumsum(dim=1) - probs  # total probability of the lower ranks
    top_p = _column([p.top_p if p.top_p < 1 else math.inf for p in params], ranked)
    # Rank 0 stays, however small top_p is. The sums are rounded: of ten equal tokens, eight have a
    # little less than 0.8 in float64.
    beyond_top_p = (likelier >= top_p[:, None] * (1 - ROUNDING)) & (rank > 0)
    # A scaled logit is the logarithm of its probability over the largest one.
    below_min_p = ranked < _column([p.min_p for p in params], ranked).log()[:, None]
    ranked = ranked.masked_fill(beyond_top_p | below_min_p, -torch.inf)
    return torch.empty_like(ranked).scatter_(1, order, ranked)


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


def _column(values: Seq[float], logits: Tensor) -> Tensor:
    """A number for each row, float64 [R], on the device of the logits."""
    # A blocking copy would make the host wait for the GPU.
    return torch.tensor(values, dtype=torch.float64).to(logits.device, non_blocking=True)
