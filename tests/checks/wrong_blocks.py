"""Plausible wrong answers to the exercises of notebooks 00, 02 and 03. test_exercises.py runs them all."""

from __future__ import annotations

from typing import Any

import broken

from pagedlab import BlockCopy, BlockPool, BlockTable, OutOfBlocks, blocks_for

# Pools --------------------------------------------------------------------------------------------------------


class PlainPool:
    """A right pool as a reader may write it; the wrong ones below change a line of it."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.counts = [0] * num_blocks
        self.unused = list(range(num_blocks))

    @property
    def num_free(self) -> int:
        return len(self.unused)

    def known(self, block_id: int) -> None:
        if not 0 <= block_id < self.num_blocks or self.counts[block_id] == 0:
            raise ValueError(f"block {block_id} is not in use")

    def allocate(self) -> int:
        if not self.unused:
            raise OutOfBlocks("none is free")
        block_id = self.unused.pop()
        self.counts[block_id] = 1
        return block_id

    def share(self, block_id: int) -> int:
        self.known(block_id)
        self.counts[block_id] += 1
        return block_id

    def release(self, block_id: int) -> None:
        self.known(block_id)
        self.counts[block_id] -= 1
        if self.counts[block_id] == 0:
            self.unused.append(block_id)

    def refcount(self, block_id: int) -> int:
        return self.counts[block_id]


class FirstInFirstOut(PlainPool):
    """Right too: another order of the free list."""

    def allocate(self) -> int:
        self.unused.reverse()
        try:
            return super().allocate()
        finally:
            self.unused.reverse()


class AcceptsDoubleFree(PlainPool):
    def release(self, block_id: int) -> None:
        if self.counts[block_id] > 0:
            self.counts[block_id] -= 1
        if self.counts[block_id] == 0:
            self.unused.append(block_id)


class AcceptsNegativeIds(PlainPool):
    def known(self, block_id: int) -> None:
        if block_id >= self.num_blocks or self.counts[block_id] == 0:
            raise ValueError


class GoesBelowZero(PlainPool):
    def known(self, block_id: int) -> None:
        if not 0 <= block_id < self.num_blocks:
            raise ValueError


class WrongError(PlainPool):
    def allocate(self) -> int:
        block_id = self.unused.pop()  # IndexError
        self.counts[block_id] = 1
        return block_id


class ShareReturnsNothing(PlainPool):
    def share(self, block_id: int) -> None:  # type: ignore[override]
        super().share(block_id)


class ReturnsNoneWhenFull(PlainPool):
    def allocate(self) -> Any:
        return super().allocate() if self.unused else None


class OneBlockTooFew(PlainPool):
    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.unused = list(range(1, num_blocks))


class NeverEnds(PlainPool):
    def allocate(self) -> int:
        block_id = 0
        while self.counts[block_id] >= 0:
            block_id = (block_id + 1) % self.num_blocks
        return block_id


# Tables -------------------------------------------------------------------------------------------------------


class PlainTable:
    """A right table without sharing; the wrong ones below change a line of it."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.block_ids: list[int] = []
        self.num_tokens = 0

    def needed(self, n: int) -> int:
        return blocks_for(self.num_tokens + n, self.pool.block_size) - len(self.block_ids)

    def append(self, n: int = 1) -> list[BlockCopy]:
        needed = self.needed(n)
        if needed > self.pool.num_free:
            raise OutOfBlocks("too few")
        self.block_ids += [self.pool.allocate() for _ in range(needed)]
        self.num_tokens += n
        return []

    def slot(self, position: int) -> int:
        size = self.pool.block_size
        return self.block_ids[position // size] * size + position % size

    def free(self) -> None:
        while self.block_ids:
            self.pool.release(self.block_ids.pop())
        self.num_tokens = 0


class TakesOneBlockEarly(PlainTable):
    def needed(self, n: int) -> int:
        return (self.num_tokens + n) // self.pool.block_size + 1 - len(self.block_ids)


class TakesOneBlockLate(PlainTable):
    def needed(self, n: int) -> int:
        return (self.num_tokens + n) // self.pool.block_size - len(self.block_ids)


class OneBlockAtMost(PlainTable):
    def needed(self, n: int) -> int:
        return min(1, super().needed(n))


class NotAllOrNothing(PlainTable):
    def append(self, n: int = 1) -> list[BlockCopy]:
        for _ in range(self.needed(n)):
            self.block_ids.append(self.pool.allocate())
        self.num_tokens += n
        return []


class KeepsItsBlocks(PlainTable):
    def free(self) -> None:
        self.block_ids, self.num_tokens = [], 0


class ForgetsTheCount(PlainTable):
    def free(self) -> None:
        for block_id in self.block_ids:
            self.pool.release(block_id)
        self.block_ids = []


class OneListForAll(PlainTable):
    block_ids: list[int] = []  # noqa: RUF012

    def __init__(self, pool: Any) -> None:
        self.pool, self.num_tokens = pool, 0


class ConsecutiveSlots(PlainTable):
    def slot(self, position: int) -> int:
        return self.block_ids[0] * self.pool.block_size + position


class ReturnsNothing(PlainTable):
    def append(self, n: int = 1) -> None:  # type: ignore[override]
        super().append(n)


class AliasesTheList(BlockTable):
    def fork(self) -> BlockTable:
        child = super().fork()
        child.block_ids = self.block_ids
        return child


class SharesNothing(BlockTable):
    """Fork copies the list and forgets the counts."""

    def fork(self) -> BlockTable:
        child = type(self)(self.pool)
        child.block_ids, child.num_tokens = list(self.block_ids), self.num_tokens
        return child


class CopiesFullBlocksToo(BlockTable):
    """Copies the shared last block even when it is full, and nothing will be written there."""

    def append(self, n: int = 1) -> list[BlockCopy]:
        full = self.num_tokens > 0 and self.num_tokens % self.pool.block_size == 0
        copies = []
        if full and self.pool.refcount(self.block_ids[-1]) > 1:
            copies = [self.copy_last(self.pool.allocate())]
        return copies + super().append(n)


class ForgetsToRelease(BlockTable):
    """The copy is made, and the old block keeps the reference."""

    def copy_last(self, destination: int) -> BlockCopy:
        source, self.block_ids[-1] = self.block_ids[-1], destination
        return BlockCopy(source, destination)


class CopiesAlways(BlockTable):
    """Copies a partial last block without looking whether anybody shares it."""

    def append(self, n: int = 1) -> list[BlockCopy]:
        if self.num_tokens % self.pool.block_size and self.pool.refcount(self.block_ids[-1]) == 1:
            copy = self.copy_last(self.pool.allocate())
            return [copy, *super().append(n)]
        return super().append(n)


class SwapsTheCopy(BlockTable):
    def append(self, n: int = 1) -> list[BlockCopy]:
        return [BlockCopy(copy.destination, copy.source) for copy in super().append(n)]


# Functions ----------------------------------------------------------------------------------------------------


def takes_negative_lengths(table: Any, num_tokens: int) -> None:
    BlockTable.truncate(table, max(0, num_tokens))


def keeps_the_blocks(table: Any, num_tokens: int) -> None:
    BlockTable.truncate(table, max(num_tokens, table.num_tokens))
    table.num_tokens = num_tokens


def releases_one_too_many(table: Any, num_tokens: int) -> None:
    if num_tokens > table.num_tokens:
        raise ValueError
    table.num_tokens = num_tokens
    while len(table.block_ids) > num_tokens // table.pool.block_size:
        table.pool.release(table.block_ids.pop())


def releases_the_first_blocks(table: Any, num_tokens: int) -> None:
    if num_tokens > table.num_tokens:
        raise ValueError
    table.num_tokens = num_tokens
    while len(table.block_ids) > blocks_for(num_tokens, table.pool.block_size):
        table.pool.release(table.block_ids.pop(0))


def grows(table: Any, num_tokens: int) -> None:
    table.num_tokens = num_tokens
    while len(table.block_ids) > blocks_for(num_tokens, table.pool.block_size):
        table.pool.release(table.block_ids.pop())


WRONG: dict[str, list[Any]] = {
    "block_of": [2, 3, 37, 5, 9, 37 / 16, "two"],
    "block_pool": [
        broken.FreesSharedBlock,
        *broken.POOLS.values(),
        AcceptsDoubleFree,
        AcceptsNegativeIds,
        GoesBelowZero,
        WrongError,
        ShareReturnsNothing,
        ReturnsNoneWhenFull,
        OneBlockTooFew,
        NeverEnds,
    ],
    "slot": [
        lambda block_ids, position, block_size: block_ids[0] * block_size + position,
        lambda block_ids, position, block_size: block_ids[position // block_size] + position % block_size,
        lambda block_ids, position, block_size: block_ids[position % len(block_ids)] * block_size,
        lambda block_ids, position, block_size: block_ids[(position - 1) // block_size] * block_size + position,
        lambda block_ids, position, block_size: block_ids[position / block_size],
    ],
    "block_table": [
        TakesOneBlockEarly,
        TakesOneBlockLate,
        OneBlockAtMost,
        NotAllOrNothing,
        KeepsItsBlocks,
        ForgetsTheCount,
        OneListForAll,
        ConsecutiveSlots,
        ReturnsNothing,
    ],
    "broken_pools": [
        {"A": "counted", "B": "exclusive", "C": "atomic"},
        {"A": "conserved", "B": "counted", "C": "atomic"},
        {"A": "conserved", "B": "exclusive", "C": "counted"},
        {"A": "leaky", "B": "exclusive", "C": "atomic"},
        ["conserved", "exclusive", "atomic"],
    ],
    "copy_on_write": [
        broken.LeaksOnFork,
        broken.CopiesWholeTable,
        broken.CopiesEagerly,
        broken.NeverCopies,
        broken.CountsForks,
        AliasesTheList,
        SharesNothing,
        CopiesFullBlocksToo,
        ForgetsToRelease,
        CopiesAlways,
        SwapsTheCopy,
        PlainTable,
    ],
    "copies_after_forks": [
        lambda num_forks, num_tokens, block_size: num_forks,
        lambda num_forks, num_tokens, block_size: num_forks + 1 if num_tokens % block_size else 0,
        lambda num_forks, num_tokens, block_size: num_forks * blocks_for(num_tokens, block_size),
        lambda num_forks, num_tokens, block_size: 1 if num_forks and num_tokens % block_size else 0,
    ],
    "truncate": [takes_negative_lengths, keeps_the_blocks, releases_one_too_many, releases_the_first_blocks, grows],
    "order_of_frees": [list("dcba"), list("abcd"), list("acbd"), list("abc"), list("aabc")],
}

RIGHT: dict[str, list[Any]] = {
    "block_of": [4],
    "block_pool": [BlockPool, PlainPool, FirstInFirstOut],
    "slot": [lambda ids, p, size: [b * size + i for b in ids for i in range(size)][p]],
    "block_table": [BlockTable, PlainTable],
    "copy_on_write": [BlockTable],
    "truncate": [BlockTable.truncate],
    "order_of_frees": [list("abdc"), list("dbac")],
}
