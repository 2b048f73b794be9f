"""From a step's logits to next tokens: one for each text, several where a draft is checked, rows for beam searches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import torch

from pagedlab.sampling import SamplingParams, sample
from pagedlab.scheduler import Chunk, Request, Sequence
from pagedlab.speculative import Draft, check_sampled


class Draw(NamedTuple):
    """The next tokens of a text: of `sequence`, or if nth > 0 of the nth text to be forked from it now.

    They are the drafted tokens that were accepted, none without a draft, and one of the model's own behind them.
    """

    request: Request
    sequence: Sequence
    nth: int
    tokens: list[int]
    logprobs: list[float]


def next_tokens(
    logits: torch.Tensor,
    speaking: list[Chunk],
    params: Mapping[int, SamplingParams],
    drafts: Mapping[Sequence, Draft],
) -> tuple[list[Draw], list[tuple[Request, torch.Tensor]]]:
    """Next tokens from the logits [R, V] of the chunks that were computed to their text's end, `num_rows` rows each.

    params: by request id. A prompt that asks for n texts gives n draws from its one row. A beam search gets its
    rows as log-probabilities and advances later, with its tables: once it has, the step can no longer be undone.
    """
    wanted: list[tuple[Request, Sequence, int, range]] = []  # nth as in Draw, rows of logits
    beam_rows: dict[Request, list[int]] = defaultdict(list)
    end = 0
    for chunk in speaking:
        rows, request = range(end, end + chunk.num_rows), chunk.request
        end = rows.stop
        if params[request.request_id].beam_width:
            beam_rows[request] += rows
        else:
            wanted += [(request, chunk.sequence, nth, rows) for nth in range(1 + request.texts_to_fork)]
    searches = [(request, torch.log_softmax(logits[rows].float(), dim=1)) for request, rows in beam_rows.items()]
    if not wanted:
        return [], searches
    places = [(r, (s.seed + nth) % 2**63, s.num_known + i) for _, s, nth, rows in wanted for i, r in enumerate(rows)]
    chosen = [params[request.request_id] for request, _, _, rows in wanted for _ in rows]
    index, seeds, positions = (torch.tensor(column, device=logits.device) for column in zip(*places, strict=True))
    tokens, logprobs = (column.tolist() for column in sample(logits[index], chosen, seeds, positions))
    draws, first = [], 0
    for request, sequence, nth, rows in wanted:
        own, said = tokens[first : first + len(rows)], logprobs[first : first + len(rows)]
        first += len(rows)
        drafted = sequence.token_ids[sequence.num_known :][: len(rows) - 1]
        if drafted and (q := drafts[sequence].probs) is not None:
            own, said = check_sampled(
                logits[rows.start : rows.stop], drafted, q, own, sequence, params[request.request_id]
            )
        else:
            # The model says what it would write at each place; the first place where it differs ends the draft.
            accepted = next((i for i, token in enumerate(drafted) if token != own[i]), len(drafted))
            own, said = own[: accepted + 1], said[: accepted + 1]
        draws.append(Draw(request, sequence, nth, own, said))
    return draws, searches
