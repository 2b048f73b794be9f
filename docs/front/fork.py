"""Runs in the visitor's browser: the block pool of the series, with two stories that have the same beginning.

Each append of a story writes its next word through its table into the slots of the pool. The story is read back from
there, so a fault of the table is seen in the words. The widget is the one of notebooks 02 and 03.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

from pagedlab_lessons.broken import NeverCopies
from pagedlab_lessons.widgets.block_grid import BlockPoolWidget

from pagedlab.blocks import BlockCopy, BlockPool, BlockTable

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
        # What the last append wrote: slot, the word that was there, the new one.
        self.written: list[tuple[int, str | None, str]] = []


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
            self.pool.written = []
            copies = super().append(n)
            for source, destination in copies:
                for i in range(size):
                    words[destination * size + i] = words.get(source * size + i, "")
            for position in range(start, self.num_tokens):
                slot, word = self.slot(position), self.says(position)
                self.pool.written.append((slot, words.get(slot), word))
                words[slot] = word
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
    setup, state = {**widget.setup, "brief": True}, {**widget.state, "happened": happened()}
    return json.dumps({"setup": setup, "state": state, "texts": texts})


# ---- what the last operation did, in sentences


def happened() -> str:
    """What the last operation did and why; empty if it failed, since the page shows the error."""
    last = widget.session.last
    if last is None:
        return "The memory is empty: no story uses a block."
    if last.error:
        return ""
    operation = last.operation
    match operation.verb:
        case "new" | "append":
            return " ".join(sentences_of_append())
        case "fork":
            blocks = widget.tables[operation.child].block_ids
            both = (
                f"both read {named(blocks)}. Nothing is copied yet" if blocks else "both are empty"
            )
            return f"{operation.child} is a fork of {operation.sequence}: {both}."
        case "free":
            return " ".join(sentences_of_free())
    return f"{last.text}."


def sentences_of_free() -> Iterator[str]:
    """Which blocks are free again."""
    last = widget.session.last
    yield f"{last.operation.sequence} gives back its blocks."
    if freed := last.freed:
        yield f"{named(freed).capitalize()} {'is' if len(freed) == 1 else 'are'} free again."
    if widget.tables:
        yield "A block that another story reads stays in use."


def sentences_of_append() -> Iterator[str]:
    """Where the new tokens went: into the last block or a copy of it, and into free blocks."""
    operation = widget.session.last.operation
    name, blocks = operation.sequence, widget.tables[operation.sequence].block_ids
    before = widget.tables[name].num_tokens - operation.n
    full, rest = divmod(before, widget.pool.block_size)
    if rest and operation.n:
        yield from sentences_of_the_last_block(name, full)
    if taken := blocks[full + bool(rest) :]:
        takes = f"takes {named(taken)}, which {'was' if len(taken) == 1 else 'were'} free"
        if rest:
            yield f"Then {name} {takes}."
        elif full:
            yield f"Block {blocks[full - 1]} is full, so {name} {takes}."
        else:
            yield f"{name} {takes}."


def sentences_of_the_last_block(name: str, full: int) -> Iterator[str]:
    """Whether the write into a block with room copied it, and why.

    Args:
        name: the sequence that wrote.
        full: number of full blocks before that one.
    """
    session, blocks = widget.session, widget.tables[name].block_ids
    block = blocks[full]
    if copies := session.last.copies:
        source, destination = copies[0]
        others = readers(source, name)
        yield f"{name} was about to write into block {source}."
        yield f"{listed(others)} still {'reads' if len(others) == 1 else 'read'} it, so {name} got a copy: block {destination}."
        if kept := [each for each in blocks[:full] if readers(each, name)]:
            are, they = ("is", "it stays") if len(kept) == 1 else ("are", "they stay")
            yield f"{named(kept).capitalize()} {are} full: nobody writes there, so {they} shared."
    elif others := readers(block, name):
        yield wrong_write(name, block, others)
        yield "The box with the red edge names the broken rule. Undo goes back one step."
    else:
        past = session.log[: session.cursor - 1]
        was_shared = any(source == block for entry in past for source, _ in entry.copies)
        alone = "Nobody else reads it now" if was_shared else "Nobody else reads it"
        yield f"{name} writes into block {block}. {alone}, so nothing is copied."


def wrong_write(name: str, block: int, others: list[str]) -> str:
    """What a write into a block that others read did to their words."""
    written = widget.pool.written
    for other in others:
        table = widget.tables[other]
        seen = set(table.slots(0, table.num_tokens))
        lost = [(old, new) for slot, old, new in written if slot in seen and old != new]
        if lost:
            old, new = ("".join(words).strip() for words in zip(*lost, strict=True))
            return f"{name} wrote “{new}” over {other}'s “{old}”, in block {block}."
    size = widget.pool.block_size
    words = "".join(new for slot, _, new in written if slot // size == block).strip()
    read = f"{listed(others)} {'reads' if len(others) == 1 else 'read'}"
    return f"{name} wrote “{words}” into block {block} and copied nothing, but {read} it too."


def readers(block: int, but: str) -> list[str]:
    """The sequences that list a block, but that one."""
    return [
        name for name, table in widget.tables.items() if name != but and block in table.block_ids
    ]


def named(blocks: list[int]) -> str:
    """Blocks by number: "block 2", or "blocks 0, 1 and 2"."""
    return f"block{'s' if len(blocks) > 1 else ''} {listed(blocks)}"


def listed(things: list[Any]) -> str:
    """The things in a row: "a", "a and b", or "a, b and c"."""
    *others, last = map(str, things)
    return f"{', '.join(others)} and {last}" if others else last
