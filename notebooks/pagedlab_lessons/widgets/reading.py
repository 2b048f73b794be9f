"""What pools and tables say about themselves, read without trusting them.

The widget shows objects that may be a reader's first draft: `refcount` may raise, a table may list
`None`. Nothing here raises because of them. What cannot be shown becomes a sentence in `problems`.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from pagedlab.arguments import integer
from pagedlab.blocks import blocks_for
from pagedlab_lessons.colors import sequence_look
from pagedlab_lessons.drawing import runs
from pagedlab_lessons.readers_code import explain


class TableReading(NamedTuple):
    """One table.

    Args:
        blocks: block ids in logical order, None where the table lists no such block.
        tokens: number of tokens.
    """

    blocks: list[int | None]
    tokens: int

    def fill(self, index: int, block_size: int) -> int:
        """Return the tokens in the logical block `index`."""
        return max(0, min(block_size, self.tokens - index * block_size))


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

    def owners(self, block_id: int | None) -> list[str]:
        """Return the names of the sequences whose tables list the block."""
        return [name for name, table in self.tables.items() if block_id in table.blocks]

    def snapshot(self, colors: Mapping[str, int]) -> dict[str, Any]:
        """Return what every grid shows, in JSON's types.

        Args:
            colors: the running number of each sequence.
        """
        tables = []
        for name, table in self.tables.items():
            look = sequence_look(colors[name])
            tables.append({"name": name, "tokens": table.tokens, "blocks": table.blocks, **look})
        return {
            "block_size": self.block_size,
            "counts": self.counts,
            "columns": columns_of(len(self.counts)),
            "tables": tables,
            "used": self.used,
            "free": self.free,
            "shared": self.shared,
            # blocks in use if each sequence had its own copies
            "copying": sum(len(table.blocks) for table in self.tables.values()),
            "problems": self.problems,
        }


def columns_of(num_blocks: int) -> int:
    """Return the blocks in a row of the grid."""
    if num_blocks <= 8:
        return 8
    return 16 if num_blocks <= 128 else 32


def blocks_text(block_ids: Iterable[int | None]) -> str:
    """Return block ids with the word in front: "block 7", "blocks 4-6, 9"."""
    ids = list(block_ids)
    return f"{'block' if len(ids) == 1 else 'blocks'} {runs(ids)}"


def whole_number(value: object, most: float = math.inf) -> int | None:
    """Return the value as an int, or None if it is not one from 0 to `most`."""
    with suppress(ValueError):
        return integer("it", value, most=most)
    return None


def read(pool: Any, tables: Mapping[str, Any], num_blocks: int, block_size: int) -> Reading:
    """Ask the pool for every count, and each table for its blocks and tokens.

    Args:
        pool: anything.
        tables: anything, by the name of its sequence.
        num_blocks: of the pool.
        block_size: of the pool.
    """
    unknown: list[str] = []  # a problem for each count that the pool could not say
    counts = []
    for block_id in range(num_blocks):
        name = f"refcount({block_id})"
        counts.append(_ask(name, "references", unknown, pool, "refcount", block_id) or 0)
    problems = _first_of(unknown)
    read_tables = {
        name: _read_table(name, table, num_blocks, block_size, problems)
        for name, table in tables.items()
    }
    free = _ask("num_free", "blocks", problems, pool, "num_free")
    if free is None:
        free = counts.count(0)
    reading = Reading(block_size, counts, free, read_tables, problems)
    if not unknown:
        problems += _unbalanced(reading)
    return reading


def _first_of(problems: list[str]) -> list[str]:
    """Return the first problem, with the number of blocks that have one too."""
    if len(problems) > 1:
        return [f"{problems[0]}, and {len(problems) - 1} more blocks have the same problem"]
    return problems[:1]


def _ask(
    name: str, unit: str, problems: list[str], asked: Any, attribute: str, *given: int
) -> int | None:
    """Return a number that an object has as an attribute, or that its method returns.

    Args:
        name: of the number, for a problem.
        unit: of the number, for a problem.
        problems: gets a sentence if there is no such number; the result is then None.
        asked: the object.
        attribute: of the object.
        given: arguments of the method.
    """
    try:
        answer = getattr(asked, attribute)
        if given:
            answer = answer(*given)
    except Exception as error:
        problems.append(f"{name} raises {explain(error)}")
        return None
    number = whole_number(answer)
    if number is None:
        problems.append(f"{name} is {answer!r}, not a number of {unit}")
    return number


def _read_table(
    name: str, table: Any, num_blocks: int, block_size: int, problems: list[str]
) -> TableReading:
    """Ask a table for its blocks and tokens; `problems` gets what is wrong."""
    try:
        listed = list(table.block_ids)
    except Exception as error:
        problems.append(f"{name}.block_ids cannot be read: {explain(error)}")
        return TableReading([], 0)
    tokens = _ask(f"{name}.num_tokens", "tokens", problems, table, "num_tokens") or 0
    blocks = [whole_number(block_id, num_blocks - 1) for block_id in listed]
    if None in blocks:
        index = blocks.index(None)
        problems.append(
            f"{name}.block_ids[{index}] is {listed[index]!r}: block ids go from 0 to "
            f"{num_blocks - 1}"
        )
    needed = blocks_for(tokens, block_size)
    if len(blocks) != needed:
        problems.append(f"{name} has {len(blocks)} blocks for {tokens} tokens; they fill {needed}")
    times = Counter(block_id for block_id in blocks if block_id is not None)
    twice = [block_id for block_id, n in times.items() if n > 1]
    if twice:
        problems.append(f"{name} lists {blocks_text(twice)} more than once")
    return TableReading(blocks, tokens)


def _unbalanced(reading: Reading) -> Iterator[str]:
    """Say where counts, tables and `num_free` disagree; the first block of each kind is named."""
    counts = reading.counts
    mapped = Counter(block_id for table in reading.tables.values() for block_id in table.blocks)
    wrong = [block_id for block_id, count in enumerate(counts) if count != mapped[block_id]]
    lost = [block_id for block_id in wrong if not mapped[block_id]]
    stale = [block_id for block_id in wrong if not counts[block_id]]
    miscounted = [block_id for block_id in wrong if counts[block_id] and mapped[block_id]]
    if lost:
        yield f"no table lists {blocks_text(lost)}, yet the count is not 0: lost until a reset"
    if stale:
        readers = " and ".join(reading.owners(stale[0]))
        yield f"block {stale[0]} counts as free, but {readers} still reads it"
    if miscounted:
        block_id = miscounted[0]
        times = mapped[block_id]
        tables = "1 table lists" if times == 1 else f"{times} tables list"
        yield f"block {block_id} counts {counts[block_id]}, but {tables} it"
    if not wrong and reading.free != counts.count(0):
        yield f"num_free is {reading.free}, but {counts.count(0)} blocks have no reference"
