"""Penalties, logit bias and log-probabilities.

A request that asks for none of these runs without this folder. The sampler calls `adjust` before it
samples, and `report_logprobs` after.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pagedlab.sampling_params import SamplingParams, TokenLogprob

ROWS_AT_ONCE = 256  # rows of logits


class Query(NamedTuple):
    """A question for log-probabilities.

    Args:
        row: a row of the logits.
        token: the token whose log-probability is reported.
        k: how many of the likeliest tokens are reported with it.
    """

    row: int
    token: int
    k: int


Rows = Sequence[tuple[SamplingParams, Any]]  # the parameters and the sequence of each row


@torch.no_grad()
def adjust(logits: Tensor, rows: Rows) -> Tensor:
    """Apply each row's penalties and bias.

    Args:
        logits: [R, V].
        rows: the parameters and the sequence of each row.

    Returns:
        The adjusted logits in fp32, or `logits` if there is nothing to adjust. repetition_penalty
        counts tokens of the prompt and new tokens. presence_penalty and frequency_penalty count new
        tokens alone.
    """
    if not any(params.adjusts for params, _ in rows):
        return logits
    logits = logits.to(torch.float32, copy=True)
    _penalise_seen(logits, rows)
    _penalise_new(logits, rows)
    _add_bias(logits, rows)
    limits = torch.finfo(logits.dtype)
    logits.clamp_(limits.min, limits.max)  # a tiny repetition_penalty makes infinities
    return logits


def _penalise_seen(logits: Tensor, rows: Rows) -> None:
    """Divide the logits of tokens in prompt and answer by repetition_penalty, or multiply them by
    it where they are negative.
    """
    seen = {
        row: sequence.token_ids
        for row, (params, sequence) in enumerate(rows)
        if params.repetition_penalty != 1
    }
    if not seen:
        return
    places = _places(seen, logits.device)
    of_rows = _fp32([params.repetition_penalty for params, _ in rows], logits.device)
    penalty = of_rows[places[0]]
    before = logits[places]
    # A token that was seen twice is written twice, with the same value.
    logits[places] = torch.where(before > 0, before / penalty, before * penalty)


def _penalise_new(logits: Tensor, rows: Rows) -> None:
    """Subtract presence_penalty from the logits of new tokens, and frequency_penalty for each time
    that they occur.
    """
    new: dict[int, list[int]] = {}
    asked: list[SamplingParams] = []
    for row, (params, sequence) in enumerate(rows):
        if (params.presence_penalty or params.frequency_penalty) and sequence.num_outputs:
            new[row] = sequence.output_ids
            asked.append(params)
    if not new:
        return
    device = logits.device
    counts = logits.new_zeros((len(new), logits.shape[1]))
    row_of_counts, tokens = _places(dict(enumerate(new.values())), device)
    counts.index_put_((row_of_counts, tokens), counts.new_ones(()), accumulate=True)
    presence = _fp32([params.presence_penalty for params in asked], device)[:, None]
    frequency = _fp32([params.frequency_penalty for params in asked], device)[:, None]
    penalty = torch.where(counts > 0, presence + frequency * counts, 0)
    logits[torch.tensor(list(new), device=device)] -= penalty


def _add_bias(logits: Tensor, rows: Rows) -> None:
    """Add logit_bias."""
    tokens = {row: list(p.logit_bias) for row, (p, _) in enumerate(rows) if p.logit_bias}
    if not tokens:
        return
    biases = [bias for params, _ in rows for bias in params.logit_bias.values()]
    logits[_places(tokens, logits.device)] += _fp32(biases, logits.device)


def _places(tokens: Mapping[int, Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the row and the token id of each token, int64 [N] both.

    Args:
        tokens: the token ids of each row.
        device: where the logits are.
    """
    counts = [len(ids) for ids in tokens.values()]
    rows = np.repeat(np.array(list(tokens)), counts)
    # NumPy reads lists several times as fast as torch does.
    ids = np.fromiter(chain.from_iterable(tokens.values()), dtype=np.int64, count=sum(counts))
    places = torch.from_numpy(np.stack([rows, ids])).to(device, non_blocking=True)
    return places[0], places[1]


def _fp32(numbers: Sequence[float], device: torch.device) -> Tensor:
    """Return a tensor in fp32 [N]."""
    return torch.tensor(numbers, dtype=torch.float32).to(device, non_blocking=True)


def likelihoods(logits: Tensor, queries: Sequence[Query]) -> Iterator[TokenLogprob]:
    """Answer each query, in order.

    Args:
        logits: [R, V].
        queries: the questions.
    """
    device = logits.device
    for start in range(0, len(queries), ROWS_AT_ONCE):
        part = queries[start : start + ROWS_AT_ONCE]
        rows = torch.tensor([query.row for query in part], device=device)
        # `NO_TOKEN` is asked about a row in which every log-probability is NaN.
        tokens = torch.tensor([max(query.token, 0) for query in part], device=device)
        logprobs = torch.log_softmax(logits[rows].float(), dim=1)
        own = logprobs.gather(1, tokens[:, None]).squeeze(1).tolist()
        most = max(query.k for query in part)
        best, ids = logprobs.topk(min(most, logits.shape[1]), dim=1)
        for i, (row_ids, row_best) in enumerate(zip(ids.tolist(), best.tolist(), strict=True)):
            top = list(zip(row_ids, row_best, strict=True))
            yield TokenLogprob(part[i].token, own[i], top[: part[i].k])


def scores_of(logits: Tensor, tokens: Sequence[int]) -> list[float]:
    """Return the log-probability of one token for each row of logits [R, V]."""
    queries = [Query(row, token, 0) for row, token in enumerate(tokens)]
    return [answer.logprob for answer in likelihoods(logits, queries)]


def report_logprobs(logits: Tensor, groups: Sequence[Any], sampled: Sequence[Any]) -> None:
    """Fill in `logprobs` of the sampled tokens, where they are requested.

    Args:
        logits: [R, V] as the model returned them.
        groups: the sampler's `RowGroup`s.
        sampled: the `SampledTokens` of each group.
    """
    queries = list[Query]()
    for group, one in zip(groups, sampled, strict=True):
        if group.params.logprobs is not None:
            for row, token in zip(group.rows, one.tokens, strict=False):
                queries.append(Query(row, token, group.params.logprobs))
    answers = likelihoods(logits, queries)
    for group, one in zip(groups, sampled, strict=True):
        if group.params.logprobs is not None:
            one.logprobs = list(islice(answers, len(one.tokens)))
