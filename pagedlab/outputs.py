"""Completions: the outputs of a prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pagedlab.detokenizer import Detokenizer, TextAfter
from pagedlab.sampling_params import TokenLogprob
from pagedlab.scheduler import Sequence

NO_TOKEN = -1  # in place of the token of a row whose logits are not finite
NOT_FINITE = "logits are not finite: try bfloat16 or float32"
WAS_RESET = "a step failed, and the engine was reset: ask again"


@dataclass
class NewTokens:
    """The next tokens of one sequence.

    Args:
        token_ids: its next token; `NO_TOKEN` if its logits are not finite. After it, a token for
            each sample that is forked from the sequence, or one after each guess.
        reports: the log-probability of each token, before temperature and `adjust`, and the
            likeliest tokens; empty unless the request asks for them.
    """

    token_ids: list[int] = field(default_factory=list)
    reports: list[TokenLogprob] = field(default_factory=list)

    def part(self, start: int, stop: int) -> NewTokens:
        """Some of the tokens."""
        return NewTokens(self.token_ids[start:stop], self.reports[start:stop])


@dataclass
class Output:
    """One answer to a prompt. It grows while its request runs.

    Args:
        token_ids: the new tokens, with the end-of-text token if the model wrote one.
        finish_reason: why the output ended; None while it grows. "stop": the model or a stop string
            ended it. "length": it reached max_tokens or the model's longest context. "abort": the
            request was aborted. "error": see `error`.
        logprobs: the log-probability of each new token; None if `SamplingParams.logprobs` is None.
        text_after: returns the text of token ids that follow the prompt.
        detokenizer: yields the text in pieces; None without a stream and without stop strings.
        error: why it has the finish_reason "error", in one line.
        score: the score that a recipe gives it; None without one.
    """

    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    logprobs: list[TokenLogprob] | None = None
    text_after: TextAfter | None = field(default=None, compare=False)
    detokenizer: Detokenizer | None = field(default=None, compare=False)
    error: str | None = None
    score: float | None = None

    @property
    def text(self) -> str:
        """The new text, without special tokens and without the stop string that ended it."""
        if self.detokenizer is not None:
            return self.detokenizer.text
        return self.text_after(self.token_ids) if self.text_after else ""

    def extend(self, new: NewTokens, ends: frozenset[int]) -> int:
        """Add new tokens up to the first one that ends the text. Return how many were added.

        Args:
            new: the tokens.
            ends: tokens that end a text.
        """
        tokens = new.token_ids
        if tokens[-1:] == [NO_TOKEN]:
            tokens = tokens[:-1]
            self.finish_reason = "error"
            self.error = NOT_FINITE
        count = len(tokens)
        if ends or self.detokenizer is not None:
            count = self._count_until_end(tokens, ends)
        self.token_ids += tokens[:count]
        if self.logprobs is not None:
            self.logprobs += new.reports[:count]
        return count

    def _count_until_end(self, token_ids: list[int], ends: frozenset[int]) -> int:
        """Count the tokens up to one that ends the text, which then has a finish reason."""
        for count, token in enumerate(token_ids, 1):
            is_end = token in ends
            if self.detokenizer is not None and not is_end:
                self.detokenizer.push(token)
                is_end = self.detokenizer.stopped
            if is_end:
                self.finish_reason = "stop"
                self.error = None
                return count
        return len(token_ids)

    def complete_text(self) -> bool:
        """Add the rest of the text after the last token. Return whether a stop string ends it."""
        if self.detokenizer is None or self.text_after is None:
            return False
        self.detokenizer.finish(self.text_after(self.token_ids))
        return self.detokenizer.stopped

    def __repr__(self) -> str:
        return (
            f"Output({self.text!r}, {len(self.token_ids)} tokens, "
            f"finish_reason={self.finish_reason!r})"
        )


def new_output(sequence: Sequence, tokenizer: Any, stream: bool) -> Output:
    """Return the output of a new sequence. With `stream`, it yields its text in pieces."""
    params = sequence.params
    text_after = TextAfter(tokenizer, sequence.token_ids[: sequence.num_prompt_tokens])
    output = Output(logprobs=None if params.logprobs is None else [], text_after=text_after)
    if stream or params.stop:
        output.detokenizer = Detokenizer(tokenizer, tuple(params.stop), text_after.context)
    return output


@dataclass
class Completion:
    """The outputs of one prompt: n samples.

    Args:
        request_id: the id that `LLM.add` returned.
        prompt_token_ids: the token ids of the prompt.
        outputs: the answers.
        added: the time when the request was added, in seconds of `time.perf_counter`.
        times: the times when the first, second, ... token was sampled, in the same seconds. The
            time to first token is `times[0] - added`.
    """

    request_id: int
    prompt_token_ids: list[int]
    outputs: list[Output]
    added: float = 0.0
    times: list[float] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        """Whether every output has ended."""
        return all(output.finish_reason is not None for output in self.outputs)

    def __repr__(self) -> str:
        state = "finished" if self.finished else "running"
        prompt = f"{len(self.prompt_token_ids)} prompt tokens"
        return f"Completion({self.request_id}, {state}, {prompt}, {self.outputs})"
