"""Records what an engine does, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from pagedlab.arguments import shown
from pagedlab.recipes.trace.format import FORMAT, MAX_BLOCKS
from pagedlab.recipes.trace.pool_log import PoolLog
from pagedlab.recipes.trace.replay import Replay
from pagedlab.recipes.trace.sequence_log import SequenceLog
from pagedlab.recipes.trace.step_log import StepLog

Reading = Callable[[], Any]  # returns a number, None, or lists of them in lists


class Recorder(ExitStack):
    """Records an engine from now until `close()`, or for the length of a `with` block.

    It listens in the thread that runs the engine, and changes nothing of it.

    Args:
        llm: an `LLM`, or an engine with these attributes of it: `model.name`, `pool`, `scheduler`,
            `plan`, `decode`, `on_step` and `on_forward`.
        readings: functions whose values are noted after each step, by name: numbers, None, or lists
            of them in lists.
        drawn: blocks whose changes are noted one by one, at most.
        most: steps that are kept; of a longer run the older half is forgotten. None keeps all.
        on_step: called when a step has been noted.

    Raises:
        ValueError: If `llm` lacks one of these.
    """

    def __init__(
        self,
        llm: Any,
        *,
        readings: Mapping[str, Reading] | None = None,
        drawn: int = MAX_BLOCKS,
        most: int | None = None,
        on_step: Callable[[], None] | None = None,
    ) -> None:
        if not hasattr(llm, "on_forward"):
            raise ValueError(f"llm must be an LLM, got {shown(llm)}")
        super().__init__()
        pool = llm.pool
        drawn = min(pool.num_blocks, drawn)
        self.recording: dict[str, Any] = {
            "format": FORMAT,
            "model": llm.model.name,
            "block_size": pool.block_size,
            "num_blocks": pool.num_blocks,
            "drawn": drawn,
            "steps": [],
        }
        self.forgotten = 0  # steps
        self._engine_steps = 0
        self._readings = dict(readings or {})
        self._most = most
        self._after_step = on_step
        self._pool_log = PoolLog(llm, drawn)
        self._sequence_log = SequenceLog(llm)
        self._step_log = StepLog(llm)
        self.update()
        self._pool_log.listen(self)
        self._step_log.listen(self)
        self.callback(llm.on_step(self._on_step))

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The recording so far."""
        return self.recording["steps"]

    def update(self) -> None:
        """Add what has changed since the last step, if anything has."""
        changes = self._changes()
        if changes or not self.steps:
            self._add(changes)

    def _on_step(self) -> None:
        self._engine_steps += 1
        run = self._step_log.take(self._sequence_log.was_swapped)
        readings = {name: read() for name, read in self._readings.items()}
        if readings:
            run["readings"] = readings
        self._add({**run, **self._changes()})  # a step that changed nothing is a step too
        if self._most and len(self.steps) > self._most:
            self._forget(self._most // 2)
        if self._after_step is not None:
            self._after_step()

    def _changes(self) -> dict[str, Any]:
        fields = self._pool_log.take()
        texts = self._sequence_log.take()
        if texts:
            fields["texts"] = texts
        return fields

    def _add(self, fields: dict[str, Any]) -> None:
        totals = self._pool_log.totals()
        self.steps.append({"step": self._engine_steps, **totals, **fields})

    def _forget(self, older: int) -> None:
        first = Replay(self.recording).seek(older).whole()
        self.recording["steps"] = [first, *self.steps[older + 1 :]]
        self.forgotten += older


def record(
    llm: Any, prompts: Sequence[Any], params: Sequence[Any], **options: Any
) -> dict[str, Any]:
    """Run these requests to their end, with whatever `llm` has to do already; return the recording.

    Args:
        llm: as for `Recorder`, with `add` and `step`.
        prompts: they are added before the first step.
        params: one a prompt.
        options: those of `Recorder`.
    """
    for prompt, asked in zip(prompts, params, strict=True):
        llm.add(prompt, asked)
    with Recorder(llm, **options) as recorder:
        while llm.step():
            pass
    return recorder.recording
