"""The state of an unfinished request: its parameters, and how its sequences grow, fork and end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagedlab.blocks import BlockTable
from pagedlab.detokenizer import Detokenizer, TextAfter
from pagedlab.model import Model
from pagedlab.outputs import NOT_FINITE, WAS_RESET, Completion, Output
from pagedlab.sampler import SampledTokens
from pagedlab.sampling import NO_TOKEN
from pagedlab.sampling_params import SamplingParams, TokenLogprob
from pagedlab.sequence import Request, Sequence
from pagedlab.validation import integer


@dataclass
class RequestState:
    """Connects a request's sequences with the completion that its caller reads.

    Raises:
        ValueError: If logit_bias or stop_token_ids names a token that the model does not have.
    """

    request: Request
    params: SamplingParams
    completion: Completion
    model: Model
    forget: Callable[[BlockTable], None]  # has the prefix cache forget a table's blocks
    is_dropped: bool = False

    def __post_init__(self) -> None:
        params = self.params
        self.text_after = TextAfter(self.model.tokenizer, self.completion.prompt_token_ids)
        self.end_tokens = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            self.end_tokens |= self.model.eos_token_ids
        for token in params.logit_bias:
            integer("a token id in logit_bias", token, 0, self.model.vocab_size - 1)
        for token in params.stop_token_ids:
            integer("a token id in stop_token_ids", token, 0, self.model.vocab_size - 1)

    def add_output(self, sequence: Sequence, stream: bool = False) -> None:
        """Add the sequence's output to the completion.

        Args:
            sequence: the sequence.
            stream: whether the output yields its text in pieces.
        """
        detokenizer = None
        if stream or self.params.stop:
            stop = tuple(self.params.stop)
            detokenizer = Detokenizer(self.model.tokenizer, stop, self.text_after.context)
        logprobs: list[TokenLogprob] | None = None if self.params.logprobs is None else []
        self.completion.outputs.append(
            Output(
                sequence.output_ids,
                sequence.finish_reason,
                sequence.cumulative_logprob,
                logprobs,
                self.text_after,
                detokenizer,
                NOT_FINITE if sequence.finish_reason == "error" else None,
            )
        )

    def fork(self, first: Sequence) -> Sequence:
        """Return one more sequence that continues the same prompt and shares its blocks."""
        nth = len(self.request.sequences)
        sequence = Sequence(
            f"{first.name}.{nth}",
            first.table.fork(),
            first.token_ids[:],
            first.seed + nth,
            first.num_prompt_tokens,
        )
        self.request.sequences.append(sequence)
        self.add_output(sequence, stream=self.completion.outputs[0].detokenizer is not None)
        return sequence

    def end(self, reason: str, error: str | None = None) -> None:
        """End the sequences that are not finished, and their outputs."""
        for sequence in self.request.unfinished:
            sequence.finish_reason = reason
        for output in self.completion.outputs:
            if output.finish_reason is None:
                output.finish_reason = reason
                output.error = error

    def drop(self, new_table: Callable[[], BlockTable]) -> None:
        """End the request with empty tables, because the engine was reset."""
        self.is_dropped = True
        for sequence in self.request.unfinished:
            sequence.table = new_table()
        self.end("error", WAS_RESET)

    def raise_if_dropped(self) -> None:
        """Raise `RuntimeError` if a reset has ended the request."""
        if self.is_dropped:
            raise RuntimeError(WAS_RESET)

    def extend(self, sequence: Sequence, sampled: SampledTokens, now: float) -> int:
        """Add sampled tokens to their sequence, up to the first one that ends it.

        Args:
            sequence: the sequence.
            sampled: its sampled tokens.
            now: the time that the completion records for them, in seconds.

        Returns:
            How many tokens were added.
        """
        sequence.drop_draft()  # the accepted part of it is among the sampled tokens
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
        output.token_ids += sampled.tokens[:count]
        output.cumulative_logprob = sequence.cumulative_logprob
        if sequence.finish_reason:
            self._end(sequence, output.detokenizer)
        output.finish_reason = sequence.finish_reason
        output.error = NOT_FINITE if sequence.finish_reason == "error" else None
        return count

    def _count_until_end(
        self, sequence: Sequence, tokens: list[int], detokenizer: Detokenizer | None
    ) -> int:
        """Count the tokens up to an end token, or to the one that completes a stop string.

        If there is one, or `NO_TOKEN`, the sequence gets its finish reason.
        """
        if tokens[-1:] == [NO_TOKEN]:
            tokens = tokens[:-1]
            sequence.finish_reason = "error"
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
            detokenizer.finish(self.text_after(sequence.output_ids))
            if detokenizer.stopped:
                sequence.finish_reason = "stop"
        if sequence.finish_reason == "error":
            self.forget(sequence.table)
        sequence.table.free()
