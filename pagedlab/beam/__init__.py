"""Beam search: keep the `width` likeliest texts, step by step.

Numbers, and at the end the tables that follow them.

The rules are those of transformers' `generate(num_beams=width)`, so that texts and scores are
equal. A text that ends is scored by its summed log-probability over its length to the power of
`length_penalty`; the best `width` ended texts are kept; a text may end only while it is among the
`width` best candidates of its step.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pagedlab.sequence import Request, Sequence

EarlyStopping = bool | Literal["never"]


class Beam(NamedTuple):
    """A text so far: its new tokens, the sum of their log-probabilities, which beam of the step
    before it continues, and its score once it has ended.
    """

    token_ids: tuple[int, ...]
    logprob: float
    parent: int = 0
    score: float = float("-inf")


@dataclass
class BeamSearch:
    """The beams of one request. early_stopping: True ends as soon as `width` texts have ended;
    False once the best running beam, scored at its present length, cannot beat the worst of them;
    "never" scores it at the length that suits it best.
    """

    width: int
    max_tokens: int
    eos_token_ids: frozenset[int]
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    running: list[Beam] = field(default_factory=lambda: [Beam((), 0.0)])
    ended: list[Beam] = field(default_factory=list)

    def advance(self, logprobs: Tensor) -> list[Beam]:
        """Take the log-probabilities of the running beams' next tokens, fp32 [beams, V]; return who
        goes on.

        An empty list means that the search is over, and `ended` holds the texts, best first.
        """
        # Enough candidates that `width` remain even if all others are end-of-text tokens.
        keep = max(2, 1 + len(self.eos_token_ids)) * self.width
        sums = torch.tensor([[beam.logprob] for beam in self.running], device=logprobs.device)
        best, flat = (logprobs + sums).flatten().topk(min(keep, logprobs.numel()))
        length = len(self.running[0].token_ids) + 1
        going: list[Beam] = []
        for rank, (logprob, index) in enumerate(zip(best.tolist(), flat.tolist(), strict=True)):
            parent, token = divmod(index, logprobs.shape[1])
            beam = Beam((*self.running[parent].token_ids, token), logprob, parent)
            if length == self.max_tokens or token in self.eos_token_ids:
                if rank < self.width:
                    self.ended.append(beam._replace(score=logprob / length**self.length_penalty))
            elif len(going) < self.width:
                going.append(beam)
        # stable: the older wins a tie
        self.ended = sorted(self.ended, key=lambda beam: -beam.score)[: self.width]
        self.running = going
        return going if going and not self._is_over(length) else []

    def _is_over(self, length: int) -> bool:
        if len(self.ended) < self.width:
            return False
        if self.early_stopping is True:
            return True
        if self.early_stopping == "never" and self.length_penalty > 0:
            length = self.max_tokens
        return self.running[0].logprob / length**self.length_penalty <= self.ended[-1].score

    def advance_texts(self, request: Request, logprobs: Tensor) -> None:
        """Take one step of the search, logprobs [width, V], and let the request's texts follow it.

        The tables of the beams that go on are forked, then all the old ones freed: no KV moves,
        only counts change.
        """
        parents, going, texts = request.sequences, self.advance(logprobs), list[Sequence]()
        first = parents[0]
        prompt = first.token_ids[: first.num_prompt_tokens]
        for i, beam in enumerate(going or self.ended):
            table = (
                parents[beam.parent].table.fork() if going else type(first.table)(first.table.pool)
            )
            text = Sequence(
                f"r{request.request_id}.{i}", table, [*prompt, *beam.token_ids], 0, len(prompt)
            )
            text.cumulative_logprob = beam.logprob
            if not going:
                text.score = beam.score
                text.finish_reason = (
                    "stop" if beam.token_ids[-1] in self.eos_token_ids else "length"
                )
            texts.append(text)
            request.sequences = parents + texts  # at once, so that an abort would free it
        for parent in parents:
            parent.table.free()
        request.sequences = texts
