"""Beam search: keep the `width` likeliest sequences, step by step.

The rules are those of transformers' `generate(num_beams=width)`, so that tokens and scores are
equal. A beam that ends is scored by its summed log-probability over its length to the power of
`length_penalty`. The `width` best ended beams are kept. A beam may end only while it is among the
`width` best candidates of its step.
"""

import math
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from pagedlab.sequence import Request, Sequence

EarlyStopping = bool | Literal["never"]


class Beam(NamedTuple):
    """A beam after some steps.

    Args:
        token_ids: its new tokens.
        logprob: the sum of their log-probabilities.
        parent: the index of the beam that it continues, in the step before.
        score: its score, once it has ended.
    """

    token_ids: tuple[int, ...]
    logprob: float
    parent: int = 0
    score: float = float("-inf")


@dataclass
class BeamSearch:
    """The beams of one request.

    Args:
        width: number of beams.
        max_tokens: new tokens of a beam, at most.
        eos_token_ids: tokens that end a beam.
        length_penalty: exponent of the length in a score.
        early_stopping: True ends the search as soon as `width` beams have ended. False ends it once
            the best running beam, scored at its present length, cannot beat the worst ended one.
            "never" scores the running beam at its best possible length.
        running: beams that are continued, best first.
        ended: beams that have ended, best first.
    """

    width: int
    max_tokens: int
    eos_token_ids: frozenset[int]
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    running: list[Beam] = field(default_factory=lambda: [Beam((), 0.0)])
    ended: list[Beam] = field(default_factory=list)

    def advance(self, logprobs: Tensor) -> list[Beam]:
        """Continue the running beams by one token.

        Args:
            logprobs: fp32 [beams, V], the log-probabilities of their next tokens.

        Returns:
            The beams that are continued; none if the search is over. Then `ended` has the results.

        Raises:
            FloatingPointError: If a log-probability is NaN.
        """
        # Enough candidates that `width` remain even if all others are end-of-text tokens.
        num_candidates = max(2, 1 + len(self.eos_token_ids)) * self.width
        sums = torch.tensor([[beam.logprob] for beam in self.running], device=logprobs.device)
        totals = (logprobs + sums).flatten()
        top, places = totals.topk(min(num_candidates, totals.numel()))
        best = top.tolist()
        if math.isnan(best[0]):  # `topk` takes NaN for the largest number
            raise FloatingPointError("the log-probabilities of a beam are NaN")
        length = len(self.running[0].token_ids) + 1
        continued: list[Beam] = []
        for rank, (logprob, place) in enumerate(zip(best, places.tolist(), strict=True)):
            parent, token = divmod(place, logprobs.shape[1])
            beam = Beam((*self.running[parent].token_ids, token), logprob, parent)
            if length == self.max_tokens or token in self.eos_token_ids:
                if rank < self.width:
                    self.ended.append(beam._replace(score=logprob / length**self.length_penalty))
            elif len(continued) < self.width:
                continued.append(beam)
        # The sort is stable: the older beam wins a tie.
        self.ended = sorted(self.ended, key=lambda beam: -beam.score)[: self.width]
        self.running = continued
        return [] if not continued or self._is_over(length) else continued

    def _is_over(self, length: int) -> bool:
        if len(self.ended) < self.width:
            return False
        if self.early_stopping is True:
            return True
        if self.early_stopping == "never" and self.length_penalty > 0:
            length = self.max_tokens
        return self.running[0].logprob / length**self.length_penalty <= self.ended[-1].score

    def advance_texts(self, request: Request, logprobs: Tensor) -> None:
        """Take one step of the search, and give the request the sequences of its beams.

        If logits are not finite, its running beams end. They keep their blocks.

        The tables of the continued beams are forked, and then all old tables are freed: no KV is
        moved.

        Args:
            request: its sequences are replaced.
            logprobs: fp32 [beams, V], the log-probabilities of their next tokens.
        """
        parents = request.sequences
        try:
            continued = self.advance(logprobs)
        except FloatingPointError:
            for parent in parents:
                parent.finish_reason = "error"
            return
        sequences = list[Sequence]()
        for i, beam in enumerate(continued or self.ended):
            name = f"r{request.request_id}.{i}"
            if continued:
                sequence = _continue(parents[beam.parent], beam, name)
            else:
                sequence = self._finish(parents[0], beam, name)
            sequences.append(sequence)
            request.sequences = parents + sequences  # at once, so that an abort frees it, too
        for parent in parents:
            parent.table.free()
        request.sequences = sequences

    def _finish(self, parent: Sequence, beam: Beam, name: str) -> Sequence:
        """Return the sequence of a beam that has ended. It has no blocks."""
        sequence = _sequence_of(beam, parent, type(parent.table)(parent.table.pool), name)
        sequence.score = beam.score
        ends = beam.token_ids[-1] in self.eos_token_ids
        sequence.finish_reason = "stop" if ends else "length"
        return sequence


def _continue(parent: Sequence, beam: Beam, name: str) -> Sequence:
    """Return the sequence of a running beam, which shares the blocks of its parent."""
    return _sequence_of(beam, parent, parent.table.fork(), name)


def _sequence_of(beam: Beam, parent: Sequence, table: Any, name: str) -> Sequence:
    """Return a sequence with the parent's prompt and the beam's tokens."""
    prompt = parent.token_ids[: parent.num_prompt_tokens]
    sequence = Sequence(name, table, [*prompt, *beam.token_ids], 0, len(prompt))
    sequence.cumulative_logprob = beam.logprob
    return sequence
