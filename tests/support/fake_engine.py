"""An engine without a model, for widgets."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

from pagedlab import BlockPool, BlockTable


class FakeEngine:
    """The least that a stage needs of an engine. Token i decodes to "i "."""

    def __init__(self, num_blocks: int = 32, block_size: int = 4) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.running: list[Any] = []
        self.callbacks: list[Any] = []

    def on_step(self, callback: Any) -> Any:
        self.callbacks.append(callback)
        subscription = ExitStack()
        subscription.callback(self.callbacks.remove, callback)
        return subscription.close

    def sequences(self) -> list[Any]:
        return self.running

    def decode(self, ids: list[int]) -> str:
        return "".join(f"{i} " for i in ids)

    def add(self, name: str, tokens: int) -> None:
        table = BlockTable(self.pool)
        table.append(tokens)
        self.running.append(SimpleNamespace(name=name, table=table, token_ids=list(range(tokens))))

    def step(self) -> None:
        for sequence in self.running:
            sequence.table.append(1)
            sequence.token_ids.append(len(sequence.token_ids))
        for callback in list(self.callbacks):
            callback()

    def end(self) -> None:
        for sequence in self.running:
            sequence.table.free()
        self.running = []
        for callback in list(self.callbacks):
            callback()
