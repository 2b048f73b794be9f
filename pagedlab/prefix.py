"""The prefix cache: it finds blocks that hold the KV of a prompt's first tokens. Pure Python.

The KV of a token depends on every token before it. So two sequences can share a block only if all
their tokens up to the end of the block are equal. Each full block gets a name: a hash of its
parent's name and its own tokens. To match a prompt, the names are looked up from its first block on
until one is missing:

    prompt      | tokens 0-15 | tokens 16-31 | tokens 32-40 |
    name          a = H(0-15)   b = H(a, 16-31)  not full: no name

H is xxh64 (seed 0) of the parent's 8 bytes (none for a first block) and the tokens as little-endian
int32. It is fast, but collisions can be constructed. So each hit is verified: the tokens must be
equal, and the parent must be the entry that was matched before. Either check alone would not be
enough, and a prompt could get the KV of another. With "sha256" the name is trusted.

A block is registered in the step that computes its KV. After a step that fails, the engine makes
another pool and another prefix cache. A block without references is one of the pool's cached
blocks, until a table writes to it or the pool evicts it. The least recently used block is evicted
first. eviction/ has other policies.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

import xxhash

from pagedlab.blocks import LRU, POLICY, BlockPool, BlockTable, EvictionPolicy
from pagedlab.validation import (
    a_class,
    integer,
    made,
    shown,
    valid_text,
    with_methods,
)

Hash = Callable[[bytes], bytes]
HASHES: dict[str, Hash] = {
    "xxh64": xxhash.xxh64_digest,
    "sha256": lambda data: hashlib.sha256(data).digest(),
}
MakePolicy = Callable[["PrefixCache"], EvictionPolicy]


@dataclass(eq=False, slots=True)
class Entry:
    """A registered block. If the block is registered again, that is another entry.

    An entry leads to others by links and has no list. A large cache has several hundred
    thousand entries, and Python's garbage collector goes through every object that holds others.

    Args:
        block_id: the id of the block.
        hash: the name of the block.
        tokens: its tokens as little-endian int32.
        parent: the entry of the block before; None for the first block of a prompt.
        salt: the salt of the prompt; None for none.
        registered: a running number, for the policy "fifo".
        hits: how often the block was matched.
        same_hash: an older entry with the same hash; None for none. Hashes collide rarely.
        first_child: the newest of the entries whose parent this is; None for none.
        older: the next older child of the same parent.
        newer: the next newer child of the same parent.
    """

    block_id: int
    hash: bytes
    tokens: bytes
    parent: Entry | None
    salt: str | None
    registered: int
    hits: int = 0
    same_hash: Entry | None = None
    first_child: Entry | None = None
    older: Entry | None = None
    newer: Entry | None = None

    @property
    def children(self) -> list[Entry]:
        """The entries whose parent this is, newest first."""
        found = []
        child = self.first_child
        while child is not None:
            found.append(child)
            child = child.older
        return found

    def attach(self) -> None:
        """Become the newest child of the parent."""
        if self.parent is None:
            return
        self.older = self.parent.first_child
        if self.older is not None:
            self.older.newer = self
        self.parent.first_child = self

    def detach(self) -> None:
        """Leave the children of the parent."""
        if self.parent is None:
            return
        if self.newer is None:
            self.parent.first_child = self.older
        else:
            self.newer.older = self.older
        if self.older is not None:
            self.older.newer = self.newer
        self.older = None
        self.newer = None


@dataclass
class PrefixStats:
    """Figures of a prefix cache since it was made.

    Args:
        lookups: calls of `match`.
        asked_tokens: tokens of the prompts that were matched.
        asked_blocks: full blocks of these prompts.
        hit_tokens: tokens that were found.
        hit_blocks: blocks that were found.
        merged_blocks: blocks that were exchanged for blocks with the same contents.
        evicted_blocks: blocks that the pool evicted.
        forgotten_blocks: blocks that were overwritten or cleared, or whose parent is gone.
    """

    lookups: int = 0
    asked_tokens: int = 0
    asked_blocks: int = 0
    hit_tokens: int = 0
    hit_blocks: int = 0
    merged_blocks: int = 0
    evicted_blocks: int = 0
    forgotten_blocks: int = 0

    @property
    def hit_rate(self) -> float:
        """The share of `asked_tokens` that was found; 0 before the first lookup."""
        return self.hit_tokens / self.asked_tokens if self.asked_tokens else 0.0


def _hash_function(hash: str | Hash) -> Hash:
    if not callable(hash):
        return HASHES[_name_of("hash", hash, HASHES)]
    own = hash

    def checked(data: bytes) -> bytes:
        name = own(data)
        if not isinstance(name, bytes):
            raise ValueError(f"hash must return bytes, got {shown(name)}")
        return name

    return checked


def _name_of(argument: str, name: Any, names: Iterable[str]) -> str:
    """Check the name of something that may also be given as a function."""
    if isinstance(name, str) and name in names:
        return name
    accepted = ", ".join(map(repr, names))
    raise ValueError(f"{argument} must be {accepted} or a function, got {shown(name)}")


def _make_policy(eviction: str | MakePolicy, cache: PrefixCache) -> EvictionPolicy:
    if eviction == "lru":
        return LRU()
    if callable(eviction):
        return with_methods("eviction", eviction(cache), POLICY)
    from pagedlab.eviction import POLICIES  # a wing: the default policy does not need it

    return POLICIES[_name_of("eviction", eviction, POLICIES)](cache)


NOT_INT32 = (struct.error, TypeError)  # what `pack` raises; `TypeError` for a float tensor


def _is_int32(token: Any) -> bool:
    try:
        struct.pack("<i", token)
    except NOT_INT32:
        return False
    return True


def _packed(pack: Callable[..., bytes], tokens: Sequence[int]) -> bytes:
    """Return the packed tokens. `ValueError` if one of them is no int32."""
    try:
        return pack(*tokens)
    except NOT_INT32:
        wrong = next(token for token in tokens if not _is_int32(token))
        raise ValueError(
            f"token ids are whole numbers that fit in an int32, got {shown(wrong)}"
        ) from None


class _Blocks:
    """Packs and names the blocks of a prompt.

    Args:
        block_size: tokens a block.
        hash: the hash function or its name.
    """

    def __init__(self, block_size: int, hash: str | Hash) -> None:
        self.block_size = block_size
        self.hash = _hash_function(hash)
        self._pack = struct.Struct(f"<{block_size}i").pack

    def root(self, salt: str | None) -> bytes:
        """Return the bytes that a first block has in place of its parent's name."""
        # The hashed salt has an odd number of bytes and a hashed block an even one. So no salt can
        # be chosen that has the name of a block.
        return b"" if salt is None else self.hash(b"s" + salt.encode("utf-16-le"))

    def pack(self, token_ids: Sequence[int], i: int) -> bytes:
        """Return the tokens of block i as little-endian int32."""
        tokens = token_ids[i * self.block_size : (i + 1) * self.block_size]
        return _packed(self._pack, tokens)

    def check_from(self, token_ids: Sequence[int], i: int) -> None:
        """Check the tokens from block i on. Those of a last, partial block have no name."""
        tokens = token_ids[i * self.block_size :]
        _packed(struct.Struct(f"<{len(tokens)}i").pack, tokens)

    def chain(
        self, token_ids: Sequence[int], start: int, stop: int, name: bytes
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the packed tokens and the name of blocks start, ..., stop - 1.

        Args:
            token_ids: the tokens of the prompt.
            start: the first block.
            stop: the block after the last one.
            name: the name of block start - 1, or `root`.
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
        token_ids: the tokens of the prompt.
        block_size: tokens a block.
        hash: the hash function or its name, as in `PrefixCache`.
        salt: the salt, as in `PrefixCache`.

    Raises:
        ValueError: If a token id is no int32, or if another argument is wrong.
    """
    blocks = _Blocks(integer("block_size", block_size, 1), hash)
    _check_sequence(token_ids)
    root = blocks.root(valid_text("salt", salt))
    num_full = len(token_ids) // block_size
    blocks.check_from(token_ids, num_full)
    return [name for _, name in blocks.chain(token_ids, 0, num_full, root)]


def _check_sequence(token_ids: Any) -> None:
    """Check that token ids can be counted and sliced. `_Blocks.pack` checks each of them."""
    if isinstance(token_ids, list):  # the usual case, and fast
        return
    has_items = hasattr(token_ids, "__len__") and hasattr(token_ids, "__getitem__")
    if not has_items or isinstance(token_ids, (str, bytes, Mapping)):
        raise ValueError(f"token_ids must be a list of token ids, got {shown(token_ids)}")


class PrefixCache:
    """Finds the blocks of prompts that begin alike, so that they are shared.

    Every method takes constant time a block.

    Args:
        pool: a `BlockPool` without another prefix cache.
        hash: "xxh64", or a function from bytes to bytes: hits are verified. "sha256": names are
            trusted.
        eviction: "lru", "fifo", "lfu" or "slru"; or a function that takes the cache and returns an
            `EvictionPolicy`.
        salt: a text that is hashed into the first block; None for none. Prompts share blocks only
            if their salts are equal. `match` and `insert` accept another salt for one request.
        block_table: the class of the tables that `match` returns. Its `append` must call the
            pool's `invalidate`.
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
            "the pool of a prefix cache",
            made("pool", pool),
            ("attach", "keep", "forget", "invalidate", "emit"),
        )
        self.pool = pool
        self.salt = valid_text("salt", salt)
        self.stats = PrefixStats()
        self._blocks = _Blocks(pool.block_size, hash)
        self._trusts_names = hash == "sha256"
        self._new_table = a_class("block_table", block_table, BlockTable)
        if isinstance(block_table, type):
            with_methods("block_table", block_table, ("append", "free"))
        self._numbers = count()
        self._by_block: dict[int, Entry] = {}
        self._by_name: dict[bytes, Entry] = {}  # the newest of a name, see `_with_name`
        pool.attach(self._on_forgotten, _make_policy(eviction, self))

    def __len__(self) -> int:
        """The number of registered blocks, used or cached."""
        return len(self._by_block)

    def __repr__(self) -> str:
        return f"PrefixCache({len(self)} blocks registered, {self.pool.num_cached} of them cached)"

    def entry(self, block_id: int) -> Entry:
        """Return the entry of a block. `KeyError` if the block is not registered."""
        block_id = integer("block_id", block_id, 0, self.pool.num_blocks - 1)
        if block_id not in self._by_block:
            raise KeyError(f"block {block_id} is not registered")
        return self._by_block[block_id]

    def match(
        self, token_ids: Sequence[int], *, leave: int = 0, salt: str | None = None
    ) -> BlockTable:
        """Return a table over the longest registered prefix of full blocks.

        The table may be empty. It owns its references, so the caller must free it.

        Args:
            token_ids: the tokens of the prompt.
            leave: how many tokens at the end are not matched. An engine passes 1, because it
                computes the last token in any case, to get the logits for the next one.
            salt: the salt of the prompt; None for the cache's own.

        Raises:
            ValueError: If a token id is no int32. Nothing is shared then.
        """
        found = self._longest(token_ids, leave, salt)
        self._blocks.check_from(token_ids, len(found))
        table = self._new_table(self.pool)
        for entry in found:
            table.block_ids.append(self.pool.share(entry.block_id))
            entry.hits += 1
            self.pool.emit("hit", entry.block_id)
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
        """Return how many blocks that `match` would share are in use now.

        This does not count as a lookup. The arguments are those of `match`.
        """
        entries = self._longest(token_ids, leave, salt)
        return sum(self.pool.refcount(entry.block_id) > 0 for entry in entries)

    def insert(
        self, table: BlockTable, token_ids: Sequence[int], *, salt: str | None = None
    ) -> int:
        """Register the full blocks of a table whose KV has been computed.

        An engine calls it after every step and before forks. Blocks that are registered already
        cost nothing. If two tables have computed the same block, the one that was registered first
        stays. The other table gets it in exchange for its own, which is released.

        Args:
            table: the block table.
            token_ids: the tokens whose KV is computed, from the table's first token on.
            salt: the salt that `match` got; None for the cache's own.

        Returns:
            How many blocks were exchanged.

        Raises:
            ValueError: If the table is over another pool, or if these cannot be its tokens. Nothing
                is changed then.
        """
        exchanged = 0
        for i, entry in self._register(table, token_ids, salt):
            own = table.block_ids[i]
            is_shared = self.pool.refcount(own) > 1  # then a fork needs it, and it stays
            if own != entry.block_id and not is_shared:
                table.block_ids[i] = self.pool.share(entry.block_id)
                self.pool.release(own)
                exchanged += 1
        self.stats.merged_blocks += exchanged
        return exchanged

    def register(
        self, table: BlockTable, token_ids: Sequence[int], *, salt: str | None = None
    ) -> list[int]:
        """Register full blocks before their KV is computed. Return the ids of the new entries.

        Requests in the same step can then share them, because each layer writes KV before it reads.
        If the step fails, neither pool nor cache may be used any more. Registration stops at the
        first block whose contents are registered already: `insert` exchanges it later.

        The arguments are those of `insert`.
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
        """Register the full blocks of a table after those that are registered.

        Args:
            table: the block table.
            token_ids: its tokens.
            salt: the salt; None for the cache's own.
            until_known: stop at the first block whose contents are registered already.

        Returns:
            Pairs of an index in the table and an entry. It is the existing entry if the contents
            are registered already.
        """
        salt = self.salt if salt is None else valid_text("salt", salt)
        self._check_tokens(table, token_ids)
        stop = len(token_ids) // self.pool.block_size
        start = self._num_registered(table, stop)
        parent = self._by_block[table.block_ids[start - 1]] if start else None
        if parent is not None and (
            parent.salt != salt or parent.tokens != self._blocks.pack(token_ids, start - 1)
        ):
            raise ValueError(
                f"block {parent.block_id} of the table is registered with other tokens or under "
                "another salt: give insert the tokens that were computed, and the salt that match "
                "was given"
            )
        root = parent.hash if parent else self._blocks.root(salt)
        # All tokens are read first, so that a bad token id raises before anything changes.
        self._blocks.check_from(token_ids, stop)
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

    def _check_tokens(self, table: BlockTable, token_ids: Sequence[int]) -> None:
        if not hasattr(table, "pool"):
            raise ValueError(f"table must be a block table, got {shown(table)}")
        if table.pool is not self.pool:
            raise ValueError("the table is over another pool than the cache")
        _check_sequence(token_ids)
        given = len(token_ids)
        if given > table.num_tokens:
            raise ValueError(
                f"{given} tokens were given and the table holds {table.num_tokens}: give at most "
                "those"
            )

    def _num_registered(self, table: BlockTable, most: int) -> int:
        """Return how many of the table's first `most` blocks are registered.

        If a block is registered, so are all blocks before it.
        """
        start = most
        while start and table.block_ids[start - 1] not in self._by_block:
            start -= 1
        return start

    def clear(self) -> None:
        """Forget every block, for instance after the model's weights have changed.

        Used blocks stay used.
        """
        for block_id in tuple(self._by_block):
            self.pool.forget(block_id)

    def _longest(self, token_ids: Sequence[int], leave: int, salt: str | None) -> list[Entry]:
        """Return the entries of the longest registered prefix of full blocks."""
        integer("leave", leave)
        _check_sequence(token_ids)
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
        for entry in self._with_name(name):
            if self._trusts_names or self._is(entry, tokens, parent, salt):
                return entry
        return None

    def _with_name(self, name: bytes) -> Iterator[Entry]:
        """Yield the entries with this name, newest first. There are several if hashes collide."""
        entry = self._by_name.get(name)
        while entry is not None:
            yield entry
            entry = entry.same_hash

    def _is(self, entry: Entry, tokens: bytes, parent: Entry | None, salt: str | None) -> bool:
        """Return whether an entry with the right hash is the right block.

        Its parent was verified before, so by induction all blocks before it are right too.
        """
        return entry.tokens == tokens and entry.parent is parent and entry.salt == salt

    def _add(
        self, block_id: int, name: bytes, tokens: bytes, parent: Entry | None, salt: str | None
    ) -> Entry:
        """Register one block."""
        self.pool.keep(block_id)
        entry = Entry(block_id, name, tokens, parent, salt, next(self._numbers))
        self._by_block[block_id] = entry
        entry.same_hash = self._by_name.get(name)
        self._by_name[name] = entry
        entry.attach()
        return entry

    def _remove(self, entry: Entry) -> None:
        """Remove every link to and from one block's entry, so that it is freed."""
        entry.detach()
        del self._by_block[entry.block_id]
        older = entry.same_hash
        for newer in self._with_name(entry.hash):
            if newer.same_hash is entry:
                newer.same_hash = older
                return
        if older is None:
            del self._by_name[entry.hash]
        else:
            self._by_name[entry.hash] = older

    def _on_forgotten(self, block_id: int, evicted: bool) -> None:
        """Remove a block that the pool no longer keeps, and all its descendants.

        A match cannot reach the descendants any more, so the pool forgets them as well.
        """
        top = self._by_block.get(block_id)
        if top is None:
            return
        removed = []
        stack = [top]
        while stack:
            entry = stack.pop()
            stack += entry.children
            self._remove(entry)
            removed.append(entry)
        self.stats.evicted_blocks += evicted
        self.stats.forgotten_blocks += len(removed) - evicted
        for entry in removed[1:]:
            self.pool.forget(entry.block_id)
