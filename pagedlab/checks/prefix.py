"""Checks of notebook 05: match and insert, leaf before parent, the flaw of a cache that checks own
tokens only.

The two naive caches that the notebook runs stand here too. Use neither: both serve foreign keys and
values.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from pagedlab.blocks import BlockPool, BlockTable
from pagedlab.checks import Trial, Wrong, agree, compared, exercise, replay, search, trying
from pagedlab.prefix import PrefixCache, hash_chain

A = [42788, 99149, *[0] * 6, 100989, 110250, *[0] * 6]
B = [94153, 49592, *[0] * 6, 144702, 104073, *[0] * 6]
"""Two different blocks with one xxh64 (seed 0, int32 ids): ac929a52ccb6c480."""


class ChecksOwnTokens:
    """A naive prefix cache: chained xxh64 names, and a hit is verified by the block's own tokens
    alone.
    """

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
    """Names every block by its own tokens, as if its keys and values did not depend on what came
    before.
    """

    def names(self, token_ids: list[int], salt: str | None) -> list[bytes]:
        blocks = [self.own(token_ids, i) for i in range(len(token_ids) // self.pool.block_size)]
        return [hash_chain(block, self.pool.block_size, salt=salt)[0] for block in blocks]


class Served:
    """Prompts served one after another through a cache, with a memory that knows whose KV each
    block holds.

    A block's contents are the salt and all the tokens from the prompt's first to the block's last:
    that is what keys and values depend on. `serve` returns how many tokens were found, and raises
    `Wrong` for a foreign hit.
    """

    def __init__(self, new_cache: Callable[[Any], Any], num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.cache = new_cache(self.pool)
        self.memory: dict[int, str] = {}

    def serve(self, *prompts: Sequence[int], salt: str | None = None) -> int:
        """Look them all up and compute what is not found, before the first is inserted."""
        tables = [self._compute(list(prompt), salt) for prompt in prompts]
        for prompt, (table, _) in zip(prompts, tables, strict=True):
            self._insert(table, list(prompt), salt)
        for table, _ in tables:
            table.free()
        with trying(
            message="Once every table is freed, no block may be in use.",
            expected="every count zero",
        ):
            self.pool.check([])
        return sum(found for _, found in tables)

    together = serve  # the name for several

    def _compute(self, token_ids: list[int], salt: str | None) -> tuple[Any, int]:
        size = self.pool.block_size
        table = self.cache.match(list(token_ids), leave=1, salt=salt)
        if not isinstance(table, BlockTable):
            raise Wrong("match returns another thing than a table.", "a BlockTable", table)
        found, full = table.num_tokens, size * len(table.block_ids)
        agree(full, found, "match returns full blocks.", "num_tokens {}".format)
        if found >= len(token_ids):
            raise Wrong(
                "leave=1: a token must be left to compute.",
                f"at most {len(token_ids) - 1} tokens",
                found,
            )
        under = "" if salt is None else f" under salt {salt!r}"
        past = [
            f"computed for {token_ids[: start + size]}{under}"
            for start in range(0, len(token_ids), size)
        ]
        for block_id, wanted in zip(table.block_ids, past, strict=False):
            agree(wanted, self.memory[block_id], f"Block {block_id} holds foreign KV.", str)
        table.append(len(token_ids) - found)
        self.memory |= zip(table.block_ids[found // size :], past[found // size :], strict=True)
        return table, found

    def _insert(self, table: BlockTable, token_ids: list[int], salt: str | None) -> None:
        """Afterwards all full blocks are found, and names that were known before stand for the same
        blocks.
        """
        before = self._found(token_ids, salt)
        self.cache.insert(table, list(token_ids), salt=salt)
        after, full = self._found(token_ids, salt), len(token_ids) // self.pool.block_size
        message = (
            "insert gives a known name another block. The first keeps it: of two blocks alike only "
            "one is found."
        )
        agree(before, after[: len(before)], message, "the known names stand for blocks {}".format)
        if len(after) < full:
            empty = len(self._found(token_ids, salt, leave=1)) > len(after)
            hint = (
                " With leave=1 it finds more: mind that token_ids[:-0] is empty." if empty else ""
            )
            message = f"match with leave=0 must find every full block that was just inserted.{hint}"
            raise Wrong(message, f"{full} blocks", f"{len(after)} blocks")

    def _found(self, token_ids: list[int], salt: str | None, leave: int = 0) -> list[int]:
        table = self.cache.match(list(token_ids), leave=leave, salt=salt)
        block_ids = list(table.block_ids)
        table.free()
        return block_ids


_PROMPTS = [
    [1, 1, 9],
    [1, 1, 2, 2, 9],
    [2, 2, 9],
    [2, 2, 2, 2, 9],
    [3, 3, 2, 2, 9],
    [1, 1],
    [1, 1, 2, 2, 4, 4, 9],
]
# In six blocks: of two that begin alike only one beginning is kept; it goes, and what is behind
# stays.
_ORPHAN = ["together([1, 1, 2, 2, 9], [1, 1, 3, 3, 9])"]
_ORPHAN += ["serve([2, 2, 2, 2, 9])", "serve([3, 3, 2, 2, 9])", "serve([1, 1, 3, 3, 9])"]


def cache_trial(cache_class: type, exact: bool) -> Trial:
    """A reader's cache beside `PrefixCache`.

    With `exact`, nothing is ever evicted, and both must find the same.
    """
    num_blocks = 64 if exact else 6
    yield f"cache = {cache_class.__name__}(BlockPool({num_blocks}, 2))"
    mine, right = (Served(made, num_blocks, 2) for made in (cache_class, PrefixCache))
    lines = [f"serve({prompt})" for prompt in _PROMPTS]
    lines += ["serve([1, 1, 9], salt='x')", "together([1, 1, 2, 2, 9], [1, 1, 2, 2, 9])", *_ORPHAN]
    while True:
        operation = yield list(dict.fromkeys(lines))
        got, expected = (eval(f"it.{operation}", {"it": it}) for it in (mine, right))  # noqa: S307 - one of `lines`
        if exact:
            agree(expected, got, f"{operation} finds another number of tokens.", "{} tokens".format)


@exercise
def prefix_cache(answer: type) -> str:
    """A cache with match(token_ids, leave, salt) and insert(table, token_ids, salt) over the real
    pool.
    """
    starts = [partial(cache_trial, answer, exact) for exact in (True, False)]
    search(starts, sequences=200, walks=24, length=12)
    replay(starts[1], _ORPHAN)
    does = (
        "Your cache finds what ours finds, never a block with another past, and holds no block "
        "that nobody uses."
    )
    return (
        f"{does}\nIn a pool of six blocks, where something is evicted at almost every request, it "
        "stays right."
    )


def _cached_blocks() -> Iterator[tuple[dict[int, int], dict[int, int | None]]]:
    """When each block was last used, and its parent; a parent is used whenever its child is."""
    yield {4: 1}, {4: None}
    yield {4: 1, 2: 1}, {4: None, 2: 4}
    yield {4: 2, 2: 1}, {4: None, 2: None}
    yield {4: 2, 2: 1, 7: 2}, {4: None, 2: 4, 7: 4}
    yield {4: 1, 2: 1, 7: 2, 5: 2, 1: 2}, {4: None, 2: 4, 7: None, 5: 7, 1: 5}
    chance = random.Random(2)
    for _ in range(60):
        blocks = chance.sample(range(40), chance.randint(2, 8))
        tree = {block: chance.choice([None, *blocks[:i]]) for i, block in enumerate(blocks)}
        last_used: dict[int, int] = {}
        for time in range(1, chance.randint(3, 7)):
            block: int | None = chance.choice(blocks)
            while block is not None:
                last_used[block] = time
                block = tree[block]
        yield last_used, {block: tree[block] for block in last_used}


@compared(
    "Right in all {} caches tried: what goes is never a block that others need to be found.",
    _cached_blocks(),
)
def leaf_first(last_used: Mapping[int, int], parent: Mapping[int, int | None]) -> int:
    """Which cached block goes next: the least recently used of those that are no other's parent."""
    parents = {parent[block_id] for block_id in last_used}
    return min(
        (block_id for block_id in last_used if block_id not in parents), key=last_used.__getitem__
    )


@exercise
def foreign_kv(answer: Sequence[str]) -> str:
    """Requests, each a string over the blocks A, B and T, after which `ChecksOwnTokens` serves
    foreign KV.
    """
    blocks = {"A": A, "B": B, "T": list(range(100, 116))}
    if isinstance(answer, str):
        raise Wrong(
            "One string is one request: put the requests into a list.", "a list", repr(answer)
        )
    requests = list(answer)
    if not requests or not all(
        isinstance(r, str) and r and set(r) <= set(blocks) for r in requests
    ):
        raise Wrong(
            "Name each request by its blocks, such as 'A' or 'AT'.", "a list of strings", answer
        )
    server = Served(ChecksOwnTokens, 16 * len(requests) + 256, 16)
    steps = []
    for number, request in enumerate(requests, 1):
        ids = [token for name in request for token in blocks[name]]
        try:
            # one token more, so that the last block can be found too
            found = server.serve([*ids, 7])
        except Wrong:
            past = (
                f"Request {number}, {request}, is served a block of another past. Its name is right"
            )
            alike = (
                "since A and B\nhash alike and so does all that follows them; its own tokens are "
                "right"
            )
            return f"{past}, {alike}; what came before them is not."
        steps.append(f"{request}: {found // 16} of {len(request)} blocks found, all right")
    raise Wrong(
        "The cache got away with it.",
        "a foreign block is served",
        f"none in {number} requests",
        *steps[-6:],
    )
