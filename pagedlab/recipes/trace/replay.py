"""The state of a recorded run after any of its steps."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from operator import ne
from typing import Any

from pagedlab.arguments import integer
from pagedlab.recipes.trace.format import QUEUES, check_format

LISTS = ("blocks", "words")  # of a sequence: a change is [n, items], after the first n


@dataclass(frozen=True)
class SequenceState:
    """A sequence after a step.

    Args:
        look: its running number, which decides its colour.
        prompt: tokens of its prompt.
        state: "waiting", "running", "swapped", "stop", "length", "abort" or "error".
        tokens: how many tokens its table holds.
        blocks: the block ids of its table.
        words: the text of each token that it has; the last one need not be in the table.
        roles: what a chat template added: the role, or "", by position. The stage notes it.
    """

    look: int = 0
    prompt: int = 0
    state: str = ""
    tokens: int = 0
    blocks: list[int] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    roles: dict[int, str] = field(default_factory=dict)

    @property
    def is_unfinished(self) -> bool:
        """Whether it waits, runs or is swapped out."""
        return self.state in QUEUES

    @property
    def num_new(self) -> int:
        """How many tokens it has after its prompt."""
        return max(0, len(self.words) - self.prompt)

    @property
    def new_words(self) -> list[str]:
        """The text of each token after its prompt."""
        return self.words[self.prompt :]

    def changed(self, change: dict[str, Any]) -> SequenceState:
        """The state after a change, as a step of a recording has it."""
        new = dict(change)
        for name in LISTS:
            if name in change:
                keep, items = change[name]
                new[name] = getattr(self, name)[:keep] + items
        return replace(self, **new)

    def since(self, before: SequenceState) -> dict[str, Any]:
        """The change that leads from another state to this one, as a step of a recording has it."""
        change: dict[str, Any] = {}
        for each in fields(self):
            old = getattr(before, each.name)
            new = getattr(self, each.name)
            if each.name in LISTS and old != new:
                keep = num_equal(old, new)
                change[each.name] = [keep, new[keep:]]
            elif old != new:
                change[each.name] = new
        return change

    def whole(self) -> dict[str, Any]:
        """The first change of a sequence that has this state."""
        always = {"look": self.look, "prompt": self.prompt, "blocks": [0, self.blocks]}
        return always | self.since(SequenceState())


def num_equal(a: list[int], b: list[int]) -> int:
    """How many items both lists begin with."""
    if a == b[: len(a)]:  # as a rule, and much faster
        return len(a)
    return [*map(ne, a, b), True].index(True)


class Replay:
    """The state of a run after a step; step 0 is how it was when the recording began.

    Args:
        recording: as a `Recorder` or `load_recording` returns it.

    Attributes:
        at: the step.
        now: what the recording says of this step.
        counts: the reference count of each drawn block.
        kept: blocks whose contents a cache keeps.
        sequences: the state of each sequence that there was, by name, the oldest first.
        copied: blocks that were copied so far.

    Raises:
        ValueError: If the recording has another format, or no steps.
    """

    def __init__(self, recording: dict[str, Any]) -> None:
        self.recording = check_format(recording)
        self.steps: list[dict[str, Any]] = recording["steps"]
        self._rewind()

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def used(self) -> int:
        """Blocks of the whole pool that are in use."""
        return self.now.get("used", 0)

    def seek(self, step: int) -> Replay:
        """Go to the state after that step, and return the replay."""
        step = integer("step", step, 0, len(self.steps) - 1)
        if step < self.at:
            self._rewind()
        while self.at < step:
            self._apply(self.at + 1)
        return self

    def _rewind(self) -> None:
        self.counts: list[int] = [0] * self.recording["drawn"]
        self.kept: set[int] = set()
        self.sequences: dict[str, SequenceState] = {}
        self.copied = 0
        self._apply(0)

    def _apply(self, step: int) -> None:
        self.at = step
        self.now = self.steps[step]
        for block_id, count in self.now.get("counts", {}).items():
            self.counts[int(block_id)] = count
        for block_id, is_kept in self.now.get("kept", {}).items():
            change = self.kept.add if is_kept else self.kept.discard
            change(int(block_id))
        self.copied += len(self.now.get("copies", ()))
        self.sequences = dict(self.sequences)  # a caller may have kept the one before
        for name, change in self.now.get("texts", {}).items():
            before = self.sequences.get(name, SequenceState())
            self.sequences[name] = before.changed(change)

    def whole(self) -> dict[str, Any]:
        """A first step that says the same as all up to this one, without sequences that ended."""
        texts = {name: each.whole() for name, each in self.sequences.items() if each.is_unfinished}
        counts = {block_id: count for block_id, count in enumerate(self.counts) if count}
        kept = dict.fromkeys(self.kept, 1)
        return {**self.now, "counts": counts, "kept": kept, "texts": texts}

    def busiest_step(self) -> int:
        """The step with most blocks in use; of the steps with a copy, if there are any."""
        used = [step.get("used", 0) for step in self.steps]
        return max(range(len(self)), key=lambda i: ("copies" in self.steps[i], used[i], i))


def moments(recording: dict[str, Any]) -> list[dict[str, SequenceState]]:
    """The sequences by name after each step of a recording, first before it began."""
    replay = Replay(recording)
    return [replay.seek(step).sequences for step in range(len(replay))]
