"""The prefix cache: a block's name is its whole past. Pure Python, over the pool of blocks.py.

The KV of a token depends on every token before it, so two sequences may share a block only if they
agree from their first token to the block's last. Each full block is named by a hash over its
parent's name and its own tokens, and the names are looked up from the start of a prompt until one
is missing:

    prompt      | tokens 0-15 | tokens 16-31 | tokens 32-40 |
    name          a = H(0-15)   b = H(a, 16-31)  not full: no name

H is xxh64 (seed 0) over the parent's 8 bytes, none for a first block, and the tokens as
little-endian int32. It is fast, and anybody can construct collisions, so a hit is verified: the
block's own tokens must be equal, and its parent must be the very block matched before, in the same
generation. Either check alone would serve another prompt's text. With "sha256" the name is trusted.

A block is registered by the step that computes its KV, and forgotten if the step fails. It stays
registered while a table holds it. Without a reference it is one of the pool's cached blocks, until
a table writes to it or the pool evicts it: the least recently used first. eviction/ has other
policies.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

import xxhash

from pagedlab.blocks import LRU, BlockPool, BlockTable, EvictionPolicy
from pagedlab.validation import integer, one_of, valid_text, with_methods

Hash = Callable[[bytes], bytes]
HASHES: dict[str, Hash] = {
    "xxh64": xxhash.xxh64_digest,
    "sha256": lambda data: hashlib.sha256(data).digest(),
}
MakePolicy = Callable[["PrefixCache"], EvictionPolicy]


@dataclass(eq=False, slots=True)
class Entry:
    """One registration of a block.

    The same block registered again is another entry, and no two are equal.
    """

    block_id: int
    hash: bytes
    tokens: bytes  # little-endian int32
    parent: Entry | None  # None for the first block of a prompt
    salt: str | None
    registered: int  # running number, for the FIFO order
    hits: int = 0
    children: set[Entry] = field(default_factory=set)


@dataclass
class PrefixStats:
    """What a cache has done so far. Tokens are those asked for; only full blocks can hit."""

    lookups: int = 0
    asked_tokens: int = 0
    asked_blocks: int = 0
    hit_tokens: int = 0
    hit_blocks: int = 0
    merged_blocks: int = 0  # computed twice: the second copy was given back
    evicted_blocks: int = 0
    forgotten_blocks: int = 0  # written again, stranded or cleared

    @property
    def hit_rate(self) -> float:
        """Share of the tokens asked for that were found; 0 before the first lookup."""
        return self.hit_tokens / self.asked_tokens if self.asked_tokens else 0.0


def _hash_function(hash: str | Hash) -> Hash:
    if callable(hash):
        return hash
    return HASHES[one_of("hash, where it is no function,", hash, HASHES)]


def _make_policy(eviction: str | MakePolicy, cache: PrefixCache) -> EvictionPolicy:
    if eviction == "lru":
        return LRU()
    if callable(eviction):
        return eviction(cache)
    from pagedlab.eviction import POLICIES  # a wing: the policy that costs least needs none of it

    return POLICIES[one_of("eviction, where it is no function,", eviction, POLICIES)](cache)


class _Blocks:
    """How the blocks of a prompt are packed and named."""

    def __init__(self, block_size: int, hash: str | Hash) -> None:
        self.block_size = block_size
        self.hash = _hash_function(hash)
        self._pack = struct.Struct(f"<{block_size}i").pack

    def root(self, salt: str | None) -> bytes:
        """What stands for the parent's name in a first block."""
        # An odd number of bytes: no block hashes the same ones, or a chosen salt could pass for a
        # parent.
        return b"" if salt is None else self.hash(b"s" + salt.encode("utf-16-le"))

    def pack(self, token_ids: Sequence[int], i: int) -> bytes:
        try:
            return self._pack(*token_ids[i * self.block_size : (i + 1) * self.block_size])
        except struct.error:
            raise ValueError("token ids are whole numbers that fit in an int32") from None

    def chain(
        self, token_ids: Sequence[int], start: int, stop: int, name: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        """(packed tokens, name) of blocks start, ..., stop - 1; `name` is that of the block
        before.
        """
        for i in range(start, stop):
            tokens = self.pack(token_ids, i)
            name = self.hash(name + tokens)
            yield tokens, name


def hash_chain(
    token_ids: Sequence[int],
    block_size: int = 16,
    hash: str | Hash = "xxh64",
    salt: str | None = None,
) -> list[bytes]:
    """Return the names of the full blocks of a prompt, first to last.

    Args:
        token_ids: the prompt.
        block_size: tokens a block.
        hash, salt: as in `PrefixCache`.
    """
    blocks = _Blocks(integer("block_size", block_size, 1), hash)
    root = blocks.root(valid_text("salt", salt))
    return [name for _, name in blocks.chain(token_ids, 0, len(token_ids) // block_size, root)]


class PrefixCache:
    """Finds and shares the blocks of prompts that begin alike.

    Every method is O(1) a block.

    Args:
        pool: a `BlockPool` of its own.
        hash: "xxh64", verified; "sha256", trusted; or a function from bytes to bytes, verified.
        eviction: "lru", "fifo", "lfu" or "slru"; or a function that is given the cache and returns
            an `EvictionPolicy`.
        salt: goes into the first block's hash, so prompts under different salts never share. None
            is no salt. `match` and `insert` take another one for a single request.
        block_table: the class of the tables that `match` returns. Its `append` calls the pool's
            `invalidate`.
    """

    def __init__(
        self,
        pool: BlockPool,
        hash: Literal["xxh64", "sha256"] | Hash = "xxh64",
        eviction: Literal["lru", "fifo", "lfu", "slru"] | MakePolicy = "lru",
        salt: str | None = None,
        *,
        block_table: type[BlockTable] = BlockTable,
    ) -> None:
        with_methods(
            "the pool of a prefix cache", pool, ("attach", "keep", "forget", "invalidate", "emit")
        )
        self.pool = pool
        self.salt = valid_text("salt", salt)
        self.stats = PrefixStats()
        self._blocks = _Blocks(pool.block_size, hash)
        self._trusts_names = hash == "sha256"
        self._new_table = block_table
        self._numbers = count()
        self._by_block: dict[int, Entry] = {}
        self._by_name: dict[bytes, list[Entry]] = {}  # more than one where names collide
        pool.attach(self._on_lost, _make_policy(eviction, self))

    def __len__(self) -> int:
        """Registered blocks, in use or cached."""
        return len(self._by_block)

    def __repr__(self) -> str:
        return f"PrefixCache({len(self)} blocks registered, {self.pool.num_cached} of them cached)"

    def entry(self, block_id: int) -> Entry:
        """The registration of a block. `KeyError` if it is not registered."""
        return self._by_block[block_id]

    def match(
        self, token_ids: Sequence[int], *, leave: int = 0, salt: str | None = None
    ) -> BlockTable:
        """Return a table over the longest cached prefix of full blocks, perhaps empty.

        Free it like any other.

        Args:
            token_ids: the prompt.
            leave: tokens at the end that must not be matched. An engine passes 1: the next token's
                logits come from the last token, so that one has to be computed.
            salt: another one than the cache's.

        Raises:
            ValueError: With nothing shared, for a token id that is no int32.
        """
        found = self._longest(token_ids, leave, salt)
        table = self._new_table(self.pool)
        try:
            for entry in found:
                table.block_ids.append(self.pool.share(entry.block_id))
                entry.hits += 1
                self.pool.emit("hit", entry.block_id)
        except BaseException:
            table.free()
            raise
        table.num_tokens = len(found) * self.pool.block_size
        self.stats.lookups += 1
        self.stats.asked_tokens += len(token_ids)
        self.stats.asked_blocks += max(0, len(token_ids) - leave) // self.pool.block_size
        self.stats.hit_tokens += table.num_tokens
        self.stats.hit_blocks += len(found)
        return table

    def num_shared_blocks(
        self, token_ids: Sequence[int], *, leave: int = 0, salt: str | None = None
    ) -> int:
        """How many of the blocks that `match` would share are in use now.

        It does not count as a lookup.
        """
        entries = self._longest(token_ids, leave, salt)
        return sum(self.pool.refcount(entry.block_id) > 0 for entry in entries)

    def insert(
        self, table: BlockTable, token_ids: Sequence[int], *, salt: str | None = None
    ) -> int:
        """Register the full blocks of a table, and return how many were exchanged for blocks
        registered before.

        Call it after the KV is computed, never before, and before a fork. Blocks that are
        registered already cost nothing, so an engine calls it after every step. If two tables
        computed the same prefix at the same time, the first to register wins: the other gets the
        registered block, and its own one, with the same KV, is released. `ValueError`, with nothing
        changed, for another pool's table or for tokens that cannot be the table's.

        Args:
            table: whose blocks.
            token_ids: the tokens of the table whose KV is computed, first to last.
            salt: that of the `match`.
        """
        exchanged = 0
        for i, entry in self._register(table, token_ids, salt):
            own = table.block_ids[i]
            if (
                own != entry.block_id and self.pool.refcount(own) == 1
            ):  # a block that a sibling holds too stays
                table.block_ids[i] = self.pool.share(entry.block_id)
                self.pool.release(own)
                exchanged += 1
        self.stats.merged_blocks += exchanged
        return exchanged

    def register(
        self, table: BlockTable, token_ids: Sequence[int], *, salt: str | None = None
    ) -> list[int]:
        """Register blocks as `insert` does, but before their KV is computed, and return their ids.

        The step that computes them may share them at once: in each layer KV is written before it is
        read. If the step fails, the pool must `forget` them. Registration stops at a block that is
        known already: `insert` exchanges it.
        """
        entries = self._register(table, token_ids, salt, until_known=True)
        return [entry.block_id for _, entry in entries]

    def _register(
        self,
        table: BlockTable,
        token_ids: Sequence[int],
        salt: str | None,
        until_known: bool = False,
    ) -> list[tuple[int, Entry]]:
        """Register every full block that is new.

        Args:
            until_known: stop at the first block that has a known entry.

        Returns:
            (index in the table, entry) of each. A block whose name is known already gets the known
            entry.
        """
        salt = self.salt if salt is None else valid_text("salt", salt)
        self._check_is_own(table, token_ids)
        start = self._num_registered(table, len(token_ids) // self.pool.block_size)
        stop = len(token_ids) // self.pool.block_size
        parent = self._by_block[table.block_ids[start - 1]] if start else None
        if parent is not None and (
            parent.salt != salt or parent.tokens != self._blocks.pack(token_ids, start - 1)
        ):
            raise ValueError(
                f"block {parent.block_id} of the table is registered with other tokens or under "
                "another salt: "
                "give insert the tokens that were computed, and the salt that match was given"
            )
        root = parent.hash if parent else self._blocks.root(salt)
        # All names first: tokens that cannot be packed are found before anything changes.
        named = list(self._blocks.chain(token_ids, start, stop, root))
        entries = []
        for i, (tokens, name) in enumerate(named, start):
            entry = self._find(name, tokens, parent, salt)
            if entry is not None and until_known:
                break
            if entry is None:
                entry = self._add(table.block_ids[i], name, tokens, parent, salt)
            entries.append((i, entry))
            parent = entry
        return entries

    def _check_is_own(self, table: BlockTable, token_ids: Sequence[int]) -> None:
        if table.pool is not self.pool:
            raise ValueError("the table is over another pool than the cache")
        given = len(token_ids)
        if given > table.num_tokens:
            raise ValueError(
                f"{given} tokens were given and the table holds {table.num_tokens}: give at most "
                "those"
            )

    def _num_registered(self, table: BlockTable, most: int) -> int:
        """How many of the table's first blocks are registered.

        The parents of a registered block are, too.
        """
        start = most
        while start and table.block_ids[start - 1] not in self._by_block:
            start -= 1
        return start

    def clear(self) -> None:
        """Forget every registration, for instance when the model's weights change.

        Blocks in use stay in use.
        """
        for block_id in tuple(self._by_block):
            self.pool.forget(block_id)

    def _longest(self, token_ids: Sequence[int], leave: int, salt: str | None) -> list[Entry]:
        """The entries of the longest registered prefix of full blocks."""
        integer("leave", leave)
        salt = self.salt if salt is None else valid_text("salt", salt)
        asked = max(0, len(token_ids) - leave) // self.pool.block_size
        found: list[Entry] = []
        for tokens, name in self._blocks.chain(token_ids, 0, asked, self._blocks.root(salt)):
            parent = found[-1] if found else None
            entry = self._find(name, tokens, parent, salt)
            if entry is None:
                break
            found.append(entry)
        return found

    def _find(
        self, name: bytes, tokens: bytes, parent: Entry | None, salt: str | None
    ) -> Entry | None:
        for entry in self._by_name.get(name, ()):
            if self._trusts_names or self._is(entry, tokens, parent, salt):
                return entry
        return None

    def _is(self, entry: Entry, tokens: bytes, parent: Entry | None, salt: str | None) -> bool:
        """Whether the entry that has the right name is the right block, and so, by induction, all
        blocks before it.
        """
        return entry.tokens == tokens and entry.parent is parent and entry.salt == salt

    def _add(
        self, block_id: int, name: bytes, tokens: bytes, parent: Entry | None, salt: str | None
    ) -> Entry:
        """Register one block that is new."""
        self.pool.keep(block_id)
        entry = Entry(block_id, name, tokens, parent, salt, next(self._numbers))
        self._by_block[block_id] = entry
        self._by_name.setdefault(name, []).append(entry)
        if parent is not None:
            parent.children.add(entry)
        return entry

    def _remove(self, entry: Entry) -> None:
        del self._by_block[entry.block_id]
        same_name = self._by_name[entry.hash]
        same_name.remove(entry)
        if not same_name:
            del self._by_name[entry.hash]

    def _on_lost(self, block_id: int, evicted: bool) -> None:
        """The pool keeps the block no longer.

        Nobody can find its descendants any more, so they are forgotten too.
        """
        top = self._by_block.get(block_id)
        if top is None:
            return
        if top.parent is not None:
            top.parent.children.remove(top)
        lost = []
        stack = [top]
        while stack:
            entry = stack.pop()
            self._remove(entry)
            lost.append(entry)
            stack += entry.children
        self.stats.evicted_blocks += evicted
        self.stats.forgotten_blocks += len(lost) - evicted
        for entry in lost[1:]:
            self.pool.forget(entry.block_id)
