"""Eviction policies: which cached block goes when the pool needs one.

Each takes a leaf before its parent.

A prefix is found block by block from its start. A block whose parent was evicted is never found
again, and only takes up space. No policy has to look for leaves: a table releases its last block
first, so a parent is always cached after its children, and no rank below puts a parent before its
child. Of equal ranks the block that was cached first goes first.

    lru     the least recently used first: `pagedlab.blocks.LRU`
    fifo    the first registered first; a parent counts as registered with its youngest descendant
    lfu     the least often hit first
    slru    blocks without a hit first, then the others, each by last use: a segmented LRU (Karedla,
            Love and Wherry, "Caching strategies to improve disk system performance", 1994) without
            a limit on the second segment

`PrefixCache(pool, eviction="lfu")` takes a name, or a function that is given the cache and returns
an `EvictionPolicy`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

from pagedlab.blocks import LRU, EvictionPolicy

# an `Entry` of the cache and the number of matches so far -> the lowest goes first
Rank = Callable[[Any, int], float]
MakePolicy = Callable[[Any], EvictionPolicy]  # given the cache


class Ranked:
    """Evicts the block with the lowest rank. O(log cached blocks) a block.

    Args:
        rank: is asked when a block's last reference has gone.
        cache: the `PrefixCache` whose entries are ranked.
    """

    def __init__(self, rank: Rank, cache: Any) -> None:
        self._rank = rank
        self._cache = cache
        self._clock = count()
        self._items = dict[int, tuple[float, int, int]]()  # by block id
        self._heap: list[
            tuple[float, int, int]
        ] = []  # the same items, and some that were removed since

    def add(self, block_id: int) -> None:
        rank = self._rank(self._cache.entry(block_id), self._cache.stats.lookups)
        item = (rank, next(self._clock), block_id)
        self._items[block_id] = item
        heapq.heappush(self._heap, item)
        if len(self._heap) > 2 * len(self._items) + 64:  # most of it was removed since
            self._heap = list(self._items.values())
            heapq.heapify(self._heap)

    def remove(self, block_id: int) -> None:
        del self._items[block_id]

    def victim(self) -> int:
        while True:
            item = self._heap[0]
            if self._items.get(item[2]) is item:
                return item[2]
            heapq.heappop(self._heap)  # it was removed since


def by_rank(rank: Rank) -> MakePolicy:
    """A policy that evicts the lowest rank first, for `PrefixCache(eviction=...)`."""
    return partial(Ranked, rank)


def fifo(entry: Any, now: int) -> float:
    """When the block was registered.

    A child is asked before its parent, and hands its number up.
    """
    if entry.parent is not None:
        entry.parent.registered = max(entry.parent.registered, entry.registered)
    return entry.registered


def lfu(entry: Any, now: int) -> float:
    """Hits so far. A hit on a child is also a hit on its parent."""
    return entry.hits


def slru(entry: Any, now: int) -> float:
    """0 for a block without a hit, else 1."""
    return min(entry.hits, 1)


POLICIES: dict[str, MakePolicy] = {
    "lru": lambda cache: LRU(),
    "fifo": by_rank(fifo),
    "lfu": by_rank(lfu),
    "slru": by_rank(slru),
}
