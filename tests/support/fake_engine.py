"""An engine without a model, for widgets."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from pagedlab import BlockPool, BlockTable
from pagedlab.scheduler import Plan


@dataclass(eq=False)
class Text:
    """A sequence with a name of its own."""

    name: str
    table: BlockTable
    token_ids: list[int]
    request_id: int = 0
    nth: int = 0
    num_prompt_tokens: int = 0
    finish_reason: str | None = None


class FakeEngine:
    """The least that a recorder needs of an engine. Token i decodes to "i "."""

    def __init__(self, num_blocks: int = 32, block_size: int = 4):
        self.pool = BlockPool(num_blocks, block_size)
        self.running: list[Text] = []
        self.callbacks: list[Any] = []
        self.plan = Plan()
        self.model = SimpleNamespace(name="")
        self.scheduler = SimpleNamespace(queues=lambda: {"running": self.running})

    def on_step(self, callback):
        self.callbacks.append(callback)
        subscription = ExitStack()
        subscription.callback(self.callbacks.remove, callback)
        return subscription.close

    def on_forward(self, callback) -> Callable[[], None]:
        return lambda: None

    def decode(self, ids: list[int]) -> str:
        return "".join(f"{i} " for i in ids)

    def add(self, name: str, tokens: int):
        table = BlockTable(self.pool)
        table.append(tokens)
        self.running.append(Text(name, table, list(range(tokens)), len(self.running)))

    def step(self):
        for sequence in self.running:
            sequence.table.append(1)
            sequence.token_ids.append(len(sequence.token_ids))
        for callback in list(self.callbacks):
            callback()

    def end(self):
        for sequence in self.running:
            sequence.table.free()
        self.running = []
        for callback in list(self.callbacks):
            callback()
