"""Which cached block a pool evicts, and what each policy finds on a trace."""

from functools import cache
from itertools import combinations

import pytest
from pagedlab_lessons.replay import replay
from pagedlab_lessons.traces import shared_prompts

from pagedlab.prefix import PrefixCache
from pagedlab.recipes.eviction import POOLS


class OneBlockPrompts:
    """Serves prompts of one block, which is named by its token, from four blocks of one token."""

    def __init__(self, name):
        self.pool = POOLS[name](4, 1)
        self.cache = PrefixCache(self.pool)
        self.token_of = {}
        self.gone = []
        self.pool.subscribe(self.on_event)

    def on_event(self, event):
        if event.kind == "evict":
            self.gone.append(self.token_of[event.block_id])

    def serve(self, *tokens):
        for token in tokens:
            table = self.cache.match([token, 0])
            table.append(1 - table.num_tokens)
            self.token_of[table.block_ids[0]] = token
            self.cache.register(table, [token])
            table.free()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lru", [2, 4, 1]),  # 3 and 1 were used after 2 and 4, and 3 again after 1
        ("fifo", [1, 2, 3]),
        ("lfu", [2, 4, 5]),  # 1 was hit once, 3 twice; of the others the oldest
        ("slru", [2, 4, 5]),  # 1 and 3 were hit
    ],
)
def test_order_of_eviction(name, expected):
    served = OneBlockPrompts(name)
    served.serve(1, 2, 3, 4, 3, 1, 3, 5, 6, 7)
    assert served.gone == expected


@pytest.mark.parametrize("name", POOLS)
def test_nothing_is_remembered_of_blocks_that_were_forgotten(name):
    served, new = OneBlockPrompts(name), OneBlockPrompts(name)
    served.serve(1, 2, 3, 4, 2, 1, 1)
    served.cache.clear()
    for one in (served, new):
        one.serve(5, 6, 7, 8, 6, 9, 5, 1, 2)
    assert served.gone == new.gone


@pytest.mark.parametrize("name", ["lru", "lfu", "slru"])
def test_a_child_is_evicted_before_its_parent(name):
    pool = POOLS[name](100)
    found = PrefixCache(pool)
    parents = {}  # of each registered block

    def on_event(event):
        if event.kind in ("evict", "forget"):
            assert event.block_id not in parents.values()
            del parents[event.block_id]

    pool.subscribe(on_event)
    for prompt, _ in shared_prompts(200, 5, seed=3):
        table = found.match(prompt)
        table.append(len(prompt) - table.num_tokens)
        found.register(table, prompt)
        ids = [entry.block_id for entry in table.entries]
        parents |= zip(ids[1:], ids, strict=False)
        parents.setdefault(ids[0], None)
        table.free()
    assert len(parents) == pool.num_cached


# Replays ------------------------------------------------------------------------------------------------------------


def optimum(paths, num_blocks):
    """Most blocks that any choice of evictions can find, by trying them all. Parents may go before children here."""

    @cache
    def best(t, cached):
        if t == len(paths):
            return 0
        found = next((i for i, block in enumerate(paths[t]) if block not in cached), len(paths[t]))
        others = cached - set(paths[t])
        keep = min(len(others), num_blocks - len(paths[t]) - 1)
        return found + max(best(t + 1, frozenset([*paths[t], *kept])) for kept in combinations(others, keep))

    return best(0, frozenset())


def test_belady_is_the_optimum(rng):
    """Prompts of 1 to 4 full blocks and one token more, which begin alike."""
    for _ in range(60):
        prompts = [[rng.randrange(2 + rng.randrange(3)) for _ in range(rng.randint(1, 4))] for _ in range(9)]
        trace, num_blocks = [([*prompt, 99], []) for prompt in prompts], rng.randint(5, 7)
        paths = [[tuple(prompt[: i + 1]) for i in range(len(prompt))] for prompt in prompts]
        assert replay(trace, num_blocks, 1, "belady").hit_tokens == optimum(paths, num_blocks), (trace, num_blocks)
