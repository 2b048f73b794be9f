"""What pools and tables say about themselves, read without trusting them.

The widget shows the state of objects that may be a reader's first draft: a count may raise, a table may list
`None`. Nothing in here raises because of them; what cannot be shown becomes a sentence in `problems`.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pagedlab.blocks import blocks_for
from pagedlab.checks import explain


class TableReading(NamedTuple):
    """One table: its physical blocks in logical order (None where it lists no such block), and its tokens."""

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

    @property
    def used(self) -> int:
        """Blocks with a reference."""
        return sum(count > 0 for count in self.counts)

    @property
    def shared(self) -> int:
        """Blocks with more than one reference."""
        return sum(count > 1 for count in self.counts)

    @property
    def copying(self) -> int:
        """Blocks that the same sequences would hold if each had copies of its own."""
        return sum(len(table.blocks) for table in self.tables.values())

    def owners(self, block_id: int) -> list[str]:
        """Names of the sequences whose tables list the block."""
        return [name for name, table in self.tables.items() if block_id in table.blocks]

    def state(self) -> tuple[object, ...]:
        """What must stay as it was when an operation fails."""
        return self.counts, self.free, self.tables


def runs(block_ids: Iterable[int | None]) -> str:
    """Block ids as a person would list them: [4, 5, 6, 9] is "4-6, 9". The order is kept."""
    parts: list[tuple[int, int]] = []
    for block_id in block_ids:
        if block_id is None:
            continue
        if parts and block_id == parts[-1][1] + 1:
            parts[-1] = (parts[-1][0], block_id)
        else:
            parts.append((block_id, block_id))
    return ", ".join(str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in parts)


def blocks_text(block_ids: Iterable[int | None]) -> str:
    """As `runs`, with the word in front: "block 7", "blocks 4-6, 9"."""
    ids = list(block_ids)
    return f"{'block' if len(ids) == 1 else 'blocks'} {runs(ids)}"


def whole_number(value: object) -> int | None:
    """The value as an int, or None if it is not one. Booleans are not."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def read(pool: Any, tables: Mapping[str, Any], num_blocks: int, block_size: int) -> Reading:
    """Ask the pool for every count and each table for its blocks and tokens."""
    problems: list[str] = []
    counts = [0] * num_blocks
    unsaid = []
    for block_id in range(num_blocks):
        try:
            count = whole_number(pool.refcount(block_id))
            said = "" if count is not None and count >= 0 else f"refcount({block_id}) is not a count"
        except Exception as error:
            count, said = None, f"refcount({block_id}) raises {explain(error)}"
        if said:
            unsaid.append(said)
        counts[block_id] = max(count or 0, 0)
    if unsaid:
        problems.append(unsaid[0] + (f", and {len(unsaid) - 1} more blocks do the like" if unsaid[1:] else ""))
    read_tables = {name: _read_table(name, table, num_blocks, block_size, problems) for name, table in tables.items()}
    try:
        said_free = pool.num_free
        free = whole_number(said_free)
        if free is None:
            problems.append(f"num_free is {said_free!r}, not a number of blocks")
    except Exception as error:
        free = None
        problems.append(f"num_free raises {explain(error)}")
    reading = Reading(block_size, counts, counts.count(0) if free is None else free, read_tables, problems)
    if not unsaid:
        problems += _unbalanced(reading)
    return reading


def _read_table(name: str, table: Any, num_blocks: int, block_size: int, problems: list[str]) -> TableReading:
    try:
        listed = list(table.block_ids)
        tokens = whole_number(table.num_tokens)
    except Exception as error:
        problems.append(f"{name} cannot be read: {explain(error)}")
        return TableReading([], 0)
    if tokens is None or tokens < 0:
        problems.append(f"{name}.num_tokens is {table.num_tokens!r}, not a number of tokens")
        tokens = 0
    ids = [whole_number(block_id) for block_id in listed]
    blocks = [block_id if block_id is not None and 0 <= block_id < num_blocks else None for block_id in ids]
    for index, (block_id, said) in enumerate(zip(blocks, listed, strict=True)):
        if block_id is None:
            problems.append(f"{name}.block_ids[{index}] is {said!r}: block ids go from 0 to {num_blocks - 1}")
            break
    if len(blocks) != blocks_for(tokens, block_size):
        problems.append(
            f"{name} has {len(blocks)} blocks for {tokens} tokens; they fill {blocks_for(tokens, block_size)}"
        )
    twice = [block_id for block_id, times in Counter(blocks).items() if times > 1 and block_id is not None]
    if twice:
        problems.append(f"{name} lists {blocks_text(twice)} more than once")
    return TableReading(blocks, tokens)


def _unbalanced(reading: Reading) -> list[str]:
    """Where counts, tables and free list disagree; the first block of each kind is named."""
    mapped = Counter(block_id for table in reading.tables.values() for block_id in table.blocks if block_id is not None)
    wrong = [block_id for block_id, count in enumerate(reading.counts) if count != mapped[block_id]]
    problems = []
    lost = [block_id for block_id in wrong if mapped[block_id] == 0]
    stale = [block_id for block_id in wrong if reading.counts[block_id] == 0]
    if lost:
        problems.append(f"no table lists {blocks_text(lost)}, yet the count is not 0: lost until a reset")
    if stale:
        problems.append(f"block {stale[0]} counts as free, but {' and '.join(reading.owners(stale[0]))} still reads it")
    for block_id in [b for b in wrong if b not in lost and b not in stale][:1]:
        tables = "1 table lists" if mapped[block_id] == 1 else f"{mapped[block_id]} tables list"
        problems.append(f"block {block_id} counts {reading.counts[block_id]}, but {tables} it")
    if not wrong and reading.free != reading.counts.count(0):
        problems.append(f"num_free is {reading.free}, but {reading.counts.count(0)} blocks have no reference")
    return problems
