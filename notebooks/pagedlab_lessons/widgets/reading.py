"""What pools and tables say about themselves, read without trusting them.

The widget shows objects that may be a reader's first draft: `refcount` may raise, a table may list
`None`. Nothing here raises because of them. What cannot be shown becomes a sentence in `problems`.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from pagedlab.arguments import integer
from pagedlab.blocks import blocks_for
from pagedlab_lessons.drawing import runs
from pagedlab_lessons.readers_code import explain

MOST_NAMED = 3  # blocks with a wrong count


class TableReading(NamedTuple):
    """One table.

    Args:
        blocks: block ids in logical order.
        tokens: number of tokens.
    """

    blocks: list[int]
    tokens: int


NO_TABLE = TableReading([], 0)


@dataclass
class Reading:
    """A pool and its tables at one moment.

    Args:
        block_size: of the pool.
        counts: the reference count of each block, 0 where the pool could not say.
        free: what the pool's `num_free` says.
        tables: by the name of their sequence.
        problems: what is wrong, in words.
    """

    block_size: int
    counts: list[int]
    free: int
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

    @cached_property
    def listed(self) -> dict[int, list[str]]:
        """Of each block, the names of the sequences that list it, as often as they do."""
        found = defaultdict[int, list[str]](list)
        for name, table in self.tables.items():
            for block_id in table.blocks:
                found[block_id].append(name)
        return found

    def readers(self, block_id: int, but: str = "") -> str:
        """Return the names of the sequences whose tables list the block, without one of them."""
        return " and ".join(name for name in self.listed[block_id] if name != but)


def columns_of(num_blocks: int) -> int:
    """Return the blocks in a row of the grid."""
    if num_blocks <= 8:
        return 8
    return 16 if num_blocks <= 128 else 32


def blocks_text(block_ids: Iterable[int]) -> str:
    """Return block ids with the word in front: "block 7", "blocks 4-6, 9"."""
    ids = list(block_ids)
    return f"{'block' if len(ids) == 1 else 'blocks'} {runs(ids)}"


def read(pool: Any, tables: Mapping[str, Any], num_blocks: int, block_size: int) -> Reading:
    """Ask the pool for every count, and each table for its blocks and tokens.

    Args:
        pool: anything.
        tables: anything, by the name of its sequence.
        num_blocks: of the pool.
        block_size: of the pool.
    """
    reading = Reading(block_size, [0] * num_blocks, 0, dict.fromkeys(tables, NO_TABLE), [])
    try:
        for block_id in range(num_blocks):
            count = integer(f"refcount({block_id})", pool.refcount(block_id))
            reading.counts[block_id] = count
        reading.free = integer("num_free", pool.num_free)
    except Exception as error:
        reading.problems.append(f"the pool cannot be read: {explain(error)}")
    for name, table in tables.items():
        try:
            reading.tables[name] = _read_table(name, table, num_blocks)
        except Exception as error:
            reading.problems.append(f"{name} cannot be read: {explain(error)}")
    reading.problems += [] if reading.problems else _unbalanced(reading)
    return reading


def _read_table(name: str, table: Any, num_blocks: int) -> TableReading:
    """Ask a table for its blocks and tokens; anything may be raised."""
    blocks = [
        integer(f"{name}.block_ids[{index}]", block_id, most=num_blocks - 1)
        for index, block_id in enumerate(table.block_ids)
    ]
    return TableReading(blocks, integer(f"{name}.num_tokens", table.num_tokens))


def _unbalanced(reading: Reading) -> Iterator[str]:
    """Say where counts, tables and `num_free` disagree."""
    for name, (blocks, tokens) in reading.tables.items():
        needed = blocks_for(tokens, reading.block_size)
        if len(blocks) != needed:
            yield f"{name} has {len(blocks)} blocks for {tokens} tokens; they fill {needed}"
    counts = reading.counts
    wrong = [i for i, count in enumerate(counts) if count != len(reading.listed[i])]
    for block_id in wrong[:MOST_NAMED]:
        count = counts[block_id]
        times = len(reading.listed[block_id])
        if not times:
            yield f"no table lists block {block_id}, yet it counts {count}: lost until a reset"
        elif not count:
            yield f"block {block_id} counts as free, but {reading.readers(block_id)} still reads it"
        else:
            yield f"block {block_id} counts {count}; table entries that list it: {times}"
    if not wrong and reading.free != counts.count(0):
        yield f"num_free is {reading.free}, but {counts.count(0)} blocks have no reference"
