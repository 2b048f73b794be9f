"""Which cached block goes when the pool needs one. Every order here takes a leaf before its parent.

A prefix is found block by block from its start, so a block whose parent has gone takes up room and is never
found again. Nobody scans for leaves to prevent that: a table gives its blocks back last one first, so a parent
is always released after its children, and no rank below puts a parent before its child. Ties go by release.

    lru     the least recently used first. Needs no rank: an OrderedDict, O(1)
    fifo    the first registered first; a parent counts as registered with its youngest descendant
    lfu     the least often hit first
    slru    the never hit first, then the others, each by last use: a segmented LRU (Karedla, Love and Wherry,
            "Caching strategies to improve disk system performance", 1994) without a limit on the second segment

A rank is a number; the lowest goes first. Ranks cost O(log cached blocks) a block.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagedlab.prefix import Entry

Rank = Callable[[Any, int], float]
"""`rank(entry, now)` for an entry whose last reference has just gone; `now` is the number of matches so far."""


def fifo(entry: Entry, now: int) -> float:
    """Running number of the registration. Called for a child before its parent, it hands the number up."""
    if entry.parent is not None:
        entry.parent.registered = max(entry.parent.registered, entry.registered)
    return entry.registered


def lfu(entry: Entry, now: int) -> float:
    """Hits so far. Whoever hits a child hits its parent."""
    return entry.hits


def slru(entry: Entry, now: int) -> float:
    """0 for a block that nobody has hit, else 1: what is asked once goes before what was asked again."""
    return min(entry.hits, 1)


RANKS: dict[str, Rank | None] = {"lru": None, "fifo": fifo, "lfu": lfu, "slru": slru}


class Ranked(OrderedDict[int, Any]):
    """Cached blocks whose `popitem` takes the lowest rank, and of equal ones the oldest. For `BlockPool.attach`."""

    def __init__(self, rank: Callable[[int], float]) -> None:
        super().__init__()
        self._rank = rank
        self._clock = count()
        self._heap: list[tuple[float, int, int]] = []

    def __setitem__(self, block_id: int, _: Any) -> None:
        item = (self._rank(block_id), next(self._clock), block_id)
        super().__setitem__(block_id, item)
        if len(self._heap) > 2 * len(self) + 64:  # most of it left the cache by being used again
            self._heap = [value for value in self.values() if value is not item]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, item)

    def popitem(self, last: bool = False) -> tuple[int, Any]:
        """Remove and return the block that goes first, with its rank. `KeyError` if there is none."""
        while self._heap:
            item = heapq.heappop(self._heap)
            if self.get(item[2]) is item:  # else it was used since
                del self[item[2]]
                return item[2], item
        raise KeyError("no block is cached")
