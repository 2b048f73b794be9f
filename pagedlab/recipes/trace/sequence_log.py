"""What changes of an engine's sequences between two steps of a recording."""

from __future__ import annotations

from itertools import count
from typing import Any

from pagedlab.recipes.trace.replay import SequenceState
from pagedlab.recipes.trace.words import pieces
from pagedlab.scheduler import Sequence


class SequenceLog:
    """Compares the sequences of an engine with what was recorded of them.

    Args:
        llm: as for `Recorder`.
    """

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._looks = count()
        self._plan = llm.plan  # the one whose chunks were looked at
        self._recorded: dict[Sequence, SequenceState] = {}  # of those that have not ended

    def was_swapped(self, sequence: Sequence) -> bool:
        """Whether a sequence was swapped out when its state was noted last."""
        return sequence in self._recorded and self._recorded[sequence].state == "swapped"

    def take(self) -> dict[str, dict[str, Any]]:
        """The changes since the last call, by the sequence's name."""
        queues = self._llm.scheduler.queues().items()
        states = {sequence: state for state, queue in queues for sequence in queue}
        # A sequence may have come, been computed and ended since the last call.
        there = {*self._recorded, *self._computed(), *states}
        changes = {}
        for sequence in sorted(there, key=lambda each: (each.request_id, each.nth)):
            before = self._recorded.pop(sequence, None)
            state = sequence.finish_reason or states.get(sequence, "abort")
            after = self._state_of(sequence, state, before)
            change = after.since(before) if before else after.whole()
            if change:
                changes[sequence.name] = change
            if after.is_unfinished:
                self._recorded[sequence] = after
        return changes

    def _computed(self) -> list[Sequence]:
        """The sequences of the latest step, if it was not looked at before."""
        before, self._plan = self._plan, self._llm.plan
        return [] if before is self._plan else [chunk.sequence for chunk in self._plan.chunks]

    def _state_of(
        self, sequence: Sequence, state: str, before: SequenceState | None
    ) -> SequenceState:
        """The present state of a sequence. Only new words are decoded."""
        known = before or SequenceState(look=next(self._looks))
        ids = sequence.token_ids
        return SequenceState(
            look=known.look,
            prompt=sequence.num_prompt_tokens,
            state=state,
            tokens=sequence.table.num_tokens,
            blocks=list(sequence.table.block_ids),
            words=known.words + pieces(self._llm.decode, ids, len(known.words)),
        )
