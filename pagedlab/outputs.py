"""What the engine hands back: texts as they grow."""

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
    """One text. It grows while its request runs; `finish_reason` is then None, and later says why it ended.

    "stop": the model ended it, or a stop string did. "length": max_tokens or the model's context is used up.
    "abort": somebody called `abort`. cumulative_logprob: sum of the tokens' log-probabilities (natural log).
    score: of a beam that has ended, its log-probability over its length to the power of length_penalty.
    detokenizer: hands the text out in pieces; None where nobody asked for that, and there are no stop strings.
    logprobs: one each token, None where `SamplingParams.logprobs` is.
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
        return self._sequence.finish_reason

    @property
    def cumulative_logprob(self) -> float:
        return self._sequence.cumulative_logprob

    @property
    def score(self) -> float | None:
        return self._sequence.score

    def __repr__(self) -> str:
        return f"Output({self.text!r}, {len(self.token_ids)} tokens, finish_reason={self.finish_reason!r})"


@dataclass
class Completion:
    """What came of one prompt: `n` outputs, or the beams with the best first. `finished` once every one of them is.

    added and times: when the request came, and when its texts took their first, second, ... token, on the clock of
    `time.perf_counter`. So the time to first token is `times[0] - added`. prompt_logprobs: one each of its tokens but
    the first, which has None, since nothing stands before it; None in place of the list where nobody asked.
    """

    request_id: int
    prompt_token_ids: list[int]
    outputs: list[Output]
    added: float = 0.0
    times: list[float] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] | None = None

    @property
    def finished(self) -> bool:
        return all(output.finish_reason is not None for output in self.outputs)


class Stream(Iterator[str]):
    """One text, piece by piece. Closed or interrupted before its end, it aborts its request.

    If it is dropped before its end, the engine aborts the request with its next `step` or `add`.
    """

    def __init__(self, llm: Any, completion: Completion) -> None:
        self._llm, self._completion = llm, completion

    def __next__(self) -> str:
        detokenizer = self._completion.outputs[0].detokenizer
        assert detokenizer is not None
        with deferred_interrupts() as deferred:
            deferred.on_interrupt = self.close
            try:
                while not (piece := detokenizer.take(self._completion.finished)) and not self._completion.finished:
                    self._llm.step_for_others()
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
        raise TypeError("a stream cannot be copied or pickled: it is the only reader of its request")

    @property
    def request_id(self) -> int:
        return self._completion.request_id


class StreamReference(ref[Stream]):
    """Tells which request a stream had, once the stream is gone.

    The garbage collector may run at any line, in a step too, so what it calls must not touch the engine. It appends
    the reference to `abandoned`; the engine aborts the request in its next step.
    """

    __slots__ = ("request_id",)

    def __new__(cls, stream: Stream, abandoned: deque[StreamReference]) -> StreamReference:
        # `append` is C: no line of Python runs, so no interrupt can get lost in one.
        return super().__new__(cls, stream, abandoned.append)

    def __init__(self, stream: Stream, abandoned: deque[StreamReference]) -> None:
        super().__init__(stream, abandoned.append)  # type: ignore[call-arg]
        self.request_id = stream.request_id
