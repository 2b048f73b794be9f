"""The runner that keeps the device busy: it launches windows of steps before the host has seen the
tokens of the last one.
"""

from __future__ import annotations

from torch import Tensor

from pagedlab.engine import LLM, EagerRunner
from pagedlab.sampling import Sampled
from pagedlab.scheduler import Plan, Sequence
from pagedlab_fast.run_ahead import RunAhead


class FastRunner(EagerRunner):
    """Launches windows for sequences that the device can sample for, and runs the steps of others
    when they are collected.

    Args:
        llm: the engine.
        run_ahead: launches and collects windows.
        launches: whether windows may be launched; without them, steps still run in CUDA graphs.
    """

    def __init__(self, llm: LLM, run_ahead: RunAhead, launches: bool = True) -> None:
        super().__init__(llm)
        self.run_ahead = run_ahead
        self.launches = launches

    @property
    def has_room(self) -> bool:
        if self.plan is not None:
            return False
        if self.run_ahead.in_flight == 0:
            return True
        if self.run_ahead.in_flight >= self.run_ahead.max_in_flight:
            return False
        # A step that the host samples for is planned only when no window is in flight. It would
        # have to wait for them, with blocks that are registered and not computed.
        scheduler = self.run_ahead.scheduler
        if not self.run_ahead.supports(scheduler.running):
            return False
        return self.run_ahead.supports(scheduler.waiting) or not scheduler.has_room_for_next()

    def submit(self, plan: Plan) -> None:
        if self.launches and self.run_ahead.supports(chunk.sequence for chunk in plan.chunks):
            self.run_ahead.launch(plan)
        else:
            super().submit(plan)

    def collect(self) -> tuple[Plan, dict[Sequence, Sampled]] | None:
        if self.plan is None and self.run_ahead.in_flight:
            plan, sampled = self.run_ahead.collect()
            # The engine counts one step for a plan.
            further = max((len(each.token_ids) - 1 for each in sampled.values()), default=0)
            self.llm.stats.steps += further
            return plan, sampled
        return super().collect()

    def compute(self, plan: Plan) -> Tensor:
        logits = self.run_ahead.decoder.compute(plan.chunks)
        return super().compute(plan) if logits is None else logits

    def reset(self) -> None:
        super().reset()
        self.run_ahead.reset(self.llm.scheduler)
