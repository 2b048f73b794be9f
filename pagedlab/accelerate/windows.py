"""Running ahead of the host: while the device computes a window of steps, the next is planned and sent.

    device   | window 1 ........ | window 2 ........ | window 3 ...
    host     | plan 2, send 2 .. | take up 1, plan 3 | take up 2 ...

A text's blocks and positions are known before its tokens are, so a window needs nothing of the one before but what the
device has itself. What the host cannot foresee is where a text ends. It learns so a window later: until then the text's
slots stay unused, and tokens behind its end are not taken up.
"""

from __future__ import annotations

from collections.abc import Mapping

from pagedlab.accelerate.graphs import Decoder, Window
from pagedlab.choice import Draw
from pagedlab.sampling import SamplingParams
from pagedlab.scheduler import Chunk, Schedule, Scheduler, Sequence


class Windows:
    """Windows of up to `steps` decode steps for the texts of one scheduler. At most two are under way."""

    def __init__(self, decoder: Decoder, scheduler: Scheduler, steps: int) -> None:
        self.decoder, self.scheduler, self.steps = decoder, scheduler, steps
        self._launched: list[tuple[Schedule, Window]] = []
        self._params: Mapping[int, SamplingParams] = {}

    def start(self, plan: Schedule, params: Mapping[int, SamplingParams]) -> bool:
        """Launch a window for a plan of decodes, made longer if nobody else is waiting to come in.

        False, with nothing done, if the plan has other work or a text draws in a way that takes the host.
        """
        if not all(_can_run_ahead(chunk, params[chunk.request.request_id]) for chunk in plan.chunks):
            return False
        further = {c.sequence: c for c in self.scheduler.look_ahead(plan.chunks, self.steps - 1) or []}
        plan.chunks = [c._replace(stop=further.get(c.sequence, c).stop) for c in plan.chunks]
        self._params = params
        self._launch(plan, None)
        return True

    def next(self) -> tuple[Schedule, list[Draw]] | None:
        """Launch one more window if that can be, then wait for the oldest: what it computed, and its draws.

        None if none is under way whose texts are still wanted. The new tokens but the last stand behind each text as a
        draft that was accepted. If this fails, the slots of all windows are taken back.
        """
        try:
            while self._launched:
                plan, window = self._launched[0]
                if further := self.scheduler.look_ahead(plan.chunks, self.steps):
                    self._launch(Schedule(further), window)
                draws, chunks = [], []
                for chunk, (tokens, logprobs) in zip(plan.chunks, self.decoder.collect(window), strict=True):
                    text = chunk.sequence
                    if text.finish_reason is None:  # else it ended in the window before, or was aborted
                        chunks.append(chunk._replace(stop=chunk.start + len(tokens)))
                        text.token_ids += tokens[:-1]
                        text.num_draft = len(tokens) - 1
                        draws.append(Draw(chunk.request, text, 0, tokens, logprobs))
                del self._launched[0]
                if draws:
                    plan.chunks, plan.passes = chunks, max(len(draw.tokens) for draw in draws)
                    return plan, draws
        except BaseException:
            self._undo()
            raise
        return None

    def _launch(self, plan: Schedule, before: Window | None) -> None:
        self._launched.append((plan, self.decoder.launch(plan.chunks, self._params, before)))

    def _undo(self) -> None:
        starts: dict[Sequence, int] = {}
        for plan, _ in self._launched:
            for chunk in plan.chunks:
                starts.setdefault(chunk.sequence, chunk.start)
        self._launched.clear()
        for text, start in starts.items():
            if text.finish_reason is None:
                text.drop_draft()
                text.table.truncate(start)


def _can_run_ahead(chunk: Chunk, params: SamplingParams) -> bool:
    """Whether the chunk is one step of plain decoding: no prompt, no draft, no fork, nothing special about the draw."""
    one = chunk.is_last and chunk.stop - chunk.start == 1 and not chunk.sequence.num_draft
    special = params.beam_width, params.top_k, params.top_p < 1, params.adjusts, params.stop_token_ids
    return one and not (chunk.request.texts_to_fork or any(special)) and params.logprobs is None
