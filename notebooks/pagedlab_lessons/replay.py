"""A prefix cache without a model, under any eviction policy, also one that knows the future."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Literal

from pagedlab.arguments import one_of
from pagedlab.blocks import BlockPool, BlockTable
from pagedlab.prefix import PrefixCache, PrefixStats, hash_chain
from pagedlab.recipes.eviction import POOLS

NEVER = float("inf")


class Belady(BlockPool):
    """Evicts the block that is needed last, or never again.

    This is the optimum (L. A. Belady, "A study of replacement algorithms for a virtual-storage
    computer", 1966) for requests served one after another, whose blocks all fit at once: no other
    order that evicts only when it must has more hits. A block that is computed though it is cached
    (the last one of a prompt that fills it, say) is not a use of it, and there the optimum may be
    missed by that block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.uses: dict[bytes, list[int]] = {}  # by name: the numbers of the prompts that have it
        self.next_use: dict[int, float] = {}  # by block

    def foresee(self, prompts: Iterable[Sequence[int]]) -> None:
        """Learn all prompts, in order."""
        for number, prompt in enumerate(prompts):
            for name in hash_chain(prompt[:-1], self.block_size):
                self.uses.setdefault(name, []).append(number)

    def served(self, table: BlockTable, number: int) -> None:
        """Look up when the blocks of a prompt are needed again."""
        for entry in table.entries:
            uses = self.uses.get(entry.name, [])
            later = uses[bisect_left(uses, number + 1) :]
            self.next_use[entry.block_id] = later[0] if later else NEVER

    def victim(self) -> int:
        return max(self.cached, key=self.next_use.__getitem__)


def replay(
    requests: Iterable[tuple[Sequence[int], Sequence[int]]],
    num_blocks: int,
    block_size: int = 16,
    eviction: Literal["lru", "fifo", "lfu", "slru", "belady"] = "lru",
) -> PrefixStats:
    """Serve requests one after another on a new pool and cache, without a model.

    Args:
        requests: (prompt, output) token ids of each.
        num_blocks: of the pool.
        block_size: of the pool.
        eviction: which block is evicted.

    Returns:
        The cache's figures.
    """
    trace = list(requests)
    pools: dict[str, type[BlockPool]] = {**POOLS, "belady": Belady}
    name: str = one_of("eviction", eviction, pools)
    pool = pools[name](num_blocks, block_size)
    if isinstance(pool, Belady):
        pool.foresee(prompt for prompt, _ in trace)
    cache = PrefixCache(pool)
    for number, (prompt, output) in enumerate(trace):
        computed = [*prompt, *output[:-1]]  # the last token of an answer is never fed back
        table = cache.match(prompt)
        table.append(len(computed) - table.num_tokens)
        cache.register(table, computed)
        if isinstance(pool, Belady):
            pool.served(table, number)
        table.free()
    return cache.stats
