"""What pools and tables say about themselves, and where they disagree."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from pagedlab.arguments import integer
from pagedlab_lessons.drawing import runs

MOST_NAMED = 3  # blocks with a wrong count


class TableReading(NamedTuple):
    """One table.

    Args:
        blocks: block ids in logical order.
        tokens: number of tokens.
    """

    blocks: list[int]
    tokens: int


@dataclass
class Reading:
    """A pool and its tables at one moment.

    Args:
        block_size: of the pool.
        counts: the reference count of each block.
        free: what the pool's `num_free` says.
        tables: by the name of their sequence.
    """

    block_size: int
    counts: list[int]
    free: int
    tables: dict[str, TableReading]

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
        pool: anything with BlockPool's verbs; it may raise anything.
        tables: of any class, by the name of its sequence.
        num_blocks: of the pool.
        block_size: of the pool.
    """
    counts = [integer(f"refcount({i})", pool.refcount(i)) for i in range(num_blocks)]
    read_tables = {name: _read_table(name, table, num_blocks) for name, table in tables.items()}
    return Reading(block_size, counts, integer("num_free", pool.num_free), read_tables)


def _read_table(name: str, table: Any, num_blocks: int) -> TableReading:
    """Ask a table for its blocks and tokens; anything may be raised."""
    blocks = [
        integer(f"{name}.block_ids[{index}]", block_id, most=num_blocks - 1)
        for index, block_id in enumerate(table.block_ids)
    ]
    return TableReading(blocks, integer(f"{name}.num_tokens", table.num_tokens))


def problems_of(reading: Reading) -> Iterator[str]:
    """Say where counts, tables and `num_free` disagree."""
    counts = reading.counts
    wrong = [i for i, count in enumerate(counts) if count != len(reading.listed[i])]
    for block_id in wrong[:MOST_NAMED]:
        count = counts[block_id]
        times = len(reading.listed[block_id])
        if not times:
            yield f"no table lists block {block_id}, yet it counts {count}: lost until a reset"
        elif not count:
            readers = " and ".join(reading.listed[block_id])
            yield f"block {block_id} counts as free, but {readers} still reads it"
        else:
            yield f"block {block_id} counts {count}; table entries that list it: {times}"
    if not wrong and reading.free != counts.count(0):
        yield f"num_free is {reading.free}, but {counts.count(0)} blocks have no reference"
