"""The loop with overlap: while the device computes a window, the next is planned and launched.

    device   | window 1 ........... | window 2 ........... | window 3 ...
    host     | plan 2, launch 2 ... | collect 1, plan 3 .. | collect 2 ...

`EagerRunner` is the loop without overlap: `submit` keeps a plan, and `collect` computes it.

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

from time import perf_counter
from typing import TYPE_CHECKING

from torch import Tensor

from pagedlab.engine import EagerRunner
from pagedlab.sampling import NewTokens
from pagedlab.scheduler import Plan, Sequence
from pagedlab_fast.asked import can_run_ahead
from pagedlab_fast.scheduler import up_to
from pagedlab_fast.window import Window

if TYPE_CHECKING:
    from pagedlab_fast.decoder import Decoder  # needs Triton
    from pagedlab_fast.engine import LLM

# steps of a window, at most, that a reader waits for, or a request that is not admitted yet
STREAMED_STEPS = 8


class FastRunner(EagerRunner):
    """Launches windows of steps for sequences that the device can sample for.

    The steps of other sequences, and of an engine with a drafter, run when they are collected.

    Args:
        llm: the engine.
        decoder: launches windows on the device, and collects them.
        max_steps: steps of a window, at most.

    Attributes:
        max_streamed_steps: steps, at most, where a reader waits for a token, or a request to start.
        num_steps: of the next window that a reader waits for; it follows how long the host waits.
        max_in_flight: windows in flight, at most: the one on the device, and the next.
    """

    llm: LLM

    def __init__(self, llm: LLM, decoder: Decoder, max_steps: int) -> None:
        super().__init__(llm)
        self.decoder = decoder
        self.max_steps = max_steps
        self.max_streamed_steps = min(STREAMED_STEPS, max_steps)
        self.num_steps = self.max_streamed_steps
        self.max_in_flight = 2
        # A drafter needs to know the tokens before.
        self.launches = llm.drafter is None
        self.launched: list[tuple[Plan, Window]] = []  # in flight, the oldest first
        self._collected_at = 0.0  # when the latest window was collected

    @property
    def in_flight(self) -> int:
        """Windows that were launched and not collected."""
        return len(self.launched)

    @property
    def has_room(self) -> bool:
        if self.plan is not None or self.in_flight >= self.max_in_flight:
            return False
        if not self.in_flight:
            return True
        # A step that the host samples for is planned only when no window is in flight. It would
        # have to wait for them, with blocks that are registered and not computed.
        scheduler = self.llm.scheduler
        return all(map(can_run_ahead, scheduler.running)) and not scheduler.next_waits_for_host()

    def submit(self, plan: Plan) -> None:
        """Launch the plan's step, and further steps after it where no prompt goes on."""
        if not self.launches or not all(can_run_ahead(chunk.sequence) for chunk in plan.chunks):
            super().submit(plan)
            return
        scheduler = self.llm.scheduler
        num_steps = self._num_steps(plan)
        if num_steps > 1 and all(chunk.num_rows for chunk in plan.chunks):
            plan.chunks = scheduler.reserve_ahead(plan.chunks, num_steps - 1)
        before = self.launched[-1][1] if self.launched else None
        window = self.decoder.launch(plan.chunks, before)
        self.launched.append((plan, window))
        scheduler.in_flight = self.in_flight
        for row in window.rows:
            row.sequence.num_pending += row.num_samples

    def collect(self) -> tuple[Plan, dict[Sequence, NewTokens]] | None:
        """Wait for the oldest window: its plan and tokens, without sequences that have ended."""
        if not self.launched:
            return super().collect()
        plan, window = self.launched[0]
        began = perf_counter()
        collected = self.decoder.collect(window)
        ended = perf_counter()
        del self.launched[0]
        self.llm.scheduler.in_flight = self.in_flight
        if window.done:
            self._balance(worked=began - self._collected_at, waited=ended - began)
        self._collected_at = ended
        plan.chunks = []
        sampled: dict[Sequence, NewTokens] = {}
        for row, new in zip(window.rows, collected, strict=True):
            row.sequence.num_pending -= row.num_samples
            if row.sequence.finish_reason is not None:
                continue  # it ended in the window before, or was aborted
            stop = row.chunk.stop - row.num_samples + len(new.token_ids)
            plan.chunks.append(up_to(row.chunk, stop))
            if new.token_ids:
                sampled[row.sequence] = new
        further = max((len(new.token_ids) - 1 for new in sampled.values()), default=0)
        self.llm.stats.steps += further  # the engine counts one for the plan
        return plan, sampled

    def compute(self, plan: Plan) -> Tensor:
        logits = self.decoder.compute(plan.chunks)
        return super().compute(plan) if logits is None else logits

    def reset(self) -> None:
        """Forget the steps that were submitted: the tokens of windows in flight are not taken."""
        super().reset()
        self.launched.clear()
        self.decoder.forget()

    def warm_up(self) -> None:
        """Compile the kernels of all steps, and capture their graphs."""
        self.decoder.capture(is_sampled=self.launches)

    def _num_steps(self, plan: Plan) -> int:
        """Steps of a window that begins with this plan."""
        if any(chunk.sequence.streaming for chunk in plan.chunks):  # type: ignore[attr-defined]
            return min(self.num_steps, self.max_streamed_steps)
        return self.max_streamed_steps if self.llm.scheduler.waiting else self.max_steps

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
