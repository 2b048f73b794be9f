"""From a step's logits to next tokens: one for each text, several where a draft is checked, rows for beam searches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from pagedlab.sampling import SamplingParams, sample
from pagedlab.scheduler import Chunk, Request, Sequence

Check = Callable[[Tensor, Sequence, list[int], list[float], SamplingParams], tuple[list[int], list[float]]]


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
    logits: Tensor, speaking: list[Chunk], params: Mapping[int, SamplingParams], check: Check | None = None
) -> tuple[list[Draw], list[tuple[Request, Tensor]]]:
    """Next tokens from the logits [R, V] of the chunks that were computed to their text's end, `num_rows` rows each.

    params: by request id. A prompt that asks for n texts gives n draws from its one row. A beam search gets its
    rows as log-probabilities and advances later, with its tables: once it has, the step can no longer be undone. Of a
    text with a draft, `check` gets the rows, what the model would write at each place and how likely that is, and
    returns what is kept.
    """
    wanted: list[tuple[Request, Sequence, int, range]] = []  # nth as in Draw, rows of logits
    beam_rows: dict[Request, list[int]] = defaultdict(list)
    end = 0
    for chunk in speaking:
        rows, end = range(end, end + chunk.num_rows), end + chunk.num_rows
        if params[chunk.request.request_id].beam_width:
            beam_rows[chunk.request] += rows
        else:
            wanted += [(chunk.request, chunk.sequence, nth, rows) for nth in range(1 + chunk.request.texts_to_fork)]
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
        if len(rows) > 1:
            assert check is not None
            own, said = check(logits[rows.start : rows.stop], sequence, own, said, params[request.request_id])
        draws.append(Draw(request, sequence, nth, own, said))
    return draws, searches
