"""Running ahead of the host: while the device computes a window, the next is planned and launched.

    device   | window 1 ........... | window 2 ........... | window 3 ...
    host     | plan 2, launch 2 ... | collect 1, plan 3 .. | collect 2 ...

The blocks and positions of a sequence are known before its tokens are, so a window needs nothing of
the one before but what the device has itself. To the scheduler, tokens that are sampled at the
moment are tokens: `FastSequence.num_pending`.

A window is one step of any kind, and as many decode steps as keep the device busy while the host
works. It is no longer than that, because a new request waits for the whole window. Where no reader
waits for a next token, windows are long: the host's work is done once a window.

The host cannot foresee where a text ends. It learns so a window later: until then the slots of the
sequence stay unused, and tokens after its end are not taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pagedlab.sampling import Sampled
from pagedlab.scheduler import Plan, Sequence
from pagedlab_fast.asked import can_run_ahead
from pagedlab_fast.scheduler import FastScheduler
from pagedlab_fast.window import Window

if TYPE_CHECKING:
    from pagedlab_fast.decoder import Decoder  # needs Triton

# steps of a window, at most, that a reader waits for, or a request that is not admitted yet
STREAMED_STEPS = 8


@dataclass
class Launched:
    """A window in flight, and the plan that it computes."""

    plan: Plan
    window: Window


class RunAhead:
    """Plans and launches windows for one scheduler, and collects them.

    Attributes:
        max_steps: steps of a window, at most.
        max_streamed_steps: the same, where a reader waits for a next token.
        num_steps: of the next window that a reader waits for; it follows how long the host waits.
        max_in_flight: windows in flight, at most: the one on the device, and the next.
    """

    def __init__(self, decoder: Decoder, scheduler: FastScheduler, max_steps: int) -> None:
        self.decoder = decoder
        self.scheduler = scheduler
        self.max_steps = max_steps
        self.max_streamed_steps = min(STREAMED_STEPS, max_steps)
        self.num_steps = self.max_streamed_steps
        self.max_in_flight = 2
        self._launched: list[Launched] = []
        self._collected_at = 0.0  # when the latest window was collected

    @property
    def in_flight(self) -> int:
        """Windows that were launched and not collected."""
        return len(self._launched)

    def supports(self, sequences: Iterable[Sequence]) -> bool:
        """Whether the device can compute and sample for all these without the host."""
        return all(map(can_run_ahead, sequences))

    def launch(self, plan: Plan) -> None:
        """Launch the plan's step, and further steps after it where no prompt goes on."""
        num_steps = self._num_steps(plan)
        if num_steps > 1 and all(chunk.is_last for chunk in plan.chunks):
            plan.chunks = self.scheduler.reserve_ahead(plan.chunks, num_steps - 1)
        before = self._launched[-1].window if self._launched else None
        window = self.decoder.launch(plan.chunks, before)
        self._launched.append(Launched(plan, window))
        self.scheduler.in_flight = self.in_flight
        for row in window.rows:
            sequence: Any = row.chunk.sequence
            sequence.num_pending += row.num_samples

    def _num_steps(self, plan: Plan) -> int:
        """Steps of a window that begins with this plan."""
        sequences: list[Any] = [chunk.sequence for chunk in plan.chunks]
        if any(sequence.streaming for sequence in sequences):
            return min(self.num_steps, self.max_streamed_steps)
        if self.scheduler.waiting:
            return min(STREAMED_STEPS, self.max_steps)
        return self.max_steps

    def collect(self) -> tuple[Plan, dict[Sequence, Sampled]]:
        """Wait for the oldest window: its plan and tokens, without sequences that have ended."""
        launched = self._launched[0]
        began = perf_counter()
        collected = self.decoder.collect(launched.window)
        del self._launched[0]
        self.scheduler.in_flight = self.in_flight
        ended = perf_counter()
        if launched.window.done:
            self._balance(worked=began - self._collected_at, waited=ended - began)
        self._collected_at = ended
        plan = launched.plan
        plan.chunks = []
        sampled = {}
        for row, (tokens, logprobs) in zip(launched.window.rows, collected, strict=True):
            chunk = row.chunk
            sequence: Any = chunk.sequence
            sequence.num_pending -= row.num_samples
            if sequence.finish_reason is not None:
                continue  # it ended in the window before, or was aborted
            stop = chunk.stop - row.num_samples + len(tokens)
            plan.chunks.append(chunk._replace(stop=stop))
            if tokens:
                sampled[sequence] = Sampled(tokens, logprobs)
        return plan, sampled

    def _balance(self, worked: float, waited: float) -> None:
        """Make windows longer if the host hardly waits for the device, and shorter if it waits most
        of the time.

        Args:
            worked: seconds that the host worked since the window before.
            waited: seconds that it waited for this one.
        """
        if waited < worked / 4:
            self.num_steps = min(self.num_steps + 1, self.max_streamed_steps)
        elif waited > worked:
            self.num_steps = max(self.num_steps - 1, 1)

    def reset(self, scheduler: FastScheduler) -> None:
        """Forget the windows in flight: their tokens are not taken."""
        self._launched.clear()
        self.decoder.forget()
        self.scheduler = scheduler
