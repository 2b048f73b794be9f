"""Checks of notebook 05: match and insert, leaf before parent, the flaw of a cache that checks own tokens only.

The two naive caches that the notebook runs stand here too. Use neither: both serve foreign keys and values.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pagedlab.blocks import BlockPool, BlockTable, InvariantError
from pagedlab.checks import Wrong, compare, exercise, replay, search
from pagedlab.prefix import PrefixCache, hash_chain


def colliding_block(*values: int) -> list[int]:
    """Sixteen ids, zero but at positions 0, 1, 8 and 9."""
    block = [0] * 16
    for position, value in zip((0, 1, 8, 9), values, strict=True):
        block[position] = value
    return block


A = colliding_block(42788, 99149, 100989, 110250)
B = colliding_block(94153, 49592, 144702, 104073)
"""Two different blocks with one xxh64 (seed 0, int32 ids): ac929a52ccb6c480."""


class ChecksOwnTokens:
    """A naive prefix cache: chained xxh64 names, and a hit is verified by the block's own tokens alone."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.named: dict[bytes, tuple[int, list[int]]] = {}  # name -> block, its own tokens
        pool.attach(self.lost)

    def names(self, token_ids: list[int], salt: str | None) -> list[bytes]:
        return hash_chain(token_ids, self.pool.block_size, salt=salt)

    def own(self, token_ids: list[int], i: int) -> list[int]:
        return token_ids[i * self.pool.block_size : (i + 1) * self.pool.block_size]

    def match(self, token_ids: list[int], leave: int = 0, salt: str | None = None) -> BlockTable:
        table = BlockTable(self.pool)
        for i, name in enumerate(self.names(token_ids[: max(0, len(token_ids) - leave)], salt)):
            block_id, tokens = self.named.get(name, (-1, []))
            if tokens != self.own(token_ids, i):
                break
            table.block_ids.append(self.pool.share(block_id))
            table.num_tokens += self.pool.block_size
        return table

    def insert(self, table: BlockTable, token_ids: list[int], salt: str | None = None) -> None:
        for i, name in enumerate(self.names(token_ids, salt)):
            if self.named.get(name, (-1, []))[1] != self.own(token_ids, i):
                self.pool.keep(table.block_ids[i])
                self.named[name] = table.block_ids[i], self.own(token_ids, i)

    def lost(self, block_id: int, evicted: bool) -> None:
        self.named = {name: entry for name, entry in self.named.items() if entry[0] != block_id}


class ForgetsThePast(ChecksOwnTokens):
    """Names every block by its own tokens, as if its keys and values did not depend on what came before."""

    def names(self, token_ids: list[int], salt: str | None) -> list[bytes]:
        blocks = [self.own(token_ids, i) for i in range(len(token_ids) // self.pool.block_size)]
        return [hash_chain(block, self.pool.block_size, salt=salt)[0] for block in blocks]


# What a hit must hold -----------------------------------------------------------------------------------------


class Served:
    """Prompts served one after another through a cache, with a memory that knows whose KV each block holds.

    A block's contents are the salt and all the tokens from the prompt's first to the block's last: that is what keys
    and values depend on. `serve` and `together` return how many tokens were found, and raise `Wrong` for a foreign hit.
    """

    def __init__(self, new_cache: Callable[[Any], Any], num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.cache = new_cache(self.pool)
        self.memory: dict[int, tuple[str | None, list[int]]] = {}

    def serve(self, token_ids: Sequence[int], salt: str | None = None) -> int:
        return self.together(token_ids, salt=salt)

    def together(self, *prompts: Sequence[int], salt: str | None = None) -> int:
        tables = [self._compute(list(prompt), salt) for prompt in prompts]
        for prompt, (table, _) in zip(prompts, tables, strict=True):
            self.cache.insert(table, list(prompt), salt=salt)
        for table, _ in tables:
            table.free()
        try:
            self.pool.check([])
        except InvariantError as error:
            raise Wrong("Once every table is freed, no block may be in use.", "every count zero", error) from None
        return sum(found for _, found in tables)

    def _compute(self, token_ids: list[int], salt: str | None) -> tuple[Any, int]:
        size = self.pool.block_size
        table = self.cache.match(list(token_ids), leave=1, salt=salt)
        if not isinstance(table, BlockTable):
            raise Wrong("match returns another thing than a table.", "a BlockTable", table)
        found = table.num_tokens
        if found != size * len(table.block_ids):
            raise Wrong("match returns full blocks.", f"num_tokens {size * len(table.block_ids)}", found)
        if found >= len(token_ids):
            raise Wrong("leave=1: a token must be left to compute.", f"at most {len(token_ids) - 1} tokens", found)
        past = [(salt, token_ids[: (i + 1) * size]) for i in range(-(-len(token_ids) // size))]
        for block_id, wanted in zip(table.block_ids, past, strict=False):
            if self.memory[block_id] != wanted:
                raise Wrong(f"Block {block_id} holds foreign KV.", _said(wanted), _said(self.memory[block_id]))
        table.append(len(token_ids) - found)
        for block_id, wanted in list(zip(table.block_ids, past, strict=True))[found // size :]:
            self.memory[block_id] = wanted
        return table, found


def _said(contents: tuple[str | None, list[int]]) -> str:
    salt, tokens = contents
    return f"computed for {tokens}" + (f" under salt {salt!r}" if salt is not None else "")


class CacheTrial:
    """A reader's cache beside `PrefixCache`. With `exact`, nothing is ever evicted, and both must find the same."""

    PROMPTS = ([1, 1, 9], [1, 1, 2, 2, 9], [2, 2, 9], [2, 2, 2, 2, 9], [3, 3, 2, 2, 9], [1, 1], [1, 1, 2, 2, 4, 4, 9])
    ORPHAN = (  # in six blocks: of two that begin alike only one beginning is kept; it goes, and what is behind stays
        "together([1, 1, 2, 2, 9], [1, 1, 3, 3, 9])",
        *("serve([2, 2, 2, 2, 9])", "serve([3, 3, 2, 2, 9])", "serve([1, 1, 3, 3, 9])"),
    )

    def __init__(self, cache_class: type, exact: bool) -> None:
        self.exact = exact
        num_blocks = 64 if exact else 6
        self.setup = f"cache = {cache_class.__name__}(BlockPool({num_blocks}, 2))"
        self.mine, self.right = (Served(made, num_blocks, 2) for made in (cache_class, PrefixCache))

    def choices(self) -> Sequence[str]:
        lines = [f"serve({prompt})" for prompt in self.PROMPTS]
        lines += ["serve([1, 1, 9], salt='x')", "together([1, 1, 2, 2, 9], [1, 1, 2, 2, 9])"]
        return list(dict.fromkeys([*lines, *self.ORPHAN]))

    def do(self, operation: str) -> None:
        worlds = ({"serve": world.serve, "together": world.together} for world in (self.mine, self.right))
        got, expected = (eval(operation, names) for names in worlds)  # noqa: S307 - one of `choices`
        if self.exact and got != expected:
            raise Wrong(f"{operation} finds another number of tokens.", f"{expected} tokens", f"{got} tokens")


# Notebook 05 --------------------------------------------------------------------------------------------------


@exercise
def prefix_cache(answer: type) -> str:
    """A cache with match(token_ids, leave, salt) and insert(table, token_ids, salt) over the real pool."""
    starts = [partial(CacheTrial, answer, exact) for exact in (True, False)]
    search(starts, sequences=200, walks=24, length=12)
    wrong, _ = replay(starts[1], CacheTrial.ORPHAN)
    if wrong:
        raise wrong
    return (
        "Your cache finds what ours finds, never a block with another past, and holds no block that nobody uses.\n"
        "In a pool of six blocks, where something is evicted at almost every request, it stays right."
    )


def _next_to_evict(last_used: Mapping[int, int], parent: Mapping[int, int | None]) -> int:
    parents = {parent[block_id] for block_id in last_used}
    return min((block_id for block_id in last_used if block_id not in parents), key=last_used.__getitem__)


@exercise
def leaf_first(answer: Callable[[dict[int, int], dict[int, int | None]], int]) -> str:
    """Which cached block goes next: the least recently used of those that are no other's parent."""
    chance = random.Random(2)
    cases: list[tuple[dict[int, int], dict[int, int | None]]] = [
        ({4: 1}, {4: None}),
        ({4: 1, 2: 1}, {4: None, 2: 4}),
        ({4: 2, 2: 1}, {4: None, 2: None}),
        ({4: 2, 2: 1, 7: 2}, {4: None, 2: 4, 7: 4}),
        ({4: 1, 2: 1, 7: 2, 5: 2, 1: 2}, {4: None, 2: 4, 7: None, 5: 7, 1: 5}),
    ]
    for _ in range(60):
        blocks = chance.sample(range(40), chance.randint(2, 8))
        tree = {block: chance.choice([None, *blocks[:i]]) for i, block in enumerate(blocks)}
        last_used: dict[int, int] = {}
        for time in range(1, chance.randint(3, 7)):
            block: int | None = chance.choice(blocks)
            while block is not None:
                last_used[block] = time
                block = tree[block]
        cases.append((last_used, {block: tree[block] for block in last_used}))
    compare(answer, _next_to_evict, cases)
    return f"Right in all {len(cases)} caches tried: what goes is never a block that others need to be found."


@exercise
def foreign_kv(answer: Sequence[str]) -> str:
    """Requests, each a string over the blocks A, B and T, after which `ChecksOwnTokens` serves foreign KV."""
    blocks = {"A": A, "B": B, "T": list(range(100, 116))}
    requests = list(answer)
    if not requests or not all(isinstance(r, str) and r and set(r) <= set(blocks) for r in requests):
        raise Wrong("Name each request by its blocks, such as 'A' or 'AT'.", "a list of strings", answer)
    server = Served(ChecksOwnTokens, 16 * len(requests) + 256, 16)
    steps = []
    for number, request in enumerate(requests, 1):
        ids = [token for name in request for token in blocks[name]]
        try:
            found = server.serve([*ids, 7])  # one token more, so that the last block can be found too
        except Wrong:
            return (
                f"Request {number}, {request}, is served a block of another past. Its name is right, since A and B\n"
                "hash alike and so does all that follows them; its own tokens are right; what came before them is not."
            )
        steps.append(f"{request}: {found // 16} of {len(request)} blocks found, all right")
    got = f"{len(requests)} requests, and no foreign block"
    raise Wrong("The cache got away with it.", "a foreign block is served", got, operations=steps[-6:])
