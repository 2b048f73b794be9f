"""The runner that keeps the device busy: windows of steps, launched before the host has seen the
tokens of the last.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pagedlab.accelerate.windows import Windows
from pagedlab.runner import EagerRunner, StepResult
from pagedlab.scheduler import Schedule, Scheduler


class RunAheadRunner(EagerRunner):
    """Launches windows for requests that the device can sample for, and runs the steps of others by
    itself.

    Other parameters are those of `EagerRunner`.

    Args:
        windows: launches and collects them.
        scheduler: whose running requests are asked.
        ahead: whether windows may be launched; without them, steps still run in CUDA graphs.
    """

    def __init__(
        self, *parts: Any, windows: Windows, scheduler: Scheduler, ahead: bool = True
    ) -> None:
        super().__init__(*parts)
        self.windows = windows
        self._scheduler = scheduler
        self._ahead = ahead

    @property
    def has_room(self) -> bool:
        if self._plan is not None:
            return False
        if self.windows.under_way == 0:
            return True
        has_place = self.windows.under_way < self.windows.at_once
        return has_place and self.windows.take(self._scheduler.running, self._params)

    @property
    def is_idle(self) -> bool:
        return self._plan is None and self.windows.under_way == 0

    def submit(self, plan: Schedule) -> bool:
        requests = [chunk.request for chunk in plan.chunks]
        if self._ahead and self.windows.take(requests, self._params):
            self._plan = plan  # until it is launched: `abandon` returns it if that fails
            self.windows.launch(plan, self._params)
            self._plan = None
            return True
        if self.windows.under_way:
            return False
        return super().submit(plan)

    def collect(self, check: Any = None) -> StepResult | None:
        if self._plan is not None:
            return super().collect(check)
        collected = self.windows.collect()
        return StepResult(*collected) if collected else None

    def abandon(self) -> list[Schedule]:
        return [*super().abandon(), *self.windows.abandon()]

    def _logits(self, plan: Schedule) -> Tensor:
        logits = self.windows.decoder.compute(plan.chunks)
        return super()._logits(plan) if logits is None else logits
