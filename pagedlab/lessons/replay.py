"""A prefix cache without a model, under any eviction policy, also one that knows the future."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pagedlab.blocks import BlockPool
from pagedlab.eviction import Rank, by_rank
from pagedlab.prefix import Entry, PrefixCache, PrefixStats, hash_chain


class Belady:
    """The rank for a known future: the block needed last, or never again, is evicted first.

    This is the optimum (L. A. Belady, "A study of replacement algorithms for a virtual-storage
    computer", 1966) for requests served one after another, whose blocks all fit at once: no other
    order that evicts only when it must has more hits. A block that is computed though it is cached
    (the last one of a prompt that fills it, say) is not a use of it, and there the optimum may be
    missed by that block.

    Args:
        chains: for each match, the chained hashes of the blocks that it looks for.
    """

    def __init__(self, chains: Iterable[Iterable[bytes]]) -> None:
        self._uses: dict[bytes, list[int]] = {}
        for time, chain in enumerate(chains):
            for name in chain:
                self._uses.setdefault(name, []).append(time)

    def __call__(self, entry: Entry, now: int) -> float:
        uses = self._uses.get(entry.hash, [])
        i = bisect_left(uses, now)
        return -uses[i] if i < len(uses) else float("-inf")


def replay(
    requests: Iterable[tuple[Sequence[int], Sequence[int]]],
    num_blocks: int,
    block_size: int = 16,
    eviction: Literal["lru", "fifo", "lfu", "slru", "belady"] | Rank = "lru",
) -> PrefixStats:
    """Serve requests one after another on a new pool and cache, without a model.

    Args:
        requests: (prompt, output) token ids of each.
        num_blocks: of the pool.
        block_size: of the pool.
        eviction: a policy by name, or a rank.

    Returns:
        The cache's figures.
    """
    trace = list(requests)
    policy: Any = eviction
    if eviction == "belady":
        policy = by_rank(Belady(hash_chain(prompt[:-1], block_size) for prompt, _ in trace))
    elif callable(eviction):
        policy = by_rank(eviction)
    cache = PrefixCache(BlockPool(num_blocks, block_size), eviction=policy)
    for prompt, output in trace:
        computed = [*prompt, *output[:-1]]  # the last token of an answer is never fed back
        table = cache.match(prompt, leave=1)
        table.append(len(computed) - table.num_tokens)
        cache.insert(table, computed)
        table.free()
    return cache.stats
