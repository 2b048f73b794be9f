"""The runner that keeps the device busy: it launches windows of steps before the host has seen the
tokens of the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from torch import Tensor

from pagedlab.accelerate.run_ahead import RunAhead
from pagedlab.attention import PagedAttention
from pagedlab.kv_cache import KVCache
from pagedlab.model import Model
from pagedlab.runner import EagerRunner, StepResult
from pagedlab.sampler import CheckDraft
from pagedlab.sampling_params import SamplingParams
from pagedlab.scheduler import Request, Schedule, Scheduler


class RunAheadRunner(EagerRunner):
    """Launches windows for requests that the device can sample for, and runs the steps of others
    when they are collected.

    Args:
        model, cache, attend, params: as of `EagerRunner`.
        run_ahead: launches and collects windows.
        launches: whether windows may be launched; without them, steps still run in CUDA graphs.
    """

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        attend: PagedAttention,
        params: Mapping[int, SamplingParams],
        run_ahead: RunAhead,
        launches: bool = True,
    ) -> None:
        super().__init__(model, cache, attend, params)
        self.run_ahead = run_ahead
        self._launches = launches

    @property
    def has_room(self) -> bool:
        if self._plan is not None:
            return False
        if self.run_ahead.in_flight == 0:
            return True
        if self.run_ahead.in_flight >= self.run_ahead.max_in_flight:
            return False
        # A step that the host samples for is planned only when no window is in flight. It would
        # have to wait for them, with blocks that are registered and not computed.
        scheduler = self.run_ahead.scheduler
        if not self.run_ahead.supports(scheduler.running, self._params):
            return False
        queued = chain(scheduler.swapped, scheduler.waiting)
        return self.run_ahead.supports(queued, self._params) or not scheduler.has_room_for_next()

    @property
    def is_idle(self) -> bool:
        return self._plan is None and self.run_ahead.in_flight == 0

    def prepare(self) -> None:
        """Have no request admitted that needs the host while a window is in flight."""
        in_flight = self.run_ahead.in_flight > 0
        self.run_ahead.scheduler.accepts = lambda request: not in_flight or self._supports(request)

    def _supports(self, request: Request) -> bool:
        return self.run_ahead.supports([request], self._params)

    def submit(self, plan: Schedule) -> None:
        requests = [chunk.request for chunk in plan.chunks]
        if self._launches and self.run_ahead.supports(requests, self._params):
            self.run_ahead.launch(plan, self._params)
        elif self.run_ahead.in_flight:
            raise RuntimeError("the scheduler has no `accepts`, or does not ask it")
        else:
            super().submit(plan)

    def collect(self, check: CheckDraft | None = None) -> StepResult | None:
        if self._plan is not None:
            return super().collect(check)
        return self.run_ahead.collect()

    def reset(self, scheduler: Scheduler) -> None:
        super().reset(scheduler)
        self.run_ahead.reset(scheduler)

    def _logits(self, plan: Schedule) -> Tensor:
        logits = self.run_ahead.decoder.compute(plan.chunks)
        return super()._logits(plan) if logits is None else logits
