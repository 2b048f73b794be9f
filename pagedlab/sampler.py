"""From a step's logits to next tokens: one for each sequence, several where a draft is checked,
rows for beam searches.

A draw depends on the request's seed and the position of the token alone, not on its neighbours in
the batch or on what was drawn before. So a request gives the same text alone, in a crowd, or
computed a second time. The draw itself is in sampling.py; penalties and log-probabilities are in
logits/, and run only for requests that ask for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pagedlab.sampling import sample
from pagedlab.sampling_params import SamplingParams, TokenLogprob
from pagedlab.scheduler import Chunk, Request, Sequence

# Compares a draft with the model: logits of its rows, the sequence, the model's own tokens and
# their log-probabilities, the parameters -> the tokens that are kept, and their log-probabilities.
Check = Callable[
    [Tensor, Sequence, list[int], list[float], SamplingParams], tuple[list[int], list[float]]
]


@dataclass
class SampledTokens:
    """The next tokens of one sequence.

    Args:
        sequence: whose; if nth > 0, the tokens are of the nth sequence to be forked from it now.
        tokens: drafted tokens that were accepted, none without a draft, and one of the model's own
            after them. Empty if the step only scored the prompt.
        scores: the log-probability of each token, before anything that changes the draw.
        logprobs: of each token with the likeliest in its place, if the request asks for them.
        prompt_logprobs: the same of the prompt's tokens that this step scored.
    """

    request: Request
    sequence: Sequence
    tokens: list[int]
    scores: list[float]
    nth: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass
class RowGroup:
    """The rows of logits that belong to one sequence.

    Args:
        rows: those that next tokens are sampled from: one, and one for each drafted token; none if
            the prompt goes on.
        prompt_rows: a row, and the prompt token that it predicts, for each that wants a
            log-probability.
    """

    request: Request
    sequence: Sequence
    params: SamplingParams
    rows: range
    nth: int = 0
    prompt_rows: list[tuple[int, int]] = field(default_factory=list)

    @property
    def seed(self) -> int:
        """Sequence i of a request draws with the request's seed + i."""
        return (self.sequence.seed + self.nth) % 2**63


def sample_step(
    logits: Tensor,
    chunks: Iterable[Chunk],
    params: Mapping[int, SamplingParams],
    check: Check | None = None,
) -> tuple[list[SampledTokens], list[tuple[Request, Tensor]]]:
    """Sample the next tokens of a step.

    tables: once it has, the step can no longer be rewound.

    Args:
        logits: [R, V], the rows that the chunks want, `num_rows` each.
        params: what each request asks for, by request id.
        check: decides how much of a draft is kept; needed where some chunk has one.

    Returns:
        The tokens, and the log-probabilities [beams, V] of each beam search. A search advances
        later, with its
    """
    groups, beam_rows = _group_rows(chunks, params)
    searches = [
        (request, torch.log_softmax(logits[rows].float(), dim=1))
        for request, rows in beam_rows.items()
    ]
    if not groups:
        return [], searches
    sampled = _sample(logits, groups)
    for group, one in zip(groups, sampled, strict=True):
        if len(group.rows) > 1:
            assert check is not None, "a draft needs somebody to check it"
            rows = logits[group.rows.start : group.rows.stop]
            one.tokens, one.scores = check(
                rows, group.sequence, one.tokens, one.scores, group.params
            )
    if any(group.params.reports_logprobs for group in groups):
        # a wing: requests that ask for none do without it
        from pagedlab.logits import (
            report_logprobs,
        )

        report_logprobs(logits, groups, sampled)
    return sampled, searches


def _group_rows(
    chunks: Iterable[Chunk], params: Mapping[int, SamplingParams]
) -> tuple[list[RowGroup], dict[Request, list[int]]]:
    """Whose the rows are: of sequences that tokens are sampled for, and of beam searches.

    A prompt that asks for n sequences has n groups over its one row.
    """
    groups = list[RowGroup]()
    beam_rows = dict[Request, list[int]]()
    end = 0
    for chunk in chunks:
        rows = range(end, end + chunk.num_rows)
        end = rows.stop
        request, sequence = chunk.request, chunk.sequence
        asked = params[request.request_id]
        if asked.beam_width:
            beam_rows.setdefault(request, []).extend(rows)
            continue
        group = RowGroup(request, sequence, asked, rows[len(rows) - chunk.num_next :])
        if asked.prompt_logprobs is not None:
            predicted = sequence.token_ids[chunk.stop - len(rows) + 1 : sequence.num_prompt_tokens]
            group.prompt_rows = list(zip(rows, predicted, strict=False))
        groups.append(group)
        if chunk.is_last:
            forks = range(1, 1 + request.num_to_fork)
            groups += [RowGroup(request, sequence, asked, group.rows, nth) for nth in forks]
    return groups, beam_rows


def _sample(logits: Tensor, groups: Seq[RowGroup]) -> list[SampledTokens]:
    """Sample one token from every row of every group. The host waits for the device once."""
    rows = [row for group in groups for row in group.rows]
    owners = [group for group in groups for _ in group.rows]
    seeds = [group.seed for group in owners]
    positions = [group.sequence.num_known + i for group in groups for i in range(len(group.rows))]
    numbers = torch.tensor([rows, seeds, positions], dtype=torch.int64)
    row_index, seed, position = numbers.to(logits.device, non_blocking=True)
    wanted = logits if rows == list(range(len(logits))) else logits[row_index]
    adjusted = wanted
    if any(group.params.adjusts for group in groups):
        from pagedlab.logits import adjust  # a wing: requests without penalties do without it

        adjusted = adjust(wanted, [(group.params, group.sequence) for group in owners])
    drawn = sample(adjusted, [group.params for group in owners], seed, position)
    token_column, score_column = torch.stack([column.double() for column in drawn]).tolist()
    tokens = [int(token) for token in token_column]
    scores = score_column
    if adjusted is not wanted:
        from pagedlab.logits import scores_of

        scores = scores_of(wanted, tokens)
    sampled = []
    start = 0
    for group in groups:
        stop = start + len(group.rows)
        sampled.append(
            SampledTokens(
                group.request, group.sequence, tokens[start:stop], scores[start:stop], group.nth
            )
        )
        start = stop
    return sampled
