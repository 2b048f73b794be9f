"""The block pool and the block table against an exact model of them.

The model holds what the real thing must not lose: the tokens of every table, and what every block contains.
A table is read back through its slots after every step, so a missing copy shows as a wrong token, not only
as a wrong count.
"""

import itertools
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pagedlab import BlockCopy, BlockEvent, BlockPool, BlockTable, InvariantError, OutOfBlocks, blocks_for
from pagedlab.blocks import Pool
from support.operations import LONG_RUN, OPERATIONS

EMPTY = 0  # what a slot holds that nobody has written; tokens are numbered from 1
VERBS = ["write", "fork", "append", "write", "fork", "append", "write", "truncate", "free", "share"]
INDEX = st.integers(0, 59)  # taken modulo whatever there is to choose from


class BlockMachine(RuleBasedStateMachine):
    """All verbs of pool and tables, in any order, beside a model of plain lists, sets and dicts."""

    @initialize(num_blocks=st.integers(1, 14), block_size=st.sampled_from([4, 3, 2, 1]), keeps_all=st.booleans())
    def start(self, num_blocks, block_size, keeps_all):
        self.pool = BlockPool(num_blocks, block_size)
        self.size = block_size
        self.keeps_all = keeps_all  # as an eager cache would: the pool is then soon full of cached blocks
        self.fresh_token = itertools.count(1)
        self.contents = [[EMPTY] * block_size for _ in range(num_blocks)]
        self.tables = []  # and their tokens
        self.kept = set()
        self.cached = {}  # oldest first, with what they hold
        self.counts = Counter()
        self.events = []
        self.counts_by_events = Counter()
        self.pool.subscribe(self.events.append)

    # -------------------------------------------------------------- the model's own moves

    @property
    def plain_free(self):
        return {b for b in range(len(self.contents)) if not self.counts[b] and b not in self.cached}

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

    def dropped(self, block_ids):
        for block_id in reversed(block_ids):
            self.counts[block_id] -= 1
            if self.counts[block_id] == 0 and block_id in self.kept:
                self.cached[block_id] = list(self.contents[block_id])

    def refuses(self, error, call):
        before = repr(self.pool), repr(self.tables), len(self.events)
        with pytest.raises(error):
            call()
        assert (repr(self.pool), repr(self.tables), len(self.events)) == before, (
            "the call raised, but changed something"
        )

    def keep(self, block_id):
        self.pool.keep(block_id)
        self.kept.add(block_id)

    # -------------------------------------------------------------- rules

    # Hypothesis leaves some rules out of each run. So there are three rules only, and verbs are drawn within them.
    @rule(verb=st.sampled_from(VERBS), index=INDEX, n=st.integers(0, 9))
    def change_a_table(self, verb, index, n):
        if not self.tables or (verb == "free" and len(self.tables) < 3):
            self.tables.append((BlockTable(self.pool), []))
            verb, index = "append", -1
        if verb in ("fork", "share") and len(self.tables) > 5:
            verb = "free"
        if verb == "share":
            self.share(index % len(self.contents))
            return
        table, tokens = self.tables[index % len(self.tables)]
        if verb in ("append", "write"):
            self.append(table, tokens, 1 if verb == "write" else n)
        elif verb == "fork":
            self.fork(table, tokens)
        else:
            self.cut(table, tokens, 0 if verb == "free" else max(0, len(tokens) - n))
            if verb == "free" and n > 3:
                self.tables.remove((table, tokens))

    @rule(index=INDEX, forgets=st.booleans())
    def keep_or_forget(self, index, forgets):
        used = [b for b in range(len(self.contents)) if self.counts[b]]
        if forgets:
            block_id = index % len(self.contents)
            self.pool.forget(block_id)
            self.kept.discard(block_id)
            self.cached.pop(block_id, None)
        elif used:
            self.keep(used[index % len(used)])

    @rule(index=INDEX)
    def misuse(self, index):
        for block_id in self.plain_free | set(self.cached):
            self.refuses(ValueError, lambda block_id=block_id: self.pool.keep(block_id))
            self.refuses(ValueError, lambda block_id=block_id: self.pool.release(block_id))
        if not self.pool.num_free:
            self.refuses(OutOfBlocks, self.pool.allocate)
        if self.tables:
            table, tokens = self.tables[index % len(self.tables)]
            self.refuses(ValueError, lambda: table.append(-1))
            self.refuses(ValueError, lambda: table.truncate(len(tokens) + 1))
            self.refuses(IndexError, lambda: table.slot(len(tokens)))
            self.refuses(IndexError, lambda: table.slots(1, 0))
            self.refuses(OutOfBlocks, lambda: table.append(len(self.contents) * self.size + 1))

    def share(self, block_id):
        """A table over a block that somebody uses, or that is cached."""
        if block_id in self.plain_free:
            self.refuses(ValueError, lambda: self.pool.share(block_id))
            return
        table = BlockTable(self.pool)
        table.block_ids, table.num_tokens = [self.pool.share(block_id)], self.size
        assert self.events[-1].kind == ("revive" if block_id in self.cached else "share")
        if block_id in self.cached:
            self.contents[block_id] = self.cached.pop(block_id)
        self.counts[block_id] += 1
        self.tables.append((table, list(self.contents[block_id])))

    def append(self, table, tokens, n):
        is_partial = len(tokens) % self.size > 0
        must_copy = n > 0 and is_partial and self.counts[table.block_ids[-1]] > 1
        before = list(table.block_ids)
        needed = blocks_for(len(tokens) + n, self.size) - len(before) + must_copy
        if needed > len(self.plain_free) + len(self.cached):
            self.refuses(OutOfBlocks, lambda: table.append(n))
            return
        copies = table.append(n)
        # Which blocks are new is the pool's choice; that they were free to take, and in its order, is checked.
        stay = before[:-1] if must_copy else before
        new = table.block_ids[len(stay) :]
        assert (table.block_ids[: len(stay)], len(new)) == (stay, needed)
        for block_id in new:
            self.took(block_id)
        assert copies == ([BlockCopy(before[-1], new[0])] if must_copy else [])
        for source, destination in copies:
            self.contents[destination] = list(self.contents[source])
            self.dropped([source])
        if is_partial and n and not must_copy:
            self.kept.discard(before[-1])  # it is written, so nobody may find it by what it was
        old = len(tokens)
        tokens += [next(self.fresh_token) for _ in range(n)]
        for slot, token in zip(table.slots(old, old + n), tokens[old:], strict=True):
            self.contents[slot // self.size][slot % self.size] = token

    def fork(self, table, tokens):
        child = table.fork()
        assert (type(child), child.block_ids) == (type(table), table.block_ids)
        self.counts.update(table.block_ids)
        self.tables.append((child, list(tokens)))

    def cut(self, table, tokens, length):
        gone = table.block_ids[blocks_for(length, self.size) :]
        if length:
            table.truncate(length)
        else:
            table.free()
            table.free()  # twice is as good as once
        del tokens[length:]
        self.dropped(gone)

    # -------------------------------------------------------------- what holds after every step

    @invariant()
    def every_token_is_where_its_table_says(self):
        for table, tokens in getattr(self, "tables", []):
            assert len(table.block_ids) == blocks_for(len(tokens), self.size)
            slots = table.slots(0, len(tokens))
            assert slots == [table.slot(position) for position in range(len(tokens))]
            assert [self.contents[s // self.size][s % self.size] for s in slots] == tokens

    @invariant()
    def the_books_balance(self):
        if not hasattr(self, "tables"):
            return
        self.pool.check([table for table, _ in self.tables])
        for kind, block_id, refcount, source in self.events:
            self.counts_by_events[block_id] += {"allocate": 1, "share": 1, "revive": 1, "release": -1}.get(kind, 0)
            assert refcount == self.counts_by_events[block_id], f"{kind} of block {block_id}"
            assert (source is not None) == (kind == "copy")
        self.events.clear()
        counts = {b: self.pool.refcount(b) for b in range(len(self.contents)) if self.pool.refcount(b)}
        assert counts == +self.counts == +self.counts_by_events
        free = len(self.contents) - len(counts)
        assert (self.pool.num_used, self.pool.num_free) == (len(counts), free)
        assert self.pool.num_cached == len(self.cached)


BlockMachine.TestCase.settings = settings(
    max_examples=OPERATIONS // 50 if OPERATIONS else 120, stateful_step_count=50, deadline=None
)
TestBlocks = LONG_RUN(BlockMachine.TestCase)


# Small print ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda table: table.append(9), OutOfBlocks, r"append\(9\) takes 3 blocks, and 0 of 2 are free"),
        (lambda table: table.pool.allocate(), OutOfBlocks, "all 2 are in use"),
        (lambda table: table.truncate(9), ValueError, "cannot truncate to 9 tokens: the table holds 8"),
        (lambda table: table.slot(8), IndexError, "tokens 8 to 8 are not among the 8"),
        (lambda table: table.pool.subscribe(3), ValueError, "^callback must be a function to call, got 3$"),
        (lambda _: type("Half", (Pool,), {})(), TypeError, r"Half .*allocate.*num_free.*refcount.*release.*share"),
        (lambda table: table.pool.check([]), InvariantError, "block 0 counts 1 but 0 tables list it"),
        (lambda table: table.pool.check([table, table]), InvariantError, "block 0 counts 1 but 2 tables"),
    ],
)
def test_errors_say_what_would_do(call, error, said):
    table = BlockTable(BlockPool(2, 4))
    table.append(8)
    with pytest.raises(error, match=said):
        call(table)


def test_the_block_released_last_is_handed_out_next():
    pool = BlockPool(4)
    assert [pool.allocate() for _ in range(3)] == [0, 1, 2]
    pool.release(1)
    pool.release(0)
    assert [pool.allocate() for _ in range(3)] == [0, 1, 3]


def test_events_of_a_copy_on_write():
    pool = BlockPool(2, 4)
    seen = []
    table = BlockTable(pool)
    table.append(3)
    child = table.fork()
    stop, _ = pool.subscribe(seen.append), pool.subscribe(seen.append)
    stop()
    stop()  # ends its own calls alone
    child.append(1)
    assert seen == [BlockEvent("allocate", 1, 1), BlockEvent("copy", 1, 1, source=0), BlockEvent("release", 0, 1)]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda pool: pool.counts.__setitem__(3, 1),
        lambda pool: pool.free_ids.remove(3),
        lambda pool: pool.cached.update({3: None}),
        lambda pool: (pool.free_ids.remove(3), pool.cached.update({3: None})),  # and it is not kept
    ],
)
def test_check_names_the_block(spoil):
    pool = BlockPool(5)
    pool.check()
    spoil(pool)
    with pytest.raises(InvariantError, match=r"blocks \[3\] are "):
        pool.check()
