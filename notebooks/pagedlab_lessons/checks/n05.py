"""Checks of notebook 05: match and register, leaf before parent, the flaw of a naive cache.

The two naive caches that the notebook runs are here too. Use neither: both serve foreign keys and
values.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product

from pagedlab.blocks import BlockPool, BlockTable
from pagedlab.prefix import PrefixCache, hash_chain
from pagedlab_lessons.checks import (
    Function,
    Trial,
    Wrong,
    agree,
    compared,
    exercise,
    replay,
    search,
    trying,
)

A = [42788, 99149, *[0] * 6, 100989, 110250, *[0] * 6]
B = [94153, 49592, *[0] * 6, 144702, 104073, *[0] * 6]
"""Two different blocks with one xxh64 (seed 0, int32 ids): ac929a52ccb6c480."""


class ChecksOwnTokens(PrefixCache):
    """A naive prefix cache: chained xxh64 names; a hit is verified by the block's own tokens."""

    def __init__(self, pool: BlockPool, block_table: type[BlockTable] = BlockTable) -> None:
        super().__init__(pool, block_table)
        self.named: dict[bytes, tuple[int, list[int]]] = {}  # name -> block, its own tokens

    def names(self, token_ids: Sequence[int], salt: str | None) -> list[bytes]:
        return hash_chain(token_ids, self.pool.block_size, salt=salt)

    def own(self, token_ids: Sequence[int], i: int) -> list[int]:
        return list(token_ids[i * self.pool.block_size : (i + 1) * self.pool.block_size])

    def match(self, token_ids: Sequence[int], salt: str | None = None) -> BlockTable:
        table = BlockTable(self.pool)
        for i, name in enumerate(self.names(token_ids[:-1], salt)):
            block_id, tokens = self.named.get(name, (-1, []))
            if tokens != self.own(token_ids, i):
                break
            table.block_ids.append(self.pool.share(block_id))
            table.num_tokens += self.pool.block_size
        return table

    def register(
        self, table: BlockTable, token_ids: Sequence[int], salt: str | None = None
    ) -> None:
        for i, name in enumerate(self.names(token_ids, salt)):
            if self.named.get(name, (-1, []))[1] != self.own(token_ids, i):
                self.pool.keep(table.block_ids[i])
                self.named[name] = table.block_ids[i], self.own(token_ids, i)

    def lost(self, block_id: int) -> None:
        self.named = {name: entry for name, entry in self.named.items() if entry[0] != block_id}


class ForgetsThePast(ChecksOwnTokens):
    """Names a block by its own tokens, as if keys and values did not depend on earlier ones."""

    def names(self, token_ids: Sequence[int], salt: str | None) -> list[bytes]:
        blocks = [self.own(token_ids, i) for i in range(len(token_ids) // self.pool.block_size)]
        return [hash_chain(block, self.pool.block_size, salt=salt)[0] for block in blocks]


class Served:
    """Prompts served through a cache, with a memory that knows whose KV each block holds.

    A block's contents are the salt and all tokens from the prompt's first to the block's last: keys
    and values depend on these.

    Args:
        new_cache: makes a cache from a pool.
        num_blocks: of the pool.
        block_size: of the pool.
    """

    def __init__(self, new_cache: Function, num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.cache = new_cache(self.pool)
        self.memory: dict[int, str] = {}  # the contents of each block

    def serve(self, *prompts: Sequence[int], salt: str | None = None) -> int:
        """Look up all prompts and compute the rest, before the first one is registered.

        Args:
            prompts: token ids.
            salt: of all of them.

        Returns:
            The number of tokens that were found.

        Raises:
            Wrong: If the cache returns foreign KV or breaks another rule.
        """
        computed = [self._compute(prompt, salt) for prompt in prompts]
        for prompt, (table, _) in zip(prompts, computed, strict=True):
            self._register(table, prompt, salt)
        for table, _ in computed:
            table.free()
        message = "Once every table is freed, no block may be in use."
        with trying(message=message, expected="every count zero"):
            self.pool.check([])
        return sum(found for _, found in computed)

    together = serve  # the name for several

    def _compute(self, token_ids: Sequence[int], salt: str | None) -> tuple[BlockTable, int]:
        """Match a prompt and compute what is missing; all blocks found must be the prompt's own.

        Returns:
            The table, and the number of tokens that were found.
        """
        size = self.pool.block_size
        table = self.cache.match(list(token_ids), salt=salt)
        found = table.num_tokens
        if found >= len(token_ids):
            message = "The last token must be left to compute."
            raise Wrong(message, f"at most {len(token_ids) - 1} tokens", found)
        under = "" if salt is None else f" under salt {salt!r}"
        ends = range(size, len(token_ids) + size, size)
        contents = [f"computed for {token_ids[:end]}{under}" for end in ends]
        for block_id, wanted in zip(table.block_ids, contents, strict=False):
            message = f"Block {block_id} has KV of a different past."
            agree(wanted, self.memory[block_id], message)
        table.append(len(token_ids) - found)
        self.memory |= zip(table.block_ids, contents, strict=True)
        return table, found

    def _register(self, table: BlockTable, token_ids: Sequence[int], salt: str | None) -> None:
        """Register a prompt.

        Afterwards all its full blocks must be found, and known names must be those of the same
        blocks as before.
        """
        before = self._found(token_ids, salt)
        self.cache.register(table, list(token_ids), salt=salt)
        after = self._found(token_ids, salt)
        message = (
            "register gives a known hash another block. The first block keeps it: of two equal "
            "blocks only one is found."
        )
        agree(before, after[: len(before)], message)
        message = "A longer prompt must find every full block that was just registered."
        agree(len(token_ids) // self.pool.block_size, len(after), message)

    def _found(self, token_ids: Sequence[int], salt: str | None) -> list[int]:
        """Return the blocks that a prompt with one more token finds now."""
        table = self.cache.match([*token_ids, 0], salt=salt)
        block_ids = list(table.block_ids)
        table.free()
        return block_ids


# In six blocks: two prompts share a beginning, which is kept once. It is evicted, and the blocks
# after it stay.
_ORPHAN = [
    "together([1, 1, 2, 2, 9], [1, 1, 3, 3, 9])",
    "serve([2, 2, 2, 2, 9])",
    "serve([3, 3, 2, 2, 9])",
    "serve([1, 1, 3, 3, 9])",
]
# In six blocks: the last but one evicts the longest unused block. Those before and after it stay.
_ONE_LOST = [
    "serve([2, 2, 9])",
    "serve([1, 1, 9])",
    "serve([3, 3, 2, 2, 9])",
    "serve([2, 2, 2, 2, 9])",
    "serve([1, 1, 9], salt='x')",
    "serve([2, 2, 2, 2, 9])",
]
_CACHE_OPERATIONS = [
    "serve([1, 1, 2, 2, 9])",
    "serve([1, 1])",
    "serve([1, 1, 2, 2, 4, 4, 9])",
    "serve([1, 1, 9], salt='y')",
    "serve([1, 1, 9], salt='')",
    "together([1, 1, 2, 2, 9], [1, 1, 2, 2, 9])",
    *_ORPHAN,
    *_ONE_LOST[:-1],
]


def cache_trial(
    cache_class: type, num_blocks: int, block_size: int = 2, exact: bool = True
) -> Trial:
    """Drive a reader's cache beside `PrefixCache`.

    Args:
        cache_class: the reader's.
        num_blocks: of each pool.
        block_size: of each pool.
        exact: whether both must find the same; which block is evicted is the cache's choice.
    """
    yield f"cache = {cache_class.__name__}(BlockPool({num_blocks}, {block_size}))"
    servers = [Served(made, num_blocks, block_size) for made in (PrefixCache, cache_class)]
    while True:
        operation = yield _CACHE_OPERATIONS
        line = f"server.{operation}"
        expected, got = (eval(line, {"server": each}) for each in servers)  # noqa: S307 - a choice
        if exact:
            agree(expected, got, f"{operation} finds another number of tokens.")


def search_cache(cache_class: type) -> None:
    """Search for prompts for which a cache class goes wrong."""
    trial = partial(cache_trial, cache_class)
    starts = [partial(trial, 32), partial(trial, 6, exact=False), partial(trial, 32, 3)]
    search(starts)
    replay(starts[1], _ORPHAN)
    replay(partial(trial, 6), _ONE_LOST)


@exercise
def prefix_cache(answer: type) -> str:
    """A class with match(token_ids, salt) and register(table, token_ids, salt).

    It is made with a pool, the real one.
    """
    search_cache(answer)
    return (
        "Your cache finds what ours finds, never a block with another past, and keeps no unused "
        "block from the pool.\nIn a pool of six blocks, where almost every request evicts one, it "
        "stays right."
    )


Used = Mapping[int, int]  # by block: when it was last used
Parents = Mapping[int, int | None]  # by block
_TREE = {7: None, 3: 7, 5: 3, 2: 7, 4: None}  # the parent of each block


def _used(*blocks: int | None) -> tuple[Used, Parents]:
    """Return when each block was last used, its descendants included, and its parent."""
    last_used = {}
    for time, block in enumerate(blocks, 1):
        while block is not None:
            last_used[block] = time
            block = _TREE[block]
    return last_used, {block: _TREE[block] for block in last_used}


def _oldest_leaf(last_used: Used, parent: Parents) -> int:
    leaves = {*last_used} - {parent[block_id] for block_id in last_used}
    return min(leaves, key=last_used.__getitem__)


def _why_evicted(last_used: Used, parent: Parents) -> str:
    oldest = min(last_used, key=last_used.__getitem__)
    right = _oldest_leaf(last_used, parent)
    words = f"Of the leaves, block {right} was used first: evict {right} first."
    for child in last_used:
        if parent[child] == oldest:
            return f"Block {oldest} is the parent of block {child}, which is cached. {words}"
    return words


@compared(
    "Right in all {} caches tried: the evicted block is never one that others need to be found.",
    [_used(*blocks) for n in (1, 2, 3) for blocks in product(_TREE, repeat=n)],
    why=_why_evicted,
)
def leaf_first(last_used: Used, parent: Parents) -> int:
    """The cached block to evict next: the least recently used of those without a child."""
    return _oldest_leaf(last_used, parent)


@exercise
def foreign_kv(answer: Sequence[str]) -> str:
    """Requests after which `ChecksOwnTokens` serves foreign KV.

    A list of strings over the blocks A, B and T, such as ["A", "AT"].
    """
    blocks = {"A": A, "B": B, "T": list(range(100, 116))}
    is_list = isinstance(answer, (list, tuple)) and answer
    if not is_list or not all(one and {*one} <= {*blocks} for one in answer):
        message = "Give a list; name each request by its blocks, such as 'A' or 'AT'."
        raise Wrong(message, "a list of strings", repr(answer))
    server = Served(ChecksOwnTokens, 16 * len(answer) + 256, 16)
    steps = []
    for number, request in enumerate(answer, 1):
        token_ids = [token for name in request for token in blocks[name]]
        try:
            # One token more, so that the last block can be found too.
            found = server.serve([*token_ids, 7])
        except Wrong:
            return (
                f"Request {number}, {request}, gets a block with a different past. Its hash is "
                "right, since A and B\nhave one hash and so have all blocks after them; its own "
                "tokens are right; the tokens before it are not."
            )
        steps.append(f"{request}: {found // 16} of {len(request)} blocks found, all right")
    raise Wrong(
        "The cache served every request KV of its own past.",
        "a foreign block is served",
        f"none in {len(answer)} requests",
        steps[-6:],
    )
