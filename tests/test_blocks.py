"""The block pool and the block table against an exact model of them, and what of the bugs we plant gets past it.

The model holds what the real thing must not lose: the tokens of every table, and what every block contains.
A table is read back through its slots after every step, so a missing copy shows as a wrong token, not only
as a wrong count. The planted bugs prove that the machine would notice.
"""

import itertools
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from pagedlab import BlockCopy, BlockEvent, BlockPool, BlockTable, InvariantError, OutOfBlocks, blocks_for
from pagedlab.blocks import Pool
from support.operations import LONG_RUN, OPERATIONS
from support.plain_pool import PlainPool
from support.planted import EVICTS_THE_NEWEST, Bug, search
from support.refused import refused

EMPTY = 0  # what a slot holds that nobody has written; tokens are numbered from 1
VERBS = st.sampled_from(["write", "fork", "append", "write", "fork", "append", "write", "truncate", "free"])
INDEX = st.integers(0, 59)  # taken modulo whatever there is to choose from


class BlockMachine(RuleBasedStateMachine):
    """All verbs of pool and tables, in any order, beside a model of plain lists, sets and dicts."""

    pool_class = BlockPool
    table_class = BlockTable

    @initialize(num_blocks=st.integers(1, 14), block_size=st.sampled_from([4, 3, 2, 1]), keeps_all=st.booleans())
    def start(self, num_blocks, block_size, keeps_all):
        self.pool = self.pool_class(num_blocks, block_size)
        self.size = block_size
        self.keeps_all = keeps_all  # as an eager cache would: the pool is then soon full of cached blocks
        self.fresh_token = itertools.count(1)
        self.contents = [[EMPTY] * block_size for _ in range(num_blocks)]
        self.tables = []
        self.held = []  # references taken by hand, and what the block held then
        self.kept = set()
        self.cached = {}  # oldest first
        self.counts = Counter()
        self.events = []
        self.counts_by_events = Counter()
        self.pool.subscribe(self.events.append)

    # -------------------------------------------------------------- the model's own moves

    @property
    def plain_free(self):
        return {b for b in range(len(self.contents)) if not self.counts[b] and b not in self.cached}

    @property
    def num_free(self):
        return len(self.plain_free) + len(self.cached)

    def took(self, block_id):
        """The pool handed out this block: was it the right one to hand out?"""
        if self.plain_free:
            assert block_id in self.plain_free, f"{block_id} was handed out, but {self.plain_free} were free"
        else:
            oldest = next(iter(self.cached))
            assert block_id == oldest, f"{block_id} was evicted, but {oldest} is older"
            del self.cached[block_id]
            self.kept.discard(block_id)
        self.counts[block_id] = 1
        self.contents[block_id] = [EMPTY] * self.size
        if self.keeps_all:
            self.keep(block_id)

    def dropped(self, block_id):
        self.counts[block_id] -= 1
        if self.counts[block_id] == 0:
            if block_id in self.kept:
                self.cached[block_id] = list(self.contents[block_id])
            else:
                self.contents[block_id] = [EMPTY] * self.size

    def observed(self):
        """All that can be seen from outside. A call that raises must leave it as it was."""
        return (
            [self.pool.refcount(b) for b in range(len(self.contents))],
            (self.pool.num_free, self.pool.num_used, self.pool.num_cached),
            [(list(table.block_ids), table.num_tokens) for table, _ in self.tables],
            len(self.events),
        )

    def refuses(self, error, call):
        before = self.observed()
        try:
            call()
        except error:
            pass
        else:
            raise AssertionError(f"this call must raise {error.__name__}")
        assert self.observed() == before, "the call raised, but changed something"

    def table(self, index):
        return self.tables[index % len(self.tables)]

    # -------------------------------------------------------------- rules: the pool's verbs

    # Hypothesis leaves some rules out of each run. So there are three rules only, and verbs are drawn within them.
    @rule(verb=st.sampled_from(["allocate", "share", "release", "keep", "forget"]), index=INDEX)
    def by_hand(self, verb, index):
        if verb == "release":
            self.release(index)
        elif verb == "keep":
            used = [b for b in range(len(self.contents)) if self.counts[b]]
            self.keep(used[index % len(used)] if used else 0)
        elif verb == "forget":
            self.forget(index % len(self.contents))
        elif len(self.held) < 3:  # leave some blocks to the tables
            self.share(index % len(self.contents)) if verb == "share" else self.allocate()

    @rule(verb=VERBS, index=INDEX, n=st.integers(0, 9))
    def with_tables(self, verb, index, n):
        if not self.tables or (verb == "free" and len(self.tables) < 3):
            self.tables.append((self.table_class(self.pool), []))
            self.append(len(self.tables) - 1, n)
        elif verb == "append":
            self.append(index, n)
        elif verb == "write":
            self.append(index, 1)
        elif verb == "truncate":
            self.truncate(index, n)
        elif verb == "free":
            self.free(index, forget=n > 3)
        elif len(self.tables) < 6:
            self.fork(index)
        else:
            self.free(index, forget=True)

    def allocate(self):
        if self.num_free == 0:
            self.refuses(OutOfBlocks, self.pool.allocate)
            return
        block_id = self.pool.allocate()
        self.took(block_id)
        self.contents[block_id] = [next(self.fresh_token) for _ in range(self.size)]
        self.held.append((block_id, list(self.contents[block_id])))

    def share(self, block_id):
        if block_id in self.plain_free:
            self.refuses(ValueError, lambda: self.pool.share(block_id))
            return
        assert self.pool.share(block_id) == block_id
        if block_id in self.cached:
            self.contents[block_id] = self.cached.pop(block_id)
        self.counts[block_id] += 1
        self.held.append((block_id, list(self.contents[block_id])))

    def release(self, index):
        if self.held:
            block_id, _ = self.held.pop(index % len(self.held))
            self.pool.release(block_id)
            self.dropped(block_id)

    def keep(self, block_id):
        if not self.counts[block_id]:
            self.refuses(ValueError, lambda: self.pool.keep(block_id))
            return
        self.pool.keep(block_id)
        self.kept.add(block_id)

    def forget(self, block_id):
        self.pool.forget(block_id)
        self.kept.discard(block_id)
        if self.cached.pop(block_id, None):
            self.contents[block_id] = [EMPTY] * self.size

    @rule(verb=st.sampled_from(["share", "release", "keep", "refcount"]), index=INDEX)
    def misuse(self, verb, index):
        unknown = [-1, len(self.contents), "a", 0.5, None]
        block_id = unknown[index % 5]
        self.refuses(ValueError, lambda: getattr(self.pool, verb)(block_id))
        free = sorted(self.plain_free | set(self.cached))
        if free and verb in ("keep", "release"):
            self.refuses(ValueError, lambda: getattr(self.pool, verb)(free[index % len(free)]))
        if self.tables:
            self.misuse_table(*self.table(index))

    # -------------------------------------------------------------- rules: the table's verbs

    def append(self, index, n):
        table, tokens = self.table(index)
        last_is_partial = len(tokens) % self.size > 0
        must_copy = n > 0 and last_is_partial and self.counts[table.block_ids[-1]] > 1
        room = self.size - len(tokens) % self.size if last_is_partial else 0
        needed = must_copy + len(range(room, n, self.size))
        if needed > self.num_free:
            self.refuses(OutOfBlocks, lambda: table.append(n))
            return
        before = list(table.block_ids)
        copies = table.append(n)
        # Which blocks are new is the pool's choice; that they were free to take, and in its order, is checked.
        kept_ids = before[:-1] if must_copy else before
        assert table.block_ids[: len(kept_ids)] == kept_ids, "blocks that need no copy stay where they are"
        new = table.block_ids[len(kept_ids) :]
        assert len(new) == needed
        for block_id in new:
            self.took(block_id)
        assert copies == ([BlockCopy(before[-1], new[0])] if must_copy else [])
        for source, destination in copies:
            self.contents[destination] = list(self.contents[source])
            self.dropped(source)
        if last_is_partial and n and not must_copy:
            self.kept.discard(before[-1])  # it is written, so nobody may find it by what it was
        old = len(tokens)
        tokens += [next(self.fresh_token) for _ in range(n)]
        for slot, token in zip(table.slots(old, old + n), tokens[old:], strict=True):
            self.contents[slot // self.size][slot % self.size] = token

    def fork(self, index):
        table, tokens = self.table(index)
        child = table.fork()
        assert child is not table
        assert type(child) is type(table)
        assert child.block_ids == table.block_ids
        self.counts.update(table.block_ids)
        self.tables.append((child, list(tokens)))

    def truncate(self, index, n):
        table, tokens = self.table(index)
        length = max(0, len(tokens) - n)
        gone = table.block_ids[blocks_for(length, self.size) :]
        table.truncate(length)
        del tokens[length:]
        for block_id in reversed(gone):
            self.dropped(block_id)

    def free(self, index, forget):
        table, tokens = self.table(index)
        gone = list(table.block_ids)
        table.free()
        for block_id in reversed(gone):
            self.dropped(block_id)
        tokens.clear()
        before = self.observed()
        table.free()
        assert self.observed() == before, "freeing twice changed something"
        if forget:
            del self.tables[index % len(self.tables)]

    def misuse_table(self, table, tokens):
        bad_calls = [
            (ValueError, lambda: table.append(-1)),
            (ValueError, lambda: table.truncate(len(tokens) + 1)),
            (IndexError, lambda: table.slot(len(tokens))),
            (IndexError, lambda: table.slots(0, len(tokens) + 1)),
            (IndexError, lambda: table.slots(1, 0)),
            (OutOfBlocks, lambda: table.append(len(self.contents) * self.size + 1)),
        ]
        for error, call in bad_calls:
            self.refuses(error, call)

    # -------------------------------------------------------------- what holds after every step

    @invariant()
    def every_token_is_where_its_table_says(self):
        for table, tokens in self.tables:
            assert table.num_tokens == len(tokens)
            assert len(table.block_ids) == blocks_for(len(tokens), self.size)
            slots = table.slots(0, len(tokens))
            assert slots == [table.slot(position) for position in range(len(tokens))]
            assert [self.contents[s // self.size][s % self.size] for s in slots] == tokens
        for block_id, held in self.held:
            assert self.contents[block_id] == held, f"somebody wrote to block {block_id}, which is shared"
        for block_id, held in self.cached.items():
            assert self.contents[block_id] == held, f"somebody wrote to block {block_id}, which is kept"

    @invariant()
    def the_books_balance(self):
        by_hand = BlockTable(self.pool)
        by_hand.block_ids = [block_id for block_id, _ in self.held]
        self.pool.check([*(table for table, _ in self.tables), by_hand])
        used = sum(count > 0 for count in self.counts.values())
        assert [self.pool.refcount(b) for b in range(len(self.contents))] == [
            self.counts[b] for b in range(len(self.contents))
        ]
        assert (self.pool.num_used, self.pool.num_free, self.pool.num_cached) == (
            used,
            len(self.contents) - used,
            len(self.cached),
        )

    @invariant()
    def the_events_tell_all(self):
        for kind, block_id, refcount, source in self.events:
            self.counts_by_events[block_id] += {"allocate": 1, "share": 1, "revive": 1, "release": -1}.get(kind, 0)
            assert refcount == self.counts_by_events[block_id], f"{kind} of block {block_id}"
            assert (source is not None) == (kind == "copy")
        self.events.clear()
        assert +self.counts_by_events == +self.counts

    def teardown(self):
        if not hasattr(self, "pool"):
            return
        for table, _ in self.tables:
            table.free()
        for block_id, _ in self.held:
            self.pool.release(block_id)
        assert (self.pool.num_used, self.pool.num_free) == (0, len(self.contents))
        self.pool.check([])


BlockMachine.TestCase.settings = settings(
    max_examples=OPERATIONS // 50 if OPERATIONS else 250, stateful_step_count=50, deadline=None
)
TestBlocks = LONG_RUN(BlockMachine.TestCase)


# Planted bugs: the machine must find every one ---------------------------------------------------------------------


BUGS = {
    "a double free is accepted": Bug(BlockPool, "release", "raise ValueError", "return str"),
    "the newest is evicted": EVICTS_THE_NEWEST,
    "a block is evicted before it must": Bug(BlockPool, "allocate", "if not self.free_ids:", "if self.cached:"),
    "a forgotten block stays cached": Bug(BlockPool, "forget", "if block_id in self.cached:", "if False:"),
    "a revived block stays cached": Bug(BlockPool, "share", "self.cached.pop(block_id, None)", "pass"),
    "a block is exchanged without a copy": Bug(BlockTable, "append", "return copies", "return []"),
    "a copied block is not released": Bug(BlockTable, "copy_last", "self.pool.release(source)", "pass"),
    "two sequences write into one block": Bug(BlockTable, "must_copy", "> 1", "> 2"),
    "blocks are taken before they are counted": Bug(BlockTable, "append", "needed > self.pool.num_free", "False"),
    "a kept block is written": Bug(BlockTable, "append", "self.pool.forget(self.block_ids[-1])", "pass"),
    "truncate keeps a block too many": Bug(
        BlockTable, "truncate", "blocks_for(num_tokens, size)", "num_tokens // size + 1"
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_machine_finds_the_bug(bug):
    key = "pool_class" if BUGS[bug].kind is BlockPool else "table_class"
    machine = type("Mutated", (BlockMachine,), {key: BUGS[bug].planted()})
    with pytest.raises((AssertionError, IndexError, KeyError, ValueError, OutOfBlocks)):
        search(machine)


# Small print ----------------------------------------------------------------------------------------------------


def test_errors_say_what_would_do():
    pool = BlockPool(2, 4)
    table = BlockTable(pool)
    with pytest.raises(OutOfBlocks, match=r"append\(9\) takes 3 blocks, and 2 of 2 are free"):
        table.append(9)
    table.append(8)
    with pytest.raises(OutOfBlocks, match=r"all 2 are in use"):
        pool.allocate()
    with refused("block_id must be a whole number from 0 to 1, got 2"):
        pool.refcount(2)
    with refused(r"cannot truncate to 9 tokens: the table holds 8"):
        table.truncate(9)
    with pytest.raises(IndexError, match="tokens 8 to 8 are not among the 8"):
        table.slot(8)


@pytest.mark.parametrize("pool", [3, BlockPool, BlockTable(BlockPool(4))])
def test_a_table_needs_a_pool(pool):
    with refused("^pool must be an object of a subclass of Pool, got "):
        BlockTable(pool)
    assert BlockTable(PlainPool(4, 2)).append(3) == [], "a reader's own pool will do"


def test_a_pool_that_lacks_a_method_is_not_made():
    class Half(Pool):
        def allocate(self): ...

    with pytest.raises(TypeError, match=r"abstract class Half .*num_free.*refcount.*release.*share"):
        Half()


def test_the_block_released_last_is_handed_out_next():
    pool = BlockPool(4)
    assert [pool.allocate() for _ in range(3)] == [0, 1, 2]
    pool.release(1)
    pool.release(0)
    assert [pool.allocate() for _ in range(3)] == [0, 1, 3]


def test_a_subscriber_that_fails_is_named_and_breaks_nothing():
    pool, seen = BlockPool(4), []
    pool.subscribe(lambda event: 1 / 0)
    pool.subscribe(seen.append)
    with pytest.warns(UserWarning, match="a callback raised ZeroDivisionError.* with .BlockEvent"):
        assert pool.refcount(pool.allocate()) == 1
    assert [event.kind for event in seen] == ["allocate"]


def test_a_subscriber_can_leave():
    pool, seen = BlockPool(4), []
    stops = [pool.subscribe(seen.append) for _ in range(2)]
    stops[0]()
    stops[0]()  # ends its own calls alone
    pool.allocate()
    assert seen == [BlockEvent("allocate", 0, 1)]
    stops[1]()
    pool.allocate()
    assert len(seen) == 1
    with refused("^callback must be a function, got 3$"):
        pool.subscribe(3)


def test_events_of_a_copy_on_write_and_of_an_eviction():
    pool = BlockPool(2, 4)
    seen = []
    table = BlockTable(pool)
    table.append(3)
    child = table.fork()
    pool.subscribe(seen.append)
    child.append(1)
    assert seen == [BlockEvent("allocate", 1, 1), BlockEvent("copy", 1, 1, source=0), BlockEvent("release", 0, 1)]
    seen.clear()
    pool.keep(0)
    table.free()
    pool.share(0)
    pool.release(0)
    pool.allocate()
    assert [event.kind for event in seen] == ["keep", "release", "revive", "release", "evict", "allocate"]


NOT_ONE = "not one of used, free and cached"
SPOILED = {
    "a negative count": (NOT_ONE, lambda pool: pool.counts.__setitem__(3, -1)),
    "on the free list twice": (NOT_ONE, lambda pool: pool.free_ids.append(3)),
    "free and used": (NOT_ONE, lambda pool: pool.counts.__setitem__(3, 1)),
    "free and cached": (NOT_ONE, lambda pool: pool.cached.update({3: None})),
    "cached and not kept": (
        "cached and not kept",
        lambda pool: (pool.free_ids.remove(3), pool.cached.update({3: None})),
    ),
    "lost": (NOT_ONE, lambda pool: pool.free_ids.remove(3)),
}


@pytest.mark.parametrize("fault", SPOILED)
def test_check_names_the_block(fault):
    pool = BlockPool(5)
    pool.check([])
    said, spoil = SPOILED[fault]
    spoil(pool)
    with pytest.raises(InvariantError, match=rf"blocks \[3\] are {said}"):
        pool.check()


def test_check_compares_counts_with_tables():
    pool = BlockPool(5, 4)
    table = BlockTable(pool)
    table.append(8)
    pool.check([table])
    with pytest.raises(InvariantError, match=r"block 0 counts 1 but 0 tables list it"):
        pool.check([])
    with pytest.raises(InvariantError, match=r"block 0 counts 1 but 2 tables"):
        pool.check([table, table])
