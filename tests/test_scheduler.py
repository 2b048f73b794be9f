"""The scheduler, driven by a toy model that is exact: every slot remembers the whole text before it.

A slot holds the tokens up to its own, and the next token is a checksum of what the slots of a text say. So a
block shared, copied, freed or reused wrongly changes the text, and all texts are known in advance. No torch.
"""

import contextlib
import itertools
import random
import zlib
from collections import Counter
from dataclasses import replace

import pytest

from pagedlab import BlockPool, BlockTable, InvariantError, OutOfBlocks
from pagedlab.prefix import PrefixCache
from pagedlab.scheduler import Chunk, Request, Schedule, Scheduler, Sequence
from support.operations import LONG_RUN, OPERATIONS
from support.planted import Bug
from support.refused import refused


def next_token(tokens, seed):
    return zlib.crc32(repr((tokens, seed)).encode()) % 50


def expected_text(prompt, seed, max_tokens):
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tuple(tokens), seed))
        if tokens[-1] == 0:
            break
    return tokens[len(prompt) :]


def arrival(request):
    return request.request_id


class ToyPool(BlockPool):
    """Tells which blocks a cache keeps."""

    def is_cached(self, block_id):
        return block_id in self._cached


class ToyEngine:
    """What LLM does around its scheduler, with the toy in the model's place."""

    def __init__(
        self,
        num_blocks,
        block_size,
        max_batch_tokens,
        max_sequences,
        preemption="recompute",
        max_cpu_blocks=None,
        caching=False,
        scheduler=Scheduler,
        max_prompt_tokens=None,
    ):
        self.pool = ToyPool(num_blocks, block_size)
        self.cache = PrefixCache(self.pool) if caching else None
        self.scheduler = scheduler(
            self.pool,
            max_batch_tokens,
            max_sequences,
            self.cache,
            max_prompt_tokens=max_prompt_tokens,
            preemption=preemption,
            swapper=self,
            max_cpu_blocks=max_cpu_blocks,
        )
        self.slots = [None] * (num_blocks * block_size)
        self.ids = itertools.count()
        self.live = []
        self.others = BlockTable(self.pool)  # somebody outside the engine, who takes blocks and gives them back
        self.has_failed = False  # whether a step found too few blocks; LLM then begins with a new scheduler
        self.counts = Counter()

    def add(self, prompt, num_sequences, max_tokens, seed=None):
        number = next(self.ids)
        seed = 1000 * number if seed is None else seed
        first = Sequence(f"r{number}", BlockTable(self.pool), list(prompt), seed, len(prompt))
        request = Request(number, [first], num_sequences, max_tokens, salt="even" if number % 2 else None)
        request.streaming = number % 3 != 2
        self.scheduler.check(request)
        self.scheduler.add(request)
        self.live.append(request)
        return request

    # what moves KV

    def block(self, block_id):
        return slice(block_id * self.pool.block_size, (block_id + 1) * self.pool.block_size)

    def swap_out(self, block_ids):
        return [self.slots[self.block(block_id)] for block_id in block_ids]

    def swap_in(self, swapped, block_ids):
        for contents, block_id in zip(swapped, block_ids, strict=True):
            self.slots[self.block(block_id)] = contents

    # a step

    def step(self):
        try:
            return self.run(self.schedule())
        except OutOfBlocks:
            if not self.others.block_ids:
                raise
            self.has_failed = True
            return []

    def schedule(self):
        """Plan a step, and check what sequences that wait for a token are promised."""
        texts = [text for r in self.scheduler.running if r.streaming for text in r.unfinished]
        somebody_waits = any(len(text.token_ids) - text.table.num_tokens == 1 for text in texts)
        plan = self.scheduler.schedule()
        self.check(plan)
        if somebody_waits:
            prompts = [chunk for chunk in plan.chunks if len(chunk.sequence.token_ids) - chunk.start > 1]
            most, tokens = self.scheduler.max_prompt_tokens, sum(chunk.stop - chunk.start for chunk in prompts)
            assert tokens <= most, f"{tokens} tokens of prompts, while a reader waits who was promised {most} at most"
        return plan

    def run(self, plan):
        for source, destination in plan.copies:
            self.slots[self.block(destination)] = self.slots[self.block(source)]
        for _, sequence, start, stop in plan.chunks:
            for position, slot in zip(range(start, stop), sequence.table.slots(start, stop), strict=True):
                self.slots[slot] = tuple(sequence.token_ids[: position + 1])
        for chunk in plan.chunks:
            slots = chunk.sequence.table.slots(0, chunk.stop)
            for position, slot in enumerate(slots):
                assert self.slots[slot] == tuple(chunk.sequence.token_ids[: position + 1]), "a text reads foreign KV"
            if self.cache is not None:
                self.cache.insert(chunk.sequence.table, chunk.sequence.token_ids[: chunk.stop], salt=chunk.request.salt)
        speaking = [chunk for chunk in plan.chunks if chunk.is_last]
        for request in dict.fromkeys(chunk.request for chunk in speaking):
            texts = [chunk.sequence for chunk in speaking if chunk.request is request]
            assert texts == request.unfinished, "texts of one request are not sampled together"
            first = texts[0]
            forks = [
                replace(first, table=first.table.fork(), token_ids=first.token_ids[:], seed=first.seed + nth)
                for nth in range(1, 1 + request.num_to_fork)
            ]
            request.sequences += forks
            for text in [*texts, *forks]:
                text.token_ids.append(next_token(tuple(text.token_ids), text.seed))
                if text.token_ids[-1] == 0 or len(text.output_ids) >= request.max_tokens:
                    text.finish_reason = "done"
                    text.table.free()
        for request in list(self.live):
            if not request.unfinished:
                self.remove(request)
        self.poison()
        return plan.chunks

    def take_all_but(self, num_free):
        """Somebody outside the engine takes blocks, and leaves this many."""
        self.others.append(self.pool.block_size * (self.pool.num_free - num_free))

    def remove(self, request):
        self.live.remove(request)
        self.scheduler.remove(request)

    def poison(self):
        """What nobody holds and no cache keeps is gone: whoever reads it has not restored it."""
        for block_id in range(self.pool.num_blocks):
            if self.pool.refcount(block_id) == 0 and not self.pool.is_cached(block_id):
                self.slots[self.block(block_id)] = [None] * self.pool.block_size

    # what must hold

    def check(self, plan):
        scheduler, chunks = self.scheduler, plan.chunks
        assert sum(chunk.stop - chunk.start for chunk in chunks) <= scheduler.max_batch_tokens
        assert all(chunk.stop > chunk.start for chunk in chunks), "a chunk without a token"
        assert sum(request.num_sequences for request in scheduler.running) <= scheduler.max_sequences
        assert len({id(chunk.sequence) for chunk in chunks}) == len(chunks)
        tables = [text.table for request in self.live for text in request.sequences]
        self.pool.check([*tables, self.others])
        idle = [*scheduler.waiting, *scheduler.swapped]
        assert not any(text.table.block_ids for request in idle for text in request.sequences)
        queues = (scheduler.running, scheduler.swapped, scheduler.waiting)
        assert sorted((r for queue in queues for r in queue), key=arrival) == self.live, "one is lost"
        assert all(list(q) == sorted(q, key=arrival) for q in queues), "not in order of arrival"
        assert sum(r.swapped_kv.num_blocks for r in scheduler.swapped) <= scheduler.max_cpu_blocks
        for request in plan.admitted:
            assert all(arrival(other) > arrival(request) for other in scheduler.swapped), "let in before its turn"
        if self.live and not self.others.block_ids:
            oldest = self.live[0]
            assert any(chunk.request is oldest for chunk in chunks), "the oldest does not go on"
        self.counts += Counter(preemption.mode for preemption in plan.preempted)
        self.counts["resumed"] += len(plan.resumed)
        self.counts["rejoined"] += sum(p.mode == "recompute" and len(p.request.sequences) > 1 for p in plan.preempted)

    def finish(self, *requests):
        """Free what others hold and run until no request is left: these requests have the right texts.

        Each step computes one token of the oldest at least, which bounds the steps.
        """
        self.others.free()
        left = sum(r.num_sequences * (len(r.sequences[0].token_ids) + r.max_tokens + 2) for r in self.live)
        for _ in range(left + 1):
            if not self.live:
                break
            assert self.step(), "no progress"
        assert not self.live
        assert self.pool.num_used == 0
        self.pool.check([])
        assert not [*self.scheduler.running, *self.scheduler.waiting, *self.scheduler.swapped]
        for request in requests:
            self.verify(request)

    def verify(self, request):
        """The texts are those that the request has alone."""
        first = request.sequences[0]
        prompt, seed = first.token_ids[: first.num_prompt_tokens], first.seed
        expected = [expected_text(prompt, seed + nth, request.max_tokens) for nth in range(request.num_sequences)]
        assert [text.output_ids for text in request.sequences] == expected


def fuzz(seed, num_requests, scheduler=Scheduler):
    """Random requests and aborts on pools just large enough; what happened, counted.

    Whoever is neither refused nor aborted gets the text that it has alone.
    """
    rng, counts = random.Random(seed), Counter()
    while counts["requests"] < num_requests:
        engine = ToyEngine(
            rng.randint(6, 24),
            rng.randint(1, 5),
            rng.choice([1, 4, 7, 20, 64]),
            rng.choice([1, 5, 9, 30]),
            rng.choice(["recompute", "swap"]),
            rng.choice([None, None, 0, 6]),
            rng.random() < 0.5,
            scheduler,
            rng.choice([None, 1, 5]),
        )
        added, aborted = [], set()
        common = [rng.randrange(1, 50) for _ in range(12)]
        for _ in range(60):
            what = rng.random()
            if what < 0.25:
                own = [rng.randrange(1, 50) for _ in range(rng.choice([0, 0, 1, 5, 8]))]
                prompt = common[: rng.randint(1, 12)] + own
                new, seed = rng.randint(1, 40), rng.choice([None, None, 7])
                before = engine.pool.num_used, len(engine.scheduler.waiting)
                try:
                    added.append(engine.add(prompt, rng.choice([1, 1, 2, 4]), new, seed))
                except ValueError:
                    assert (engine.pool.num_used, len(engine.scheduler.waiting)) == before
            elif what < 0.29 and engine.live:
                aborted.add(request := rng.choice(engine.live))
                engine.remove(request)
            else:
                engine.others.free()
                if rng.random() < 0.1:
                    engine.others.append(rng.randint(0, engine.pool.num_free) * engine.pool.block_size)
                engine.step()
                if engine.has_failed:
                    break
        else:
            engine.finish(*(request for request in added if request not in aborted))
        counts += engine.counts + Counter(requests=len(added), aborted=len(aborted))
    return counts


# Planted bugs -----------------------------------------------------------------------------------------------------


class OldestGivesWay(Scheduler):
    def victim(self):
        return self.running[0]


def bug(method, old, new):
    return Bug(Scheduler, method, old, new)


BUGS = {
    "a preempted request is lost": bug("_preempt", "insort(queue,", "mode == 'swap' and insort(queue,"),
    "the oldest is preempted": bug("victim", "[-1]", "[0]"),
    "a short prompt overtakes": bug(
        "next_waiting", "self.waiting[0]", "min(self.waiting, key=lambda r: r.sequences[0].length)"
    ),
    "blocks come back in disorder": bug("_restore_tables", "in places", "in places[::-1]"),
    "blocks come back unshared": bug("_restore_tables", "self.pool.share(new_ids[place])", "pass"),
    "a new request is admitted before a swapped one": bug("_admit_while_room", "if self.swapped and", "if False and"),
    "the host is filled beyond its limit": bug("_can_swap", "self.max_cpu_blocks", "self.pool.num_blocks"),
    "the boundary of a block is off by one": bug("_fits", "table.num_tokens + n,", "table.num_tokens + n - 1,"),
    "a fork shares too much": bug(
        "_fork_again", "common_prefix(first, sequence)", "min(first.length, sequence.length) - 1"
    ),
    "a prompt is found across salts": bug("_admit", "salt=request.salt", "salt=None"),
    "nothing is left to compute": bug("_admit", "leave=1", "leave=0"),
    "more run than may": bug("_has_room_for", "> self.max_sequences", "> 10**9"),
    "what never fits is accepted": bug("check", "need > self.pool.num_blocks", "False"),
}


@pytest.mark.parametrize("planted", BUGS)
def test_the_fuzz_catches(planted, seed):
    with pytest.raises((AssertionError, InvariantError, ValueError, IndexError, OutOfBlocks)):
        fuzz(seed, 10_000, BUGS[planted].planted())


def swapped_out_while_a_copy_is_due(scheduler):
    """The first request has two texts. The block that one of them copies to is not filled when it is preempted."""
    # Only such a policy preempts a request that has its slots for this step already.
    engine = ToyEngine(12, 4, 100, 10, "swap", scheduler=type("Mixed", (OldestGivesWay, scheduler), {}))
    older, younger = engine.add([1] * 6, 2, 9), engine.add([2] * 4, 1, 6)
    engine.step()
    engine.take_all_but(1)
    engine.step()
    assert older in [request for request, _ in engine.scheduler.plan.preempted]
    engine.finish(older, younger)


def a_copy_for_which_there_is_no_block(scheduler):
    engine = ToyEngine(12, 4, 100, 10, scheduler=scheduler)
    older, younger = engine.add([1] * 6, 2, 9), engine.add([2] * 4, 1, 9)
    engine.step()
    engine.take_all_but(0)
    engine.step()
    assert list(engine.scheduler.waiting) == [younger]
    engine.finish(older, younger)


# Sequences that come back are forked from their first, though its blocks may not be computed yet.
FORKS_TOO_EARLY = bug("_fork_again", "not self.plan.registered.isdisjoint(first.table.block_ids)", "False")


def two_of_a_kind_come_back(scheduler):
    """Two requests with the same prompt and seed gave way with two texts each, and nothing of them is cached."""
    engine = ToyEngine(40, 4, 100, 10, caching=True, scheduler=scheduler)
    prompt = next([i] * 6 for i in range(1, 50) if min(len(expected_text([i] * 6, s, 9)) for s in (7, 8)) == 9)
    older, _, younger = engine.add(prompt, 2, 9, seed=7), engine.add([3], 1, 1), engine.add(prompt, 2, 9, seed=7)
    for _ in range(4):
        engine.step()
    engine.scheduler.plan = Schedule()
    for request in (younger, older):
        engine.scheduler._preempt(request)
    engine.cache.clear()
    engine.poison()
    return engine, [older, younger]


def a_copy_of_what_is_in_the_making(scheduler):
    """The younger finds a block that the older fills in the same step, and its second text writes into that one."""
    engine, requests = two_of_a_kind_come_back(scheduler)
    engine.finish(*requests)


SCENES = {
    swapped_out_while_a_copy_is_due: bug(
        "_can_swap", "any(copy.destination in block_ids for copy in self.plan.copies)", "False"
    ),
    a_copy_for_which_there_is_no_block: bug("_fits", "in writers.items()", "in ()"),
    a_copy_of_what_is_in_the_making: FORKS_TOO_EARLY,
}
each_scene = pytest.mark.parametrize("scene", SCENES)


@each_scene
def test_rare_moments(scene):
    """Random requests come here too seldom."""
    scene(Scheduler)


@each_scene
def test_a_rare_moment_finds_the_bug(scene):
    with pytest.raises((AssertionError, InvariantError, OutOfBlocks)):
        scene(SCENES[scene].planted())


@LONG_RUN
def test_fuzz(seed):
    counts = fuzz(seed, OPERATIONS // 4 if OPERATIONS else 1500)  # one operation in four adds a request
    print(dict(counts))
    assert min(counts[what] for what in ("recompute", "swap", "resumed", "rejoined", "aborted")) > 0


class CountsAnew(Scheduler):
    """Compares the blocks that are promised to running requests with a new count, at each admission."""

    num_compared = 0

    def may_admit(self, request):
        if self._promised is not None:
            assert self._promised == self._promised_to(self.running)
            CountsAnew.num_compared += 1
        return super().may_admit(request)


def test_promised_blocks_are_those_of_a_new_count(seed):
    before = CountsAnew.num_compared
    fuzz(seed, 200, CountsAnew)
    assert CountsAnew.num_compared > before + 50
    forgets = bug("_admit_while_room", "self._promised_to([request])", "0").planted()
    with pytest.raises(AssertionError):
        fuzz(seed, 10_000, type("Mixed", (CountsAnew, forgets), {}))


@pytest.mark.parametrize("num_blocks", [6, 7])
def test_forks_to_come_are_promised_their_blocks(num_blocks):
    """Four texts fork from a prompt in the step after it. Each of them copies its last block."""
    engine = ToyEngine(num_blocks, 4, 100, 9)
    first, later = engine.add([1] * 7, 4, 2), engine.add([2] * 8, 1, 3)
    engine.step()
    assert (engine.scheduler.running, list(engine.scheduler.waiting)) == ([first], [later])
    engine.finish(first, later)
    assert not engine.counts["recompute"]


def test_the_promise_holds_to_the_last_block():
    """A request whose worst case is exactly the pool runs; one token more is refused, with the numbers."""
    engine = ToyEngine(5, 4, 100, 10)
    engine.add([1] * 5, 3, 4)  # 1 shared block of the prompt, and 3 x 1 more for slots 5 to 8
    while engine.live:
        engine.step()
    with refused(r"needs 7 blocks of 4 tokens \(5 prompt tokens, up to 5 new ones, 3 sequences\) and"):
        engine.add([1] * 5, 3, 5)


def test_whoever_gives_way_nobody_else_loses_a_step():
    """A policy may choose any victim; who stands behind it in line has its turn all the same."""
    engine = ToyEngine(12, 4, 100, 10, scheduler=OldestGivesWay)
    requests = [engine.add([i] * 4, 1, 9) for i in range(3)]
    engine.step()
    engine.take_all_but(0)
    plan = engine.scheduler.schedule()
    # The first gives way to itself, the second takes its block, and loses it to the third.
    assert [request for request, _ in plan.preempted] == requests[:2]
    assert [chunk.request for chunk in plan.chunks] == requests[2:]
    engine.run(plan)


def sizes_of(chunks):
    return [(chunk.request.request_id, chunk.stop - chunk.start) for chunk in chunks]


def add_long(engine, prompt, max_tokens):
    """Add a request whose text does not end before its last token."""
    seeds = (seed for seed in itertools.count() if len(expected_text(prompt, seed, max_tokens)) == max_tokens)
    return engine.add(prompt, 1, max_tokens, seed=next(seeds))


def test_who_waits_for_a_token_waits_for_few_of_others_prompts():
    engine = ToyEngine(20, 4, 30, 10, max_prompt_tokens=4)

    first = add_long(engine, [1] * 9, 5)
    assert [sizes_of(engine.step()) for _ in range(2)] == [[(0, 4)], [(0, 5)]], "nobody waits yet"
    second = add_long(engine, [2] * 10, 5)
    assert [sizes_of(engine.step()) for _ in range(3)] == [[(0, 1), (1, 4)], [(0, 1), (1, 4)], [(0, 1), (1, 2)]]
    add_long(engine, [3] * 3, 5).streaming = False
    assert sizes_of(engine.step()) == [(0, 1), (1, 1), (2, 3)]
    for request in (first, second):
        if request in engine.live:
            engine.remove(request)
    add_long(engine, [4] * 10, 5)
    assert sizes_of(engine.step()) == [(2, 1), (3, 10)], "who reads at the end does not wait"


def test_prompts_alone_begin_with_few_tokens_and_each_step_may_have_four_times_as_many():
    """So a device has something to do while the host plans what is much."""
    engine = ToyEngine(99, 4, 24, 20, max_prompt_tokens=4)
    for _ in range(2):
        for _ in range(12):
            engine.add([1] * 6, 1, 1).streaming = False
        sizes = []
        while engine.live:
            sizes.append(sum(n for _, n in sizes_of(engine.step())))
        assert sizes == [4, 16, 24, 24, 4], "the second time too: between them nothing ran"


def test_who_has_a_draft_waits_too_and_the_draft_is_no_prompt():
    engine = ToyEngine(20, 4, 30, 10, max_prompt_tokens=4)
    request = add_long(engine, [1] * 4, 9)
    engine.step()
    request.sequences[0].token_ids += [7] * 5
    request.sequences[0].num_draft = 5
    engine.add([2] * 10, 1, 1)
    assert sizes_of(engine.scheduler.schedule().chunks) == [(0, 6), (1, 4)]


def test_blocks_in_the_making_are_found_in_the_same_step():
    engine = ToyEngine(30, 4, 40, 9, caching=True)
    for prompt in ([*range(1, 14)],) * 2:
        engine.add(prompt, 1, 1).salt = None
    assert sizes_of(engine.step()) == [(0, 13), (1, 1)]
    assert sum(engine.scheduler.plan.cached.values()) == 12


def test_a_block_that_was_begun_before_is_found_in_the_step_that_fills_it():
    engine = ToyEngine(30, 4, 3, 9, caching=True)
    engine.add([8] * 8, 1, 1)
    assert sizes_of(engine.step()) == [(0, 3)]
    engine.scheduler.max_batch_tokens = engine.scheduler.max_prompt_tokens = 40
    engine.add([8] * 8, 1, 1).salt = None
    assert sizes_of(engine.step()) == [(0, 5), (1, 4)]


def test_more_texts_than_run_side_by_side():
    for max_batch_tokens, max_sequences in ((100, 3), (3, 100)):
        engine = ToyEngine(100, 4, max_batch_tokens, max_sequences)
        with refused("4 sequences of one prompt run side by side and the engine takes 3"):
            engine.add([1, 2], 4, 2)
        assert not engine.scheduler.waiting


def test_a_pool_that_others_empty():
    """Somebody outside the engine takes every block: nobody can go on, the error says so, and all is well after."""
    engine = ToyEngine(8, 4, 100, 10)
    request = engine.add([1] * 4, 1, 3)
    engine.step()
    taken = [engine.pool.allocate() for _ in range(7)]
    for free in (1, 0):
        with pytest.raises(OutOfBlocks, match=f"no request can go on, with {free} of 8 blocks free: release"):
            engine.scheduler.schedule()
        assert list(engine.scheduler.waiting) == [request]
        taken += [engine.pool.allocate() for _ in range(free)]
    for block_id in taken:
        engine.pool.release(block_id)
    engine.finish(request)


def test_priorities_are_one_line():
    class Urgent(Scheduler):
        def order(self, request):
            return request.max_tokens, request.request_id  # short answers first

    engine = ToyEngine(40, 4, 100, 1, scheduler=Urgent)
    requests = [engine.add([i + 1] * 4, 1, n, seed=0) for i, n in enumerate((9, 2, 5))]
    assert [r.max_tokens for r in engine.scheduler.waiting] == [2, 5, 9]
    order = []
    while engine.scheduler.waiting or engine.scheduler.running:
        plan = engine.scheduler.schedule()
        for chunk in plan.chunks:
            order += [chunk.request] if chunk.request not in order else []
            chunk.sequence.token_ids.append(1)
            if chunk.sequence.num_outputs == chunk.request.max_tokens:
                chunk.sequence.finish_reason = "length"
                engine.remove(chunk.request)
    assert order == [requests[1], requests[2], requests[0]]


def test_swap_needs_a_swapper():
    with refused("preemption='swap' needs a swapper, which moves the blocks' contents"):
        Scheduler(BlockPool(4), 4, 4, preemption="swap")
    with refused("preemption must be one of 'recompute', 'swap', got 'drop'"):
        Scheduler(BlockPool(4), 4, 4, preemption="drop")
    scheduler = Scheduler(BlockPool(4), 4, 4, preemption="recompute")
    assert (scheduler.swapper, scheduler.plan) == (None, Schedule())
    assert scheduler.plan.passes == 1


def test_a_block_that_somebody_outside_reads_is_copied_by_its_only_writer():
    """One text writes, two read: the copy takes a block, and if there is none, the younger request gives way."""
    engine = ToyEngine(12, 4, 100, 10)
    older, younger = engine.add([1] * 6, 1, 6), engine.add([2] * 5, 1, 6)
    engine.step()
    engine.take_all_but(0)
    reader = older.sequences[0].table.fork()
    engine.others.block_ids += reader.block_ids
    engine.others.num_tokens += 4 * len(reader.block_ids)
    assert engine.step()
    assert [request for request, _ in engine.scheduler.plan.preempted] == [younger]
    engine.finish(older, younger)


@pytest.mark.parametrize(
    ("num_blocks", "caching", "shared", "new_tokens", "may"),
    [
        *(
            (7, caching, shared, *last)
            for caching, shared in ((False, 0), (True, 0), (True, 8))
            for last in ((8, True), (9, False))
        ),
        (5, True, 8, 0, False),  # of a cached prompt the block of its last token is taken all the same
        (6, True, 9, 0, True),
    ],
)
def test_admission_counts_to_the_block(num_blocks, caching, shared, new_tokens, may):
    """2 blocks hold the first prompt, 1 is due for its next token, 1 is kept back for each text: 2 of 7 are left."""
    engine = ToyEngine(num_blocks, 4, 100, 10, caching=caching)
    first = engine.add([1] * 8, 1, 4)
    engine.step()
    assert engine.scheduler.running == [first]
    later = engine.add([1] * shared + [2] * new_tokens, 1, 1)
    later.salt = first.salt
    assert engine.scheduler.may_admit(later) is may
    engine.finish(later)


def test_looking_ahead_gives_slots_up_to_the_last_that_a_text_may_need():
    engine = ToyEngine(12, 4, 100, 10)
    short, long = engine.add([1] * 4, 1, 3), engine.add([2] * 4, 1, 40)
    chunks = engine.step()
    texts = [short.sequences[0], long.sequences[0]]
    further = engine.scheduler.reserve_ahead(chunks, 5)
    assert further == [Chunk(short, texts[0], 4, 6), Chunk(long, texts[1], 4, 9)]  # the last token needs no slot
    assert [text.table.num_tokens for text in texts] == [6, 9]
    assert engine.scheduler.reserve_ahead(further, 5) == [Chunk(long, texts[1], 9, 14)]
    texts[1].finish_reason = "stop"
    assert engine.scheduler.reserve_ahead(further, 5) == []


def test_looking_ahead_stops_where_blocks_are_short_or_somebody_could_come_in():
    engine = ToyEngine(6, 4, 100, 10)
    first = engine.add([1] * 4, 1, 16)
    chunks, table = engine.step(), first.sequences[0].table
    engine.others.append(4 * 4)
    assert engine.scheduler.reserve_ahead(chunks, 5) is None
    assert (table.num_tokens, engine.pool.num_free) == (4, 1)
    engine.others.free()
    later = engine.add([2] * 4, 1, 4)
    assert engine.scheduler.reserve_ahead(chunks, 5) is None
    engine.remove(later)
    engine.others.append(4 * 3)  # two are left, which is just enough
    assert engine.scheduler.reserve_ahead(chunks, 5) == [Chunk(first, first.sequences[0], 4, 9)]


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_chunk_of_this_step_is_taken_back_before_its_request_gives_way(preemption):
    """The oldest has its slot for this step when the next one needs its blocks: that token was never computed."""
    engine = ToyEngine(12, 4, 100, 10, preemption, scheduler=OldestGivesWay)
    older, younger = engine.add([1] * 4, 1, 9), engine.add([2] * 4, 1, 9)
    engine.step()
    engine.take_all_but(1)
    plan = engine.scheduler.schedule()
    assert [(request, how) for request, how in plan.preempted] == [(older, preemption)]
    assert [chunk.request for chunk in plan.chunks] == [younger]
    engine.run(plan)
    engine.finish(older, younger)


def test_the_budget_of_a_chunk_that_is_taken_back_is_spent_again_and_no_more():
    engine = ToyEngine(40, 4, 6, 10, scheduler=OldestGivesWay)
    prompt = next([i] * 4 for i in range(1, 50) if len(expected_text([i] * 4, 0, 60)) > 40)
    older = engine.add(prompt, 1, 60)
    while older.sequences[0].table.num_tokens < 30:  # so that it has room in its last block when the others have none
        engine.step()
    second, third = engine.add([2, 3], 1, 9), engine.add([4] * 40, 1, 9)
    while second.sequences[0].table.num_tokens < 4:
        engine.step()
    engine.take_all_but(0)
    plan = engine.scheduler.schedule()
    assert [request for request, _ in plan.preempted] == [older]
    assert [(chunk.request, chunk.stop - chunk.start) for chunk in plan.chunks] == [(second, 1), (third, 5)]
    engine.run(plan)


def test_who_was_swapped_comes_back_when_a_block_is_left_for_each_text():
    engine = ToyEngine(20, 4, 100, 10, "swap", max_cpu_blocks=1)  # just what the last one needs
    *_, last = (engine.add([i] * 4, 1, 9) for i in range(1, 4))
    engine.step()
    engine.take_all_but(2)
    engine.step()
    assert engine.scheduler.swapped == [last]
    need = last.swapped_kv.num_blocks + 3  # its own, one for each of the two that run, one for itself
    engine.others.truncate(engine.others.num_tokens - 4 * (need - 1 - engine.pool.num_free))
    assert not engine.scheduler._has_room_for(last)
    engine.others.truncate(engine.others.num_tokens - 4)
    assert engine.scheduler._has_room_for(last)
    engine.remove(last)
    assert last.swapped_kv is None, "swapped KV must not outlive its request"


def test_a_long_chunk_for_which_blocks_are_short_goes_back_in_line():
    engine = ToyEngine(12, 4, 100, 10)
    request = engine.add([1] * 40, 1, 4)
    engine.others.append(4 * 8)
    assert engine.step() == []
    assert (list(engine.scheduler.waiting), engine.scheduler.running) == ([request], [])
    engine.finish(request)


def test_a_copy_and_the_block_behind_it_both_count():
    """Two more tokens: one in the block that another reads, which is copied, and one in a new block."""
    pool = BlockPool(3, 4)
    text = Sequence("text", BlockTable(pool), [1] * 5, 0, 5)
    text.table.append(3)
    text.table.fork()
    pool.allocate()
    scheduler = Scheduler(pool, 9, 9)
    assert not scheduler._fits([(text, 2)])
    assert scheduler._fits([(text, 1)])


def test_as_many_texts_as_run_side_by_side_and_rows_of_logits_for_none_before_the_end():
    engine = ToyEngine(100, 4, 3, 3)
    request = engine.add([1] * 5, 3, 2)
    (chunk,) = engine.scheduler.schedule().chunks
    assert (chunk.stop, chunk.num_rows, chunk.is_last) == (3, 0, False)
    engine.run(engine.scheduler.plan)
    engine.finish(request)


def test_who_gives_way_leaves_its_draft_behind():
    engine = ToyEngine(12, 4, 100, 10)
    older, younger = engine.add([1] * 4, 1, 9), engine.add([2] * 4, 1, 9)
    engine.step()
    text = younger.sequences[0]
    known = list(text.token_ids)
    text.token_ids += [7] * 4
    text.num_draft = 4
    engine.take_all_but(1)
    plan = engine.scheduler.schedule()
    assert [request for request, _ in plan.preempted] == [younger]
    assert (text.token_ids, text.num_draft) == (known, 0)
    engine.run(plan)
    engine.finish(older, younger)


def test_a_preempted_request_takes_its_pending_copies_along(rng):
    """A block that was freed with its copy still due may be another copy's destination by then."""

    class AnyVictim(Scheduler):
        def victim(self):
            return rng.choice(self.running)

    copies = 0
    for _ in range(200):
        engine = ToyEngine(rng.randint(6, 9), 4, 100, 10, scheduler=AnyVictim)
        for _ in range(4):
            with contextlib.suppress(ValueError):
                engine.add([rng.randint(1, 9)] * rng.randint(3, 7), rng.randint(1, 3), rng.randint(4, 9))
        for _ in range(12):
            if not engine.live:
                break
            plan = engine.scheduler.schedule()
            destinations = [copy.destination for copy in plan.copies]
            copies += len(destinations)
            assert len(set(destinations)) == len(destinations)
            assert all(engine.pool.refcount(block_id) for block_id in destinations)
            engine.run(plan)
    assert copies


def test_a_plan_says_what_it_computes():
    engine = ToyEngine(8, 4, 100, 10)
    engine.add([1] * 6, 1, 3)
    assert repr(engine.scheduler.schedule()) == "Schedule(computes r0[0:6]; admits r0)"
    assert repr(Schedule()) == "Schedule(computes nothing)"
