"""What a request may ask of its logits beside a draw: penalties, a bias, min-p, and
log-probabilities.

A wing: a request that asks for none of it runs without this folder. The sampler calls `adjust`
before it draws, and `report_logprobs` after.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from pagedlab.sampling_params import SamplingParams, TokenLogprob

PART = 256  # rows of logits at a time, since those of a scored prompt may be many


@torch.no_grad()
def adjust(logits: Tensor, rows: Sequence[tuple[SamplingParams, Any]]) -> Tensor:
    """Apply each row's penalties, bias and min_p.

    Args:
        logits: [R, V].
        rows: for each of them, its parameters and its sequence.

    Returns:
        The logits in fp32, or as they are if no row asks for any of it. repetition_penalty is about
        prompt and new tokens; presence_penalty and frequency_penalty are about the new tokens
        alone. min_p compares a token with the likeliest, so it may come before temperature, top_k
        and top_p.
    """
    if not any(params.adjusts for params, _ in rows):
        return logits
    logits = logits.to(torch.float32, copy=True)
    for row, (params, sequence) in zip(logits, rows, strict=True):
        _penalise(row, params, sequence)
        for token, bias in params.logit_bias.items():
            row[token] += bias
        # a tiny repetition_penalty makes infinities
        row.clamp_(torch.finfo(row.dtype).min, torch.finfo(row.dtype).max)
        if params.min_p:
            row[row < row.max() + params.temperature * math.log(params.min_p)] = -torch.inf
    return logits


def _penalise(row: Tensor, params: SamplingParams, sequence: Any) -> None:
    penalty = params.repetition_penalty
    if penalty != 1:
        seen = torch.tensor(sequence.token_ids, device=row.device).unique()
        row[seen] = torch.where(row[seen] > 0, row[seen] / penalty, row[seen] * penalty)
    if (params.presence_penalty or params.frequency_penalty) and sequence.num_outputs:
        seen, counts = torch.tensor(sequence.output_ids, device=row.device).unique(
            return_counts=True
        )
        row[seen] -= params.presence_penalty + params.frequency_penalty * counts


def likelihoods(logits: Tensor, asked: Sequence[tuple[int, int, int]]) -> Iterator[TokenLogprob]:
    """For each (row, token, k): how likely the token is in that row of logits [R, V], and the k
    likeliest there.
    """
    for part in (asked[i : i + PART] for i in range(0, len(asked), PART)):
        rows, tokens, counts = zip(*part, strict=True)
        logprobs = torch.log_softmax(
            logits[torch.tensor(rows, device=logits.device)].float(), dim=1
        )
        own = (
            logprobs.gather(1, torch.tensor(tokens, device=logits.device)[:, None])
            .squeeze(1)
            .tolist()
        )
        best, ids = (x.tolist() for x in logprobs.topk(min(max(counts), logits.shape[1]), dim=1))
        for i, (_, token, k) in enumerate(part):
            top = list(zip(ids[i], best[i], strict=True))
            yield TokenLogprob(token, own[i], top[:k])


def scores_of(logits: Tensor, tokens: Sequence[int]) -> list[float]:
    """The log-probability of one token in each row of logits [R, V]."""
    return [
        one.logprob
        for one in likelihoods(logits, [(row, token, 0) for row, token in enumerate(tokens)])
    ]


def report_logprobs(logits: Tensor, groups: Sequence[Any], sampled: Sequence[Any]) -> None:
    """Fill in `logprobs` and `prompt_logprobs` of the sampled tokens, for the requests that ask for
    them.

    Args:
        logits: [R, V] as the model gave them.
        groups, sampled: the sampler's `RowGroup`s, and its `SampledTokens`, one each.
    """
    asked = list[tuple[int, int, int]]()
    for group, one in zip(groups, sampled, strict=True):
        asked += [(row, token, group.params.prompt_logprobs) for row, token in group.prompt_rows]
        if group.params.logprobs is not None:
            asked += [
                (row, token, group.params.logprobs)
                for row, token in zip(group.rows, one.tokens, strict=False)
            ]
    answers = likelihoods(logits, asked)
    for group, one in zip(groups, sampled, strict=True):
        one.prompt_logprobs = list(islice(answers, len(group.prompt_rows)))
        if group.params.logprobs is not None:
            one.logprobs = list(islice(answers, len(one.tokens)))
