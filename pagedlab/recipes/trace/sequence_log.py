"""What changes of an engine's sequences between two steps of a recording."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Any, NamedTuple

from pagedlab.recipes.trace.format import QUEUES
from pagedlab.recipes.trace.words import pieces

MAX_NAMES = 10_000  # of sequences whose colours are remembered


class Present(NamedTuple):
    """A sequence that there is, or that ended since the last look, and its state."""

    sequence: Any
    state: str


@dataclass
class Recorded:
    """The record of a sequence that has not ended."""

    state: str = ""
    tokens: int = 0
    length: int = 0  # where its words are not recorded
    blocks: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)


class SequenceLog:
    """Compares the sequences of an engine with what was recorded of them.

    Args:
        llm: as for `Recorder`.
        words: whether the text of each token is noted.
        ids: whether the token ids are.
    """

    def __init__(self, llm: Any, words: bool, ids: bool) -> None:
        self._llm = llm
        self._words = words
        self._ids = ids
        # the running number of each sequence, by name
        self.looks: dict[str, int] = defaultdict(count().__next__)
        self._recorded: dict[str, Recorded] = {}
        self._queued: list[Any] = []  # the sequences last seen in a queue
        self._plan = getattr(llm, "plan", None)  # the one whose chunks were looked at

    def take(self) -> dict[str, dict[str, Any]]:
        """The changes since the last call, by the sequence's name."""
        present = self._present()
        changes = {}
        for name, (sequence, state) in present.items():
            changes[name] = self._change(name, sequence, state)
        for name in self._recorded.keys() - present.keys():
            changes[name] = self._dropped(name)
        ended = [name for name, known in self._recorded.items() if known.state not in QUEUES]
        for name in ended:
            del self._recorded[name]
        return {name: change for name, change in changes.items() if change}

    def _present(self) -> dict[str, Present]:
        """Every sequence that there is, by name; those too that ended since the last look."""
        scheduler = getattr(self._llm, "scheduler", None)
        if scheduler is None:
            return {s.name: Present(s, "running") for s in self._llm.sequences()}
        states = {
            sequence: state for state, queue in scheduler.queues().items() for sequence in queue
        }
        sequences = {*self._queued, *self._computed(), *states}
        self._queued = list(states)
        present = {}
        for sequence in sorted(sequences, key=_order):
            state = sequence.finish_reason or states.get(sequence, "abort")
            present[sequence.name] = Present(sequence, state)
        return present

    def _computed(self) -> list[Any]:
        """The sequences of the latest step, if it was not looked at before."""
        plan = self._llm.plan
        if plan is self._plan:
            return []
        self._plan = plan
        return [chunk.sequence for chunk in plan.chunks]

    def _change(self, name: str, sequence: Any, state: str) -> dict[str, Any]:
        change: dict[str, Any] = {}
        known = self._recorded.get(name)
        if known is None:
            if state not in QUEUES and name in self.looks:
                return {}  # it ended, and the recording has that
            known = self._recorded[name] = Recorded()
            change["look"] = self.looks[name]
            change["prompt"] = getattr(sequence, "num_prompt_tokens", 0)
            self._forget_looks()
        self._note_state(known, change, state)
        table = sequence.table
        self._note_table(known, change, list(table.block_ids), table.num_tokens)
        self._note_tokens(known, change, sequence.token_ids)
        return change

    def _dropped(self, name: str) -> dict[str, Any]:
        """The change of a sequence that is gone without having ended."""
        change: dict[str, Any] = {}
        known = self._recorded[name]
        self._note_state(known, change, "dropped")
        self._note_table(known, change, [], 0)
        return change

    def _note_state(self, known: Recorded, change: dict[str, Any], state: str) -> None:
        if known.state != state:
            change["state"] = known.state = state

    def _note_table(
        self, known: Recorded, change: dict[str, Any], blocks: list[int], tokens: int
    ) -> None:
        if known.tokens != tokens:
            change["tokens"] = known.tokens = tokens
        if known.blocks != blocks:
            keep = _same_at_start(known.blocks, blocks)
            change["blocks"] = [keep, blocks[keep:]]
            known.blocks = blocks

    def _note_tokens(self, known: Recorded, change: dict[str, Any], ids: list[int]) -> None:
        if not self._words and known.length != len(ids):
            change["length"] = known.length = len(ids)
        if not (self._words or self._ids) or known.ids == ids:
            return
        keep = _same_at_start(known.ids, ids)
        if self._words:
            change["words"] = [keep, pieces(self._llm.decode, ids, keep)]
        if self._ids:
            change["ids"] = [keep, ids[keep:]]
        known.ids = list(ids)

    def _forget_looks(self) -> None:
        while len(self.looks) > MAX_NAMES:
            del self.looks[next(iter(self.looks))]


def _order(sequence: Any) -> tuple[int, int]:
    return sequence.request_id, sequence.nth


def _same_at_start(a: list[int], b: list[int]) -> int:
    """How many items both lists begin with."""
    if a == b[: len(a)]:
        return len(a)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
    return sum(1 for _ in same)
