"""The prefix cache against an exact model of it, and the examples that explain it.

The model knows whole prompts instead of hashes. Every slot of memory holds the salt and all tokens up to its own, so
a foreign block shows as a wrong prompt. Hashes of few bits make collisions common.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import xxhash
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pagedlab_lessons.checks.n05 import A, B

from pagedlab.blocks import BlockPool, BlockTable, OutOfBlocks
from pagedlab.prefix import PrefixCache, hash_chain
from support.operations import LONG_RUN, OPERATIONS
from support.plain_pool import PlainPool
from support.refused import refused

# A and B have the xxh64 ac929a52ccb6c480 (SPEC); T is a block that may follow either.
T = list(range(100, 116))
SALTS = st.sampled_from([None, None, "a"])
INDEX = st.integers(0, 59)  # taken modulo whatever there is to choose from
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=7)


def hash_of(bits):
    """xxh64, cut to some bits."""
    return SimpleNamespace(xxh64_digest=lambda data: (xxhash.xxh64_intdigest(data) % 2**bits).to_bytes(8, "big"))


# The model ------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Known:
    """A registered block: the salt and all tokens up to its end, and the one that it was registered behind."""

    key: tuple
    block_id: int
    parent: "Known | None"


@dataclass(eq=False)
class Text:
    table: BlockTable
    tokens: list[int]
    salt: str | None
    chain: list[Known] = field(default_factory=list)


class PrefixMachine(RuleBasedStateMachine):
    """Prompts come, go on, fork, are cut and end, in any order, while blocks are evicted."""

    @initialize(num_blocks=st.integers(6, 14), size=st.integers(1, 3), bits=st.sampled_from([64, 64, 4, 1]), salt=SALTS)
    def start(self, num_blocks, size, bits, salt):
        self.hashed = patch("pagedlab.prefix.xxhash", hash_of(bits))
        self.hashed.start()
        self.size = size
        self.pool = BlockPool(num_blocks, size)
        self.salt = salt  # the cache's own
        self.cache = PrefixCache(self.pool, salt=salt)
        self.memory = [[None] * size for _ in range(num_blocks)]
        self.known = {}  # by name
        self.texts = []
        self.pool.subscribe(self.on_event)

    def on_event(self, event):
        if event.kind == "allocate":
            self.memory[event.block_id] = [None] * self.size
        if event.kind in ("evict", "forget"):
            self.known = {name: one for name, one in self.known.items() if one.block_id != event.block_id}

    # -------------------------------------------------------------- the model's own moves

    def blocks(self, text, num_tokens):
        """Name and key of each full block of the first tokens."""
        names = hash_chain(text.tokens[:num_tokens], self.size, text.salt)
        ends = range(self.size, num_tokens + 1, self.size)
        return [(name, (text.salt, *text.tokens[:end])) for name, end in zip(names, ends, strict=True)]

    def is_right(self, known, key, parent):
        return known is not None and known.key == key and known.parent is parent

    def expected(self, text):
        """The registered blocks that a match must find."""
        found = []
        for name, key in self.blocks(text, len(text.tokens) - 1):
            known = self.known.get(name)
            if not self.is_right(known, key, found[-1] if found else None):
                break
            found.append(known)
        return found

    def match(self, tokens, salt):
        text = Text(None, tokens, salt or self.salt)
        text.chain = self.expected(text)
        blocks = [known.block_id for known in text.chain]
        in_use = sum(self.pool.refcount(block_id) > 0 for block_id in blocks)
        assert self.cache.num_shared(tokens, salt) == in_use
        text.table = self.cache.match(tokens, salt)
        assert text.table.block_ids == blocks, f"found {text.table.block_ids}, and {blocks} are cached"
        assert text.table.num_tokens == len(blocks) * self.size
        self.texts.append(text)
        return text

    def append(self, text, n):
        """Give slots to n more tokens. False if there is no room."""
        try:
            copies = text.table.append(n)
        except OutOfBlocks:
            return False
        for source, destination in copies:
            self.memory[destination] = list(self.memory[source])
        return True

    def register(self, text):
        num_tokens = text.table.num_tokens
        for name, key in self.blocks(text, num_tokens)[len(text.chain) :]:
            parent = text.chain[-1] if text.chain else None
            known = self.known.get(name)
            if not self.is_right(known, key, parent):
                known = Known(key, text.table.block_ids[len(text.chain)], parent)
                self.known[name] = known
            text.chain.append(known)
        self.cache.register(text.table, text.tokens[:num_tokens], text.salt)

    def compute(self, text, start):
        for position, slot in enumerate(text.table.slots(start, text.table.num_tokens), start):
            held = (text.salt, *text.tokens[: position + 1])
            self.memory[slot // self.size][slot % self.size] = held

    def cut(self, text, num_tokens):
        text.table.truncate(num_tokens)
        del text.chain[num_tokens // self.size :]

    def end(self, text):
        self.cut(text, 0)
        self.texts.remove(text)

    # -------------------------------------------------------------- rules

    @rule(one=TOKENS, other=TOKENS, common=st.integers(0, 7), salt=SALTS, together=st.booleans())
    def begin(self, one, other, common, salt, together):
        """One prompt, or two in one step: the second may share what the first has not computed yet."""
        while len(self.texts) > 3:
            self.end(self.texts[0])
        computed = []
        for tokens in [one, one[:common] + other][: 1 + together]:
            text = self.match(tokens, salt)
            start = text.table.num_tokens
            if self.append(text, len(tokens) - start):
                self.register(text)
                computed.append((text, start))
        for text, start in computed:
            self.compute(text, start)

    @rule(index=INDEX, tokens=TOKENS, registers=st.sampled_from([True, True, False]))
    def go_on(self, index, tokens, registers):
        if not self.texts:
            return
        text = self.texts[index % len(self.texts)]
        start = text.table.num_tokens
        text.tokens[start:] = tokens
        if not self.append(text, len(tokens)):
            return
        if registers:
            self.register(text)
        self.compute(text, start)

    @rule(index=INDEX, verb=st.sampled_from(["fork", "cut", "end", "end"]), n=st.integers(1, 4))
    def change(self, index, verb, n):
        if not self.texts:
            return
        text = self.texts[index % len(self.texts)]
        if verb == "fork" and len(self.texts) < 5:
            self.texts.append(Text(text.table.fork(), text.tokens[:], text.salt, text.chain[:]))
        elif verb == "cut":
            self.cut(text, max(0, text.table.num_tokens - n))
        elif verb == "end":
            self.end(text)

    @rule(verb=st.sampled_from(["evict", "evict", "clear"]), left=st.integers(0, 5))
    def lose(self, verb, left):
        if verb == "clear":
            self.cache.clear()
            return
        other = BlockTable(self.pool)  # somebody else needs blocks for a moment
        other.append(self.size * max(0, self.pool.num_free - left))
        other.free()

    # -------------------------------------------------------------- what holds after every step

    @invariant()
    def every_text_reads_its_own(self):
        for text in getattr(self, "texts", []):
            slots = text.table.slots(0, text.table.num_tokens)
            held = [self.memory[slot // self.size][slot % self.size] for slot in slots]
            assert held == [(text.salt, *text.tokens[: i + 1]) for i in range(len(slots))], "foreign KV"

    @invariant()
    def the_books_balance(self):
        if not hasattr(self, "texts"):
            return
        self.pool.check([text.table for text in self.texts])
        kept = {block_id for block_id in range(self.pool.num_blocks) if self.pool.keeps(block_id)}
        assert kept == {known.block_id for known in self.known.values()}
        assert len(self.cache) == len(kept)

    def teardown(self):
        if hasattr(self, "hashed"):
            self.hashed.stop()


PrefixMachine.TestCase.settings = settings(
    max_examples=OPERATIONS // 50 if OPERATIONS else 120, stateful_step_count=50, deadline=None
)
TestPrefix = LONG_RUN(PrefixMachine.TestCase)


# Names and examples -------------------------------------------------------------------------------------------------


def test_names_are_chained_and_those_of_a_published_collision():
    def xxh64(parent, tokens):
        return xxhash.xxh64_digest(parent + b"".join(token.to_bytes(4, "little", signed=True) for token in tokens))

    first, second = hash_chain([*T, *T, 7])
    assert (first, second) == (xxh64(b"", T), xxh64(first, T))
    assert [name.hex() for name in hash_chain(A)] == [name.hex() for name in hash_chain(B)] == ["ac929a52ccb6c480"]
    assert hash_chain([*A, *T]) == hash_chain([*B, *T]) != [first, second]


def serve(cache, tokens, salt=None):
    """Match, register and compute the rest: the table is still in use."""
    table = cache.match(tokens, salt)
    table.append(len(tokens) - table.num_tokens)
    cache.register(table, tokens, salt)
    return table


@pytest.mark.parametrize("is_twin", [False, True])
def test_a_block_is_hashed_once_however_often_its_table_is_registered(is_twin):
    cache = PrefixCache(BlockPool(128, 4))
    if is_twin:
        serve(cache, range(200))
    table = BlockTable(cache.pool)
    calls = []
    counting = SimpleNamespace(xxh64_digest=lambda data: calls.append(len(data)) or xxhash.xxh64_digest(data))
    with patch("pagedlab.prefix.xxhash", counting):
        for length in range(1, 201):
            table.append(1)
            cache.register(table, range(length))
    assert calls == [16] + 49 * [24]


def test_bad_arguments_change_nothing():
    pool = BlockPool(4, 4)
    with refused("^salt must be a text or None, got 5$"):
        PrefixCache(pool, salt=5)
    with refused("^a prefix cache needs a BlockPool, got "):
        PrefixCache(PlainPool(4, 4))
    cache = PrefixCache(pool)
    with refused("a pool for each"):
        PrefixCache(pool)
    serve(cache, range(8)).free()
    with pytest.raises(TypeError):
        cache.match([0, 1, 2, 3, 0.5, 5, 6, 7, 8])
    assert (pool.num_used, cache.stats.asked_tokens) == (0, 8)
