"""Eviction policies: which cached block is evicted when the pool needs one.

A prefix is found block by block from its start, so a block without its parent can never be found
again. Every policy here therefore evicts a child before its parent. No policy has to look for
children: a table releases its last block first, so a parent is always cached after its children,
and no rank below puts a parent before its child. Of equal ranks, the block that was cached first is
evicted first.

- lru: the least recently used first, see `pagedlab.blocks.LRU`
- fifo: the first registered first; a parent counts as registered with its youngest descendant
- lfu: the least often hit first
- slru: blocks without a hit first, then the others, each by last use. This is a segmented LRU
  (Karedla, Love and Wherry, "Caching strategies to improve disk system performance", 1994) without
  a limit on the second segment

`PrefixCache(pool, eviction="lfu")` takes a name, or a function that takes the cache and returns an
`EvictionPolicy`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from pagedlab.blocks import LRU, EvictionPolicy

# Takes an `Entry` of the cache and the number of matches so far. The lowest rank is evicted first.
Rank = Callable[[Any, int], float]
MakePolicy = Callable[[Any], EvictionPolicy]  # takes the cache


class Ranked:
    """Evicts the block with the lowest rank. O(log cached blocks) a block.

    Args:
        rank: called when a block has lost its last reference.
        cache: the `PrefixCache` of the ranked entries.
    """

    def __init__(self, rank: Rank, cache: Any) -> None:
        self._rank = rank
        self._cache = cache
        self._clock = count()
        self._items = dict[int, tuple[float, int, int]]()  # by block id
        # The same items, and some that have been removed meanwhile.
        self._heap = list[tuple[float, int, int]]()

    def add(self, block_id: int) -> None:
        rank = self._rank(self._cache.entry(block_id), self._cache.stats.lookups)
        item = (rank, next(self._clock), block_id)
        self._items[block_id] = item
        heapq.heappush(self._heap, item)
        if len(self._heap) > 2 * len(self._items) + 64:  # most are removed
            self._heap = list(self._items.values())
            heapq.heapify(self._heap)

    def remove(self, block_id: int) -> None:
        del self._items[block_id]

    def victim(self) -> int:
        while True:
            item = self._heap[0]
            if self._items.get(item[2]) is item:
                return item[2]
            heapq.heappop(self._heap)  # it is removed


def by_rank(rank: Rank) -> MakePolicy:
    """Return a policy that evicts the lowest rank first, for `PrefixCache(eviction=...)`."""
    return partial(Ranked, rank)


def fifo(entry: Any, now: int) -> float:
    """Return when the block was registered.

    A child is ranked before its parent, and passes its number on to it.
    """
    if entry.parent is not None:
        entry.parent.registered = max(entry.parent.registered, entry.registered)
    return entry.registered


def lfu(entry: Any, now: int) -> float:
    """Return the hits so far. A hit on a child is also a hit on its parent."""
    return entry.hits


def slru(entry: Any, now: int) -> float:
    """Return 0 for a block without a hit, else 1."""
    return min(entry.hits, 1)


POLICIES: dict[str, MakePolicy] = {
    "lru": lambda cache: LRU(),
    "fifo": by_rank(fifo),
    "lfu": by_rank(lfu),
    "slru": by_rank(slru),
}
