"""The block pool and the block table: which sequence has which block, and when a block is copied.

This module has no tensors.

A pool allocates fixed-size blocks by id and counts the references to each. A table maps the logical
blocks of one sequence (tokens 0-15, 16-31, ...) to physical blocks, whichever were free. To fork a
sequence copies its list of block ids, not the blocks. A shared block is copied only when one of the
sequences is about to write to it (copy-on-write).

    before                     after a.fork() -> b           after b.append(1)
    a: [7, 1]   counts 1 1     a: [7, 1]   counts 2 2        a: [7, 1]   7 counts 2, 1 counts 1
                               b: [7, 1]                     b: [7, 3]   3 counts 1, copied from 1

The design follows "Efficient Memory Management for Large Language Model Serving with
PagedAttention" (Kwon et al., 2023, sections 4.2 to 4.4). The caller copies the tensors, see
kv_cache.py.
"""

from __future__ import annotations

import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, Literal, NamedTuple, Protocol

from pagedlab.validation import a_function, integer, made, shown, with_methods


class OutOfBlocks(RuntimeError):
    """The pool has fewer free blocks than the operation needs. Nothing was changed."""


class InvariantError(AssertionError):
    """The counts of a pool contradict each other. The message names the blocks."""


class BlockCopy(NamedTuple):
    """An order to copy the block `source` to `destination` in every layer, before any write."""

    source: int
    destination: int


Kind = Literal["allocate", "share", "release", "copy", "keep", "revive", "hit", "evict", "forget"]


class BlockEvent(NamedTuple):
    """One change of a pool.

    Args:
        kind: the kind of change. "keep" and the kinds after it concern a prefix cache.
        block_id: the block that changed.
        refcount: its reference count after the change.
        source: the block that was copied; only for "copy".
    """

    kind: Kind
    block_id: int
    refcount: int
    source: int | None = None


class Pool(Protocol):
    """The methods that a `BlockTable` needs from a pool.

    The engine and the widgets accept any class with these methods. Two more are optional: `emit`,
    which reports a copy to subscribers, and `invalidate`, if the pool caches blocks.
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
    """How many blocks hold this many tokens: the quotient, rounded up."""
    are_ints = type(num_tokens) is int and type(block_size) is int
    if not are_ints or num_tokens < 0 or block_size < 1:
        # Each step asks for each sequence, so only an unusual call comes here.
        num_tokens = integer("num_tokens", num_tokens)
        block_size = integer("block_size", block_size, 1)
    return -(-num_tokens // block_size)


POLICY = ("add", "remove", "victim")
POOL = ("num_blocks", "block_size", "num_free", "allocate", "share", "release", "refcount")


class EvictionPolicy(Protocol):
    """Chooses the cached block that a pool evicts. eviction/ has further policies."""

    def add(self, block_id: int) -> None:
        """Note that a block is cached from now on, because its last reference was released."""

    def remove(self, block_id: int) -> None:
        """Note that a block is no longer cached: it is used again, evicted or forgotten."""

    def victim(self) -> int:
        """Return the block to evict. It is called only while a block is cached."""


class LRU:
    """Evicts the block that has had no reference for the longest time. Every method is O(1)."""

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
    kept until the pool allocates it again. Until then, `share` can use it again.

    Args:
        num_blocks: the number of blocks.
        block_size: tokens a block.
    """

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        self.num_blocks = integer("num_blocks", num_blocks, 1)
        self.block_size = integer("block_size", block_size, 1)
        self._refcounts = [0] * self.num_blocks
        # A stack: the block that was released last is still warm, and is allocated next.
        self._free = list(reversed(range(self.num_blocks)))
        self._kept = set[int]()  # blocks that a prefix cache wants to keep
        self._cached = set[int]()  # kept blocks without a reference
        self._policy: EvictionPolicy = LRU()
        self._on_forgotten: Callable[[int, bool], None] | None = None
        self.callbacks: list[Callable[[BlockEvent], None]] = []  # a reset hands them on

    def __repr__(self) -> str:
        counts = f"{self.num_used} used, {self.num_free} free, {self.num_cached} of them cached"
        return f"BlockPool({self.num_blocks} blocks of {self.block_size}: {counts})"

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can return, with the cached ones."""
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
        """Return the id of a free block. Its reference count is then 1.

        Raises:
            OutOfBlocks: If no block is free.
        """
        if self._free:
            block_id = self._free.pop()
        elif self._cached:
            block_id = self._policy.victim()
            self._uncache(block_id)
            self._forget(block_id, "evict")
        else:
            raise OutOfBlocks(
                f"no block is free: all {self.num_blocks} are in use; free a sequence, or make the "
                "pool larger"
            )
        self._refcounts[block_id] = 1
        self.emit("allocate", block_id)
        return block_id

    def share(self, block_id: int) -> int:
        """Add a reference to a used or cached block and return its id.

        Raises:
            ValueError: If the block is neither used nor cached.
        """
        block_id = self._known(block_id)
        revived = self._refcounts[block_id] == 0
        if revived:
            if block_id not in self._cached:
                raise ValueError(
                    f"block {block_id} is free, so there is nothing to share; allocate() "
                    "returns free blocks"
                )
            self._uncache(block_id)
        self._refcounts[block_id] += 1
        self.emit("revive" if revived else "share", block_id)
        return block_id

    def release(self, block_id: int) -> None:
        """Remove a reference. A block without references is free.

        Raises:
            ValueError: If the block is free already.
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
        """Keep a used block: without references it is then cached, not just free."""
        block_id = self._known(block_id)
        if self._refcounts[block_id] == 0:
            raise ValueError(f"block {block_id} is free: only a block in use has contents to keep")
        self._kept.add(block_id)
        self.emit("keep", block_id)

    def attach(
        self, on_forgotten: Callable[[int, bool], None], policy: EvictionPolicy | None = None
    ) -> None:
        """Register the prefix cache that owns the kept blocks.

        Args:
            on_forgotten: called when a block is no longer kept, before it can be overwritten. Its
                arguments are the block id and whether the block was evicted.
            policy: chooses the cached block that is evicted; None for the least recently used one.

        Raises:
            ValueError: If the pool has a prefix cache already, if `on_forgotten` is no function, or
                if `policy` lacks a method.
        """
        if self._on_forgotten is not None or self._kept:
            raise ValueError(
                "the pool has a prefix cache already: make a separate pool for each prefix cache"
            )
        takes = "that takes a block id and whether it was evicted"
        a_function("on_forgotten", on_forgotten, takes)
        if policy is not None:
            self._policy = with_methods("policy", policy, POLICY)
        self._on_forgotten = on_forgotten

    def forget(self, block_id: int) -> None:
        """Stop keeping a block. Nothing happens to a block that is not kept."""
        block_id = self._known(block_id)
        if block_id in self._kept:
            if self._refcounts[block_id] == 0:
                self._uncache(block_id)
                self._free.append(block_id)
            self._forget(block_id, "forget")

    def invalidate(self, block_id: int) -> None:
        """Drop the block's cache entry, because its only owner is about to overwrite it."""
        if self._on_forgotten is not None and block_id in self._kept:
            self.forget(block_id)

    def keeps(self, block_id: int) -> bool:
        """Whether the block's contents are kept when it has no references."""
        return self._known(block_id) in self._kept

    def refcount(self, block_id: int) -> int:
        """The number of references to the block; 0 if it is free."""
        return self._refcounts[self._known(block_id)]

    def check(self, tables: Iterable[BlockTable] | None = None) -> None:
        """Check that every block is exactly one of used, cached and free.

        Args:
            tables: all tables over this pool. The reference count of a block must be the number of
                tables that list it. None leaves this check out.

        Raises:
            InvariantError: If a check fails. The message names the blocks.
            ValueError: If `tables` is no list of tables.
        """
        counts = self._refcounts
        used = {block_id for block_id, count in enumerate(counts) if count > 0}
        negative = {block_id for block_id, count in enumerate(counts) if count < 0}
        free = set(self._free)
        twice = {block_id for block_id, times in Counter(self._free).items() if times > 1}
        lost = set(range(self.num_blocks)) - used - free - self._cached
        _refuse("have a negative count", negative)
        _refuse("are on the free list twice", twice)
        _refuse("are both free and in use", used & (free | self._cached))
        _refuse("are both free and cached", free & self._cached)
        _refuse("are cached but not marked to be kept", self._cached - self._kept)
        _refuse("are lost: neither in use nor free", lost)
        if tables is not None:
            self._check_tables(tables)

    def _check_tables(self, tables: Iterable[BlockTable]) -> None:
        tables = _list_of_tables(tables)
        listed = Counter(block_id for table in tables for block_id in table.block_ids)
        problems = []
        for block_id, count in enumerate(self._refcounts):
            if count != listed[block_id]:
                problems.append(
                    f"block {block_id} counts {count} but {listed[block_id]} tables list it"
                )
        if problems:
            raise InvariantError(", ".join(problems))

    def subscribe(self, callback: Callable[[BlockEvent], None]) -> Callable[[], None]:
        """Call `callback` with every `BlockEvent` from now on.

        Returns:
            A function that ends these calls. A second call of it does nothing.

        Raises:
            ValueError: If `callback` is no function.
        """
        a_function("callback", callback, "that takes a BlockEvent")
        self.callbacks.append(callback)
        subscription = ExitStack()
        subscription.callback(self.callbacks.remove, callback)
        return subscription.close

    def emit(self, kind: Kind, block_id: int, source: int | None = None) -> None:
        """Report a change to the subscribers. Tables report "copy", a prefix cache "hit"."""
        if not self.callbacks:
            return
        event = BlockEvent(kind, block_id, self._refcounts[block_id], source)
        for callback in tuple(self.callbacks):
            try:
                callback(event)
            except Exception as error:  # a faulty subscriber must not break the pool
                message = f"a subscriber of the pool raised {error!r} at {event}"
                warnings.warn(message, stacklevel=2)

    def _uncache(self, block_id: int) -> None:
        if block_id not in self._cached:
            raise ValueError(f"the eviction policy named block {block_id}, which is not cached")
        self._policy.remove(block_id)
        self._cached.remove(block_id)

    def _forget(self, block_id: int, kind: Kind) -> None:
        self._kept.discard(block_id)
        self.emit(kind, block_id)
        if self._on_forgotten is not None:
            self._on_forgotten(block_id, kind == "evict")

    def _known(self, block_id: int) -> int:
        """Check a block id. Without this, -1 would mean the last block."""
        return integer("block_id", block_id, 0, self.num_blocks - 1)


def _refuse(problem: str, block_ids: set[int]) -> None:
    if block_ids:
        raise InvariantError(f"blocks {sorted(block_ids)} {problem}")


def _list_of_tables(tables: Any) -> list[Any]:
    """Return the tables as a list. Raise `ValueError` if something has no blocks."""
    if isinstance(tables, Iterable):
        found = list(tables)
        if all(hasattr(table, "block_ids") for table in found):
            return found
    raise ValueError(f"tables must be a list of block tables, got {shown(tables)}")


def _check_readers_pool(pool: Any) -> None:
    """Raise `ValueError` unless it is an object with everything that `Pool` lists."""
    lacking = [name for name in POOL if not hasattr(made("pool", pool), name)]
    if lacking:
        raise ValueError(
            f"pool must be a block pool, and {type(pool).__name__} lacks {', '.join(lacking)}"
        )


def _ignore(*_: Any) -> None:
    """Stands for a method that a reader's pool does not have."""


class BlockTable:
    """The blocks of one sequence in logical order: tokens [i * B, (i + 1) * B) are in
    `block_ids[i]`.

    Three invariants hold. `len(block_ids)` is `num_tokens` over the block size, rounded up. The
    table owns one reference to each block that it lists. It never writes to a shared block.

    Args:
        pool: the block pool.
    """

    def __init__(self, pool: Pool) -> None:
        if not isinstance(pool, BlockPool):
            _check_readers_pool(pool)
        self.pool = pool
        self.block_ids: list[int] = []
        self.num_tokens = 0
        # A reader's pool may lack these two methods.
        self._emit: Callable[[Kind, int, int], None] = getattr(pool, "emit", _ignore)
        self._invalidate: Callable[[int], None] = getattr(pool, "invalidate", _ignore)

    def __repr__(self) -> str:
        return f"BlockTable({self.num_tokens} tokens in blocks {self.block_ids})"

    def append(self, n: int = 1) -> list[BlockCopy]:
        """Give slots to `n` more tokens.

        Args:
            n: the number of tokens.

        Returns:
            The block copies to execute before the KV of these tokens is written. There is one if
            the last block is partly filled and shared, else none.

        Raises:
            OutOfBlocks: If too few blocks are free. Table and pool are then as before.
        """
        n = integer("n", n)
        if n == 0:
            return []
        size = self.pool.block_size
        # Tokens are only added after the last one, so a full block is never written again.
        last_is_partial = self.num_tokens % size != 0
        must_copy = last_is_partial and self.pool.refcount(self.block_ids[-1]) > 1
        needed = blocks_for(self.num_tokens + n, size) - len(self.block_ids) + must_copy
        if needed and needed > self.pool.num_free:
            raise OutOfBlocks(
                f"append({n}) takes {needed} blocks, and {self.pool.num_free} of "
                f"{self.pool.num_blocks} are free: free a sequence, or make the pool larger"
            )
        fresh = [self.pool.allocate() for _ in range(needed)]
        copies = []
        if must_copy:
            copies.append(self.copy_last(fresh.pop(0)))
        elif last_is_partial:
            # Before a truncation it may have been full, and registered in the prefix cache.
            self._invalidate(self.block_ids[-1])
        self.block_ids += fresh
        self.num_tokens += n
        return copies

    def copy_last(self, destination: int) -> BlockCopy:
        """Replace the last block by `destination`, a new block, and release the old one.

        Raises:
            ValueError: If the table is empty, or if `destination` is not a new block.
        """
        destination = self._new_block(destination)
        source = self.block_ids[-1]
        self.block_ids[-1] = destination
        self._emit("copy", destination, source)
        self.pool.release(source)
        return BlockCopy(source, destination)

    def _new_block(self, destination: int) -> int:
        """Check a block that is to replace the last one: nothing else may refer to it."""
        if not self.block_ids:
            raise ValueError("the table is empty: there is no last block to copy")
        block_id = integer("destination", destination, 0, self.pool.num_blocks - 1)
        references = self.pool.refcount(block_id)
        if references == 0:
            fault = "is free"
        elif references > 1:
            fault = f"has {references} references"
        elif block_id in self.block_ids:
            fault = "is in the table already"
        else:
            return block_id
        raise ValueError(
            "destination must be a block that allocate() has just returned, and block "
            f"{block_id} {fault}"
        )

    def fork(self) -> BlockTable:
        """Return a second table over the same blocks. Each block gets one more reference.

        No block is copied.
        """
        child = type(self)(self.pool)
        child.block_ids = [self.pool.share(block_id) for block_id in self.block_ids]
        child.num_tokens = self.num_tokens
        return child

    def truncate(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens, and release the blocks that hold none of them."""
        num_tokens = integer("num_tokens", num_tokens)
        if num_tokens > self.num_tokens:
            raise ValueError(
                f"cannot truncate to {num_tokens} tokens: the table holds {self.num_tokens}"
            )
        keep = blocks_for(num_tokens, self.pool.block_size)
        self.num_tokens = num_tokens
        while len(self.block_ids) > keep:  # last block first, so that a parent is cached longer
            self.pool.release(self.block_ids.pop())

    def free(self) -> None:
        """Release every block. The table is then empty and can be used again."""
        self.truncate(0)

    def slot(self, position: int) -> int:
        """Return the slot of a token: block_ids[position // B] * B + position % B."""
        if type(position) is not int:
            position = integer("position", position)
        if not 0 <= position < self.num_tokens:
            raise IndexError(f"there is no token {position}: the table holds {self.num_tokens}")
        size = self.pool.block_size
        return self.block_ids[position // size] * size + position % size

    def slots(self, start: int, stop: int) -> list[int]:
        """Return the slots of the tokens at positions start, ..., stop - 1."""
        if not type(start) is type(stop) is int:
            start = integer("start", start)
            stop = integer("stop", stop)
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(
                f"positions {start} to {stop} are not within the table's {self.num_tokens} tokens"
            )
        size = self.pool.block_size
        ids = self.block_ids
        return [ids[position // size] * size + position % size for position in range(start, stop)]
