"""Completions: the outputs of a prompt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pagedlab.detokenizer import Detokenizer
from pagedlab.sampling_params import TokenLogprob
from pagedlab.sequence import Sequence


@dataclass
class Output:
    """One answer to a prompt. It grows while its request runs.

    Args:
        _sequence: the sequence of tokens.
        detokenizer: yields the text in pieces; None without a stream and without stop strings.
        _decode: returns the text of token ids.
        logprobs: the log-probability of each new token; None if `SamplingParams.logprobs` is None.
    """

    _sequence: Sequence
    detokenizer: Detokenizer | None
    _decode: Callable[[list[int]], str]
    logprobs: list[TokenLogprob] | None = None

    @property
    def token_ids(self) -> list[int]:
        """The new tokens, with the end-of-text token if the model wrote one."""
        return self._sequence.output_ids

    @property
    def text(self) -> str:
        """The new text, without special tokens and without the stop string that ended it."""
        return self.detokenizer.text if self.detokenizer else self._decode(self.token_ids)

    @property
    def finish_reason(self) -> str | None:
        """Why the output ended; None while it grows.

        "stop": the model or a stop string ended it. "length": it reached max_tokens or the model's
        longest context. "abort": the request was aborted. "error": a step failed, and the engine
        was reset.
        """
        return self._sequence.finish_reason

    @property
    def cumulative_logprob(self) -> float:
        """The sum of the new tokens' log-probabilities (natural logarithm)."""
        return self._sequence.cumulative_logprob

    @property
    def score(self) -> float | None:
        """The score of a beam that has ended: `cumulative_logprob` over a power of its length.

        The exponent is `SamplingParams.length_penalty`.
        """
        return self._sequence.score

    def __repr__(self) -> str:
        return (
            f"Output({self.text!r}, {len(self.token_ids)} tokens, "
            f"finish_reason={self.finish_reason!r})"
        )


@dataclass
class Completion:
    """The outputs of one prompt: n samples, or beams with the best one first.

    Args:
        request_id: the id that `LLM.add` returned.
        prompt_token_ids: the token ids of the prompt.
        outputs: the answers.
        added: the time when the request was added, in seconds of `time.perf_counter`.
        times: the times when the first, second, ... token was sampled, in the same seconds. The
            time to first token is `times[0] - added`.
        prompt_logprobs: the log-probability of each prompt token; None for the first token, which
            nothing predicts. The list is None if `SamplingParams.prompt_logprobs` is None.
    """

    request_id: int
    prompt_token_ids: list[int]
    outputs: list[Output]
    added: float = 0.0
    times: list[float] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] | None = None

    @property
    def finished(self) -> bool:
        """Whether every output has ended."""
        return all(output.finish_reason is not None for output in self.outputs)

    def __repr__(self) -> str:
        state = "finished" if self.finished else "running"
        prompt = f"{len(self.prompt_token_ids)} prompt tokens"
        return f"Completion({self.request_id}, {state}, {prompt}, {self.outputs})"
