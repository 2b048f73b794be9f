"""What happens to the blocks of a pool between two steps of a recording."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from typing import Any

from pagedlab.blocks import BlockEvent, BlockPool, Pool

FIELDS = {"copy": "copies", "hit": "hits", "evict": "evicted"}  # by kind of event


class PoolLog:
    """Compares the blocks of an engine's pool with what was recorded of them.

    Args:
        llm: as for `Recorder`.
        drawn: how many of the blocks are noted one by one.
    """

    def __init__(self, llm: Any, drawn: int) -> None:
        self._llm = llm
        self._drawn = range(drawn)
        self._counts = dict.fromkeys(self._drawn, 0)  # as the recording has them
        self._kept = dict.fromkeys(self._drawn, 0)
        self._pool: Pool | None = None  # that was looked at
        self._touched: set[int] = set()  # blocks that may have changed since
        self._events = defaultdict[str, list[Any]](list)  # since then, by field

    def listen(self, stack: ExitStack) -> None:
        """Follow the pool's events until the `ExitStack` is closed."""
        if isinstance(self._llm.pool, BlockPool):
            stack.callback(self._llm.pool.subscribe(self._on_event))

    def totals(self) -> dict[str, int]:
        """Blocks of the whole pool that are used, and that a cache keeps."""
        pool = self._llm.pool
        cached = pool.num_cached if isinstance(pool, BlockPool) else 0
        return {"used": pool.num_blocks - pool.num_free, "cached": cached}

    def take(self) -> dict[str, Any]:
        """The fields of a step for what happened since the last call."""
        pool = self._llm.pool
        if pool is not self._pool:  # at first, and after a reset
            self._pool = pool
            self._touched.update(self._drawn)
            self._events.clear()
        if type(pool) is not BlockPool:  # a reader's own, which may report nothing
            self._touched.update(self._drawn)
        counts = {block_id: pool.refcount(block_id) for block_id in self._touched}
        kept = {}
        if isinstance(pool, BlockPool):
            kept = {block_id: int(pool.keeps(block_id)) for block_id in self._touched}
        fields = {
            "counts": _update(self._counts, counts),
            "kept": _update(self._kept, kept),
            **self._events,
        }
        self._touched.clear()
        self._events.clear()
        return {name: value for name, value in fields.items() if value}

    def _on_event(self, event: BlockEvent) -> None:
        block_id = event.block_id
        if block_id not in self._drawn:
            return
        self._touched.add(block_id)
        if event.kind in FIELDS:
            noted = block_id if event.source is None else [event.source, block_id]
            self._events[FIELDS[event.kind]].append(noted)


def _update(known: dict[int, int], now: dict[int, int]) -> dict[int, int]:
    """Note the numbers that differ from those known, and return them."""
    changed = {block_id: number for block_id, number in now.items() if known[block_id] != number}
    known |= changed
    return changed
