"""What the engine hands back: texts as they grow, and the figures of the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import ref

import torch

from pagedlab.arguments import whole
from pagedlab.choice import Draw
from pagedlab.detokenizer import Detokenizer
from pagedlab.interrupts import deferred_interrupts
from pagedlab.model import Model
from pagedlab.request import Request, Sequence
from pagedlab.sampling import SamplingParams, TokenLogprob
from pagedlab.scheduler import Schedule

if TYPE_CHECKING:
    from pagedlab.beam import BeamSearch


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


@dataclass
class Job:
    """A request that is not finished: what was asked of it, and how its texts grow, fork and end."""

    request: Request
    params: SamplingParams
    completion: Completion
    model: Model
    beams: BeamSearch | None = None

    def __post_init__(self) -> None:
        p, most = self.params, self.request.max_tokens
        self.ends = frozenset(p.stop_token_ids) | (frozenset() if p.ignore_eos else self.model.eos_token_ids)
        for token in p.logit_bias:
            whole("a token id in logit_bias", token, 0, self.model.vocab_size - 1)
        if p.prompt_logprobs is not None:
            self.completion.prompt_logprobs, self.request.sequences[0].score_from = [None], 0
        if p.beam_width:
            from pagedlab.beam import BeamSearch  # not before: who asks for no beams does without that folder

            self.beams = BeamSearch(p.beam_width, most, self.ends, p.length_penalty, p.early_stopping)

    def show(self, text: Sequence, stream: bool = False) -> None:
        """Hand a text out, in pieces if that is wanted."""
        needs_pieces = stream or self.params.stop
        detokenizer = Detokenizer(self.model.tokenizer, tuple(self.params.stop)) if needs_pieces else None
        said: list[TokenLogprob] | None = None if self.params.logprobs is None else []
        self.completion.outputs.append(Output(text, detokenizer, self.model.decode, said))

    def fork(self, first: Sequence) -> Sequence:
        """One more text that continues the same prompt, over the same blocks."""
        nth, table = len(self.request.sequences), first.table.fork()
        text = Sequence(f"{first.name}.{nth}", table, first.token_ids[:], first.seed + nth, first.num_prompt_tokens)
        self.request.sequences.append(text)
        self.show(text, stream=self.completion.outputs[0].detokenizer is not None)
        return text

    def extend(self, text: Sequence, draw: Draw, now: float) -> int:
        """Add the new tokens to their text, up to the first that ends it, and return how many those are."""
        times, scores = self.completion.times, self.completion.prompt_logprobs
        output = self.completion.outputs[self.request.sequences.index(text)]
        detokenizer = output.detokenizer
        text.drop_draft()  # what was accepted of it is among the new tokens
        scored = len(draw.said) - (0 if output.logprobs is None else len(draw.tokens))
        if scores is not None and text.score_from is not None:
            scores += draw.said[:scored]
            text.score_from = None if draw.tokens else len(scores) - 1
        taken = len(draw.tokens)
        for i, token in enumerate(draw.tokens if self.ends or detokenizer else (), 1):
            if detokenizer and token not in self.ends:
                detokenizer.push(token)
            if token in self.ends or (detokenizer and detokenizer.stopped):
                taken, text.finish_reason = i, "stop"
                break
        text.token_ids += draw.tokens[:taken]
        text.cumulative_logprob = sum(draw.logprobs[:taken], text.cumulative_logprob)
        times += [now] * (text.num_outputs - len(times))
        if output.logprobs is not None:
            output.logprobs += draw.said[scored : scored + taken]
        if text.finish_reason is None and text.num_outputs >= self.request.max_tokens:
            text.finish_reason = "length"
        if text.finish_reason:
            if detokenizer:
                detokenizer.finish(self.model.decode(text.output_ids))
                if detokenizer.stopped:
                    text.finish_reason = "stop"
            text.table.free()
        return taken

    def search(self, logprobs: torch.Tensor, now: float) -> int:
        """Move a beam search on by one token: its outputs are then the beams that go on, or the best that ended.
        Return how many those are."""
        assert self.beams is not None
        self.beams.advance_texts(self.request, logprobs)
        self.completion.times.append(now)
        self.completion.outputs.clear()
        for text in self.request.sequences:
            self.show(text)
        return len(self.request.sequences)


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


@dataclass
class Stats:
    """Blocks and speed of the current busy spell, or of the last one: from the first `add` until idle again.

    prompt_tokens are those computed, again for requests that gave way; cached_tokens were found in the prefix
    cache and skipped. preemptions: how often a request gave way, and swaps: how often by swap. drafts: how often a
    draft was checked; drafted_tokens were looked at in them, and accepted_tokens agreed with.
    """

    num_blocks: int
    bytes_per_block: int
    blocks_used: int = 0
    blocks_peak: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    swaps: int = 0
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    seconds: float = 0.0

    def record(
        self, plan: Schedule, new_tokens: int, cached_tokens: int, blocks_used: int, seconds: float, drafts: list[Any]
    ) -> None:
        """Count a step of that plan, and the drafts it checked. cached_tokens and blocks_used are totals after it."""
        self.steps += plan.passes
        for _, sequence, start, stop in plan.chunks:
            self.prompt_tokens += max(0, min(stop, sequence.num_prompt_tokens) - start)
        self.output_tokens += new_tokens
        self.preemptions += len(plan.preempted)
        self.swaps += sum(how == "swap" for _, how in plan.preempted)
        self.cached_tokens, self.blocks_used = cached_tokens, blocks_used
        self.seconds += seconds
        self.drafts += len(drafts)
        self.drafted_tokens += sum(len(draft.tokens) for draft in drafts)
        self.accepted_tokens += sum(draft.accepted for draft in drafts)

    @property
    def acceptance_length(self) -> float:
        """Tokens that a text gets from a step with a draft, on average: those accepted, and the model's own."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else 1.0

    @property
    def bytes_peak(self) -> int:
        return self.blocks_peak * self.bytes_per_block

    @property
    def tokens_per_second(self) -> float:
        """Output tokens over the seconds spent in steps, prompts included."""
        return self.output_tokens / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        return (
            f"{self.output_tokens} tokens in {self.seconds:.2f} s ({self.tokens_per_second:.1f} tokens/s, "
            f"{self.steps} steps) after {self.prompt_tokens} prompt tokens computed and {self.cached_tokens} cached; "
            f"peak {self.blocks_peak} of {self.num_blocks} blocks ({self.bytes_peak / 2**20:.1f} MiB), "
            f"now {self.blocks_used} in use"
            + (f"; {self.preemptions} times a request gave way, {self.swaps} by swap" if self.preemptions else "")
            + (f"; {self.accepted_tokens} of {self.drafted_tokens} drafted tokens accepted" if self.drafts else "")
        )
