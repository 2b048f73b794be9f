"""Running ahead of the host: while the device computes a window of steps, the next is planned and
sent.

    device   | window 1 ........ | window 2 ........ | window 3 ...
    host     | plan 2, send 2 .. | take up 1, plan 3 | take up 2 ...

A text's blocks and positions are known before its tokens are, so a window needs nothing of the one
before but what the device has itself: to the scheduler, tokens under way are tokens
(`Sequence.num_ahead`). A window is one step of anything, prompts too, and decode steps behind it,
as few as keep the device busy while the host works, since who comes waits for all of them. Where
nobody reads before the end there are always READ_AHEAD, and twice as many where nobody waits for a
place: the host's work is by the window, and if it is held up for some milliseconds, nothing else
is.

What the host cannot foresee is where a text ends. It learns so a window later: until then the
text's slots stay unused, and tokens behind its end are not taken up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import perf_counter

from pagedlab.accelerate.graphs import Decoder, Window
from pagedlab.sampler import SampledTokens
from pagedlab.sampling_params import SamplingParams
from pagedlab.scheduler import Request, Schedule, Scheduler

# steps at most in a window that somebody waits for, or others that have no place yet
READ_AHEAD = 8


class Windows:
    """Windows of up to `steps` steps for the texts of one scheduler."""

    def __init__(self, decoder: Decoder, scheduler: Scheduler, steps: int) -> None:
        self.decoder, self.scheduler, self.most = decoder, scheduler, steps
        self.at_once = 2  # windows: the one on the device, and the next
        # steps at most in a window that somebody waits for
        self.read_ahead = min(READ_AHEAD, steps)
        self.steps = self.read_ahead  # of the next one
        self._launched: list[tuple[Schedule, Window]] = []
        self._since = 0.0  # when the latest window was collected

    @property
    def under_way(self) -> int:
        """Windows that were launched and not collected."""
        return len(self._launched)

    def take(self, requests: Iterable[Request], params: Mapping[int, SamplingParams]) -> bool:
        """Whether all these requests, with `params` by request id, can be computed without the
        host.
        """
        return not any(r.num_to_fork or params[r.request_id].wants_host for r in requests)

    def launch(self, plan: Schedule, params: Mapping[int, SamplingParams]) -> None:
        """Launch the plan's step, and further ones after it where no prompt is due.

        If this fails, the device's state is no longer what the windows left: `abandon` them all.
        """
        steps = min(self.steps, self.read_ahead)
        if not any(chunk.request.streaming for chunk in plan.chunks):
            steps = min(READ_AHEAD, self.most) if self.scheduler.waiting else self.most
        if steps > 1 and all(chunk.is_last for chunk in plan.chunks):
            further = {
                c.sequence: c.stop
                for c in self.scheduler.reserve_ahead(plan.chunks, steps - 1) or []
            }
            plan.chunks = [c._replace(stop=further.get(c.sequence, c.stop)) for c in plan.chunks]
        window = self.decoder.launch(
            plan.chunks, params, self._launched[-1][1] if self._launched else None
        )
        self._launched.append((plan, window))
        for chunk, drawn in zip(plan.chunks, window.drawn, strict=True):
            chunk.sequence.num_ahead += drawn

    def collect(self) -> tuple[Schedule, list[SampledTokens]] | None:
        """Wait for the oldest window: what it computed, and its draws.

        None if nobody is left whom it was for.

        The new tokens but the last stand behind each text as a draft that was accepted. If this
        fails, `abandon` all windows.
        """
        plan, window = self._launched[0]
        began = perf_counter()
        drawn = self.decoder.collect(window)
        del self._launched[0]
        if window.done:
            self._balance(began - self._since, perf_counter() - began)
        self._since = perf_counter()
        draws, chunks = [], []
        for chunk, n, (tokens, logprobs) in zip(plan.chunks, window.drawn, drawn, strict=True):
            text = chunk.sequence
            text.num_ahead -= n
            if text.finish_reason is None:  # else it ended in the window before, or was aborted
                chunks.append(chunk._replace(stop=chunk.stop - n + len(tokens)))
                if tokens:
                    text.token_ids += tokens[:-1]
                    text.num_draft = len(tokens) - 1
                    draws.append(SampledTokens(chunk.request, text, tokens, logprobs))
        plan.chunks, plan.passes = chunks, max((len(draw.tokens) for draw in draws), default=1)
        return (plan, draws) if chunks else None

    def _balance(self, worked: float, waited: float) -> None:
        """Longer windows if the host hardly waits for the device, shorter ones if it waits for most
        of the time.
        """
        if waited < worked / 4:
            self.steps = min(self.steps + 1, self.read_ahead)
        elif waited > worked:
            self.steps = max(self.steps - 1, 1)

    def abandon(self) -> list[Schedule]:
        """Forget the windows in flight and return their plans, the latest first, for the scheduler
        to rewind.

        Their sequences are left with the tokens that the host knows.
        """
        plans = [plan for plan, _ in reversed(self._launched)]
        self._launched.clear()
        for plan in plans:
            for chunk in plan.chunks:
                chunk.sequence.drop_draft()
                chunk.sequence.num_ahead = 0
        return plans
