"""Beam search: keep the `width` likeliest texts, the beams, step by step.

It is a program over an engine's parts: block tables, `build_batch`, `LLM.forward` and `topk`. A
beam that is continued is a fork of its parent's table, and a beam that is dropped frees its table.
No KV is moved. Between two steps the engine may serve other requests.

The rules are those of transformers' `generate(num_beams=width)`, so that tokens and scores are
equal. A beam that ends is scored by its summed log-probability over its length to the power of
`length_penalty`. The `width` best ended beams are kept. A beam may end only while it is among the
`width` best candidates of its step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from pagedlab.arguments import counted, integer, one_of, real
from pagedlab.batch import build_batch
from pagedlab.blocks import BlockTable, OutOfBlocks, blocks_for
from pagedlab.detokenizer import TextAfter
from pagedlab.engine import LLM, Prompt
from pagedlab.outputs import NOT_FINITE, WAS_RESET, Output
from pagedlab.sampling_params import SamplingParams
from pagedlab.scheduler import Chunk, Plan, Sequence, blocks_to_append

EarlyStopping = bool | Literal["never"]


def beam_search(
    llm: LLM,
    prompt: Prompt,
    *,
    width: int,
    max_tokens: int = 64,
    length_penalty: float = 1.0,
    early_stopping: EarlyStopping = False,
    ignore_eos: bool = False,
) -> list[Output]:
    """Return the likeliest texts after a prompt, best first. Each has its `score`.

    Args:
        llm: the engine.
        prompt: a text, a list of token ids, or a list of chat messages.
        width: number of beams, and of texts.
        max_tokens: new tokens of a text, at most.
        length_penalty: exponent of the length in a score.
        early_stopping: True ends the search as soon as `width` beams have ended. False ends it once
            the best running beam, scored at its present length, cannot beat the worst ended one.
            "never" scores the running beam at its best possible length.
        ignore_eos: continue to max_tokens, even after an end-of-text token.

    Raises:
        ValueError: If an argument is out of range, or if the search can never fit the engine.
        OutOfBlocks: If too few blocks are free for a step. The beams are dropped then.
        FloatingPointError: If logits are not finite.
        RuntimeError: If the engine was reset between two steps.

    Examples:
        >>> from pagedlab import LLM
        >>> from pagedlab.recipes.beam import beam_search
        >>> best, second = beam_search(LLM(verbose=False), "The old mill", width=2, max_tokens=4)
        >>> best.score >= second.score
        True
    """
    search = _start(
        llm,
        prompt,
        width=width,
        max_tokens=max_tokens,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        ignore_eos=ignore_eos,
    )
    for _ in _steps(llm, search):
        pass
    return [output for _, output in search.ended]


def beams(llm: LLM, prompt: Prompt, **options: Any) -> Iterator[list[Sequence]]:
    """Return an iterator over the running beams after each step, best first.

    Each beam has `output_ids`, `cumulative_logprob` and `table`, which the next step frees. If the
    loop over them ends early, their blocks are freed. The options are those of `beam_search`.
    """
    return _steps(llm, _start(llm, prompt, **options))


# The rules ----------------------------------------------------------------------------------------


class Candidate(NamedTuple):
    """A continuation of a beam by one token.

    Args:
        logprob: the summed log-probability of its new tokens.
        parent: the index of the beam.
        token: the token.
    """

    logprob: float
    parent: int
    token: int


@dataclass(eq=False)
class BeamSearch:
    """One search.

    Args:
        beams: the running beams, best first. The scheduler never sees them.
        width: how many beams there are, at most.
        end_tokens: tokens that end a beam.
        length_penalty, early_stopping: as of `beam_search`.
        text_after: returns the text of token ids that follow the prompt.
        ended: the scores and outputs of the beams that have ended, best first.
    """

    beams: list[Sequence]
    width: int
    end_tokens: frozenset[int]
    length_penalty: float
    early_stopping: EarlyStopping
    text_after: TextAfter | None = None
    ended: list[tuple[float, Output]] = field(default_factory=list)

    def candidates(self, logprobs: Tensor) -> list[Candidate]:
        """Return the likeliest continuations of the running beams, best first.

        Args:
            logprobs: fp32 [beams, V], the log-probabilities of their next tokens.

        Raises:
            FloatingPointError: If a log-probability is NaN.
        """
        # Enough that `width` remain even if all others are end-of-text tokens.
        count = max(2, 1 + len(self.end_tokens)) * self.width
        known = [[beam.cumulative_logprob] for beam in self.beams]
        sums = torch.tensor(known, device=logprobs.device)
        totals = (logprobs + sums).flatten()
        top, places = totals.topk(min(count, totals.numel()))
        best = top.tolist()
        if math.isnan(best[0]):  # `topk` takes NaN for the largest number
            raise FloatingPointError(NOT_FINITE)
        vocabulary = logprobs.shape[1]
        found = zip(best, places.tolist(), strict=True)
        return [Candidate(logprob, *divmod(place, vocabulary)) for logprob, place in found]

    def advance(self, candidates: list[Candidate]) -> bool:
        """Replace the running beams by their likeliest continuations, with forks of their tables.

        Returns:
            Whether the search goes on.
        """
        parents = self.beams
        width = self.width
        length = parents[0].num_outputs + 1
        children: list[Sequence] = []
        for rank, (logprob, index, token) in enumerate(candidates):
            parent = parents[index]
            if length == parent.max_tokens or token in self.end_tokens:
                if rank < width:
                    self._end([*parent.output_ids, token], logprob)
            elif len(children) < width:
                child = replace(parent, nth=len(children), table=parent.table.fork())
                child.token_ids = [*parent.token_ids, token]
                child.cumulative_logprob = logprob
                children.append(child)
        for parent in parents:
            parent.table.free()
        self.beams = children
        # The sort is stable: the older beam wins a tie.
        self.ended = sorted(self.ended, key=itemgetter(0), reverse=True)[:width]
        return bool(children) and not self._is_over(children[0].cumulative_logprob, length)

    def _end(self, token_ids: list[int], logprob: float) -> None:
        score = logprob / len(token_ids) ** self.length_penalty
        reason = "stop" if token_ids[-1] in self.end_tokens else "length"
        output = Output(token_ids, reason, logprob, text_after=self.text_after, score=score)
        self.ended.append((score, output))

    def _is_over(self, best: float, length: int) -> bool:
        """Whether no running beam can be among the results.

        Args:
            best: the summed log-probability of the best running beam.
            length: how many new tokens it has.
        """
        if len(self.ended) < self.width:
            return False
        if self.early_stopping is True:
            return True
        if self.early_stopping == "never" and self.length_penalty > 0:
            length = self.beams[0].max_tokens
        worst, _ = self.ended[-1]
        return best / length**self.length_penalty <= worst


# The steps ----------------------------------------------------------------------------------------


def _start(
    llm: LLM,
    prompt: Prompt,
    *,
    width: int,
    max_tokens: int = 64,
    length_penalty: float = 1.0,
    early_stopping: EarlyStopping = False,
    ignore_eos: bool = False,
) -> BeamSearch:
    """Check the arguments, and return a search that has no blocks yet."""
    width = integer("width", width, 1)
    max_tokens = integer("max_tokens", max_tokens, 1)
    length_penalty = real("length_penalty", length_penalty, -10, 10)
    one_of("early_stopping", early_stopping, (False, True, "never"))
    one_of("ignore_eos", ignore_eos, (False, True))
    ids = llm.model.checked_ids(prompt)
    first = Sequence(
        0,
        llm.new_table(llm.pool),
        ids,
        len(ids),
        SamplingParams(),
        max_tokens=min(max_tokens, llm.model.max_length - len(ids)),
        num_to_fork=width - 1,
    )
    llm.scheduler.check(first)
    size = llm.block_size
    shared = first.num_prompt_tokens // size
    each = blocks_for(first.num_prompt_tokens + first.max_tokens - 1, size) - shared
    if shared + width * each > llm.num_blocks:
        raise ValueError(
            f"{width} beams need {shared + width * each} blocks and the pool has {llm.num_blocks}: "
            "lower width or max_tokens, or raise num_blocks"
        )
    end_tokens = frozenset[int]() if ignore_eos else llm.model.eos_token_ids
    text_after = TextAfter(llm.model.tokenizer, ids)
    return BeamSearch([first], width, end_tokens, length_penalty, early_stopping, text_after)


def _steps(llm: LLM, search: BeamSearch) -> Iterator[list[Sequence]]:
    """Run a search, and yield its running beams after each step."""
    try:
        candidates = search.candidates(_compute_prompt(llm, search))
        _cache_prompt(llm, search)
        while True:
            with llm.whole():
                goes_on = search.advance(candidates)
            if not goes_on:
                return
            yield search.beams
            candidates = search.candidates(_compute(llm, search, 1))
    finally:
        # The garbage collector may end an abandoned search while a step runs.
        llm.soon(partial(_free, llm, search))


def _compute_prompt(llm: LLM, search: BeamSearch) -> Tensor:
    """Compute what the prefix cache does not have of the prompt.

    Returns:
        The log-probabilities [1, V] of the first new token.
    """
    [first] = search.beams
    with llm.whole():
        if llm.prefix_cache is None:
            first.table = llm.new_table(llm.pool)
        else:
            first.table = llm.prefix_cache.match(first.token_ids)
    while True:
        num_tokens = min(first.num_uncomputed, llm.max_batch_tokens)
        logprobs = _compute(llm, search, num_tokens)
        if not first.num_uncomputed:
            return logprobs


def _cache_prompt(llm: LLM, search: BeamSearch) -> None:
    """Register the prompt's blocks in the prefix cache. Its logits are known to be finite."""
    [first] = search.beams
    if llm.prefix_cache is not None:
        with llm.whole():
            llm.prefix_cache.register(first.table, first.token_ids)


def _compute(llm: LLM, search: BeamSearch, num_tokens: int) -> Tensor:
    """Compute the next tokens of each beam.

    Returns:
        The log-probabilities [beams, V] after the last known token, or [0, V] before that.

    Raises:
        RuntimeError: If a reset has made another pool.
        OutOfBlocks: If too few blocks are free.
    """
    llm.catch_up()
    pool = llm.pool
    if search.beams[0].table.pool is not pool:
        raise RuntimeError(WAS_RESET)
    need = blocks_to_append_all([beam.table for beam in search.beams], num_tokens)
    if need > pool.num_free:
        raise OutOfBlocks(
            f"a step of the beam search takes {counted(need, 'block')}, and {pool.num_free} of "
            f"{pool.num_blocks} are free: let other requests end, or raise num_blocks"
        )
    with llm.whole():
        plan = Plan()
        for beam in search.beams:
            start = beam.table.num_tokens
            plan.copies += beam.table.append(num_tokens)
            plan.chunks.append(Chunk(beam, start, start + num_tokens))
        llm.cache.copy_blocks(plan.copies)
        logits = llm.forward(build_batch(plan.chunks, llm.model.device), llm.cache, llm.attend)
    return torch.log_softmax(logits.float(), dim=1)


def blocks_to_append_all(tables: list[BlockTable], num_tokens: int) -> int:
    """Return how many free blocks it takes to append tokens to all tables, one after the other."""
    need = sum(blocks_to_append(table, num_tokens) for table in tables)
    size = tables[0].pool.block_size
    writers = Counter(table.block_ids[-1] for table in tables if table.num_tokens % size)
    for block_id, count in writers.items():
        if count > 1 and tables[0].pool.refcount(block_id) == count:
            need -= 1  # the last of its owners writes into the block itself
    return need


def _free(llm: LLM, search: BeamSearch) -> None:
    """Free the blocks of the beams, unless a reset has made another pool."""
    for beam in search.beams:
        if beam.table.pool is llm.pool:
            beam.table.free()
