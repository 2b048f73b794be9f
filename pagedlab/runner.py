"""The runner: it runs the forward passes that the engine has scheduled.

    while runner.has_room and (plan := scheduler.schedule()).chunks:
        runner.submit(plan)
    result = runner.collect()

`EagerRunner` runs a submitted step when it is collected. The runner in accelerate/ starts several
steps ahead of the host. The one in speculative/ drafts tokens before a step and checks them in it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from pagedlab.attention import PagedAttention
from pagedlab.batch import build_batch
from pagedlab.kv_cache import KVCache
from pagedlab.model import Model
from pagedlab.sampler import CheckDraft, SampledTokens, sample_step
from pagedlab.sampling_params import SamplingParams
from pagedlab.scheduler import Schedule, Scheduler

Forward = Callable[..., Tensor]
# Called after a forward pass, with the step's plan and its logits [R, V].
OnForward = Callable[[Schedule, Tensor], None]


@dataclass
class StepResult:
    """The result of one step, or of several steps that ran ahead of the host.

    Args:
        plan: the plan of the step, without sequences that have ended since.
        sampled: the next tokens of each sequence.
        drafts: the drafts that were checked in the step.
    """

    plan: Schedule
    sampled: list[SampledTokens] = field(default_factory=list)
    drafts: list[Any] = field(default_factory=list)


class Runner(Protocol):
    """Runs the steps that an engine submits, in order."""

    @property
    def has_room(self) -> bool:
        """Whether another step may be scheduled and submitted now."""

    @property
    def is_idle(self) -> bool:
        """Whether every submitted step has been collected."""

    def prepare(self) -> None:
        """Prepare for a step, just before it is scheduled."""

    def submit(self, plan: Schedule) -> None:
        """Accept a step."""

    def collect(self) -> StepResult | None:
        """Wait for the oldest step. Return None if all its sequences have ended meanwhile."""

    def reset(self, scheduler: Scheduler) -> None:
        """Forget all steps in flight. The steps that follow are planned by this scheduler."""


def call_back(when: str, callback: Callable[..., None], *arguments: Any) -> None:
    """Call a callback; its error becomes a warning, so that it cannot break what it watches."""
    try:
        callback(*arguments)
    except Exception as error:
        warnings.warn(f"a callback after {when} raised {error!r}", stacklevel=3)


class EagerRunner:
    """Runs each step when it is collected.

    Args:
        model: the model. Its forward pass runs, unless `forward` is set to another one.
        cache: the KV cache.
        attend: the attention function.
        params: the parameters of each request, by request id. The engine keeps them up to date.
    """

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        attend: PagedAttention,
        params: Mapping[int, SamplingParams],
    ) -> None:
        self.forward: Forward = model.forward
        self.attend = attend
        self.callbacks: list[OnForward] = []
        self._device = model.device
        self._cache = cache
        self._params = params
        self._plan: Schedule | None = None

    @property
    def has_room(self) -> bool:
        return self.is_idle

    @property
    def is_idle(self) -> bool:
        return self._plan is None

    def prepare(self) -> None:
        """Nothing to prepare."""

    def submit(self, plan: Schedule) -> None:
        self._plan = plan

    def collect(self, check: CheckDraft | None = None) -> StepResult | None:
        """Run the step that was submitted.

        Args:
            check: checks drafted tokens, see `sampler.sample_step`; None without drafts.
        """
        plan = self._plan
        assert plan is not None, "no step was submitted"
        logits = self._logits(plan)
        for callback in tuple(self.callbacks):
            call_back("the forward pass", callback, plan, logits)
        chunks = [chunk for chunk in plan.chunks if chunk.num_rows]
        result = StepResult(plan, sample_step(logits, chunks, self._params, check))
        self._plan = None
        return result

    def reset(self, scheduler: Scheduler) -> None:
        self._plan = None

    def _logits(self, plan: Schedule) -> Tensor:
        """Run the forward pass and return the rows of logits [R, V] that the chunks need."""
        batch = build_batch(plan.chunks, self._device)
        return self.forward(batch, self._cache, self.attend)
