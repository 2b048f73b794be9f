"""Completions: the outputs of a prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pagedlab.detokenizer import Detokenizer
from pagedlab.sampling_params import TokenLogprob
from pagedlab.scheduler import Sequence

NO_TOKEN = -1  # in place of the token of a row whose logits are not finite
NOT_FINITE = "logits are not finite: try bfloat16 or float32"
WAS_RESET = "a step failed, and the engine was reset: ask again"


@dataclass
class NewTokens:
    """The next tokens of one sequence.

    Args:
        token_ids: its next token, and one after each guess; `NO_TOKEN` if logits are not finite.
        reports: the log-probability of each token, before temperature and `adjust`, and the
            likeliest tokens; empty unless the request asks for them.
    """

    token_ids: list[int] = field(default_factory=list)
    reports: list[TokenLogprob] = field(default_factory=list)


@dataclass
class Output:
    """One answer to a prompt. It grows while its request runs.

    Args:
        detokenizer: turns its tokens into text, when somebody asks for the text.
        token_ids: the new tokens, with the end-of-text token if the model wrote one.
        finish_reason: why the output ended; None while it grows. "stop": the model or a stop string
            ended it. "length": it reached max_tokens or the model's longest context. "abort": the
            request was aborted. "error": see `error`.
        logprobs: the log-probability of each new token; None if `SamplingParams.logprobs` is None.
        error: why it has the finish_reason "error", in one line.
        score: the score that a recipe gives it; None without one.
    """

    detokenizer: Detokenizer = field(compare=False)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    logprobs: list[TokenLogprob] | None = None
    error: str | None = None
    score: float | None = None

    @property
    def text(self) -> str:
        """The new text, without special tokens and without the stop string that ended it."""
        self._read()
        return self.detokenizer.text

    def take(self) -> str:
        """Return the text that was not returned yet, without an end that a stop string may cut."""
        self._read()
        return self.detokenizer.take()

    def _read(self) -> None:
        self.detokenizer.read(self.token_ids, self.finish_reason is not None)

    def extend(self, new: NewTokens, ends: frozenset[int], most: int) -> int:
        """Add new tokens up to the first one that ends the text. Return how many were added.

        Args:
            new: the tokens.
            ends: tokens that end a text.
            most: tokens of the text, at most.
        """
        before = len(self.token_ids)
        for token in new.token_ids:
            if token == NO_TOKEN:
                self.finish_reason = "error"
                self.error = NOT_FINITE
                break
            self.token_ids.append(token)
            if len(self.token_ids) >= most:
                self.finish_reason = "length"
            if token in ends or self._is_stopped():
                self.finish_reason = "stop"
            if self.finish_reason is not None:
                break
        count = len(self.token_ids) - before
        if self.logprobs is not None:
            self.logprobs += new.reports[:count]
        return count

    def _is_stopped(self) -> bool:
        """Whether a stop string ends the text. Text is read for that only if there is one."""
        if self.detokenizer.stop:
            self._read()
        return self.detokenizer.stopped

    def __repr__(self) -> str:
        return (
            f"Output({self.text!r}, {len(self.token_ids)} tokens, "
            f"finish_reason={self.finish_reason!r})"
        )


def new_output(sequence: Sequence, tokenizer: Any) -> Output:
    """Return the output of a new sequence."""
    params = sequence.params
    prompt_ids = sequence.token_ids[: sequence.num_prompt_tokens]
    # It holds the tokenizer alone: the weights are freed before the output.
    decode = tokenizer.backend_tokenizer.decode
    detokenizer = Detokenizer(decode, prompt_ids, tuple(params.stop))
    return Output(detokenizer, logprobs=None if params.logprobs is None else [])


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
