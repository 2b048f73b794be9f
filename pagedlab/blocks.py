"""The block pool and the block table: who owns which block, and when one is copied.

No tensors here.

A pool hands out fixed-size blocks by number and counts the references to each. A table maps the
logical blocks of one sequence (tokens 0-15, 16-31, ...) to whatever physical blocks the pool had
free. Forking a sequence copies that list of numbers, not the blocks; the one block that two
sequences would both write is copied when somebody writes it (copy-on-write).

    before                     after a.fork() -> b           after b.append(1)
    a: [7, 1]   counts 1 1     a: [7, 1]   counts 2 2        a: [7, 1]   7 counts 2, 1 counts 1
                               b: [7, 1]                     b: [7, 3]   3 counts 1, copied from 1

The design follows "Efficient Memory Management for Large Language Model Serving with
PagedAttention" (Kwon et al., 2023, sections 4.2 to 4.4). Moving the tensors is the caller's part:
see kv_cache.py.
"""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, Protocol

from pagedlab.validation import integer


class OutOfBlocks(RuntimeError):
    """The pool has fewer free blocks than the operation needs. Nothing was changed."""


class InvariantError(AssertionError):
    """The counts of a pool contradict each other; the message names the blocks."""


class BlockCopy(NamedTuple):
    """Copy the whole block `source` onto `destination`, in every layer, before anything is
    written.
    """

    source: int
    destination: int


Kind = Literal["allocate", "share", "release", "copy", "keep", "revive", "hit", "evict", "forget"]


class BlockEvent(NamedTuple):
    """One change of a pool.

    Args:
        kind: the last five are of a prefix cache.
        block_id: the block that changed.
        refcount: its count after the change.
        source: the block that was copied, for "copy" only.
    """

    kind: Kind
    block_id: int
    refcount: int
    source: int | None = None


class Pool(Protocol):
    """What a `BlockTable` needs of a pool.

    Any class with these methods drives the widgets and the engine.

    A pool may also have `emit`, which tells subscribers of a copy, and `invalidate`, for pools that
    cache blocks.
    """

    num_blocks: int
    block_size: int

    @property
    def num_free(self) -> int: ...
    def allocate(self) -> int: ...
    def share(self, block_id: int) -> int: ...
    def release(self, block_id: int) -> None: ...
    def refcount(self, block_id: int) -> int: ...


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that `num_tokens` tokens fill, the last one perhaps in part: the quotient
    rounded up.
    """
    return -(-num_tokens // block_size)


class EvictionPolicy(Protocol):
    """Chooses which cached block a pool evicts. eviction/ has several."""

    def add(self, block_id: int) -> None:
        """The block is cached from now on: its last reference has gone."""

    def remove(self, block_id: int) -> None:
        """The block is cached no longer: it is used again, evicted or forgotten."""

    def victim(self) -> int:
        """The block to evict. A pool asks only while a block is cached."""


class LRU:
    """Evicts the block that has been without a reference for longest. O(1)."""

    def __init__(self) -> None:
        self._oldest_first = OrderedDict[int, None]()

    def add(self, block_id: int) -> None:
        self._oldest_first[block_id] = None

    def remove(self, block_id: int) -> None:
        del self._oldest_first[block_id]

    def victim(self) -> int:
        return next(iter(self._oldest_first))


class BlockPool:
    """Fixed-size blocks, each with a reference count. Every method is O(1).

    A block is used (count above 0) or free (count 0). A free block may be cached: its contents are
    kept until the pool needs the block for something else, so `share` can bring it back.

    Args:
        num_blocks: how many blocks there are.
        block_size: tokens a block.
    """

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        self.num_blocks = integer("num_blocks", num_blocks, 1)
        self.block_size = integer("block_size", block_size, 1)  # tokens a block
        self._refcounts = [0] * self.num_blocks
        # A stack, lowest id on top at first: the block released last, still warm, is handed out
        # next.
        self._free = list(reversed(range(self.num_blocks)))
        self._kept = set[int]()  # blocks whose contents outlive their last reference
        self._cached = set[int]()  # those of them that are at count 0
        self._policy: EvictionPolicy = LRU()
        self._on_lost: Callable[[int, bool], None] | None = None
        self._callbacks: list[Callable[[BlockEvent], None]] = []

    def __repr__(self) -> str:
        counts = f"{self.num_used} used, {self.num_free} free, {self.num_cached} of them cached"
        return f"BlockPool({self.num_blocks} blocks of {self.block_size}: {counts})"

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can hand out, cached ones included."""
        return len(self._free) + len(self._cached)

    @property
    def num_used(self) -> int:
        """Blocks with a reference count above zero."""
        return self.num_blocks - self.num_free

    @property
    def num_cached(self) -> int:
        """Free blocks whose contents are kept."""
        return len(self._cached)

    def allocate(self) -> int:
        """Return the id of a free block, now with reference count 1.

        Raise `OutOfBlocks` when none is free.
        """
        if self._free:
            block_id = self._free.pop()
        elif self._cached:
            block_id = self._policy.victim()
            self._uncache(block_id)
            self._lose(block_id, "evict")
        else:
            used = f"all {self.num_blocks} are in use"
            raise OutOfBlocks(f"no block is free: {used}; free a sequence, or make the pool larger")
        self._refcounts[block_id] = 1
        self.emit("allocate", block_id)
        return block_id

    def share(self, block_id: int) -> int:
        """Add a reference to a used or cached block and return its id.

        `ValueError` if it is neither.
        """
        block_id = self._known(block_id)
        revived = self._refcounts[block_id] == 0
        if revived:
            if block_id not in self._cached:
                raise ValueError(
                    f"block {block_id} is free, so there is nothing to share; allocate() hands out "
                    "blocks"
                )
            self._uncache(block_id)
        self._refcounts[block_id] += 1
        self.emit("revive" if revived else "share", block_id)
        return block_id

    def release(self, block_id: int) -> None:
        """Take a reference away; at zero the block is free again.

        `ValueError` if it is free already.
        """
        block_id = self._known(block_id)
        if self._refcounts[block_id] == 0:
            raise ValueError(
                f"block {block_id} is free already: it was released more often than it was shared"
            )
        is_last = self._refcounts[block_id] == 1
        if is_last and block_id in self._kept:
            self._policy.add(block_id)
            self._cached.add(block_id)
        elif is_last:
            self._free.append(block_id)
        self._refcounts[block_id] -= 1
        self.emit("release", block_id)

    def keep(self, block_id: int) -> None:
        """Mark a used block: when its last reference goes, its contents stay until the block is
        needed.
        """
        block_id = self._known(block_id)
        if self._refcounts[block_id] == 0:
            raise ValueError(f"block {block_id} is free: only a block in use has contents to keep")
        self._kept.add(block_id)
        self.emit("keep", block_id)

    def attach(
        self, on_lost: Callable[[int, bool], None], policy: EvictionPolicy | None = None
    ) -> None:
        """Register the prefix cache that owns the kept blocks.

        Args:
            on_lost: called with the block id, and whether it is evicted, before anybody can write
                to a block that is kept no longer.
            policy: chooses which cached block is evicted; None for the least recently used one.

        Raises:
            ValueError: If another cache owns them.
        """
        if self._on_lost is not None or self._kept:
            raise ValueError(
                "the pool's kept blocks have an owner already: give every cache a pool of its own"
            )
        self._on_lost = on_lost
        if policy is not None:
            self._policy = policy

    def forget(self, block_id: int) -> None:
        """Keep the block no longer; a cached one is plainly free at once.

        Nothing happens to one that is not kept.
        """
        block_id = self._known(block_id)
        if block_id in self._kept:
            if self._refcounts[block_id] == 0:
                self._uncache(block_id)
                self._free.append(block_id)
            self._lose(block_id, "forget")

    def invalidate(self, block_id: int) -> None:
        """Drop the block's cache entry: the only table that holds it is about to overwrite it."""
        if self._on_lost is not None and block_id in self._kept:
            self.forget(block_id)

    def keeps(self, block_id: int) -> bool:
        """Whether the block's contents outlive its last reference."""
        return self._known(block_id) in self._kept

    def refcount(self, block_id: int) -> int:
        """References to the block: 0 when it is free."""
        return self._refcounts[self._known(block_id)]

    def check(self, tables: Iterable[BlockTable] | None = None) -> None:
        """Raise `InvariantError`, naming the blocks, unless the books balance.

        Every block is exactly one of used, cached and free. Given all the tables over this pool,
        each block's count is also the number of tables that map it.
        """
        free, cached, counts = Counter(self._free), self._cached, self._refcounts
        used = {b for b, count in enumerate(counts) if count > 0}
        for problem, blocks in (
            ("have a negative count", {b for b, count in enumerate(counts) if count < 0}),
            ("are on the free list twice", {b for b, times in free.items() if times > 1}),
            ("are both free and in use", used & (free.keys() | cached)),
            ("are both free and cached", free.keys() & cached),
            ("are cached but not marked to be kept", cached - self._kept),
            (
                "are lost: neither in use nor free",
                set(range(self.num_blocks)) - used - free.keys() - cached,
            ),
        ):
            if blocks:
                raise InvariantError(f"blocks {sorted(blocks)} {problem}")
        if tables is not None:
            mapped = Counter(b for table in tables for b in table.block_ids)
            if wrong := [
                (b, count, mapped[b]) for b, count in enumerate(counts) if count != mapped[b]
            ]:
                raise InvariantError(
                    ", ".join(f"block {b} counts {c} but {n} tables map it" for b, c, n in wrong)
                )

    def subscribe(self, callback: Callable[[BlockEvent], None]) -> Callable[[], None]:
        """Call `callback` with every `BlockEvent` from now on; the function returned stops it."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def emit(self, kind: Kind, block_id: int, source: int | None = None) -> None:
        """Tell the subscribers. Tables call it for "copy"."""
        if self._callbacks:
            event = BlockEvent(kind, block_id, self._refcounts[block_id], source)
            for callback in tuple(self._callbacks):
                try:
                    callback(event)
                except Exception as error:  # who watches must not break what is watched
                    warnings.warn(
                        f"a subscriber of the pool raised {error!r} at {event}", stacklevel=2
                    )

    def _uncache(self, block_id: int) -> None:
        if block_id not in self._cached:
            raise ValueError(f"the eviction policy named block {block_id}, which is not cached")
        self._policy.remove(block_id)
        self._cached.remove(block_id)

    def _lose(self, block_id: int, kind: Kind) -> None:
        self._kept.discard(block_id)
        self.emit(kind, block_id)
        if self._on_lost is not None:
            self._on_lost(block_id, kind == "evict")

    def _known(self, block_id: int) -> int:
        # Without this, Python would take -1 for the last block.
        return integer("block_id", block_id, 0, self.num_blocks - 1)


def _ignore(*_: Any) -> None:
    """In place of a method that a reader's pool does not have."""


class BlockTable:
    """The blocks of one sequence in logical order: tokens [i * B, (i + 1) * B) are in
    `block_ids[i]`.

    Invariants: `len(block_ids)` is `num_tokens` over the block size, rounded up. The table holds
    one reference to each block that it lists. It never writes to a block that another table holds
    too.

    Args:
        pool: where its blocks come from.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.block_ids: list[int] = []
        self.num_tokens = 0
        # A reader's pool need not have events or a cache.
        self._emit: Callable[[Kind, int, int], None] = getattr(pool, "emit", _ignore)
        self._invalidate: Callable[[int], None] = getattr(pool, "invalidate", _ignore)

    def __repr__(self) -> str:
        return f"BlockTable({self.num_tokens} tokens in blocks {self.block_ids})"

    def append(self, n: int = 1) -> list[BlockCopy]:
        """Make room for `n` more tokens and return the copies to do before their KV is written.

        All or nothing: `OutOfBlocks` leaves table and pool as they were. The copies are empty or
        hold the one pair of a copy-on-write: only a last block that is partly filled and shared is
        ever copied.
        """
        n = integer("n", n)
        if n == 0:
            return []
        size = self.pool.block_size
        # Tokens are only ever added behind the last one, so full blocks are never written again.
        last_is_partial = self.num_tokens % size != 0
        must_copy = last_is_partial and self.pool.refcount(self.block_ids[-1]) > 1
        needed = blocks_for(self.num_tokens + n, size) - len(self.block_ids) + must_copy
        if needed and needed > self.pool.num_free:
            raise OutOfBlocks(
                f"append({n}) takes {needed} of {self.pool.num_blocks} blocks, and "
                f"{self.pool.num_free} are free: "
                "free a sequence, or make the pool larger"
            )
        fresh = self._take(needed, self.pool.allocate) if needed else []
        copies = []
        if must_copy:
            copies.append(self.copy_last(fresh.pop(0)))
        elif last_is_partial:
            # It may have been full before a truncation, and cached as such.
            self._invalidate(self.block_ids[-1])
        self.block_ids += fresh
        self.num_tokens += n
        return copies

    def copy_last(self, destination: int) -> BlockCopy:
        """Replace the last block by `destination`, which was just allocated, and release the old
        one.
        """
        source = self.block_ids[-1]
        self.block_ids[-1] = destination
        self._emit("copy", destination, source)
        try:
            self.pool.release(source)
        except (
            BaseException
        ):  # of a reader's pool: nobody will be told of the copy, so it is not made
            self.block_ids[-1] = source
            raise
        return BlockCopy(source, destination)

    def fork(self) -> BlockTable:
        """Return a second table over the same blocks, each now with one reference more.

        Nothing is copied.
        """
        child = type(self)(self.pool)
        blocks = iter(self.block_ids)
        child.block_ids = self._take(len(self.block_ids), lambda: self.pool.share(next(blocks)))
        child.num_tokens = self.num_tokens
        return child

    def truncate(self, num_tokens: int) -> None:
        """Forget the tokens from `num_tokens` on and release the blocks that held only those."""
        num_tokens = integer("num_tokens", num_tokens)
        if num_tokens > self.num_tokens:
            raise ValueError(
                f"cannot truncate to {num_tokens} tokens: the table holds {self.num_tokens}"
            )
        keep = blocks_for(num_tokens, self.pool.block_size)
        self.num_tokens = num_tokens
        while (
            len(self.block_ids) > keep
        ):  # last block first: a block never outlives the ones before it
            self.pool.release(self.block_ids.pop())

    def free(self) -> None:
        """Release every block.

        The table is then empty and can be used again; freeing it twice is harmless.
        """
        self.truncate(0)

    def slot(self, position: int) -> int:
        """Physical slot of the token at `position`: block_ids[position // B] * B + position % B."""
        if not 0 <= position < self.num_tokens:
            raise IndexError(f"there is no token {position}: the table holds {self.num_tokens}")
        size = self.pool.block_size
        return self.block_ids[position // size] * size + position % size

    def slots(self, start: int, stop: int) -> list[int]:
        """Physical slots of the tokens at positions start, ..., stop - 1."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(
                f"positions {start} to {stop} are not within the table's {self.num_tokens} tokens"
            )
        size, blocks = self.pool.block_size, self.block_ids
        return [
            blocks[position // size] * size + position % size for position in range(start, stop)
        ]

    def _take(self, count: int, verb: Callable[[], int]) -> list[int]:
        """Call `verb` `count` times; if one fails, release what the others returned and raise."""
        taken: list[int] = []
        try:
            for _ in range(count):
                taken.append(verb())
        except BaseException:
            for block_id in reversed(taken):
                self.pool.release(block_id)
            raise
        return taken
