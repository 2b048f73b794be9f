"""The sampler: from a step's logits to the next tokens of its sequences.

A sequence gets one token, or several if a draft is checked. Sampling itself is in sampling.py.
Penalties and log-probabilities are in logits/, and run only for requests that ask for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from pagedlab.sampling import NO_TOKEN, sample
from pagedlab.sampling_params import SamplingParams, TokenLogprob
from pagedlab.scheduler import Chunk, Request, Sequence


class CheckDraft(Protocol):
    """Decides how many drafted tokens of a sequence are kept."""

    def __call__(
        self,
        logits: Tensor,
        sequence: Sequence,
        tokens: list[int],
        scores: list[float],
        params: SamplingParams,
        /,
    ) -> tuple[list[int], list[float]]:
        """Return the tokens that are kept and their log-probabilities.

        Args:
            logits: the sequence's rows, [n + 1, V] for a draft of n tokens.
            sequence: the sequence.
            tokens: the token that the model samples at each row.
            scores: the log-probabilities of these tokens.
            params: the parameters of the request.
        """


@dataclass
class SampledTokens:
    """The next tokens of one sequence.

    Args:
        request: the request of the sequence.
        sequence: the sequence. If nth > 0, the tokens are for the nth fork that is made from it.
        tokens: the accepted tokens of a draft, then one more. The last is `NO_TOKEN` if the logits
            after the others are not finite.
        scores: the log-probability of each token, before temperature and penalties.
        nth: 0 for the sequence itself, else the number of the fork.
        logprobs: the reported log-probabilities of these tokens; empty unless requested.
    """

    request: Request
    sequence: Sequence
    tokens: list[int]
    scores: list[float]
    nth: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass
class RowGroup:
    """The rows of logits that belong to one sequence.

    Args:
        request: the request of the sequence.
        sequence: the sequence.
        params: the parameters of the request.
        rows: the rows that are sampled: one, and one more for each drafted token.
        nth: 0 for the sequence itself, else the number of the fork.
    """

    request: Request
    sequence: Sequence
    params: SamplingParams
    rows: range
    nth: int = 0

    @property
    def seed(self) -> int:
        """Sequence i of a request samples with the request's seed + i."""
        return (self.sequence.seed + self.nth) % 2**63


def sample_step(
    logits: Tensor,
    chunks: Iterable[Chunk],
    params: Mapping[int, SamplingParams],
    check: CheckDraft | None = None,
) -> list[SampledTokens]:
    """Sample the next tokens of a step.

    No request or sequence is changed.

    Args:
        logits: [R, V], `num_rows` rows for each chunk.
        chunks: the chunks that have rows.
        params: the parameters of each request, by request id.
        check: checks drafted tokens; required if a sequence has some.
    """
    groups = _group_rows(chunks, params)
    if not groups:
        return []
    sampled = _sample(logits, groups)
    for group, one in zip(groups, sampled, strict=True):
        if len(group.rows) > 1:
            assert check is not None, "a draft needs a function that checks it"
            rows = logits[group.rows.start : group.rows.stop]
            kept = check(rows, group.sequence, one.tokens, one.scores, group.params)
            one.tokens, one.scores = kept
    if any(group.params.reports_logprobs for group in groups):
        from pagedlab.logits import report_logprobs  # a wing: only these requests need it

        report_logprobs(logits, groups, sampled)
    return sampled


def _group_rows(chunks: Iterable[Chunk], params: Mapping[int, SamplingParams]) -> list[RowGroup]:
    """Assign the rows of logits to sequences.

    If a prompt is to have n sequences, its last row belongs to n groups.
    """
    groups = list[RowGroup]()
    end = 0
    for chunk in chunks:
        request, sequence = chunk.request, chunk.sequence
        asked = params[request.request_id]
        rows = range(end, end + chunk.num_rows)
        end = rows.stop
        for nth in range(1 + request.num_to_fork):
            groups.append(RowGroup(request, sequence, asked, rows, nth))
    return groups


def _sample(logits: Tensor, groups: Seq[RowGroup]) -> list[SampledTokens]:
    """Sample one token from each row of each group. The host waits for the device once."""
    rows = list[int]()
    owners = list[RowGroup]()  # of each row
    positions = list[int]()
    for group in groups:
        for i, row in enumerate(group.rows):
            rows.append(row)
            owners.append(group)
            positions.append(group.sequence.num_known + i)
    numbers = torch.tensor([rows, [owner.seed for owner in owners], positions], dtype=torch.int64)
    row_index, seeds, position_index = numbers.to(logits.device, non_blocking=True)
    is_every_row = rows == list(range(len(logits)))
    plain = logits if is_every_row else logits[row_index]
    adjusted = _adjust(plain, owners)
    params = [owner.params for owner in owners]
    columns = sample(adjusted, params, seeds, position_index)
    token_column, scores = torch.stack([column.double() for column in columns]).tolist()
    tokens = [int(token) for token in token_column]
    if adjusted is not plain:
        from pagedlab.logits import scores_of  # a wing: only these requests need it

        scores = scores_of(plain, tokens)
        # Penalties may have hidden an infinite logit.
        for i, score in enumerate(scores):
            if math.isnan(score):
                tokens[i] = NO_TOKEN
    return _split(tokens, scores, groups)


def _adjust(logits: Tensor, owners: Seq[RowGroup]) -> Tensor:
    """Apply penalties and biases, if a request asks for any."""
    if not any(owner.params.adjusts for owner in owners):
        return logits
    from pagedlab.logits import adjust  # a wing: only these requests need it

    return adjust(logits, [(owner.params, owner.sequence) for owner in owners])


def _split(tokens: list[int], scores: list[float], groups: Seq[RowGroup]) -> list[SampledTokens]:
    """Split the tokens of all rows into those of each group."""
    sampled = []
    start = 0
    for group in groups:
        part = slice(start, start + len(group.rows))
        start = part.stop
        sampled.append(
            SampledTokens(group.request, group.sequence, tokens[part], scores[part], group.nth)
        )
    return sampled
