"""What pools and tables say about themselves, read without trusting them.

The widget shows the state of objects that may be a reader's first draft: a count may raise, a table
may list `None`. Nothing in here raises because of them; what cannot be shown becomes a sentence in
`problems`.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from pagedlab.blocks import blocks_for
from pagedlab.lessons.colors import sequence_look
from pagedlab.lessons.drawing import runs
from pagedlab.lessons.readers_code import explain
from pagedlab.validation import integer


class TableReading(NamedTuple):
    """One table: its physical blocks in logical order (None where it lists no such block), and its
    tokens.
    """

    blocks: list[int | None]
    tokens: int

    def fill(self, index: int, block_size: int) -> int:
        """Tokens in the logical block `index`."""
        return max(0, min(block_size, self.tokens - index * block_size))


@dataclass
class Reading:
    """A pool and its tables at one moment."""

    block_size: int
    counts: list[int]  # the reference count of each block; 0 where the pool could not say
    free: int  # what the pool's num_free says
    tables: dict[str, TableReading]
    problems: list[str]

    def __post_init__(self) -> None:
        self.used = sum(count > 0 for count in self.counts)  # blocks with a reference
        self.shared = sum(count > 1 for count in self.counts)  # blocks with more than one

    def owners(self, block_id: int) -> list[str]:
        """Names of the sequences whose tables list the block."""
        return [name for name, table in self.tables.items() if block_id in table.blocks]

    def snapshot(self, colors: Mapping[str, int]) -> dict[str, Any]:
        """What every grid shows; `colors` are the running numbers of the sequences.

        JSON types only.
        """
        many = len(self.counts)
        return {
            "block_size": self.block_size,
            "counts": self.counts,
            "columns": 8 if many <= 8 else 16 if many <= 128 else 32,  # blocks in a row
            "tables": [
                {
                    "name": name,
                    "tokens": table.tokens,
                    "blocks": table.blocks,
                    **sequence_look(colors[name]),
                }
                for name, table in self.tables.items()
            ],
            "used": self.used,
            "free": self.free,
            "shared": self.shared,
            "copying": sum(
                len(table.blocks) for table in self.tables.values()
            ),  # if each had copies of its own
            "problems": self.problems,
        }


def blocks_text(block_ids: Iterable[int | None]) -> str:
    """As `runs`, with the word in front: "block 7", "blocks 4-6, 9"."""
    ids = list(block_ids)
    return f"{'block' if len(ids) == 1 else 'blocks'} {runs(ids)}"


def whole_number(value: object, most: float = math.inf) -> int | None:
    """The value as an int, or None if it is not one from 0 to `most`."""
    with suppress(ValueError):
        return integer("it", value, most=most)
    return None


def read(pool: Any, tables: Mapping[str, Any], num_blocks: int, block_size: int) -> Reading:
    """Ask the pool for every count and each table for its blocks and tokens."""
    unsaid: list[str] = []
    blocks = range(num_blocks)
    counts = [
        _ask(f"refcount({b})", "references", unsaid, lambda b: pool.refcount(b), b) or 0
        for b in blocks
    ]
    more = f", and {len(unsaid) - 1} more blocks do the like" if unsaid[1:] else ""
    problems = [first + more for first in unsaid[:1]]
    read_tables = {
        name: _read_table(name, table, num_blocks, block_size, problems)
        for name, table in tables.items()
    }
    free = _ask("num_free", "blocks", problems, lambda: pool.num_free)
    reading = Reading(
        block_size, counts, counts.count(0) if free is None else free, read_tables, problems
    )
    if not unsaid:
        problems += _unbalanced(reading)
    return reading


def _ask(
    what: str, of: str, problems: list[str], ask: Callable[..., object], *given: int
) -> int | None:
    """The number that `ask` returns.

    None, and a sentence more in `problems`, if it is none or something is raised.
    """
    try:
        said = ask(*given)
    except Exception as error:
        problems.append(f"{what} raises {explain(error)}")
        return None
    number = whole_number(said)
    if number is None:
        problems.append(f"{what} is {said!r}, not a number of {of}")
    return number


def _read_table(
    name: str, table: Any, num_blocks: int, block_size: int, problems: list[str]
) -> TableReading:
    try:
        listed = list(table.block_ids)
    except Exception as error:
        problems.append(f"{name}.block_ids cannot be read: {explain(error)}")
        return TableReading([], 0)
    tokens = _ask(f"{name}.num_tokens", "tokens", problems, lambda: table.num_tokens) or 0
    blocks = [whole_number(block_id, num_blocks - 1) for block_id in listed]
    if None in blocks:
        index = blocks.index(None)
        problems.append(
            f"{name}.block_ids[{index}] is {listed[index]!r}: block ids go from 0 to "
            f"{num_blocks - 1}"
        )
    if len(blocks) != (fill := blocks_for(tokens, block_size)):
        problems.append(f"{name} has {len(blocks)} blocks for {tokens} tokens; they fill {fill}")
    if twice := [
        block_id
        for block_id, times in Counter(blocks).items()
        if times > 1 and block_id is not None
    ]:
        problems.append(f"{name} lists {blocks_text(twice)} more than once")
    return TableReading(blocks, tokens)


def _unbalanced(reading: Reading) -> list[str]:
    """Where counts, tables and free list disagree; the first block of each kind is named."""
    counts, mapped = (
        reading.counts,
        Counter(b for table in reading.tables.values() for b in table.blocks),
    )
    wrong = [block_id for block_id, count in enumerate(counts) if count != mapped[block_id]]
    problems = []
    if lost := [block_id for block_id in wrong if not mapped[block_id]]:
        problems.append(
            f"no table lists {blocks_text(lost)}, yet the count is not 0: lost until a reset"
        )
    for stale in [block_id for block_id in wrong if not counts[block_id]][:1]:
        problems.append(
            f"block {stale} counts as free, but {' and '.join(reading.owners(stale))} still reads "
            "it"
        )
    for block_id in [block_id for block_id in wrong if counts[block_id] and mapped[block_id]][:1]:
        tables = "1 table lists" if mapped[block_id] == 1 else f"{mapped[block_id]} tables list"
        problems.append(f"block {block_id} counts {counts[block_id]}, but {tables} it")
    if not wrong and reading.free != counts.count(0):
        problems.append(
            f"num_free is {reading.free}, but {counts.count(0)} blocks have no reference"
        )
    return problems
