"""Penalties, logit bias, min-p and log-probabilities.

A request that asks for none of these runs without this folder. The sampler calls `adjust` before it
samples, and `report_logprobs` after.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pagedlab.sampling_params import SamplingParams, TokenLogprob

ROWS_AT_ONCE = 256  # rows of logits; a scored prompt may have many


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


@torch.no_grad()
def adjust(logits: Tensor, rows: Sequence[tuple[SamplingParams, Any]]) -> Tensor:
    """Apply each row's penalties, bias and min_p.

    Args:
        logits: [R, V].
        rows: the parameters and the sequence of each row.

    Returns:
        The adjusted logits in fp32, or `logits` if there is nothing to adjust. repetition_penalty
        counts tokens of the prompt and new tokens. presence_penalty and frequency_penalty count new
        tokens alone. min_p compares each token with the likeliest one, so it can be applied before
        temperature, top_k and top_p.
    """
    if not any(params.adjusts for params, _ in rows):
        return logits
    logits = logits.to(torch.float32, copy=True)
    for row, (params, sequence) in zip(logits, rows, strict=True):
        _penalise(row, params, sequence)
        for token, bias in params.logit_bias.items():
            row[token] += bias
        limits = torch.finfo(row.dtype)
        row.clamp_(limits.min, limits.max)  # a tiny repetition_penalty makes infinities
        if params.min_p:
            least = row.max() + params.temperature * math.log(params.min_p)
            row[row < least] = -torch.inf
    return logits


def _penalise(row: Tensor, params: SamplingParams, sequence: Any) -> None:
    """Apply the three penalties to one row of logits [V], in place."""
    penalty = params.repetition_penalty
    if penalty != 1:
        seen = torch.tensor(sequence.token_ids, device=row.device).unique()
        row[seen] = torch.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
    if (params.presence_penalty or params.frequency_penalty) and sequence.num_outputs:
        new = torch.tensor(sequence.output_ids, device=row.device)
        seen, counts = new.unique(return_counts=True)
        row[seen] -= params.presence_penalty + params.frequency_penalty * counts


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
        tokens = torch.tensor([query.token for query in part], device=device)
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
    """Fill in `logprobs` and `prompt_logprobs` of the sampled tokens, where they are requested.

    Args:
        logits: [R, V] as the model returned them.
        groups: the sampler's `RowGroup`s.
        sampled: the `SampledTokens` of each group.
    """
    queries = list[Query]()
    for group, one in zip(groups, sampled, strict=True):
        for row, token in group.prompt_rows:
            queries.append(Query(row, token, group.params.prompt_logprobs))
        if group.params.logprobs is not None:
            for row, token in zip(group.rows, one.tokens, strict=False):
                queries.append(Query(row, token, group.params.logprobs))
    answers = likelihoods(logits, queries)
    for group, one in zip(groups, sampled, strict=True):
        one.prompt_logprobs = list(islice(answers, len(group.prompt_rows)))
        if group.params.logprobs is not None:
            one.logprobs = list(islice(answers, len(one.tokens)))
