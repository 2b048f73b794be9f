"""Put the counts of a pool in order after a class that a reader wrote has failed.

The project's own pool, table and scheduler change everything or nothing. A class of a reader may
raise in the middle of its work, or after it. A block may then have a reference that no table holds,
or a table may list a block that it does not hold. Both are found by counting: each block's
references are those of the tables and those held outside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pagedlab.blocks import BlockTable, Pool, blocks_for
from pagedlab.sequence import Sequence

T = TypeVar("T")
ATTEMPTS = 3  # a reader's method that raises once usually works when it is called again


class Recovery:
    """Compares the counts of one pool with the tables of an engine.

    Args:
        pool: the engine's pool.
        new_table: makes an empty table over the pool.
    """

    def __init__(self, pool: Pool, new_table: Callable[[Any], BlockTable]) -> None:
        self._pool = pool
        self._new_table = new_table
        self._held_outside = Counter[int]()

    def note_outside(self) -> None:
        """Remember the references that others hold. Call it while the engine holds none."""
        self._held_outside.clear()
        if self._pool.num_free < self._pool.num_blocks:
            for block_id in range(self._pool.num_blocks):
                self._held_outside[block_id] = self._pool.refcount(block_id)

    def balance(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Release every reference that nobody holds, and return the sequences whose tables are
        wrong.

        The tables of the sequences returned are empty: their requests cannot go on.

        Args:
            sequences: all that hold blocks of the pool.
        """
        counts = [self._count(block_id) for block_id in range(self._pool.num_blocks)]
        sequences = list(sequences)
        broken = [sequence for sequence in sequences if self._is_broken(sequence, counts)]
        held = self._held_by(sequences)
        short = {block_id for block_id, count in enumerate(counts) if count < held[block_id]}
        broken += [
            s for s in sequences if s not in broken and not short.isdisjoint(s.table.block_ids)
        ]
        for sequence in broken:
            self.empty(sequence)
        held = self._held_by(sequences)
        for block_id, count in enumerate(counts):
            for _ in range(count - held[block_id]):
                self._release(block_id)
        return broken

    def empty(self, sequence: Sequence) -> None:
        """Give the sequence a new table. `balance` then releases the blocks of the old one."""
        sequence.table = self._new_table(self._pool)

    def _is_broken(self, sequence: Sequence, counts: list[int]) -> bool:
        table = sequence.table
        if len(table.block_ids) != blocks_for(table.num_tokens, self._pool.block_size):
            return True
        return any(counts[block_id] == 0 for block_id in table.block_ids)

    def _held_by(self, sequences: Iterable[Sequence]) -> Counter[int]:
        held = self._held_outside.copy()
        for sequence in sequences:
            held.update(sequence.table.block_ids)
        return held

    def _count(self, block_id: int) -> int:
        """Return the number of references to a block, even if the pool raises the first time."""
        return _persist(lambda: self._pool.refcount(block_id))

    def _release(self, block_id: int) -> None:
        """Release one reference, even if the pool raises before or after it does so."""
        before = self._count(block_id)

        def release() -> None:
            if self._count(block_id) == before:
                self._pool.release(block_id)

        _persist(release)


def _persist(function: Callable[[], T]) -> T:
    """Call the function, and call it again if it raises."""
    for _ in range(ATTEMPTS - 1):
        try:
            return function()
        except Exception:  # noqa: S112 - whatever a reader's class raises: the last attempt reports it
            continue
    return function()
