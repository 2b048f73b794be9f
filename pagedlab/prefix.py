"""The prefix cache: it finds blocks that hold the KV of a prompt's first tokens. Pure Python.

The KV of a token depends on every token before it. So two sequences can share a block only if all
their tokens up to the end of the block are equal. Each full block gets a name: a hash of its
parent's name and its own tokens. To match a prompt, the names are looked up from its first block on
until one is missing:

    prompt      | tokens 0-15 | tokens 16-31 | tokens 32-40 |
    name          a = H(0-15)   b = H(a, 16-31)  not full: no name

H is xxh64 (seed 0) of the parent's 8 bytes (none for a first block) and the tokens as int32. It is
fast, but collisions can be constructed. So each hit is verified: the tokens must be equal, and the
parent must be the entry that was matched before. By induction, all tokens are equal then. Either
check alone would not be enough, and a prompt could get the KV of another.

A block is registered when a step is planned that fills it, before its KV is computed. Requests that
are planned later in the same step share it already, because each layer writes the KV of the whole
step before it reads any:

    plan:     A takes slots, its full blocks are registered;  B matches them
    compute:  in each layer, write the KV of A and B, then attend

When the last reference to a registered block is released, the block is cached: it keeps its
contents until a table writes to it or the pool evicts it. If the parent of an entry is evicted, no
match finds the entry any more. Its block is evicted in its turn.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import TypeAlias

import xxhash

from pagedlab.arguments import shown, subclass, valid_text
from pagedlab.blocks import BlockPool, BlockTable


@dataclass(eq=False, slots=True)
class Entry:
    """A registered block. If the block is registered again, that is another entry.

    Args:
        block_id: the id of the block.
        name: the name of the block.
        tokens: its tokens as int32.
        parent: the entry of the block before; for the first block of a prompt, the prompt's salt.
    """

    block_id: int
    name: bytes
    tokens: bytes
    parent: Parent


Parent: TypeAlias = Entry | str | None


@dataclass
class PrefixStats:
    """Figures of a prefix cache since it was made.

    Args:
        asked_tokens: tokens of the prompts that were matched.
        hit_tokens: tokens that were found.
    """

    asked_tokens: int = 0
    hit_tokens: int = 0

    @property
    def hit_rate(self) -> float:
        """The share of `asked_tokens` that was found."""
        return self.hit_tokens / max(self.asked_tokens, 1)


def _names(
    token_ids: Seq[int], block_size: int, parent: Parent, start: int = 0
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the name and the tokens of each full block from `start` on.

    Args:
        token_ids: the tokens of the prompt.
        block_size: tokens a block.
        parent: the entry of the block before `start`, or the salt.
        start: the first block.
    """
    if isinstance(parent, Entry):
        name = parent.name
    else:
        name = b"" if parent is None else xxhash.xxh64_digest(b"s" + parent.encode())
    for i in range(start, len(token_ids) // block_size):
        tokens = array("i", token_ids[i * block_size : (i + 1) * block_size]).tobytes()
        name = xxhash.xxh64_digest(name + tokens)
        yield name, tokens


def hash_chain(token_ids: Seq[int], block_size: int = 16, salt: str | None = None) -> list[bytes]:
    """Return the names of the full blocks of a prompt, first to last."""
    return [name for name, _ in _names(token_ids, block_size, salt)]


class PrefixCache:
    """Finds the blocks of prompts that begin alike, so that they are shared.

    Every method takes constant time a block.

    Args:
        pool: a `BlockPool` without another prefix cache.
        block_table: the class of the tables that `match` returns.
        salt: a text that is hashed into the first block; None for none. Prompts share blocks only
            if their salts are equal. Each method accepts another salt for one request.
    """

    def __init__(
        self, pool: BlockPool, block_table: type[BlockTable] = BlockTable, salt: str | None = None
    ) -> None:
        if not isinstance(pool, BlockPool):
            raise ValueError(f"a prefix cache needs a BlockPool, got {shown(pool)}")
        self.pool = pool
        self.block_table = subclass("block_table", block_table, BlockTable)
        self.salt = valid_text("salt", salt)
        self.stats = PrefixStats()
        self._by_name: dict[bytes, Entry] = {}
        self._by_block: dict[int, Entry] = {}  # the same entries
        if pool.on_forgotten is not None:
            raise ValueError("the pool has a prefix cache already: make a pool for each")
        pool.on_forgotten = self.lost

    def __len__(self) -> int:
        """The number of registered blocks, used or cached."""
        return len(self._by_block)

    def __repr__(self) -> str:
        return f"PrefixCache({len(self)} blocks registered, {self.pool.num_cached} of them cached)"

    def match(self, token_ids: Seq[int], salt: str | None = None) -> BlockTable:
        """Return a table over the longest registered prefix of full blocks.

        The last token is left out: an engine computes it in any case, to get the logits for the
        next one. The table may be empty. It owns its references, so the caller must free it.

        Args:
            token_ids: the tokens of the prompt.
            salt: the salt of the prompt; None for the cache's own.
        """
        table = self.block_table(self.pool)
        table.entries = self._longest_prefix(token_ids, salt)
        for entry in table.entries:
            table.block_ids.append(self.pool.share(entry.block_id))
            self.pool.emit("hit", entry.block_id)
        table.num_tokens = len(table.block_ids) * self.pool.block_size
        self.stats.asked_tokens += len(token_ids)
        self.stats.hit_tokens += table.num_tokens
        return table

    def num_shared(self, token_ids: Seq[int], salt: str | None = None) -> int:
        """Return how many of the blocks that `match` would find are in use now.

        This does not count as a lookup. The arguments are those of `match`.
        """
        entries = self._longest_prefix(token_ids, salt)
        return sum(self.pool.refcount(entry.block_id) > 0 for entry in entries)

    def register(self, table: BlockTable, token_ids: Seq[int], salt: str | None = None) -> None:
        """Register the full blocks of a table that are not registered yet.

        If another block with the same contents is registered, that one stays, and the table keeps
        its own block. So `table.entries` may name other blocks than `table.block_ids`.

        Args:
            table: the block table.
            token_ids: its tokens, from the first one on. They must be final.
            salt: the salt that `match` got; None for the cache's own.
        """
        entries = table.entries
        parent = entries[-1] if entries else self._salt(salt)
        for name, tokens in _names(token_ids, self.pool.block_size, parent, len(entries)):
            entry = self._verified(name, tokens, parent)
            if entry is None:
                entry = Entry(table.block_ids[len(entries)], name, tokens, parent)
                self._add(entry)
            entries.append(entry)
            parent = entry

    def clear(self) -> None:
        """Forget every block, for instance after the model's weights have changed.

        Used blocks stay used.
        """
        for block_id in tuple(self._by_block):
            self.pool.forget(block_id)

    def lost(self, block_id: int) -> None:
        """Remove the entry of a block. The pool calls it when it no longer keeps the block."""
        entry = self._by_block.pop(block_id)
        del self._by_name[entry.name]

    def _longest_prefix(self, token_ids: Seq[int], salt: str | None) -> list[Entry]:
        """Return the entries of the longest registered prefix, without the last token."""
        found: list[Entry] = []
        parent: Parent = self._salt(salt)
        for name, tokens in _names(token_ids[:-1], self.pool.block_size, parent):
            entry = self._verified(name, tokens, parent)
            if entry is None:
                break
            found.append(entry)
            parent = entry
        return found

    def _verified(self, name: bytes, tokens: bytes, parent: Parent) -> Entry | None:
        """Return the entry with this name, if it is the right block.

        The parent was verified before, so by induction all tokens before the block are right too.
        An entry equals only itself, and a salt equals the same text.
        """
        entry = self._by_name.get(name)
        if entry is not None and entry.tokens == tokens and entry.parent == parent:
            return entry
        return None

    def _add(self, entry: Entry) -> None:
        """Register a block. It replaces one that has its name: a collision, or an entry whose
        parent was evicted."""
        if entry.name in self._by_name:
            self.pool.forget(self._by_name[entry.name].block_id)
        self.pool.keep(entry.block_id)
        self._by_name[entry.name] = entry
        self._by_block[entry.block_id] = entry

    def _salt(self, salt: str | None) -> str | None:
        """The salt of a request, or else the cache's own."""
        return self.salt if salt is None else valid_text("salt", salt)
