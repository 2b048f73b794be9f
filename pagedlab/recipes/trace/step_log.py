"""What an engine computed in a step: chunks, drafts, and which requests it moved between queues."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from pagedlab.recipes.trace.replay import num_equal
from pagedlab.recipes.trace.words import pieces
from pagedlab.scheduler import Chunk, Plan, Sequence


class StepLog:
    """Notes the plan of each step, and what came of its drafts.

    Args:
        llm: as for `Recorder`.
    """

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        # What is only known while a step runs:
        self._plan: Plan | None = None
        self._tables: dict[Sequence, list[int]] = {}

    def listen(self, stack: ExitStack) -> None:
        """Follow the engine's forward passes until the `ExitStack` is closed."""
        stack.callback(self._llm.on_forward(self._on_forward))

    def take(self, was_swapped: Callable[[Sequence], bool]) -> dict[str, Any]:
        """The fields of a recording's step for the step that has just ended."""
        plan = self._llm.plan
        admitted = plan.admitted.items()
        fields: dict[str, Any] = {
            "computed": {c.sequence.name: [c.start, c.stop] for c in plan.chunks},
            "admitted": {each.name: found for each, found in admitted if not was_swapped(each)},
            "resumed": [each.name for each in plan.admitted if was_swapped(each)],
            "preempted": {each.name: how for each, how in plan.preempted.items()},
            "drafts": {c.sequence.name: self._draft(c) for c in plan.chunks if c.guesses},
        }
        if self._plan is plan:  # a step that runs ahead of the host shows no forward pass
            fields["held"] = {
                sequence.name: block_ids
                for sequence, block_ids in self._tables.items()
                if block_ids != sequence.table.block_ids
            }
        return {name: value for name, value in fields.items() if value}

    def _on_forward(self, plan: Plan, _logits: Any) -> None:
        self._plan = plan
        self._tables = {c.sequence: list(c.sequence.table.block_ids) for c in plan.chunks}

    def _draft(self, chunk: Chunk) -> dict[str, Any]:
        """A draft that the step checked."""
        position = chunk.stop - len(chunk.guesses)
        known = chunk.sequence.token_ids
        drafted = list(chunk.guesses)
        return {
            "position": position,
            "tokens": len(drafted),
            "accepted": num_equal(drafted, known[position:]),
            "words": pieces(self._llm.decode, known[:position] + drafted, position),
        }
