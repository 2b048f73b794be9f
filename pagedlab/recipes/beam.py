"""Beam search: keep the `width` likeliest texts, the beams, step by step.

It is a program over an engine's parts: block tables, a scheduler that gives slots, `build_batch`,
`LLM.forward` and `topk`. A beam that is continued is a fork of its parent's table, and a beam that
is dropped frees its table. No KV is moved. Between two steps the engine may serve other requests.

The rules are those of transformers' `generate(num_beams=width)`, so that tokens and scores are
equal. A beam that ends is scored by its summed log-probability over its length to the power of
`length_penalty`. The `width` best ended beams are kept. A beam may end only while it is among the
`width` best candidates of its step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from pagedlab.arguments import integer, real
from pagedlab.batch import build_batch
from pagedlab.blocks import OutOfBlocks
from pagedlab.engine import LLM, Prompt
from pagedlab.outputs import NOT_FINITE, WAS_RESET, Output, new_output
from pagedlab.sampling_params import SamplingParams
from pagedlab.scheduler import Plan, Scheduler, Sequence


def beam_search(llm: LLM, prompt: Prompt, **options: Any) -> list[Output]:
    """Return the likeliest texts after a prompt, best first. Each has its `score`.

    Args:
        llm: the engine.
        prompt: a text, a list of token ids, or a list of chat messages.
        options: those of `BeamSearch`: `width`, `max_tokens`, `length_penalty`, `ignore_eos`.

    Raises:
        ValueError: If an argument is out of range.
        OutOfBlocks: If too few blocks are free for a step.
        FloatingPointError: If logits are not finite.
        RuntimeError: If the engine was reset between two steps.

    Examples:
        >>> from pagedlab import LLM
        >>> from pagedlab.recipes.beam import beam_search
        >>> best, second = beam_search(LLM(verbose=False), "The old mill", width=2, max_tokens=4)
        >>> best.score >= second.score
        True
    """
    search = BeamSearch(llm, prompt, **options)
    for _ in search.steps():
        pass
    return [output for _, output in search.ended]


def beams(llm: LLM, prompt: Prompt, **options: Any) -> Iterator[list[Beam]]:
    """Return an iterator over the running beams after each step, best first.

    Each beam has `output_ids`, `cumulative_logprob` and `table`, which the next step frees. If the
    loop over them ends early, their blocks are freed. The options are those of `BeamSearch`.
    """
    return BeamSearch(llm, prompt, **options).steps()


@dataclass(eq=False)
class Beam(Sequence):
    """A text that may still become one of the best.

    Args:
        cumulative_logprob: the sum of the new tokens' log-probabilities (natural log).
    """

    cumulative_logprob: float = 0.0


class BeamSearch:
    """One search.

    Args:
        llm: the engine.
        prompt: a text, a list of token ids, or a list of chat messages.
        width: number of beams, and of texts.
        max_tokens: new tokens of a text, at most.
        length_penalty: exponent of the length in a score.
        ignore_eos: continue to max_tokens, even after an end-of-text token.

    Attributes:
        beams: the running beams, best first. The engine's scheduler never sees them.
        ended: the scores and outputs of the beams that have ended, best first.
    """

    def __init__(
        self,
        llm: LLM,
        prompt: Prompt,
        *,
        width: int,
        max_tokens: int = 64,
        length_penalty: float = 1.0,
        ignore_eos: bool = False,
    ) -> None:
        self.llm = llm
        self.width = integer("width", width, 1)
        self.length_penalty = real("length_penalty", length_penalty, -10, 10)
        self.end_tokens = frozenset[int]() if ignore_eos else llm.model.eos_token_ids
        max_tokens = integer("max_tokens", max_tokens, 1)
        ids = llm.model.checked_ids(prompt)
        first = Beam(
            request_id=0,
            table=llm.new_table(llm.pool),
            token_ids=ids,
            num_prompt_tokens=len(ids),
            params=SamplingParams(),
            max_tokens=min(max_tokens, llm.model.max_length - len(ids)),
        )
        llm.scheduler.check(first)
        self.scheduler = Scheduler(llm.pool, max(width, llm.max_batch_tokens), width)
        self.beams = [first]
        self.ended: list[tuple[float, Output]] = []

    def steps(self) -> Iterator[list[Beam]]:
        """Run the search, and yield the running beams after each step."""
        try:
            while True:
                candidates = self.candidates(self.compute())
                with self.llm.whole():
                    self.advance(candidates)
                if self.is_over:
                    return
                yield self.beams
        finally:
            # The garbage collector may end an abandoned search while a step runs.
            self.llm.soon(self.free)

    def compute(self) -> Tensor:
        """Compute the tokens that have no KV, and return the logits [beams, V] of the next ones."""
        llm, scheduler = self.llm, self.scheduler
        while self.beams[0].num_uncomputed:  # a long prompt takes several passes
            llm.catch_up()  # a reset that is due happens now
            if scheduler.pool is not llm.pool:
                raise RuntimeError(WAS_RESET)
            with llm.whole():
                scheduler.plan = Plan()
                scheduler.budget = scheduler.max_batch_tokens
                has_room = all(scheduler.give_slots(beam) for beam in self.beams)
                if has_room:
                    llm.cache.copy_blocks(scheduler.plan.copies)
                    batch = build_batch(scheduler.plan.chunks, llm.model.device)
                    logits = llm.forward(batch, llm.cache, llm.attend)
            if not has_room:
                raise OutOfBlocks(
                    f"too few of {llm.num_blocks} blocks are free for {len(self.beams)} beams: let "
                    "other requests end, lower width or raise num_blocks"
                )
        return logits

    def candidates(self, logits: Tensor) -> list[Beam]:
        """Return the likeliest continuations of the running beams by one token, best first.

        Args:
            logits: [beams, V].

        Raises:
            FloatingPointError: If logits are not finite.
        """
        known = torch.tensor([beam.cumulative_logprob for beam in self.beams], device=logits.device)
        totals = torch.log_softmax(logits.float(), dim=1) + known[:, None]
        # Enough that `width` remain even if all others are end-of-text tokens.
        count = max(2, 1 + len(self.end_tokens)) * self.width
        best, places = totals.flatten().topk(min(count, totals.numel()))
        if math.isnan(best[0]):  # `topk` takes NaN for the largest number
            raise FloatingPointError(NOT_FINITE)
        children = []
        for logprob, place in zip(best.tolist(), places.tolist(), strict=True):
            number, token = divmod(place, logits.shape[1])
            child = replace(self.beams[number], cumulative_logprob=logprob)
            child.token_ids = [*child.token_ids, token]
            children.append(child)
        return children

    def advance(self, candidates: list[Beam]) -> None:
        """Replace the running beams by their likeliest continuations: forks of their tables."""
        parents, self.beams = self.beams, []
        for rank, child in enumerate(candidates):
            if child.num_outputs >= child.max_tokens or child.token_ids[-1] in self.end_tokens:
                if rank < self.width:
                    self.end(child)
            elif len(self.beams) < self.width:
                child.table = child.table.fork()
                self.beams.append(child)
        for parent in parents:
            parent.table.free()
        # The sort is stable: the older beam wins a tie.
        self.ended = sorted(self.ended, key=itemgetter(0), reverse=True)[: self.width]

    def end(self, beam: Beam) -> None:
        """Note a beam that has ended."""
        reason = "stop" if beam.token_ids[-1] in self.end_tokens else "length"
        output = new_output(beam, self.llm.model.tokenizer)
        output.token_ids = beam.output_ids
        output.finish_reason = reason
        output.score = self.score(beam)
        self.ended.append((output.score, output))

    def score(self, beam: Beam) -> float:
        """The score of a beam at its present length."""
        return beam.cumulative_logprob / beam.num_outputs**self.length_penalty

    @property
    def is_over(self) -> bool:
        """Whether no running beam has a better score than the worst of `width` ended ones."""
        if not self.beams or len(self.ended) < self.width:
            return not self.beams
        worst, _ = self.ended[-1]
        return self.score(self.beams[0]) <= worst

    def free(self) -> None:
        """Free the blocks of the beams, unless a reset has made another pool."""
        if self.scheduler.pool is self.llm.pool:
            for beam in self.beams:
                beam.table.free()
