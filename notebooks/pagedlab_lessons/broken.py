"""Pools and tables with one mistake each, for the exercises.

Use none of them; tests/support/broken.py has more.

Each differs from `BlockPool` or `BlockTable` in the few lines shown, and works for a while.
"""

from __future__ import annotations

from pagedlab.blocks import BlockPool, BlockTable, OutOfBlocks, Pool

# Pools --------------------------------------------------------------------------------------------


class LosesBlocks(BlockPool):
    """A block that was ever shared does not come back."""

    _was_shared: frozenset[int] = frozenset()

    def share(self, block_id: int) -> int:
        self._was_shared |= {super().share(block_id)}
        return block_id

    def release(self, block_id: int) -> None:
        super().release(block_id)
        if self.refcount(block_id) == 0 and block_id in self._was_shared:
            self.free_ids.remove(block_id)


class HandsOutInTurn(BlockPool):
    """`allocate` goes round the blocks like a ring buffer, without looking who is still there."""

    _next = 0

    @property
    def num_free(self) -> int:
        return self.counts.count(0)

    def allocate(self) -> int:
        if self.num_free == 0:
            raise OutOfBlocks(f"no block is free: all {self.num_blocks} are in use")
        block_id, self._next = self._next, (self._next + 1) % self.num_blocks
        self.counts[block_id] = 1
        return block_id


class CountsBeforeItLooks(BlockPool):
    """`share` of a free block raises, but has already counted."""

    def share(self, block_id: int) -> int:
        was_free = self.refcount(block_id) == 0
        self.counts[block_id] += 1
        if was_free:
            raise ValueError(f"block {block_id} is free")
        return block_id


class SuspectPool(Pool):
    """A block pool with one mistake, for the last exercise of notebook 08."""

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.counts = [0] * num_blocks
        self.free_list = list(range(num_blocks))

    @property
    def num_free(self) -> int:
        return len(self.free_list)

    def allocate(self) -> int:
        block = self.free_list.pop()
        self.counts[block] = 1
        return block

    def share(self, block: int) -> int:
        self.counts[block] += 1
        return block

    def release(self, block: int) -> None:
        self.counts[block] -= 1
        if self.counts[block] <= 1:
            self.free_list.append(block)

    def refcount(self, block: int) -> int:
        return self.counts[block]


POOLS = {"A": LosesBlocks, "B": HandsOutInTurn, "C": CountsBeforeItLooks}
"""The three pools of notebook 02's last exercise."""

# Tables -------------------------------------------------------------------------------------------


class NeverCopies(BlockTable):
    """Shares on `fork`, and writes into shared blocks: copy-on-write without the copy."""

    def must_copy(self, n: int) -> bool:
        return False


class CountsForks(BlockTable):
    """Counts the forks of each table, where a count for each block is needed.

    The first table releases the blocks once it is freed and no fork of it is alive. In which order
    of frees is that wrong?
    """

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self.parent: CountsForks | None = None
        self.forks, self.ended = 0, False

    def fork(self) -> CountsForks:
        child = type(self)(self.pool)
        child.block_ids, child.num_tokens = list(self.block_ids), self.num_tokens
        child.parent = self
        self.forks += 1
        return child

    def free(self) -> None:
        self.ended = True
        if self.parent:
            self.parent.forks -= 1
            self.parent.release_if_unused()
        self.release_if_unused()

    def release_if_unused(self) -> None:
        is_first = self.parent is None  # only the first table allocated blocks
        if is_first and self.ended and self.forks == 0:
            self.truncate(0)
