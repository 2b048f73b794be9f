"""Recovery: restore the reference counts of a pool after a reader's own class has failed.

Our pool, table and scheduler change everything or nothing. A reader's class may raise in the middle
of its work, or after it. Then a block may have a reference that no table holds, or a table may list
a block without a reference. Both are found by counting: a block has one reference for each table
that lists it, and those that are held outside the engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

from pagedlab.blocks import BlockTable, Pool, blocks_for
from pagedlab.sequence import Sequence

T = TypeVar("T")
ATTEMPTS = 3  # calls of a reader's method: after it has raised once, it often works


class Recovery:
    """Compares the counts of one pool with the tables of an engine.

    Args:
        pool: the engine's pool.
        new_table: the class of the block tables.
    """

    def __init__(self, pool: Pool, new_table: Callable[[Any], BlockTable]) -> None:
        self._pool = pool
        self._new_table = new_table
        self._held_outside = Counter[int]()

    def note_outside(self) -> None:
        """Record the references that are held outside. Call it while the engine holds none."""
        self._held_outside.clear()
        if self._pool.num_free < self._pool.num_blocks:
            for block_id in range(self._pool.num_blocks):
                self._held_outside[block_id] = self._pool.refcount(block_id)

    def balance(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Release the references that no table holds, and replace wrong tables by empty ones.

        Args:
            sequences: all sequences that hold blocks of the pool.

        Returns:
            The sequences whose tables were wrong. They cannot continue.
        """
        counts = [self._count(block_id) for block_id in range(self._pool.num_blocks)]
        sequences = list(sequences)
        broken = [sequence for sequence in sequences if self._is_broken(sequence, counts)]
        held = self._held_by(sequences)
        short = {block_id for block_id, count in enumerate(counts) if count < held[block_id]}
        for sequence in sequences:
            if sequence not in broken and not short.isdisjoint(sequence.table.block_ids):
                broken.append(sequence)
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
        """Return the reference count of a block, even if the pool raises the first time."""
        return _retry(lambda: self._pool.refcount(block_id))

    def _release(self, block_id: int) -> None:
        """Release one reference, even if the pool raises before or after that."""
        before = self._count(block_id)

        def release() -> None:
            if self._count(block_id) == before:
                self._pool.release(block_id)

        _retry(release)


def _retry(function: Callable[[], T]) -> T:
    """Call the function, and call it again if it raises."""
    for _ in range(ATTEMPTS - 1):
        with suppress(Exception):  # the last call reports its error
            return function()
    return function()
