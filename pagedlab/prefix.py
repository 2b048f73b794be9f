"""The prefix cache: a block's name is its whole past. Pure Python, over the pool of blocks.py.

The KV of a token depends on every token before it, so two sequences may share a block only if they agree from
their first token to the block's last. Each full block is named by a hash over its parent's name and its own
tokens, and the names are looked up from the start of a prompt until one is missing:

    prompt      | tokens 0-15 | tokens 16-31 | tokens 32-40 |
    name          a = H(0-15)   b = H(a, 16-31)  not full: no name

H is xxh64 (seed 0) over the parent's 8 bytes, none for a first block, and the tokens as little-endian int32. It is
fast, and collisions can be made to order, so a hit is verified: the block's own tokens must be equal and its
parent must be the very block matched before, in the same generation. Either check alone serves foreign text. With
"sha256" the name is trusted as it stands.

A block is registered by the step that computes its KV, and forgotten if the step fails. It stays so while anybody uses
it and after, as one of the pool's cached blocks, until somebody writes to it or the pool needs it: the least recently
used first, and eviction/ has other orders.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

import xxhash

from pagedlab.blocks import BlockPool, BlockTable
from pagedlab.validation import integer, one_of, valid_text, with_methods

if TYPE_CHECKING:
    from pagedlab.eviction import Rank, Ranked

Hash = Callable[[bytes], bytes]
HASHES: dict[str, Hash] = {"xxh64": xxhash.xxh64_digest, "sha256": lambda data: hashlib.sha256(data).digest()}


@dataclass(eq=False, slots=True)
class Entry:
    """One registration of a block. The same block registered again is another entry, and no two are equal."""

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


def _choose(name: str, value: Any, choices: dict[str, Any]) -> Any:
    """The function that `value` is or names."""
    return value if callable(value) else choices[one_of(f"{name}, where it is no function,", value, choices)]


class _Blocks:
    """How the blocks of a prompt are packed and named."""

    def __init__(self, block_size: int, hasher: Hash) -> None:
        self.block_size = block_size
        self.hash = hasher
        self._pack = struct.Struct(f"<{block_size}i").pack

    def root(self, salt: str | None) -> bytes:
        """What stands for the parent's name in a first block."""
        # An odd number of bytes: no block hashes the same ones, or a chosen salt could pass for a parent.
        return b"" if salt is None else self.hash(b"s" + salt.encode("utf-16-le"))

    def pack(self, token_ids: Sequence[int], i: int) -> bytes:
        try:
            return self._pack(*token_ids[i * self.block_size : (i + 1) * self.block_size])
        except struct.error:
            raise ValueError("token ids are whole numbers that fit in an int32") from None

    def chain(self, token_ids: Sequence[int], start: int, stop: int, name: bytes) -> Iterator[tuple[bytes, bytes]]:
        """(packed tokens, name) of blocks start, ..., stop - 1; `name` is that of the block before."""
        for i in range(start, stop):
            tokens = self.pack(token_ids, i)
            name = self.hash(name + tokens)
            yield tokens, name


def hash_chain(
    token_ids: Sequence[int], block_size: int = 16, hash: str | Hash = "xxh64", salt: str | None = None
) -> list[bytes]:
    """The names of the full blocks of `token_ids`, first to last."""
    blocks = _Blocks(integer("block_size", block_size, 1), _choose("hash", hash, HASHES))
    root = blocks.root(valid_text("salt", salt))
    return [name for _, name in blocks.chain(token_ids, 0, len(token_ids) // block_size, root)]


class PrefixCache:
    """Finds and shares the blocks of prompts that begin alike.

    pool: a `BlockPool` of its own. hash: "xxh64", verified; "sha256", trusted; or a function from bytes to bytes,
    verified. eviction: "lru", "fifo", "lfu", "slru", or a rank, see eviction/. salt: goes into the first block's
    hash, so that prompts under different salts never share; None means none. `match` and `insert` take another for
    a single request. block_table: the class of the tables that `match` returns; its `append` calls the pool's
    `will_write` as BlockTable's does.

    Every verb is O(1) a block, with ranks O(log cached blocks).
    """

    def __init__(
        self,
        pool: BlockPool,
        hash: Literal["xxh64", "sha256"] | Hash = "xxh64",
        eviction: Literal["lru", "fifo", "lfu", "slru"] | Rank = "lru",
        salt: str | None = None,
        *,
        block_table: type[BlockTable] = BlockTable,
    ) -> None:
        order: Ranked | None = None
        if type(eviction) is not str or eviction != "lru":
            from pagedlab.eviction import RANKS, Ranked  # not before: the order that costs least needs none of it

            rank = _choose("eviction", eviction, RANKS)
            order = Ranked(lambda block_id: rank(self._by_block[block_id], self.stats.lookups))
        with_methods("the pool of a prefix cache", pool, ("attach", "keep", "forget", "will_write", "emit"))
        self.pool = pool
        self.salt = valid_text("salt", salt)
        self.stats = PrefixStats()
        self._blocks = _Blocks(pool.block_size, _choose("hash", hash, HASHES))
        self._trusts_names = hash == "sha256"
        self._new_table = block_table
        self._numbers = count()
        self._by_block: dict[int, Entry] = {}
        self._by_name: dict[bytes, list[Entry]] = {}  # more than one where names collide
        pool.attach(self._lost, order)

    def __len__(self) -> int:
        """Registered blocks, in use or cached."""
        return len(self._by_block)

    def __repr__(self) -> str:
        return f"PrefixCache({len(self)} blocks registered, {self.pool.num_cached} of them cached)"

    def match(self, token_ids: Sequence[int], *, leave: int = 0, salt: str | None = None) -> BlockTable:
        """Return a table over the longest cached prefix of full blocks, perhaps empty; free it like any other.

        leave: tokens at the end that must not be matched. An engine passes 1: the logits come from computing the
        last token, and a prompt found whole would leave none to compute. A token id that is no int32 is a
        `ValueError`, and then nothing is shared.
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

    def num_shared_blocks(self, token_ids: Sequence[int], *, leave: int = 0, salt: str | None = None) -> int:
        """How many of the blocks that `match` would share somebody holds now. Counts as no lookup."""
        return sum(self.pool.refcount(entry.block_id) > 0 for entry in self._longest(token_ids, leave, salt))

    def insert(self, table: BlockTable, token_ids: Sequence[int], *, salt: str | None = None) -> int:
        """Register the full blocks of `token_ids`, the tokens of `table` whose KV is computed, first to last.

        Call it after the KV is there, never before; the salt is that of the match. Blocks registered already cost
        nothing, so calling it after every step is cheap; call it before a fork, or both keep blocks that nobody else
        finds. Where the same prefix was computed twice at the same time, the first to register wins: a block that is
        the table's alone is given back and the registered one, which holds the same KV, takes its place. Return how
        many blocks were exchanged so, for whoever keeps a copy of the table. `ValueError`, with nothing changed, for
        another pool's table or for tokens that cannot be the table's.
        """
        exchanged = 0
        for i, entry in self._enter(table, token_ids, salt):
            own = table.block_ids[i]
            if own != entry.block_id and self.pool.refcount(own) == 1:  # what a sibling holds too cannot be given back
                table.block_ids[i] = self.pool.share(entry.block_id)
                self.pool.release(own)
                exchanged += 1
        self.stats.merged_blocks += exchanged
        return exchanged

    def register(self, table: BlockTable, token_ids: Sequence[int], *, salt: str | None = None) -> list[int]:
        """Register blocks as `insert` does, but before their KV is computed; return their ids.

        A request that finds one reads it after it is computed: later in the same step. If it is not computed after all,
        the pool must `forget` it. Stops at a block that is known already: to exchange it is `insert`'s work.
        """
        return [entry.block_id for _, entry in self._enter(table, token_ids, salt, until_known=True)]

    def _enter(
        self, table: BlockTable, token_ids: Sequence[int], salt: str | None, until_known: bool = False
    ) -> list[tuple[int, Entry]]:
        """Register full blocks that are not yet: with its index in the table, each, or the one known by its name."""
        salt = self.salt if salt is None else valid_text("salt", salt)
        given, size, ids = len(token_ids), self.pool.block_size, table.block_ids
        if table.pool is not self.pool:
            raise ValueError("the table is over another pool than the cache")
        if given > table.num_tokens:
            raise ValueError(f"{given} tokens were given and the table holds {table.num_tokens}: give at most those")
        start = stop = given // size
        while start and ids[start - 1] not in self._by_block:  # a registered block's parents are registered too
            start -= 1
        parent = self._by_block[ids[start - 1]] if start else None
        if parent is not None and (parent.salt != salt or parent.tokens != self._blocks.pack(token_ids, start - 1)):
            other = f"block {parent.block_id} of the table is registered with other tokens or under another salt"
            raise ValueError(f"{other}: give insert the tokens that were computed, and the salt that match was given")
        # All of them first: tokens that cannot be packed are found before anything changes.
        new = list(self._blocks.chain(token_ids, start, stop, parent.hash if parent else self._blocks.root(salt)))
        entered = []
        for i, (tokens, name) in enumerate(new, start):
            known = self._find(name, tokens, parent, salt)
            if known and until_known:
                break
            parent = known or self._new_entry(ids[i], name, tokens, parent, salt)
            entered.append((i, parent))
        return entered

    def clear(self) -> None:
        """Forget every registration, for instance when the model's weights change. Blocks in use stay in use."""
        for block_id in tuple(self._by_block):
            self.pool.forget(block_id)

    def _longest(self, token_ids: Sequence[int], leave: int, salt: str | None) -> list[Entry]:
        """The entries of the longest registered prefix of full blocks."""
        integer("leave", leave)
        salt = self.salt if salt is None else valid_text("salt", salt)
        asked = max(0, len(token_ids) - leave) // self.pool.block_size
        found: list[Entry] = []
        for tokens, name in self._blocks.chain(token_ids, 0, asked, self._blocks.root(salt)):
            if (entry := self._find(name, tokens, found[-1] if found else None, salt)) is None:
                break
            found.append(entry)
        return found

    def _find(self, name: bytes, tokens: bytes, parent: Entry | None, salt: str | None) -> Entry | None:
        for entry in self._by_name.get(name, ()):
            if self._trusts_names or self._is(entry, tokens, parent, salt):
                return entry
        return None

    def _is(self, entry: Entry, tokens: bytes, parent: Entry | None, salt: str | None) -> bool:
        """Whether the entry found by its name is the block that is meant: by induction, whether all its past is."""
        return entry.tokens == tokens and entry.parent is parent and entry.salt == salt

    def _new_entry(self, block_id: int, name: bytes, tokens: bytes, parent: Entry | None, salt: str | None) -> Entry:
        self.pool.keep(block_id)
        self._by_block[block_id] = entry = Entry(block_id, name, tokens, parent, salt, next(self._numbers))
        self._by_name.setdefault(name, []).append(entry)
        if parent is not None:
            parent.children.add(entry)
        return entry

    def _lost(self, block_id: int, evicted: bool) -> None:
        """The pool keeps the block no longer. What was registered behind it cannot be found any more: it goes too."""
        if (top := self._by_block.get(block_id)) is None:
            return
        if top.parent is not None:
            top.parent.children.remove(top)
        gone = [top]
        for entry in gone:
            gone += entry.children
            del self._by_block[entry.block_id]
            same_name = self._by_name[entry.hash]
            same_name.remove(entry)
            if not same_name:
                del self._by_name[entry.hash]
        self.stats.evicted_blocks += evicted
        self.stats.forgotten_blocks += len(gone) - evicted
        for entry in gone[1:]:
            self.pool.forget(entry.block_id)
