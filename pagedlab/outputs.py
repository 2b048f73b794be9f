"""What the engine returns: the outputs of a prompt, whole or piece by piece."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn
from weakref import ref

from pagedlab.detokenizer import Detokenizer
from pagedlab.interrupts import deferred_interrupts
from pagedlab.sampling_params import TokenLogprob
from pagedlab.sequence import Sequence


@dataclass
class Output:
    """One answer to a prompt. It grows while its request runs.

    text, token_ids: the new text and the new tokens, so far.
    finish_reason: None while it grows; "stop" if the model or a stop string ended it; "length" if max_tokens or the
        model's context is used up; "abort" if the request was aborted.
    cumulative_logprob: sum of the tokens' log-probabilities (natural log).
    score: of a beam that has ended, its log-probability over its length to the power of length_penalty.

    Args:
        logprobs: one a token; None if `SamplingParams.logprobs` is None.
        detokenizer: yields the text in pieces; None without a stream and without stop strings.
    """

    _sequence: Sequence
    detokenizer: Detokenizer | None
    _decode: Callable[[list[int]], str]
    logprobs: list[TokenLogprob] | None = None

    @property
    def token_ids(self) -> list[int]:
        """The new tokens, the end-of-text token included if the model wrote one."""
        return self._sequence.output_ids

    @property
    def text(self) -> str:
        """The new text, without special tokens, cut before the stop string that ended it."""
        return self.detokenizer.text if self.detokenizer else self._decode(self.token_ids)

    @property
    def finish_reason(self) -> str | None:
        """Why the output ended; None while it grows."""
        return self._sequence.finish_reason

    @property
    def cumulative_logprob(self) -> float:
        """Sum of the tokens' log-probabilities (natural log)."""
        return self._sequence.cumulative_logprob

    @property
    def score(self) -> float | None:
        """Score of a beam that has ended."""
        return self._sequence.score

    def __repr__(self) -> str:
        return (
            f"Output({self.text!r}, {len(self.token_ids)} tokens, "
            f"finish_reason={self.finish_reason!r})"
        )


@dataclass
class Completion:
    """The outputs of one prompt: `n` samples, or the beams with the best first.

    Args:
        request_id: what `LLM.add` returned.
        prompt_token_ids: the prompt, as tokens.
        outputs: the answers.
        added: when the request was added, in seconds of `time.perf_counter`.
        times: when the first, second, ... token was sampled. The time to first token is `times[0] -
            added`.
        prompt_logprobs: one a token of the prompt, None for the first, which nothing comes before.
            The list is None if `SamplingParams.prompt_logprobs` is None.
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


class Stream(Iterator[str]):
    """Yields the text of one request piece by piece.

    If it is closed or interrupted before its end, it aborts the request. If it is garbage before
    its end, the engine aborts the request in its next `step` or `add`.

    Args:
        llm: the engine.
        completion: of the request, with one output.
    """

    def __init__(self, llm: Any, completion: Completion) -> None:
        self._llm = llm
        self._completion = completion

    def __next__(self) -> str:
        detokenizer = self._completion.outputs[0].detokenizer
        assert detokenizer is not None
        with deferred_interrupts() as deferred:
            deferred.on_interrupt = self.close
            try:
                piece = detokenizer.take(self._completion.finished)
                while not piece and not self._completion.finished:
                    self._llm.step_for_others()
                    piece = detokenizer.take(self._completion.finished)
            except BaseException:
                self.close()
                raise
        if not piece:
            raise StopIteration
        return piece

    def close(self) -> None:
        """Abort the request, if it has not ended."""
        self._llm.drop([self._completion])

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a stream cannot be copied or pickled: it is the only reader of its request"
        )

    @property
    def request_id(self) -> int:
        return self._completion.request_id


class StreamReference(ref[Stream]):
    """Tells which request a stream had, once the stream is gone.

    The garbage collector may run at any line, in a step too, so what it calls must not touch the
    engine. It appends the reference to `abandoned`; the engine aborts the request in its next step.
    """

    __slots__ = ("request_id",)

    def __new__(cls, stream: Stream, abandoned: deque[StreamReference]) -> StreamReference:
        # `append` is C: no line of Python runs, so no interrupt can get lost in one.
        return super().__new__(cls, stream, abandoned.append)

    def __init__(self, stream: Stream, abandoned: deque[StreamReference]) -> None:
        super().__init__(stream, abandoned.append)  # type: ignore[call-arg]
        self.request_id = stream.request_id
