"""The prefix cache against a model without hashes, the worked numbers on prefixes, the eviction orders, planted bugs.

In the model every slot of memory holds the number of its whole prefix, given out by an exact look-up in a tree
(parent's number, token). A hit is right if each slot of the table returned holds the number of the prefix that was
asked for; and it is complete if it is as long as what the model has registered and not seen written or evicted.
"""

import gc
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.blocks import LRU, BlockCopy, BlockPool, BlockTable, OutOfBlocks, blocks_for
from pagedlab.checks.prefix import A, B
from pagedlab.eviction import Ranked, by_rank
from pagedlab.lessons.replay import Belady, replay
from pagedlab.prefix import Entry, PrefixCache, PrefixStats, hash_chain
from support.operations import LONG_RUN, OPERATIONS
from support.planted import EVICTS_THE_NEWEST, Bug
from support.refused import refused

# A and B have the xxh64 ac929a52ccb6c480 (SPEC); T is a block that may follow either.
T = list(range(100, 116))


def eight_bits(data):
    """A hash that collides often."""
    return xxhash.xxh64_digest(data)[:1]


def one_bit(data):
    """A hash that collides all the time."""
    return bytes([xxhash.xxh64_intdigest(data) & 1])


# The model ------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Text:
    table: BlockTable
    tokens: list[int]
    salt: str | None

    @property
    def num_computed(self):
        return self.table.num_tokens


@dataclass
class World:
    """A pool, a cache over it, texts being written, and what memory must hold."""

    rng: random.Random
    cache_class: type[PrefixCache] = PrefixCache
    pool_class: type[BlockPool] = BlockPool
    table_class: type[BlockTable] = BlockTable
    hash: Any = "xxh64"
    eviction: Any = "lru"
    registers_early: bool = False
    num_blocks: int = 14
    size: int = 2
    vocabulary: int = 2
    texts: list[Text] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self):
        self.pool = self.pool_class(self.num_blocks, self.size)
        self.cache = self.cache_class(self.pool, self.hash, self.eviction, block_table=self.table_class)
        self.numbers = {}  # (number of the prefix, next token) -> number
        self.parents = {0: 0}
        self.memo = {}
        self.memory = [[-1] * self.size for _ in range(self.num_blocks)]
        self.registered = {}  # (salt, number of the block's last prefix) -> block
        self.references = [0] * self.num_blocks
        self.released = {}  # block -> when its last reference went
        self.hits = [0] * self.num_blocks
        self.clock = 0
        self.openings = [self.some_tokens(5 * self.size, 5 * self.size) for _ in range(3)]

    # ---------------------------------------------------------------- what the model knows

    def prefixes(self, tokens):
        """The number of every prefix of `tokens`, the shortest first."""
        text = tuple(tokens)
        if text not in self.memo:
            number, found = 0, []
            for token in text:
                parent, number = number, self.numbers.setdefault((number, token), len(self.numbers) + 1)
                self.parents[number] = parent
                found.append(number)
            self.memo[text] = found
        return self.memo[text]

    def keys(self, tokens, salt):
        """Salt and number of every full block of `tokens`."""
        return [(salt, number) for number in self.prefixes(tokens)[self.size - 1 :: self.size]]

    def parent(self, key):
        salt, number = key
        for _ in range(self.size):
            number = self.parents[number]
        return salt, number

    def has_child(self, key):
        return any(self.parent(other) == key for other in self.registered)

    def key_of(self, block_id):
        return next((key for key, block in self.registered.items() if block == block_id), None)

    def drop(self, block_id):
        self.references[block_id] -= 1
        if self.references[block_id] == 0:
            self.clock += 1
            self.released[block_id] = self.clock

    def took(self, block_id):
        """The pool handed out this block: it must have been plainly free, or the right one to evict."""
        assert self.references[block_id] == 0, f"block {block_id} is in use"
        key = self.key_of(block_id)
        if key is not None:
            idle = [b for b in self.registered.values() if self.references[b] == 0]
            assert self.references.count(0) == len(idle), f"cached block {block_id} was evicted, and others were free"
            assert not self.has_child(key), f"block {block_id} was evicted before its child"
            counted_hits = {"lru": 0, "slru": 1, "lfu": float("inf")}  # the most that counts
            if self.eviction in counted_hits:
                most = counted_hits[self.eviction]
                victim = min(idle, key=lambda b: (min(self.hits[b], most), self.released[b]))
                assert block_id == victim, f"{block_id} was evicted, and it was {victim}'s turn"
            del self.registered[key]
            self.counts["evict"] += 1
        self.references[block_id] = 1
        self.memory[block_id] = [-1] * self.size

    def write(self, block_id):
        """Somebody writes to a block that is theirs alone: what was registered there, or behind it, is no more."""
        key = self.key_of(block_id)
        if key is None:
            return
        self.counts["write"] += 1
        gone = [key]
        for parent in gone:
            gone += [child for child in self.registered if self.parent(child) == parent]
        for key in gone:
            del self.registered[key]

    # ---------------------------------------------------------------- what can happen

    def start(self, tokens, salt, leave=1):
        keys = self.keys(tokens[: len(tokens) - leave], salt)
        expected = []
        for key in keys:
            if key not in self.registered:
                break
            expected.append(self.registered[key])
        table = self.cache.match(tokens, leave=leave, salt=salt)
        text = Text(table, tokens, salt)
        self.texts.append(text)
        for block_id in table.block_ids:
            self.references[block_id] += 1
            self.hits[block_id] += 1
        assert table.num_tokens == len(table.block_ids) * self.size
        self.reads_its_own(text)
        assert table.block_ids == expected, f"found {table.block_ids}, but {expected} are cached"
        self.counts["hit"] += len(expected)
        return text

    def reads_its_own(self, text):
        slots = text.table.slots(0, text.num_computed)
        held = [self.memory[slot // self.size][slot % self.size] for slot in slots]
        assert held == self.prefixes(text.tokens[: text.num_computed]), f"foreign KV in {text.table}"

    def append(self, text, n):
        """Give the next n tokens their slots. False if there is no room, and then nothing changed."""
        table, before = text.table, list(text.table.block_ids)
        partial = table.num_tokens % self.size > 0
        copy = n > 0 and partial and self.references[before[-1]] > 1
        needed = blocks_for(table.num_tokens + n, self.size) - len(before) + copy
        try:
            copies = table.append(n)
        except OutOfBlocks:
            assert needed > self.references.count(0)
            assert table.block_ids == before
            return False
        for block_id in table.block_ids[len(before) - copy :]:
            self.took(block_id)
        if copy:
            assert copies == [BlockCopy(before[-1], table.block_ids[len(before) - 1])]
            self.memory[copies[0].destination] = list(self.memory[copies[0].source])
            self.drop(before[-1])
        elif n > 0 and partial:
            self.write(before[-1])
        return True

    def compute(self, text, start):
        table = text.table
        numbers = self.prefixes(text.tokens[: table.num_tokens])
        for slot, number in zip(table.slots(start, table.num_tokens), numbers[start:], strict=True):
            self.memory[slot // self.size][slot % self.size] = number

    def insert(self, text, num_tokens):
        expected = list(text.table.block_ids)
        for i, key in enumerate(self.keys(text.tokens[:num_tokens], text.salt)):
            block_id = self.registered.setdefault(key, expected[i])
            if block_id == expected[i]:
                if key not in self.known:
                    self.hits[block_id] = 0
                continue
            self.references[block_id] += 1
            self.drop(expected[i])
            expected[i] = block_id
            self.counts["merge"] += 1
        exchanged = self.cache.insert(text.table, text.tokens[:num_tokens], salt=text.salt)
        assert text.table.block_ids == expected, f"{expected} should be registered, not {text.table.block_ids}"
        assert exchanged == sum(a != b for a, b in zip(self.before, expected, strict=True))

    def step(self, texts, n, *, fails=False):
        """One step of an engine: slots for all, KV for all, and only then the registrations."""
        running = []
        for text in texts:
            start = text.num_computed
            if self.append(text, min(n, len(text.tokens) - start)):
                running.append((text, start))
        if self.registers_early:
            self.register(running)
        if fails:
            for text, start in running:
                self.truncate(text, start)
            return
        for text, start in running:
            self.compute(text, start)
        if not self.registers_early:
            self.register(running)

    def register(self, running, delay=0.1):
        for text, _ in running:
            self.known = set(self.registered)
            self.before = list(text.table.block_ids)
            self.insert(text, text.num_computed - (self.rng.random() < delay and text.num_computed > 0))

    def fork(self, text):
        """Register, then fork: `test_a_fork_made_too_early` has the other order."""
        self.register([(text, 0)], delay=0.0)
        child = Text(text.table.fork(), list(text.tokens), text.salt)
        for block_id in child.table.block_ids:
            self.references[block_id] += 1
        self.texts.append(child)

    def truncate(self, text, num_tokens):
        gone = text.table.block_ids[blocks_for(num_tokens, self.size) :]
        text.table.truncate(num_tokens)
        for block_id in reversed(gone):
            self.drop(block_id)

    def end(self, text):
        self.truncate(text, 0)
        self.texts.remove(text)

    # ---------------------------------------------------------------- anything, at random

    def run(self, operations):
        for i in range(operations):
            self.anything()
            have = {entry.block_id for entry in self.cache._by_block.values()}
            assert have == set(self.registered.values()), (
                f"{have ^ set(self.registered.values())} should (not) be there"
            )
            if i % 20 == 0:
                self.check()
        for text in list(self.texts):
            self.end(text)
        self.check()
        assert self.pool.num_used == 0
        assert self.pool.num_cached == len(self.registered) == len(self.cache)

    def check(self):
        self.pool.check([text.table for text in self.texts])
        for text in self.texts:
            self.reads_its_own(text)
        entries = self.cache._by_block.values()
        named = list(self.cache._by_name.values())
        for entry in named:  # the list grows by the older entries with the same name
            if entry.same_hash is not None:
                named.append(entry.same_hash)
        assert sorted(map(id, named)) == sorted(map(id, entries))
        for entry in entries:
            its_own = [child for child in entries if child.parent is entry]
            assert sorted(map(id, entry.children)) == sorted(map(id, its_own))

    def some_tokens(self, least, most):
        return [self.rng.randrange(self.vocabulary) for _ in range(self.rng.randint(least, most))]

    def anything(self):
        rng, texts = self.rng, self.texts
        chance = rng.random()
        if not texts or (chance < 0.40 and len(texts) < 4):
            salt = rng.choice([None, None, "a", "b"])
            prompt = rng.choice(self.openings)[: rng.randrange(5 * self.size)] + self.some_tokens(1, 3)
            text = self.start(prompt, salt, leave=rng.choice([0, 1]))
            if rng.random() < 0.3:  # a twin, which finds what the first one found
                twin = self.start(list(prompt), salt)
                self.step([text, twin], rng.randrange(1, 3 * self.size))
            return
        text = rng.choice(texts)
        if chance < 0.65:
            text.tokens += self.some_tokens(0, 2)
            together = [text] if rng.random() < 0.7 else list(texts)
            self.step(together, rng.randrange(1, 3 * self.size), fails=rng.random() < 0.05)
        elif chance < 0.72 and len(texts) < 4:
            self.fork(text)
        elif chance < 0.84:
            length = max(0, text.num_computed - rng.randrange(2 * self.size))
            self.truncate(text, length)
            if rng.random() < 0.7:  # what is rolled back is often written anew
                text.tokens[length:] = self.some_tokens(1, 3)
                self.step([text], 3)
        elif chance < 0.9995:
            self.end(text)
        else:
            for text in list(texts):
                self.end(text)
            self.cache.clear()
            self.registered.clear()


@pytest.mark.parametrize(
    ("hash", "eviction", "operations"),
    [
        ("xxh64", "lru", 40_000),
        (eight_bits, "lru", 30_000),
        (one_bit, "lru", 5_000),
        ("sha256", "lru", 10_000),
        ("xxh64", "fifo", 10_000),
        ("xxh64", "lfu", 10_000),
        ("xxh64", "slru", 10_000),
    ],
    ids=["xxh64-lru", "8-bits-lru", "1-bit-lru", "sha256-lru", "fifo", "lfu", "slru"],
)
@LONG_RUN
def test_a_hit_is_never_foreign_and_never_missed(hash, eviction, operations, rng):
    if OPERATIONS:
        operations = OPERATIONS * operations // 110_000
    happened = Counter()
    for num_blocks, size, vocabulary in ((14, 2, 2), (30, 2, 3), (7, 1, 3), (40, 4, 2), (60, 2, 2)):
        world = World(rng, hash=hash, eviction=eviction, num_blocks=num_blocks, size=size, vocabulary=vocabulary)
        world.run(operations // 5)
        happened += world.counts
    print(happened)
    assert min(happened[what] for what in ("hit", "evict", "merge", "write")) > operations / 100, (
        "the search has not been where the bugs are"
    )


# Mistakes that engines made, planted: the model must notice every one -----------------------------------------------


class HashesTokensOnly(PrefixCache):
    """Blocks named by their own tokens, not by their past."""

    def __init__(self, pool, hash, *args, **options):
        width = 4 * pool.block_size
        super().__init__(pool, lambda data: xxhash.xxh64_digest(data[-width:]), *args, **options)

    def _is(self, entry, tokens, parent, salt):
        return entry.tokens == tokens


class IgnoresTheSalt(PrefixCache):
    def match(self, token_ids, *, leave=0, salt=None):
        return super().match(token_ids, leave=leave)

    def insert(self, table, token_ids, *, salt=None):
        return super().insert(table, token_ids)


class CallsOutTooLate(BlockPool):
    """Tells the cache of a block that is lost when its next one is."""

    late = -1

    def _forget(self, block_id, kind):
        self.late, block_id = block_id, self.late
        self._kept.discard(self.late)
        if block_id >= 0:
            super()._forget(block_id, kind)


def in_cache(method, old, new, **options):
    return {"cache_class": Bug(PrefixCache, method, old, new), **options}


MISTAKES = {
    "nothing is verified": in_cache("_is", "return", "return True or", hash=eight_bits),
    # What the naive cache of notebook 05 does: the block's own tokens are right, so it must be the block.
    "tokens are verified, the parent is not": in_cache("_is", "and entry.parent is parent", "", hash=eight_bits),
    "the parent is verified, tokens are not": in_cache("_is", "entry.tokens == tokens and", "", hash=one_bit),
    "hashes are not chained": {"cache_class": HashesTokensOnly},
    "the salt is ignored": {"cache_class": IgnoresTheSalt},
    "the name survives reallocation": in_cache(
        "_on_forgotten", "self._remove(entry)", "del self._by_block[entry.block_id]"
    ),
    "the name survives until the next eviction": {"pool_class": CallsOutTooLate},
    "what is behind a lost block survives": in_cache("_on_forgotten", "stack += entry.children", "pass"),
    "registered before it is computed": {"registers_early": True},
    "a cached block is written": {"pool_class": Bug(BlockPool, "invalidate", "self.forget(block_id)", "pass")},
    "twins are registered twice": in_cache("_register", "self._find(name, tokens, parent, salt)", "None"),
    "the second twin leaks": in_cache("insert", "self.pool.release(own)", "pass"),
    "nothing is left to compute": in_cache("match", "self._longest(token_ids, leave,", "self._longest(token_ids, 0,"),
    "the newest is evicted": {"pool_class": EVICTS_THE_NEWEST},
    "the parent is evicted before the leaf": {"table_class": Bug(BlockTable, "truncate", ".pop()", ".pop(keep)")},
    "first in, first out, parents first": {"eviction": by_rank(lambda entry, now: entry.registered)},
    "the most hit is evicted": {"eviction": by_rank(lambda entry, now: -entry.hits)},
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_model_notices(mistake, seed):
    options = {name: value.planted() if isinstance(value, Bug) else value for name, value in MISTAKES[mistake].items()}
    with pytest.raises((AssertionError, ValueError, KeyError)):
        World(random.Random(seed), **options).run(20_000)


# Worked numbers -------------------------------------------------------------------------------------------------


def serve(cache, tokens, *, leave=0, salt=None):
    """Match, compute the rest, register: the table is still in use."""
    table = cache.match(tokens, leave=leave, salt=salt)
    table.append(len(tokens) - table.num_tokens)
    cache.insert(table, tokens, salt=salt)
    return table


def hit(cache, tokens, **options):
    """Tokens of the prompt that are cached."""
    table = cache.match(tokens, **options)
    found = table.num_tokens
    table.free()
    return found


def test_names_are_chained():
    def xxh64(parent, tokens):
        return xxhash.xxh64_digest(parent + b"".join(token.to_bytes(4, "little", signed=True) for token in tokens))

    first, second = hash_chain([*T, *T, 7])
    assert (first, second) == (xxh64(b"", T), xxh64(first, T))
    behind_another = hash_chain([*A, *T])[1]
    assert len({first, second, behind_another}) == 3
    assert [len(name) for name in hash_chain([*T, *T], hash="sha256")] == [32, 32]


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12), st.integers(1, 4))
def test_names_agree_exactly_as_far_as_the_tokens_do(one, other, size):
    for hash in ("xxh64", "sha256"):
        names, others = hash_chain(one, size, hash), hash_chain(other, size, hash)
        for i, (a, b) in enumerate(zip(names, others, strict=False), 1):
            assert (a == b) == (one[: i * size] == other[: i * size])


def test_a_real_collision_is_harmless():
    assert [name.hex() for name in hash_chain(A)] == [name.hex() for name in hash_chain(B)] == ["ac929a52ccb6c480"]
    assert hash_chain([*A, *T]) == hash_chain([*B, *T])
    cache = PrefixCache(BlockPool(16))
    first = serve(cache, [*A, *T])
    assert serve(cache, B).block_ids[0] not in first.block_ids
    assert hit(cache, [*B, *T]) == 16  # B's own block, and T computed anew
    second = serve(cache, [*B, *T])
    assert not set(first.block_ids) & set(second.block_ids)
    assert hit(cache, [*A, *T]) == hit(cache, [*B, *T]) == 32  # both stay: a collision costs no hit


# Rules ----------------------------------------------------------------------------------------------------------


def test_a_prompt_with_nothing_to_look_for_asks_for_no_block():
    cache = PrefixCache(BlockPool(8, 1))
    serve(cache, range(3))
    before = cache.stats.asked_blocks
    assert hit(cache, []) == hit(cache, [], leave=1) == hit(cache, range(1), leave=5) == 0
    assert cache.stats.asked_blocks == before


@pytest.mark.parametrize("hash", ["xxh64", "sha256", eight_bits])
def test_salts_keep_tenants_apart(hash):
    cache = PrefixCache(BlockPool(64, 4), hash)
    salts = [None, "", "a", "b", "\N{SNOWMAN}"]
    for salt in salts:
        assert hit(cache, range(12), salt=salt) == 0
        serve(cache, range(12), salt=salt)
    tables = [cache.match(range(12), salt=salt) for salt in salts]
    assert len({block_id for table in tables for block_id in table.block_ids}) == 3 * len(salts)
    assert len({hash_chain(range(12), 4, salt=salt)[0] for salt in salts}) == len(salts)


def test_a_cache_has_a_salt_of_its_own_unless_a_request_brings_one():
    cache = PrefixCache(BlockPool(64, 4), salt="tenant")
    serve(cache, range(12))
    assert hit(cache, range(12)) == hit(cache, range(12), salt="tenant") == 12
    assert hit(cache, range(12), salt="another") == 0


@pytest.mark.parametrize("hash", ["xxh64", "sha256"])
def test_a_chosen_salt_cannot_pass_for_a_parent(hash):
    """The salt's bytes are those that name a block: what is registered behind the block must stay out of reach."""
    cache = PrefixCache(BlockPool(64, 4), hash)
    serve(cache, [65, 66, 67, 68, 1, 2, 3, 4])
    for spelling in ("A\0B\0C\0D\0", "A\0\0\0B\0\0\0C\0\0\0D\0\0\0"):
        assert hit(cache, [1, 2, 3, 4], salt=spelling) == 0


def test_a_recomputed_last_block_takes_the_place_of_the_cached_one():
    """The whole prompt is cached, one token must be computed: its block is computed again, and is not kept twice."""
    pool = BlockPool(8, 4)
    cache = PrefixCache(pool)
    serve(cache, range(8)).free()
    again = serve(cache, range(8), leave=1)
    assert cache.stats.merged_blocks == 1
    assert (pool.num_used, len(cache)) == (2, 2)
    pool.check([again])


def test_a_fork_made_too_early_costs_a_hit_and_no_more():
    """A twin is forked before it is registered: both keep the block that was computed twice, still shared."""
    pool = BlockPool(6, 4)
    cache = PrefixCache(pool)
    first, twin = BlockTable(pool), BlockTable(pool)
    first.append(4)
    twin.append(8)
    fork = twin.fork()
    cache.insert(first, range(4))
    assert cache.insert(twin, range(8)) == 0
    assert fork.block_ids[0] == twin.block_ids[0] != first.block_ids[0]
    assert cache.insert(fork, range(8)) == 0
    first.free()
    twin.free()
    assert hit(cache, range(8)) == 8  # the fork still uses the second block, and nobody the registered first
    everything = BlockTable(pool)
    everything.append(pool.num_free * 4)  # so the first one goes, and takes the name of the second with it
    pool.check([fork, everything])
    assert len(cache) == 0
    everything.free()
    cache.insert(fork, range(8))
    assert hit(cache, range(8)) == 8
    fork.free()
    assert (pool.num_used, pool.num_cached, pool.num_free) == (0, 2, 6)


def test_registering_costs_one_hash_a_block_however_often_it_is_called():
    calls = []

    def counting(data):
        calls.append(len(data))
        return xxhash.xxh64_digest(data)

    cache = PrefixCache(BlockPool(64, 4), counting)
    table = cache.match(range(200), leave=1)
    calls.clear()
    for length in range(1, 201):
        table.append(1)
        cache.insert(table, range(length))
    assert calls == [16] + 49 * [24]


def test_in_use_counts_what_somebody_holds_and_looks_no_further_than_match():
    cache = PrefixCache(BlockPool(16, 4))
    table = serve(cache, range(12))
    reader = cache.match(range(8))
    lookups = cache.stats.lookups
    assert cache.num_shared_blocks(range(12)) == 3
    assert cache.num_shared_blocks(range(12), leave=1) == 2
    table.free()
    assert cache.num_shared_blocks(range(12)) == 2
    reader.free()
    assert cache.num_shared_blocks(range(12)) == 0
    assert cache.num_shared_blocks(range(12), salt="another") == 0
    assert cache.stats.lookups == lookups


def test_clear_forgets_everything_and_frees_nothing_in_use():
    pool = BlockPool(16, 4)
    cache = PrefixCache(pool)
    table = serve(cache, range(8))
    serve(cache, range(20, 40)).free()
    cache.clear()
    assert (len(cache), pool.num_cached, pool.num_used, pool.num_free) == (0, 0, 2, 14)
    assert hit(cache, range(8)) == 0
    cache.insert(table, range(8))
    assert hit(cache, range(8)) == 8


def test_statistics_and_events():
    pool = BlockPool(4, 4)
    cache = PrefixCache(pool)
    assert cache.stats.hit_rate == 0
    seen = []
    serve(cache, range(10)).free()
    pool.subscribe(seen.append)
    table = serve(cache, [*range(8), *range(20, 27)])
    assert [(e.kind, e.block_id, e.refcount) for e in seen if e.kind == "hit"] == [("hit", 0, 1), ("hit", 1, 1)]
    assert [cache._by_block[block_id].hits for block_id in (0, 1)] == [1, 1]
    stats = cache.stats
    assert (stats.lookups, stats.asked_tokens, stats.hit_tokens) == (2, 25, 8)
    assert (stats.asked_blocks, stats.hit_blocks) == (5, 2)
    assert stats.hit_rate == 8 / 25
    table.free()
    assert (pool.num_cached, len(cache), stats.evicted_blocks) == (3, 3, 0)
    seen.clear()
    serve(cache, range(50, 60))
    assert [e.block_id for e in seen if e.kind == "evict"] == [2, 1]
    assert (stats.evicted_blocks, stats.forgotten_blocks) == (2, 0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"hash": "md5"}, r"hash must be 'xxh64', 'sha256' or a function, got 'md5'"),
        ({"eviction": "random"}, r"eviction must be 'lru', 'fifo', 'lfu', 'slru' or a function, got 'random'"),
        ({"block_table": 3}, r"^block_table must be a class like BlockTable, got 3: pass the class"),
        ({"salt": 5}, r"salt must be a text or None, got 5"),
        ({"block_table": dict}, r"^block_table must have the methods append, free, and dict lacks append, free$"),
        (
            {"eviction": lambda cache: None},
            r"^eviction must have the methods .*, and NoneType lacks add, remove, victim",
        ),
    ],
)
def test_a_cache_says_which_option_is_wrong(options, says):
    pool = BlockPool(4)
    with refused(says):
        PrefixCache(pool, **options)
    PrefixCache(pool)  # the pool is as it was


def test_one_cache_a_pool():
    pool = BlockPool(4)
    PrefixCache(pool)
    with refused("a separate pool"):
        PrefixCache(pool)

    class Plain:
        block_size = 4

    with refused(r"must have the methods attach, .*, and Plain lacks attach, keep"):
        PrefixCache(Plain())
    with refused("pool must be an object, got the class BlockPool"):
        PrefixCache(BlockPool)


def test_bad_calls_change_nothing():
    pool = BlockPool(16, 4)
    cache = PrefixCache(pool)
    table = serve(cache, range(10), salt="a")
    table.append(2)
    elsewhere = BlockTable(BlockPool(4, 4))
    before = (repr(cache), repr(pool), repr(table), repr(cache.stats))
    bad_calls = [
        ("int32", lambda: cache.match([0, 1, 2, 3, 2**31, 5, 6, 7], salt="a")),
        ("fit in an int32, got 0.5$", lambda: cache.match([1, 0.5, 2, 3])),
        ("fit in an int32, got 'a'$", lambda: hash_chain(["a", "b"], 2)),
        ("^token_ids must be a list of token ids, got 'abc'$", lambda: cache.match("abc")),
        ("^token_ids must be a list of token ids, got 'abc'$", lambda: hash_chain("abc", 4)),
        ("^hash must return bytes, got 3$", lambda: hash_chain([1, 2], 2, lambda data: 3)),
        ("leave", lambda: cache.match([0], leave=-1)),
        ("salt must be a text", lambda: cache.match([0], salt=1)),
        ("13 tokens were given and the table holds 12", lambda: cache.insert(table, range(13), salt="a")),
        ("other tokens or under another salt", lambda: cache.insert(table, range(1, 13), salt="a")),
        ("other tokens or under another salt", lambda: cache.insert(table, range(12))),
        ("int32", lambda: cache.insert(table, [*range(8), 8, 9, 10, 2**31], salt="a")),
        ("another pool", lambda: cache.insert(elsewhere, [])),
        ("token_ids must be a list of token ids, got 3", lambda: cache.match(3)),
        ("token_ids must be a list of token ids, got 3", lambda: cache.insert(table, 3, salt="a")),
        ("token_ids must be a list of token ids, got None", lambda: hash_chain(None, 4)),
        ("table must be a block table, got 3", lambda: cache.insert(3, [])),
        # Tokens after the last full block, and after the first block that is not found.
        ("fit in an int32, got 'x'$", lambda: cache.match([*range(8), "x"], salt="a")),
        ("fit in an int32, got 'x'$", lambda: cache.match([*range(8), "x"], salt="a", leave=1)),
        ("fit in an int32, got 0.5$", lambda: cache.match([*range(90, 98), 0.5, 0, 0, 0])),
        ("fit in an int32, got 'x'$", lambda: cache.insert(table, [*range(8), "x"], salt="a")),
        ("fit in an int32, got 0.5$", lambda: cache.register(table, [*range(8), 0.5], salt="a")),
        ("fit in an int32, got 1.5$", lambda: hash_chain([1.5], 4)),
        (r"fit in an int32, got array\(\[1, 1\]\)$", lambda: hash_chain(np.ones((2, 2), int), 4)),
        ("token_ids must be a list of token ids, got b'abcd'", lambda: cache.match(b"abcd")),
        ("token_ids must be a list of token ids, got {1: 2}", lambda: hash_chain({1: 2}, 4)),
        ("^block_id must be a whole number from 0 to 15, got 16$", lambda: cache.entry(16)),
        (r"^block_id must be a whole number from 0 to 15, got \[\]$", lambda: cache.entry([])),
    ]
    for says, call in bad_calls:
        with refused(says):
            call()
        assert (repr(cache), repr(pool), repr(table), repr(cache.stats)) == before
    pool.check([table])
    with pytest.raises(KeyError, match="block 9 is not registered"):
        cache.entry(9)


# Eviction -------------------------------------------------------------------------------------------------------


def evicted(eviction, used, num_blocks=4):
    """Serve one-block prompts, named by their token; return those that have gone, in that order."""
    pool = BlockPool(num_blocks, 1)
    cache = PrefixCache(pool, eviction=eviction)
    held = {}
    gone = []
    pool.subscribe(lambda event: gone.append(held[event.block_id]) if event.kind == "evict" else None)
    for token in used:
        table = serve(cache, [token])
        held[table.block_ids[0]] = token
        table.free()
    return gone


@pytest.mark.parametrize(
    ("eviction", "expected"),
    [
        ("lru", [2, 4, 1]),  # 3 and 1 were used after 2 and 4, and 3 again after 1
        ("fifo", [1, 2, 3]),
        ("lfu", [2, 4, 5]),  # 1 was hit once, 3 twice; of the others the oldest
        ("slru", [2, 4, 5]),  # 1 and 3 were hit
        (
            by_rank(Belady([[hash_chain([t], 1)[0]] for t in [1, 2, 3, 4, 3, 1, 3, 5, 6, 7, 4, 2]])),
            [1, 3, 5],
        ),
    ],
    ids=["lru", "fifo", "lfu", "slru", "belady"],
)
def test_order_of_eviction(eviction, expected):
    assert evicted(eviction, [1, 2, 3, 4, 3, 1, 3, 5, 6, 7]) == expected


def test_announcing_stops_at_what_somebody_else_has_registered():
    """A child would stand below a block that is not its table's."""
    pool = BlockPool(8, 4)
    cache = PrefixCache(pool)
    serve(cache, range(8))
    own = BlockTable(pool)
    own.append(12)
    assert cache.register(own, list(range(12))) == []
    assert cache.match(list(range(13))).num_tokens == 8


def test_a_stranded_block_is_freed_at_once():
    """Somebody goes round the tables and holds a child without its parent: the child is not found any more."""
    pool = BlockPool(4, 4)
    cache = PrefixCache(pool)
    table = serve(cache, range(8))
    child = pool.share(table.block_ids[1])
    table.free()
    BlockTable(pool).append(12)
    assert len(cache) == 0
    assert hit(cache, range(8)) == 0
    pool.release(child)
    assert (pool.num_free, pool.num_cached) == (1, 0)


def some_trace(rng, requests, size=2):
    """Prompts of 1 to 4 full blocks and one token more, which begin alike; every third with an answer."""
    fresh = iter(range(100, 10**9))
    trace = []
    for _ in range(requests):
        prompt = [token for _ in range(rng.randint(1, 4)) for token in [rng.randrange(2 + rng.randrange(3))] * size]
        answer = [next(fresh) for _ in range(rng.choice([0, 0, 4]))]
        trace.append(([*prompt, 99], answer))
    return trace


def optimum(trace, num_blocks, size):
    """Most blocks that any choice of evictions can find, by trying them all. Parents may go before children here."""
    paths = [[tuple(p[: i * size]) for i in range(1, len(p) // size + 1)] for p, _ in trace]

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
    for _ in range(60):
        trace, num_blocks = [(prompt, []) for prompt, _ in some_trace(rng, 9)], rng.randint(5, 7)
        assert replay(trace, num_blocks, 2, "belady").hit_blocks == optimum(trace, num_blocks, 2), (trace, num_blocks)


def test_replay_counts_what_it_serves():
    system = list(range(8))
    trace = [([*system, 50 + i], [1, 2, 3]) for i in range(5)]
    stats = replay(trace, 16, 4)
    assert (stats.lookups, stats.asked_tokens, stats.asked_blocks, stats.hit_tokens) == (5, 45, 10, 32)
    assert replay([(system, [])] * 2, 16, 4).hit_tokens == 4  # the last token is always computed
    long = [(list(range(47)), [])] * 2
    assert (replay(long, 64).hit_tokens, replay(long, 64, 15).hit_tokens) == (32, 45)
    chat = [(system, [20, 21, 22, 23, 24]), ([*system, 20, 21, 22, 23, 24, 60], [])]
    assert replay(chat, 16, 4).hit_tokens == 12  # the answer's own block is found by the next turn


class Cache:
    """As much of a prefix cache as a rank needs: the entry of a block is its number."""

    stats = PrefixStats()

    def entry(self, block_id):
        return block_id


def drained(policy, count):
    """The victims of a policy, one after the other."""
    victims = []
    for _ in range(count):
        victims.append(policy.victim())
        policy.remove(victims[-1])
    return victims


def test_the_lowest_rank_goes_first_however_often_blocks_were_used_again(seed):
    rng, ranks, cached = random.Random(seed), {}, set()
    policy = Ranked(lambda block_id, now: ranks[block_id], Cache())
    for _ in range(20):
        for _ in range(rng.randrange(600)):
            block_id = rng.randrange(12)
            if block_id in cached:
                policy.remove(block_id)  # used again
                cached.remove(block_id)
            else:
                ranks[block_id] = rng.randrange(1000)
                policy.add(block_id)
                cached.add(block_id)
            assert len(policy._heap) <= 2 * 12 + 66, "what was removed is swept out now and then"
        expected = [block_id for *_, block_id in sorted(policy._items.values())]
        assert {*expected} == cached
        assert drained(policy, len(cached)) == expected
        cached.clear()


def test_a_policy_that_names_a_block_in_use_is_refused():
    class Wrong(LRU):
        def victim(self):
            return 3

    pool = BlockPool(4, 2)
    cache = PrefixCache(pool, eviction=lambda cache: Wrong())
    table = BlockTable(pool)
    table.append(4)
    held = [pool.allocate(), pool.allocate()]
    cache.insert(table, [1, 2, 3, 4])
    table.free()
    assert (pool.num_cached, held) == (2, [2, 3])
    with refused("the eviction policy named block 3, which is not cached"):
        pool.allocate()
    pool.check()


def count_entries():
    return sum(isinstance(one, Entry) for one in gc.get_objects())


def test_forgotten_entries_need_no_garbage_collector():
    gc.collect()
    before = count_entries()  # of other tests' engines
    pool = BlockPool(12, 2)
    cache = PrefixCache(pool)
    for tail in ([5, 6], [7, 8], [9, 10]):  # three children of one block, each with a child of its own
        table = cache.match([1, 2, *tail, 3, 4])
        table.append(6 - table.num_tokens)
        cache.insert(table, [1, 2, *tail, 3, 4])
        table.free()
    assert len(cache) == 7
    gc.collect()
    gc.disable()
    try:
        cache.clear()
        assert count_entries() <= before
    finally:
        gc.enable()
