"""Completions and streams: the outputs of a prompt, complete or piece by piece."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import ref

from pagedlab.detokenizer import Detokenizer, TextAfter
from pagedlab.interrupts import deferred_interrupts
from pagedlab.sampling_params import TokenLogprob
from pagedlab.validation import no_attribute

NOT_FINITE = "logits are not finite: try bfloat16 or float32"


@dataclass
class Output:
    """One answer to a prompt. It grows while its request runs.

    Args:
        token_ids: the new tokens, with the end-of-text token if the model wrote one.
        finish_reason: why the output ended; None while it grows. "stop": the model or a stop string
            ended it. "length": it reached max_tokens or the model's longest context. "abort": the
            request was aborted. "error": see `error`.
        cumulative_logprob: the sum of the new tokens' log-probabilities (natural logarithm).
        score: the score of a beam that has ended: `cumulative_logprob` over a power of its length.
            The exponent is `SamplingParams.length_penalty`.
        logprobs: the log-probability of each new token; None if `SamplingParams.logprobs` is None.
        text_after: returns the text of token ids behind the prompt.
        detokenizer: yields the text in pieces; None without a stream and without stop strings.
    """

    token_ids: list[int]
    finish_reason: str | None
    cumulative_logprob: float
    score: float | None
    logprobs: list[TokenLogprob] | None
    text_after: TextAfter | None = field(compare=False)
    detokenizer: Detokenizer | None = field(compare=False)
    _copied_text: str = field(default="", compare=False)  # of a copy, which has neither of the two

    @property
    def text(self) -> str:
        """The new text, without special tokens and without the stop string that ended it."""
        if self.detokenizer is not None:
            return self.detokenizer.text
        return self.text_after(self.token_ids) if self.text_after else self._copied_text

    @property
    def error(self) -> str | None:
        """Why it has the finish_reason "error", in one line; None if it has another one."""
        return NOT_FINITE if self.finish_reason == "error" else None

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

    if not TYPE_CHECKING:  # with it, mypy would accept every name

        def __getattr__(self, name: str) -> Any:
            """Raise `AttributeError`. For an attribute of an `Output`, it says where that is."""
            if name.startswith("_") or hasattr(type(self), name):
                return self.__getattribute__(name)  # raises Python's own error, or a property's
            of_an_output = [known for known in dir(Output) if not known.startswith("_")]
            raise no_attribute(self, name, {known: f"outputs[0].{known}" for known in of_an_output})

    def __repr__(self) -> str:
        state = "finished" if self.finished else "running"
        prompt = f"{len(self.prompt_token_ids)} prompt tokens"
        return f"Completion({self.request_id}, {state}, {prompt}, {self.outputs})"


class Stream(Iterator[str]):
    """Yields the text of one request piece by piece.

    A stream that is closed or interrupted before its end aborts the request. If a stream is deleted
    before its end, the engine aborts the request in its next `step` or `add`.

    Args:
        llm: the engine.
        completion: the completion of the request, with one output.

    Raises:
        FloatingPointError: After the last piece, if the output has an `error`.
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
                    self._llm.step_and_keep_finished()
                    piece = detokenizer.take(self._completion.finished)
            except BaseException:
                self.close()
                raise
        if not piece:
            if error := self._completion.outputs[0].error:
                raise FloatingPointError(error)
            raise StopIteration
        return piece

    def close(self) -> None:
        """Abort the request if it is not finished."""
        self._llm.abort_owned([self._completion])

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a stream cannot be copied or pickled: it is the only reader of its request"
        )

    @property
    def request_id(self) -> int:
        return self._completion.request_id


class StreamReference(ref[Stream]):
    """A weak reference that knows the request of a stream after the stream was deleted.

    The garbage collector may run at any line, even during a step, so its callback must not touch
    the engine. The callback only appends this reference to `abandoned`. The engine aborts the
    request in its next step.

    Args:
        stream: the stream.
        abandoned: the queue of references whose streams were deleted.
    """

    __slots__ = ("request_id",)

    def __new__(cls, stream: Stream, abandoned: deque[StreamReference]) -> StreamReference:
        # `append` is written in C: it runs no line of Python in which an interrupt could be lost.
        return super().__new__(cls, stream, abandoned.append)

    def __init__(self, stream: Stream, abandoned: deque[StreamReference]) -> None:
        super().__init__(stream, abandoned.append)  # type: ignore[call-arg]
        self.request_id = stream.request_id
