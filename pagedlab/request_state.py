"""A request that is not finished: what was asked of it, and how its sequences grow, fork and
end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pagedlab.detokenizer import Detokenizer
from pagedlab.model import Model
from pagedlab.outputs import Completion, Output
from pagedlab.sampler import SampledTokens
from pagedlab.sampling_params import SamplingParams, TokenLogprob
from pagedlab.sequence import Request, Sequence
from pagedlab.validation import integer

if TYPE_CHECKING:
    from pagedlab.beam import BeamSearch


@dataclass
class RequestState:
    """Ties a request's sequences to the completion that its caller reads.

    Raises:
        ValueError: If a token in logit_bias is none of the model's.
    """

    request: Request
    params: SamplingParams
    completion: Completion
    model: Model
    beams: BeamSearch | None = None

    def __post_init__(self) -> None:
        params = self.params
        self.end_tokens = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            self.end_tokens |= self.model.eos_token_ids
        for token in params.logit_bias:
            integer("a token id in logit_bias", token, 0, self.model.vocab_size - 1)
        if params.prompt_logprobs is not None:
            self.completion.prompt_logprobs = [None]  # nothing comes before the first token
            self.request.sequences[0].score_from = 0
        if params.beam_width:
            from pagedlab.beam import BeamSearch  # a wing: requests without beams do without it

            self.beams = BeamSearch(
                params.beam_width,
                self.request.max_tokens,
                self.end_tokens,
                params.length_penalty,
                params.early_stopping,
            )

    def show(self, sequence: Sequence, stream: bool = False) -> None:
        """Add an output for the sequence, which hands its text out in pieces if `stream` is set."""
        detokenizer = None
        if stream or self.params.stop:
            detokenizer = Detokenizer(self.model.tokenizer, tuple(self.params.stop))
        logprobs: list[TokenLogprob] | None = None if self.params.logprobs is None else []
        self.completion.outputs.append(Output(sequence, detokenizer, self.model.decode, logprobs))

    def fork(self, first: Sequence) -> Sequence:
        """Return one more sequence that continues the same prompt, over the same blocks."""
        nth = len(self.request.sequences)
        table = first.table.fork()
        seed = first.seed + nth
        sequence = Sequence(
            f"{first.name}.{nth}", table, first.token_ids[:], seed, first.num_prompt_tokens
        )
        self.request.sequences.append(sequence)
        self.show(sequence, stream=self.completion.outputs[0].detokenizer is not None)
        return sequence

    def extend(self, sequence: Sequence, sampled: SampledTokens, now: float) -> int:
        """Add sampled tokens to their sequence, up to the first that ends it.

        Args:
            now: the time that the completion notes for them, in seconds.

        Returns:
            How many tokens were added.
        """
        sequence.drop_draft()  # what was accepted of it is among the new tokens
        self._take_prompt_logprobs(sequence, sampled)
        output = self.completion.outputs[self.request.sequences.index(sequence)]
        count = self._count_until_end(sequence, sampled.tokens, output.detokenizer)
        sequence.token_ids += sampled.tokens[:count]
        sequence.cumulative_logprob = sum(sampled.scores[:count], sequence.cumulative_logprob)
        times = self.completion.times
        times += [now] * (sequence.num_outputs - len(times))
        if output.logprobs is not None:
            output.logprobs += sampled.logprobs[:count]
        if sequence.finish_reason is None and sequence.num_outputs >= self.request.max_tokens:
            sequence.finish_reason = "length"
        if sequence.finish_reason:
            self._end(sequence, output.detokenizer)
        return count

    def _take_prompt_logprobs(self, sequence: Sequence, sampled: SampledTokens) -> None:
        reported = self.completion.prompt_logprobs
        if reported is not None and sequence.score_from is not None:
            reported += sampled.prompt_logprobs
            sequence.score_from = None if sampled.tokens else len(reported) - 1

    def _count_until_end(
        self, sequence: Sequence, tokens: list[int], detokenizer: Detokenizer | None
    ) -> int:
        """How many of the tokens belong to the sequence: it ends at an end token, or with a stop
        string.
        """
        if not self.end_tokens and detokenizer is None:
            return len(tokens)
        for count, token in enumerate(tokens, 1):
            is_end = token in self.end_tokens
            if detokenizer is not None and not is_end:
                detokenizer.push(token)
                is_end = detokenizer.stopped
            if is_end:
                sequence.finish_reason = "stop"
                return count
        return len(tokens)

    def _end(self, sequence: Sequence, detokenizer: Detokenizer | None) -> None:
        """Complete the text of a sequence that has ended, and free its blocks."""
        if detokenizer is not None:
            detokenizer.finish(self.model.decode(sequence.output_ids))
            if detokenizer.stopped:
                sequence.finish_reason = "stop"
        sequence.table.free()

    def search(self, logprobs: torch.Tensor, now: float) -> int:
        """Move a beam search on by one token.

        Its outputs are then the beams that go on, or the best that ended.

        Args:
            logprobs: [beams, V]. Return how many outputs there are.
        """
        assert self.beams is not None
        self.beams.advance_texts(self.request, logprobs)
        self.completion.times.append(now)
        self.completion.outputs.clear()
        for sequence in self.request.sequences:
            self.show(sequence)
        return len(self.request.sequences)
