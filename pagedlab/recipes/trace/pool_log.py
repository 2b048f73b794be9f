"""What happens to the blocks of a pool between two steps of a recording."""

from __future__ import annotations

from typing import Any

from pagedlab.arguments import integer


class PoolLog:
    """Listens to an engine's pool, or counts its references if the pool has no `subscribe`.

    Args:
        llm: as for `Recorder`. Its pool is a `BlockPool`, or a class of a reader's own with its
            methods. After a reset it is a new one, and the callbacks are called for that one.
        drawn: how many of the blocks are noted one by one.
    """

    def __init__(self, llm: Any, drawn: int) -> None:
        pool = llm.pool
        self._llm = llm
        self._pool = pool
        self._drawn = range(drawn)
        self._counts = dict.fromkeys(self._drawn, 0)  # as the recording has them
        self._changed: dict[int, int] = {}
        self._events: dict[str, Any] = {}
        self._subscribe = getattr(pool, "subscribe", None)
        self._count_references()
        if hasattr(pool, "keeps"):
            self._events["kept"] = {b: 1 for b in self._drawn if pool.keeps(b)}

    def listen(self, stack: Any) -> None:
        """Follow the pool's events until the `ExitStack` is closed."""
        if self._subscribe is not None:
            stack.callback(self._subscribe(self._on_event))

    def totals(self) -> dict[str, int]:
        """Blocks of the whole pool that are used, and that a cache keeps."""
        pool = self._pool
        used = pool.num_blocks - pool.num_free
        return {"used": used, "cached": getattr(pool, "num_cached", 0)}

    def take(self) -> dict[str, Any]:
        """The fields of a step for what happened since the last call."""
        is_new = self._llm.pool is not self._pool
        self._pool = self._llm.pool
        if is_new:  # what is noted since may be of the old one
            self._changed = {}
            self._events = {}
        if self._subscribe is None or is_new:
            self._count_references()
        if is_new and hasattr(self._pool, "keeps"):
            self._events["kept"] = {b: int(self._pool.keeps(b)) for b in self._drawn}
        fields = {name: value for name, value in self._events.items() if value}
        counts = {b: n for b, n in self._changed.items() if self._counts[b] != n}
        if counts:
            fields["counts"] = counts
            self._counts |= counts
        self._changed = {}
        self._events = {}
        return fields

    def _count_references(self) -> None:
        for block_id in self._drawn:
            count = self._refcount(block_id)
            if count != self._counts[block_id]:
                self._changed[block_id] = count

    def _refcount(self, block_id: int) -> int:
        """A block's reference count; 0 where a reader's pool cannot tell."""
        try:
            return integer("refcount", self._pool.refcount(block_id))
        except Exception:
            return 0

    def _on_event(self, event: Any) -> None:
        block_id = event.block_id
        if block_id not in self._counts:
            return
        self._changed[block_id] = event.refcount
        match event.kind:
            case "copy":
                self._events.setdefault("copies", []).append([event.source, block_id])
            case "hit":
                self._events.setdefault("hits", []).append(block_id)
            case "keep":
                self._events.setdefault("kept", {})[block_id] = 1
            case "forget":
                self._events.setdefault("kept", {})[block_id] = 0
            case "evict":
                self._events.setdefault("kept", {})[block_id] = 0
                self._events.setdefault("evicted", []).append(block_id)
