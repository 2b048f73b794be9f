"""Runs in the visitor's browser: the block pool of the series, with two stories that have the same beginning.

Each append of a story writes its next word through its table into the slots of the pool. The story is read back from
there, so a fault of the table is seen in the words. The widget is the one of notebooks 02 and 03.
"""

from __future__ import annotations

import json
from itertools import count
from typing import Any

from pagedlab.blocks import BlockCopy, BlockPool, BlockTable
from pagedlab.lessons.broken import NeverCopies
from pagedlab.widgets.block_grid import BlockPoolWidget

story: dict[
    str, Any
] = {}  # "prompt": words, "stories": lists of words that go on from it; set by the page
widget: BlockPoolWidget


class Memory(BlockPool):
    """A pool whose slots hold words."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.words: dict[int, str] = {}
        self.tellers = count()


def teller(table: type[BlockTable]) -> type[BlockTable]:
    """A subclass of that table that writes the words of one story."""

    class Teller(table):  # type: ignore[misc, valid-type]
        def __init__(self, pool: Memory) -> None:
            super().__init__(pool)
            self.number = next(pool.tellers)

        def says(self, position: int) -> str:
            """The word that it writes at that position."""
            prompt, stories = story["prompt"], story["stories"]
            told = stories[self.number % len(stories)]
            return [*prompt, *told][position] if position < len(prompt) + len(told) else " …"

        def append(self, n: int = 1) -> list[BlockCopy]:
            start, size, words = self.num_tokens, self.pool.block_size, self.pool.words
            copies = super().append(n)
            for source, destination in copies:
                for i in range(size):
                    words[destination * size + i] = words.get(source * size + i, "")
            for position in range(start, self.num_tokens):
                words[self.slot(position)] = self.says(position)
            return copies

        def texts(self) -> list[tuple[str, int, bool]]:
            """Each word as memory has it, its block, and whether this teller wrote it, or the one it was forked from."""
            size, slots = self.pool.block_size, self.slots(0, self.num_tokens)
            mine = [self.pool.words[slot] for slot in slots]
            own = getattr(self, "past", [])
            wrote = [*own, *(self.says(p) for p in range(len(own), self.num_tokens))]
            return [
                (word, slot // size, word == w)
                for word, slot, w in zip(mine, slots, wrote, strict=True)
            ]

        def fork(self) -> BlockTable:
            child = super().fork()
            child.past = [word for word, _, _ in self.texts()]  # what it read when it was forked
            return child

    return Teller


def start(forget: bool) -> str:
    """A new pool with one story, forked once. forget: to copy, on a write to a shared block."""
    global widget
    while (
        len({told[0] for told in story["stories"]}) == 1
    ):  # the siblings part where they begin to differ
        story["prompt"] += {told.pop(0) for told in story["stories"]}
    widget = BlockPoolWidget(
        Memory, table=teller(NeverCopies if forget else BlockTable), num_blocks=8, block_size=4
    )
    widget.do("new", "s0", len(story["prompt"]))
    widget.do("fork", "s0")
    return snapshot()


def receive(message: str) -> str:
    """Do what a click asks for, and return a snapshot."""
    widget.receive(widget, json.loads(message))
    return snapshot()


def snapshot() -> str:
    """The state that the page shows, as JSON."""
    texts = [[name, table.texts()] for name, table in widget.tables.items()]
    return json.dumps({"setup": widget.setup, "state": widget.state, "texts": texts})
