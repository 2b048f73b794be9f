"""Who runs a step's forward pass: the seam between the engine's bookkeeping and the device.

    while runner.has_room and (plan := scheduler.schedule()):
        runner.submit(plan)
    result = runner.collect()

`EagerRunner` runs a step when it is collected. accelerate/ has one that runs several steps ahead of
the host, and speculative/ one that proposes tokens before a step and checks them in it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from pagedlab.attention import PagedAttention
from pagedlab.batch import build_batch
from pagedlab.interrupts import allowed_interrupts
from pagedlab.kv_cache import KVCache
from pagedlab.model import Model
from pagedlab.sampler import Check, SampledTokens, sample_step
from pagedlab.sampling_params import SamplingParams
from pagedlab.scheduler import Request, Schedule

Forward = Callable[..., Tensor]
# Called after a forward pass, with the step's plan and its logits [R, V].
OnForward = Callable[[Schedule, Tensor], None]


@dataclass
class StepResult:
    """What a step computed, or several steps that ran ahead of the host.

    Args:
        plan: the plan of the step, without the sequences that have ended since.
        sampled: the next tokens of each sequence.
        beam_rows: of each beam search, the log-probabilities [beams, V] of its beams' next tokens.
        drafts: the drafts that were checked, of a runner that proposes them.
    """

    plan: Schedule
    sampled: list[SampledTokens] = field(default_factory=list)
    beam_rows: list[tuple[Request, Tensor]] = field(default_factory=list)
    drafts: list[Any] = field(default_factory=list)


class Runner(Protocol):
    """Runs the steps that an engine submits, in order."""

    @property
    def has_room(self) -> bool:
        """Whether another step may be planned and submitted now."""

    @property
    def is_idle(self) -> bool:
        """Whether no step was submitted that is not collected."""

    def prepare(self) -> None:
        """Get ready for a step that is about to be planned."""

    def submit(self, plan: Schedule) -> bool:
        """Take a step over.

        False, with nothing done, if it needs tokens that are not known before others end.
        """

    def collect(self) -> StepResult | None:
        """Wait for the oldest step. None if nobody is left whom it was for."""

    def abandon(self) -> list[Schedule]:
        """Forget all steps that are not collected, and return their plans, the latest first."""

    def finish_step(self) -> None:
        """The engine's step is over, whatever became of it."""


def call_back(when: str, callback: Callable[..., None], *arguments: Any) -> None:
    """Call a callback; its error becomes a warning, so that it cannot break what it watches."""
    try:
        callback(*arguments)
    except Exception as error:
        warnings.warn(f"a callback after {when} raised {error!r}", stacklevel=3)


class EagerRunner:
    """Runs each step when it is collected.

    Args:
        model: whose forward pass runs, unless `forward` is set to another.
        cache: where keys and values are.
        attend: the attention function.
        params: what each request asks for, by request id; the engine keeps it up to date.
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

    def submit(self, plan: Schedule) -> bool:
        self._plan = plan
        return True

    def collect(self, check: Check | None = None) -> StepResult | None:
        """Run the step. check: compares drafts with what the model says, see
        `sampler.sample_step`.
        """
        plan = self._plan
        assert plan is not None, "no step was submitted"
        logits = self._logits(plan)
        for callback in tuple(self.callbacks):
            call_back("the forward pass", callback, plan, logits)
        speaking = [chunk for chunk in plan.chunks if chunk.num_rows]
        result = StepResult(plan, *sample_step(logits, speaking, self._params, check))
        self._plan = None
        return result

    def abandon(self) -> list[Schedule]:
        plan, self._plan = self._plan, None
        return [] if plan is None else [plan]

    def finish_step(self) -> None:
        """Nothing to put away."""

    def _logits(self, plan: Schedule) -> Tensor:
        """Run the forward pass: logits [R, V] of the rows that the plan's chunks want."""
        batch = build_batch(plan.chunks, self._device)
        with allowed_interrupts():  # it takes long, and changes no bookkeeping
            return self.forward(batch, self._cache, self.attend)
