"""Completions: the outputs of a prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pagedlab.detokenizer import Detokenizer, TextAfter
from pagedlab.sampling_params import TokenLogprob

NOT_FINITE = "logits are not finite: try bfloat16 or float32"
WAS_RESET = "a step failed, and the engine was reset: ask again"


@dataclass
class Output:
    """One answer to a prompt. It grows while its request runs.

    Args:
        token_ids: the new tokens, with the end-of-text token if the model wrote one.
        finish_reason: why the output ended; None while it grows. "stop": the model or a stop string
            ended it. "length": it reached max_tokens or the model's longest context. "abort": the
            request was aborted. "error": see `error`.
        cumulative_logprob: the sum of the new tokens' log-probabilities (natural logarithm).
        logprobs: the log-probability of each new token; None if `SamplingParams.logprobs` is None.
        text_after: returns the text of token ids that follow the prompt.
        detokenizer: yields the text in pieces; None without a stream and without stop strings.
        error: why it has the finish_reason "error", in one line.
        score: the score that a recipe gives it; None without one.
    """

    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    cumulative_logprob: float = 0.0
    logprobs: list[TokenLogprob] | None = None
    text_after: TextAfter | None = field(default=None, compare=False)
    detokenizer: Detokenizer | None = field(default=None, compare=False)
    error: str | None = None
    score: float | None = None
    _copied_text: str = field(default="", compare=False)  # of a copy, which has neither of the two

    @property
    def text(self) -> str:
        """The new text, without special tokens and without the stop string that ended it."""
        if self.detokenizer is not None:
            return self.detokenizer.text
        return self.text_after(self.token_ids) if self.text_after else self._copied_text

    def complete_text(self) -> bool:
        """Add the rest of the text after the last token. Return whether a stop string ends it."""
        if self.detokenizer is None or self.text_after is None:
            return False
        self.detokenizer.finish(self.text_after(self.token_ids))
        return self.detokenizer.stopped

    def __getstate__(self) -> dict[str, Any]:
        """A copy, or a pickle, has the text as it is now, and no tokenizer."""
        without = {"text_after": None, "detokenizer": None, "_copied_text": self.text}
        return vars(self) | without

    def __repr__(self) -> str:
        return (
            f"Output({self.text!r}, {len(self.token_ids)} tokens, "
            f"finish_reason={self.finish_reason!r})"
        )


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
