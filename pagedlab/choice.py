"""From a step's logits to next tokens: one for each text, several where a draft is checked, rows for beam searches."""

import math
from collections import defaultdict
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

    They are the drafted tokens that were accepted, none without a draft, and one of the model's own behind them. said:
    of what this step scored of the prompt, and of the next tokens, as far as either is asked for.
    """

    request: Request
    sequence: Sequence
    nth: int
    tokens: list[int]
    logprobs: list[float]
    said: Seq[TokenLogprob] = ()


def next_tokens(
    logits: Tensor, speaking: list[Chunk], params: Mapping[int, SamplingParams], check: Check | None = None
) -> tuple[list[Draw], list[tuple[Request, Tensor]]]:
    """Next tokens from the logits [R, V] of the chunks that have rows, `num_rows` each.

    params: by request id. A prompt that asks for n texts gives n draws from its one row. A beam search gets its
    rows as log-probabilities and advances later, with its tables: once it has, the step can no longer be undone. Of a
    text with a draft, `check` gets the rows, what the model would write at each place and how likely that is, and
    returns what is kept. A chunk whose rows only score the prompt gives a draw without tokens.
    """
    wanted: list[tuple[Request, Sequence, int, range, list[tuple[int, int, int]]]] = []  # nth, rows, prompt to score
    beam_rows: dict[Request, list[int]] = defaultdict(list)
    end = 0
    for chunk in speaking:
        rows, end = range(end, end + chunk.num_rows), end + chunk.num_rows
        request, text, p = chunk.request, chunk.sequence, params[chunk.request.request_id]
        if p.beam_width:
            beam_rows[request] += rows
            continue
        behind = text.token_ids[chunk.stop - len(rows) + 1 : text.num_prompt_tokens]  # what each row predicts
        to_score = [(row, token, p.prompt_logprobs or 0) for row, token in zip(rows, behind, strict=False)]
        wanted.append((request, text, 0, rows[len(rows) - chunk.num_next :], to_score))
        if chunk.is_last:
            wanted += [(request, text, nth, wanted[-1][3], []) for nth in range(1, 1 + request.texts_to_fork)]
    searches = [(request, torch.log_softmax(logits[rows].float(), dim=1)) for request, rows in beam_rows.items()]
    if not wanted:
        return [], searches
    places = [(r, (s.seed + nth) % 2**63, s.num_known + i) for _, s, nth, rows, _ in wanted for i, r in enumerate(rows)]
    chosen = [(params[request.request_id], text) for request, text, _, rows, _ in wanted for _ in rows]
    columns = [[place[i] for place in places] for i in range(3)]
    # Nothing waits for the device until all is asked of it, and then for one copy.
    index, seeds, positions = torch.tensor(columns, dtype=torch.int64).to(logits.device, non_blocking=True)
    adjusted = adjust(plain := logits[index] if columns[0] != [*range(len(logits))] else logits, chosen)
    drawn = sample(adjusted, [p for p, _ in chosen], seeds, positions)
    tokens, logprobs = torch.stack([column.double() for column in drawn]).tolist()
    tokens = [*map(int, tokens)]
    if adjusted is not plain:
        logprobs = [t.logprob for t in likelihoods(plain, [(i, token, 0) for i, token in enumerate(tokens)])]
    draws, picks = [], (iter(tokens), iter(logprobs))
    for request, sequence, nth, rows, to_score in wanted:
        own, said = (list(islice(column, len(rows))) for column in picks)
        if len(rows) > 1:
            assert check is not None
            own, said = check(logits[rows.start : rows.stop], sequence, own, said, params[request.request_id])
        draws.append(Draw(request, sequence, nth, own, said))
        if (k := params[request.request_id].logprobs) is not None:
            to_score += [(row, token, k) for row, token in zip(rows, own, strict=False)]
    told = likelihoods(logits, [one for *_, asked in wanted for one in asked])
    pairs = zip(draws, [asked for *_, asked in wanted], strict=True)
    return [draw._replace(said=list(islice(told, len(asked)))) if asked else draw for draw, asked in pairs], searches


@torch.no_grad()
def adjust(logits: Tensor, chosen: Seq[tuple[SamplingParams, Sequence]]) -> Tensor:
    """logits [R, V] with each row's penalties, bias and min_p applied, or as they are if nobody wants any.

    repetition_penalty is about prompt and text, presence_penalty and frequency_penalty are about the text alone. min_p
    compares a token with the likeliest, so it may come before temperature, top_k and top_p.
    """
    if not any(p.adjusts for p, _ in chosen):
        return logits
    logits = logits.to(torch.float32, copy=True)
    for row, (p, text) in zip(logits, chosen, strict=True):
        if p.repetition_penalty != 1:
            seen = torch.tensor(text.token_ids, device=row.device).unique()
            row[seen] = torch.where(row[seen] > 0, row[seen] / p.repetition_penalty, row[seen] * p.repetition_penalty)
        if (p.presence_penalty or p.frequency_penalty) and text.num_outputs:
            seen, counts = torch.tensor(text.output_ids, device=row.device).unique(return_counts=True)
            row[seen] -= p.presence_penalty + p.frequency_penalty * counts
        for token, bias in p.logit_bias.items():
            row[token] += bias
        row.clamp_(torch.finfo(row.dtype).min, torch.finfo(row.dtype).max)  # a tiny repetition_penalty makes infinities
        if p.min_p:
            row[row < row.max() + p.temperature * math.log(p.min_p)] = -torch.inf
    return logits
