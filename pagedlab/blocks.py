"""The block pool and the block table: which sequence has which block, and when a block is copied.

This module has no tensors.

A pool allocates fixed-size blocks by id and counts the references to each. A table maps the logical
blocks of one sequence (tokens 0-15, 16-31, ...) to physical blocks, whichever were free. A fork
copies the list of block ids, not the blocks. A shared block is copied only when one of the
sequences is about to write to it (copy-on-write).

    before                     after a.fork() -> b           after b.append(1)
    a: [7, 1]   counts 1 1     a: [7, 1]   counts 2 2        a: [7, 1]   7 counts 2, 1 counts 1
                               b: [7, 1]                     b: [7, 3]   3 counts 1, copied from 1

The design follows "Efficient Memory Management for Large Language Model Serving with
PagedAttention" (Kwon et al., 2023, sections 4.2 to 4.4). The caller copies the tensors, see
kv_cache.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from pagedlab.arguments import integer, shown
from pagedlab.callbacks import Callbacks


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


def blocks_for(num_tokens: int, block_size: int) -> int:
    """How many blocks hold this many tokens: the quotient, rounded up."""
    return -(-num_tokens // block_size)


class Pool(ABC):
    """What every pool inherits: it reports no events, and caches no blocks.

    A pool of your own writes the five methods without a body. `BlockPool` has everything.
    """

    can_cache = False  # whether it works with a prefix cache
    num_cached: Any = 0  # free blocks whose contents are kept
    callbacks: Any = ()  # nobody hears of its blocks
    num_blocks: int
    block_size: int

    @property
    @abstractmethod
    def num_free(self) -> int: ...
    @abstractmethod
    def allocate(self) -> int: ...
    @abstractmethod
    def share(self, block_id: int) -> int: ...
    @abstractmethod
    def release(self, block_id: int) -> None: ...
    @abstractmethod
    def refcount(self, block_id: int) -> int: ...

    @property
    def num_used(self) -> int:
        """Blocks with a reference count above zero."""
        return self.num_blocks - self.num_free

    def forget(self, block_id: int) -> None:  # noqa: B027 - not every pool caches
        """Note that the contents of a block are about to change."""

    def emit(self, kind: Kind, block_id: int, source: int | None = None) -> None:  # noqa: B027
        """Report a change to subscribers."""


class BlockPool(Pool):
    """Fixed-size blocks, each with a reference count. Every method is O(1).

    A block is used (count above 0) or free (count 0). A prefix cache may `keep` a used block. When
    it is free, it is cached: `share` revives it with its contents, until `allocate` evicts it::

        free --allocate--> used --release--> free
                            ^ |
                      share | | release, if it is kept
                            | v
                           cached --evict--> free

    Args:
        num_blocks: the number of blocks.
        block_size: tokens a block.
    """

    can_cache = True

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        self.num_blocks = integer("num_blocks", num_blocks, 1)
        self.block_size = integer("block_size", block_size, 1)
        self.cached = OrderedDict[int, None]()  # kept and free, the least recently used first
        self.callbacks = Callbacks()  # a reset hands them on
        self.counts = [0] * self.num_blocks
        # A stack: the block that was released last is still warm, and is allocated next.
        self.free_ids = list(reversed(range(self.num_blocks)))
        self._kept = set[int]()  # blocks that the prefix cache can find
        self.on_forgotten: Callable[[int], None] | None = None  # of the prefix cache

    def __repr__(self) -> str:
        counts = f"{self.num_used} used, {self.num_free} free, {self.num_cached} of them cached"
        return f"{type(self).__name__}({self.num_blocks} blocks of {self.block_size}: {counts})"

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can return, with the cached ones."""
        return len(self.free_ids) + len(self.cached)

    @property
    def num_cached(self) -> int:
        """Free blocks whose contents are kept."""
        return len(self.cached)

    def allocate(self) -> int:
        """Return the id of a free block. Its reference count is then 1.

        Raises:
            OutOfBlocks: If no block is free.
        """
        if not self.num_free:
            raise OutOfBlocks(f"no block is free: all {self.num_blocks} are in use")
        if not self.free_ids:
            self.forget(self.victim(), "evict")
        block_id = self.free_ids.pop()
        self.counts[block_id] = 1
        self.emit("allocate", block_id)
        return block_id

    def victim(self) -> int:
        """The block of `cached` to evict: the least recently used. A subclass may differ."""
        return next(iter(self.cached))

    def share(self, block_id: int) -> int:
        """Add a reference to a used or cached block and return its id.

        Raises:
            ValueError: If the block is neither used nor cached.
        """
        is_used = self.refcount(block_id) > 0
        if not is_used and block_id not in self.cached:
            raise ValueError(f"block {block_id} is free, so there is nothing to share")
        self.cached.pop(block_id, None)
        self.counts[block_id] += 1
        self.emit("share" if is_used else "revive", block_id)
        return block_id

    def release(self, block_id: int) -> None:
        """Remove a reference. A block without references is free.

        Raises:
            ValueError: If the block is free already.
        """
        if self.refcount(block_id) == 0:
            raise ValueError(f"block {block_id} is free already")
        self.counts[block_id] -= 1
        if self.counts[block_id] == 0:
            if block_id in self._kept:
                self.cached[block_id] = None
            else:
                self.free_ids.append(block_id)
        self.emit("release", block_id)

    def refcount(self, block_id: int) -> int:
        """The number of references to the block; 0 if it is free."""
        # Without the check, -1 would mean the last block.
        return self.counts[integer("block_id", block_id, 0, self.num_blocks - 1)]

    # ------------------------------------------------------------------ for a prefix cache

    def keep(self, block_id: int) -> None:
        """Keep a used block: without references it is then cached, not just free."""
        if self.refcount(block_id) == 0:
            raise ValueError(f"block {block_id} is free: only a used block has contents to keep")
        self._kept.add(block_id)
        self.emit("keep", block_id)

    def keeps(self, block_id: int) -> bool:
        """Whether the block's contents are kept when it has no references."""
        return block_id in self._kept

    def forget(self, block_id: int, kind: Kind = "forget") -> None:
        """Stop keeping a block. Nothing happens to a block that is not kept."""
        if block_id not in self._kept:
            return
        self._kept.remove(block_id)
        if block_id in self.cached:
            del self.cached[block_id]
            self.free_ids.append(block_id)
        self.emit(kind, block_id)
        if self.on_forgotten is not None:
            self.on_forgotten(block_id)

    # ------------------------------------------------------------------ for people who watch it

    def check(self, tables: Iterable[BlockTable] | None = None) -> None:
        """Check that every block is exactly one of used, cached and free.

        Args:
            tables: all tables over this pool. The reference count of a block must be the number of
                tables that list it. None leaves this check out.

        Raises:
            InvariantError: If a check fails. The message names the blocks.
        """
        used = [block_id for block_id, count in enumerate(self.counts) if count > 0]
        places = Counter([*used, *self.free_ids, *self.cached])
        wrong = [i for i, count in enumerate(self.counts) if places[i] != 1 or count < 0]
        if wrong:
            raise InvariantError(f"blocks {wrong} are not one of used, free and cached")
        unkept = sorted(self.cached.keys() - self._kept)
        if unkept:
            raise InvariantError(f"blocks {unkept} are cached and not kept")
        if tables is None:
            return
        listed = Counter(block_id for table in tables for block_id in table.block_ids)
        for i, count in enumerate(self.counts):
            if count != listed[i]:
                raise InvariantError(f"block {i} counts {count} but {listed[i]} tables list it")

    def subscribe(self, callback: Callable[[BlockEvent], None]) -> Callable[[], None]:
        """Call `callback` with every `BlockEvent` from now on.

        The function returned ends these calls.
        """
        return self.callbacks.subscribe(callback)

    def emit(self, kind: Kind, block_id: int, source: int | None = None) -> None:
        """Report a change to the subscribers. Tables report "copy", a prefix cache "hit"."""
        if self.callbacks:
            self.callbacks.call(BlockEvent(kind, block_id, self.counts[block_id], source))


class BlockTable:
    """The blocks of one sequence in logical order: tokens [i * B, (i + 1) * B) are in
    `block_ids[i]`.

    Three invariants hold. `len(block_ids)` is `num_tokens` over the block size, rounded up. The
    table owns one reference to each block that it lists. It never writes to a shared block.

    Args:
        pool: the block pool.

    Attributes:
        entries: what the prefix cache knows of the first blocks; see prefix.py.
    """

    def __init__(self, pool: Pool) -> None:
        if not isinstance(pool, Pool):
            raise ValueError(f"pool must be an object of a subclass of Pool, got {shown(pool)}")
        self.pool = pool
        self.block_ids: list[int] = []
        self.num_tokens = 0
        self.entries: list[Any] = []

    def __repr__(self) -> str:
        return f"BlockTable({self.num_tokens} tokens in blocks {self.block_ids})"

    def append(self, n: int = 1) -> list[BlockCopy]:
        """Give slots to `n` more tokens.

        Returns:
            The block copies to execute before the KV of these tokens is written. There is one if
            the last block is partly filled and shared, else none.

        Raises:
            OutOfBlocks: If too few blocks are free. Table and pool are then as before.
        """
        needed = self.needs(n)
        if needed > self.pool.num_free:
            raise OutOfBlocks(
                f"append({n}) takes {needed} blocks, and {self.pool.num_free} of "
                f"{self.pool.num_blocks} are free"
            )
        copies = []
        if self.must_copy(n):
            copies.append(self.copy_last())
        elif n and self.num_tokens % self.pool.block_size:
            # Before a truncation it may have been full, and registered in the prefix cache.
            self.pool.forget(self.block_ids[-1])
        self.num_tokens += n
        while len(self.block_ids) < blocks_for(self.num_tokens, self.pool.block_size):
            self.block_ids.append(self.pool.allocate())
        return copies

    def needs(self, n: int) -> int:
        """How many free blocks `append(n)` takes."""
        total = blocks_for(self.num_tokens + integer("n", n), self.pool.block_size)
        return total - len(self.block_ids) + self.must_copy(n)

    def must_copy(self, n: int) -> bool:
        """Whether the first of `n` more tokens goes into a shared block, which is copied then."""
        is_partial = self.num_tokens % self.pool.block_size > 0
        return n > 0 and is_partial and self.pool.refcount(self.block_ids[-1]) > 1

    def copy_last(self) -> BlockCopy:
        """Replace the last block by a new one, and release the old one."""
        source = self.block_ids[-1]
        destination = self.pool.allocate()
        self.block_ids[-1] = destination
        self.pool.emit("copy", destination, source)
        self.pool.release(source)
        return BlockCopy(source, destination)

    def fork(self) -> BlockTable:
        """Return a second table over the same blocks. Each block gets one more reference.

        No block is copied.
        """
        child = type(self)(self.pool)
        child.block_ids = [self.pool.share(block_id) for block_id in self.block_ids]
        child.num_tokens = self.num_tokens
        child.entries = self.entries[:]
        return child

    def truncate(self, num_tokens: int) -> None:
        """Keep the first `num_tokens` tokens, and release the blocks that hold none of them."""
        num_tokens = integer("num_tokens", num_tokens)
        if num_tokens > self.num_tokens:
            raise ValueError(
                f"cannot truncate to {num_tokens} tokens: the table holds {self.num_tokens}"
            )
        size = self.pool.block_size
        self.num_tokens = num_tokens
        del self.entries[num_tokens // size :]
        # The last block goes first, so that a block stays cached longer than those after it.
        while len(self.block_ids) > blocks_for(num_tokens, size):
            self.pool.release(self.block_ids.pop())

    def free(self) -> None:
        """Release every block. The table is then empty and can be used again."""
        self.truncate(0)

    def slot(self, position: int) -> int:
        """Return the slot of a token: block_ids[position // B] * B + position % B."""
        return self.slots(position, position + 1)[0]

    def slots(self, start: int, stop: int) -> list[int]:
        """Return the slots of the tokens at positions start, ..., stop - 1."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens {start} to {stop - 1} are not among the {self.num_tokens}")
        size = self.pool.block_size
        ids = self.block_ids
        return [ids[position // size] * size + position % size for position in range(start, stop)]
