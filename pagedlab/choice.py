"""From a step's logits to next tokens: one for each text, several where a draft is checked, rows for beam searches."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from pagedlab.sampling import SamplingParams, TokenLogprob, likelihoods, sample
from pagedlab.scheduler import Chunk, Request, Sequence

Check = Callable[[Tensor, Sequence, list[int], list[float], SamplingParams], tuple[list[int], list[float]]]


class Draw(NamedTuple):
    """The next tokens of a text: of `sequence`, or if nth > 0 of the nth text to be forked from it now.

    They are the drafted tokens that were accepted, none without a draft, and one of the model's own behind them. said
    and scored: how likely these and the prompt's tokens of this step are, where that is asked for.
    """

    request: Request
    sequence: Sequence
    nth: int
    tokens: list[int]
    logprobs: list[float]
    said: Seq[TokenLogprob] = ()
    scored: Seq[TokenLogprob] = ()


def next_tokens(
    logits: Tensor, speaking: list[Chunk], params: Mapping[int, SamplingParams], check: Check | None = None
) -> tuple[list[Draw], list[tuple[Request, Tensor]]]:
    """Next tokens from the logits [R, V] of the chunks that have rows, `num_rows` each.

    params: by request id. A prompt that asks for n texts gives n draws from its one row. A beam search gets its
    rows as log-probabilities and advances later, with its tables: once it has, the step can no longer be undone. Of a
    text with a draft, `check` gets the rows, what the model would write at each place and how likely that is, and
    returns what is kept. A chunk whose rows only score the prompt gives a draw without tokens.
    """
    wanted: list[tuple[Request, Sequence, int, range]] = []  # nth as in Draw, rows of logits
    asked, to_score = list[tuple[int, int, int]](), list[tuple[int, int, int]]()  # what `likelihoods` takes
    targets = Counter[Sequence]()
    beam_rows: dict[Request, list[int]] = defaultdict(list)
    end = 0
    for chunk in speaking:
        rows, end = range(end, end + chunk.num_rows), end + chunk.num_rows
        request, text, p = chunk.request, chunk.sequence, params[chunk.request.request_id]
        if p.beam_width:
            beam_rows[request] += rows
            continue
        if p.prompt_logprobs is not None:
            next_ids = text.token_ids[chunk.stop - len(rows) + 1 : min(chunk.stop + 1, text.num_prompt_tokens)]
            to_score += [(row, token, p.prompt_logprobs) for row, token in zip(rows, next_ids, strict=False)]
            targets[text] = len(next_ids)
        texts = 1 + request.texts_to_fork if chunk.is_last else 1
        wanted += [(request, text, nth, rows[len(rows) - chunk.num_next :]) for nth in range(texts)]
    searches = [(request, torch.log_softmax(logits[rows].float(), dim=1)) for request, rows in beam_rows.items()]
    if not wanted:
        return [], searches
    places = [(r, (s.seed + nth) % 2**63, s.num_known + i) for _, s, nth, rows in wanted for i, r in enumerate(rows)]
    chosen = [params[request.request_id] for request, _, _, rows in wanted for _ in rows]
    columns = [[place[i] for place in places] for i in range(3)]
    index, seeds, positions = torch.tensor(columns, dtype=torch.int64, device=logits.device)
    tokens, logprobs = (column.tolist() for column in sample(logits[index], chosen, seeds, positions))
    draws, first = [], 0
    for request, sequence, nth, rows in wanted:
        own, said = tokens[first : first + len(rows)], logprobs[first : first + len(rows)]
        first += len(rows)
        if len(rows) > 1:
            assert check is not None
            own, said = check(logits[rows.start : rows.stop], sequence, own, said, params[request.request_id])
        draws.append(Draw(request, sequence, nth, own, said))
        if (k := params[request.request_id].logprobs) is not None:
            asked += [(row, token, k) for row, token in zip(rows, own, strict=False)]
    if asked or to_score:
        said_of, scores = likelihoods(logits, asked), likelihoods(logits, to_score)
        for i, draw in enumerate(draws):
            new = len(draw.tokens) if params[draw.request.request_id].logprobs is not None else 0
            old = 0 if draw.nth else targets[draw.sequence]
            draws[i] = draw._replace(said=list(islice(said_of, new)), scored=list(islice(scores, old)))
    return draws, searches
