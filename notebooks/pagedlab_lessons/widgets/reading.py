"""What pools and tables say about themselves, read without trusting them.

The widget shows objects that may be a reader's first draft: `refcount` may raise, a table may list
`None`. Nothing here raises because of them. What cannot be shown becomes a sentence in `problems`.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
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

    def held(self, index: int, block_size: int) -> int:
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
        return [name for name, _ in self.places[block_id]]

    @cached_property
    def places(self) -> dict[int | None, list[tuple[str, int]]]:
        """Of each block, the sequences that list it, and its number in their tables."""
        found = defaultdict[int | None, list[tuple[str, int]]](list)
        for name, table in self.tables.items():
            for index, block_id in enumerate(table.blocks):
                found[block_id].append((name, index))
        return found

    def describe(self, block_id: int) -> str:
        """Return what a used block holds, and in which slot its last token is."""
        count = self.counts[block_id]
        said = [plural(count, "reference")]
        places = self.places[block_id]
        for name, index in places:
            tokens = _range(index * self.block_size, self.tables[name].held(index, self.block_size))
            said.append(f"{name}’s logical block {index}, {tokens}")
        if not places:
            said.append("in no table: lost")
        elif held := self.tables[places[0][0]].held(places[0][1], self.block_size):
            token = places[0][1] * self.block_size + held - 1
            slot = block_id * self.block_size + held - 1
            offset = f"{block_id} × {self.block_size} + {held - 1}"
            said.append(f"token {token} is in slot {offset} = {slot}")
        return " · ".join(said)

    def snapshot(self, colors: Mapping[str, int]) -> dict[str, Any]:
        """Return what every grid shows, in JSON's types.

        Args:
            colors: the running number of each sequence.
        """
        num_blocks = len(self.counts)
        return {
            "block_size": self.block_size,
            "counts": self.counts,
            "columns": 8 if num_blocks <= 8 else 16 if num_blocks <= 128 else 32,
            "tables": [
                {"name": name, **table._asdict(), **sequence_look(colors[name])}
                for name, table in self.tables.items()
            ],
            "used": self.used,
            "free": self.free,
            "shared": self.shared,
            # blocks in use if each sequence had its own copies
            "copying": sum(len(table.blocks) for table in self.tables.values()),
        }


def plural(n: int, noun: str) -> str:
    """Return a number and what it counts: "1 block", "2 blocks"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _range(first: int, n: int) -> str:
    """Return n positions in words: "token 4", "tokens 4–5"."""
    if n < 2:
        return f"token {first}" if n else "no token yet"
    return f"tokens {first}–{first + n - 1}"


def blocks_text(block_ids: Iterable[int | None]) -> str:
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
    problems: list[str] = []
    counts = _numbers("refcount({})", lambda i: pool.refcount(i), range(num_blocks), problems)
    (free,) = _numbers("num_free", lambda _: pool.num_free, [0], problems)
    are_known = not problems
    read_tables = {
        name: _read_table(name, table, num_blocks, block_size, problems)
        for name, table in tables.items()
    }
    known = [count or 0 for count in counts]
    reading = Reading(block_size, known, free or 0, read_tables, problems)
    if are_known:
        problems += _unbalanced(reading)
    return reading


def _numbers(
    name: str,
    ask: Callable[[Any], Any],
    of: Iterable[Any],
    problems: list[str],
    most: float = math.inf,
) -> list[int | None]:
    """Return the answer to each question, None where it is no number from 0 to `most`.

    Args:
        name: of a number, for a problem.
        ask: the question, which may raise anything.
        of: what it is asked about.
        problems: gets a sentence about the first answer that is no number.
        most: the largest number.
    """
    numbers: list[int | None] = []
    bad = []
    for i, each in enumerate(of):
        try:
            answer = ask(each)
            numbers.append(integer("it", answer, most=most))
        except Exception as error:
            numbers.append(None)
            bad.append(f"{name.format(i)} cannot be read: {explain(error)}")
    problems += bad[:1]
    return numbers


def _read_table(
    name: str, table: Any, num_blocks: int, block_size: int, problems: list[str]
) -> TableReading:
    """Ask a table for its blocks and tokens; `problems` gets what is wrong."""
    try:
        listed = list(table.block_ids)
    except Exception as error:
        problems.append(f"{name}.block_ids cannot be read: {explain(error)}")
        return TableReading([], 0)
    (length,) = _numbers(f"{name}.num_tokens", lambda _: table.num_tokens, [0], problems)
    tokens = length or 0
    blocks = _numbers(
        name + ".block_ids[{}]", lambda listed_id: listed_id, listed, problems, num_blocks - 1
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
    """Say where counts, tables and `num_free` disagree; of the blocks, the first is named."""
    counts = reading.counts
    wrong = [i for i, count in enumerate(counts) if count != len(reading.places[i])]
    if wrong:
        block_id = wrong[0]
        readers = reading.owners(block_id)
        if not readers:
            said = f"no table lists block {block_id}, yet the count is not 0: lost until a reset"
        elif not counts[block_id]:
            said = f"block {block_id} counts as free, but {' and '.join(readers)} still reads it"
        else:
            verb = "lists" if len(readers) == 1 else "list"
            tables = plural(len(readers), "table")
            said = f"block {block_id} counts {counts[block_id]}, but {tables} {verb} it"
        yield f"{said}; {len(wrong) - 1} more are wrong" if len(wrong) > 1 else said
    elif reading.free != counts.count(0):
        yield f"num_free is {reading.free}, but {counts.count(0)} blocks have no reference"
