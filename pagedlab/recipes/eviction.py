"""Pools that evict another block than the least recently used: `LLM(block_pool=POOLS["lfu"])`.

A prefix is found block by block from its start. So a block is worth nothing in the cache without
its parent. A table releases its last block first, and of equal blocks the one that was cached first
is evicted: a child before its parent.

- lru: the least recently used first; `BlockPool` itself
- fifo: the one first that was cached first, though it was shared again since
- lfu: the least often hit first
- slru: blocks without a hit first, then the others, each by last use. This is a segmented LRU
  (Karedla, Love and Wherry, "Caching strategies to improve disk system performance", 1994) without
  a limit on the second segment

To choose the victim takes time in proportion to the number of cached blocks.
"""

from __future__ import annotations

from pagedlab.blocks import BlockPool, Kind


class FIFO(BlockPool):
    """Evicts the block that was cached first. A block that is registered anew begins anew."""

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        super().__init__(num_blocks, block_size)
        self.turns: dict[int, None] = {}  # the blocks, in the order in which they were cached

    def emit(self, kind: Kind, block_id: int, source: int | None = None) -> None:
        if kind == "keep":
            self.turns.pop(block_id, None)
        elif kind == "release" and block_id in self.cached:
            self.turns.setdefault(block_id)
        super().emit(kind, block_id, source)

    def victim(self) -> int:
        return next(block_id for block_id in self.turns if block_id in self.cached)


class LFU(BlockPool):
    """Evicts the block that was hit least often. A hit on a child is a hit on its parent, too."""

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        super().__init__(num_blocks, block_size)
        self.hits: dict[int, int] = {}  # of each kept block

    def emit(self, kind: Kind, block_id: int, source: int | None = None) -> None:
        if kind == "keep":
            self.hits[block_id] = 0
        elif kind == "hit":
            self.hits[block_id] += 1
        super().emit(kind, block_id, source)

    def victim(self) -> int:
        return min(self.cached, key=self.hits.__getitem__)


class SLRU(LFU):
    """Evicts the least recently used block without a hit; if all have hits, the least recent."""

    def victim(self) -> int:
        never_hit = (block_id for block_id in self.cached if not self.hits[block_id])
        return next(never_hit, BlockPool.victim(self))


POOLS: dict[str, type[BlockPool]] = {
    "lru": BlockPool,
    "fifo": FIFO,
    "lfu": LFU,
    "slru": SLRU,
}
