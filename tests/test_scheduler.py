"""The schedulers, driven by a toy model that is exact: every slot remembers the whole text before it.

A slot holds the tokens up to its own, and the next token is a checksum of what the slots of a text say. So a
block shared, copied, freed or reused wrongly changes the text, and all texts are known in advance. No model.
"""

import random
import zlib
from collections import Counter
from types import SimpleNamespace

import pytest

from pagedlab import BlockPool, BlockTable, InvariantError, OutOfBlocks, SamplingParams
from pagedlab.prefix import PrefixCache
from pagedlab.recipes.swap import SwappingScheduler
from pagedlab.scheduler import Chunk, Plan, Scheduler, Sequence
from pagedlab_fast.scheduler import FastScheduler, FastSequence
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


class Slots:
    """In place of a cache's tensors: blocks [layer, block] of what each slot remembers."""

    def __init__(self, num_blocks, block_size):
        self.of_block = [[None] * block_size for _ in range(num_blocks)]
        self.device = None

    def __getitem__(self, index):
        contents = [self.of_block[block_id][:] for block_id in index[1]]
        moved = SimpleNamespace(contents=contents, to=lambda device: moved)
        moved.cpu = lambda: moved
        return moved

    def __setitem__(self, index, moved):
        for block_id, contents in zip(index[1], moved.contents, strict=True):
            self.of_block[block_id] = contents[:]


class ToyPool(BlockPool):
    """Tells which blocks a cache keeps."""

    def is_cached(self, block_id):
        return block_id in self.cached


class ToyEngine:
    """What LLM does around its scheduler, with the toy in the model's place."""

    def __init__(self, num_blocks, max_batch_tokens=100, max_sequences=10, *, caching=False, kind=Scheduler, size=4):
        self.pool = ToyPool(num_blocks, size)
        self.prefix_cache = PrefixCache(self.pool) if caching else None
        self.scheduler = kind(self.pool, max_batch_tokens, max_sequences, self.prefix_cache)
        self.new_sequence = FastSequence if issubclass(kind, FastScheduler) else Sequence
        self.cache = SimpleNamespace(keys=Slots(num_blocks, size), values=Slots(num_blocks, size))
        self.added = 0
        self.live = []
        self.done = []
        self.others = BlockTable(self.pool)  # somebody outside the engine, who takes blocks and gives them back
        self.counts = Counter()

    def add(self, prompt, max_tokens, n=1, seed=None, **options):
        number, self.added = self.added, self.added + 1
        params = SamplingParams(max_tokens=max_tokens, n=n, temperature=1.0)
        sequence = self.new_sequence(
            number, BlockTable(self.pool), list(prompt), len(prompt), params, max_tokens,
            seed=1000 * number if seed is None else seed, num_to_fork=n - 1, **options,
        )  # fmt: skip
        self.scheduler.check(sequence)
        self.scheduler.add(sequence)
        self.live.append(sequence)
        return sequence

    def step(self):
        plan = self.scheduler.schedule()
        self.check(plan)
        self.run(plan)
        return plan

    def run(self, plan):
        slots = self.cache.keys.of_block
        for operation in plan.operations:
            operation(self.cache)
        for source, destination in plan.copies:
            slots[destination] = slots[source][:]
        places = {chunk: self.places(chunk.sequence, chunk.stop) for chunk in plan.chunks}
        for chunk in plan.chunks:
            for position in range(chunk.start, chunk.stop):
                block_id, offset = places[chunk][position]
                slots[block_id][offset] = tuple(chunk.sequence.token_ids[: position + 1])
        for chunk in plan.chunks:
            for position, (block_id, offset) in enumerate(places[chunk]):
                assert slots[block_id][offset] == tuple(chunk.sequence.token_ids[: position + 1]), "foreign KV"
        speaking = [chunk.sequence for chunk in plan.chunks if chunk.reaches_end]
        for sequence in tuple(speaking):
            forks = self.scheduler.fork(sequence)
            self.live += forks
            speaking += forks
        for sequence in speaking:
            sequence.token_ids.append(next_token(tuple(sequence.token_ids), sequence.seed))
            if sequence.token_ids[-1] == 0 or sequence.num_outputs >= sequence.max_tokens:
                self.remove(sequence, "length")
        self.poison()

    def places(self, sequence, stop):
        size = self.pool.block_size
        return [divmod(slot, size) for slot in sequence.table.slots(0, stop)]

    def remove(self, sequence, reason):
        sequence.finish_reason = reason
        self.live.remove(sequence)
        if reason == "length":
            self.done.append(sequence)
        self.scheduler.remove(sequence)

    def take_all_but(self, num_free):
        """Somebody outside the engine takes blocks, and leaves this many."""
        self.others.append(self.pool.block_size * (self.pool.num_free - num_free))

    def poison(self):
        """What nobody holds and no cache keeps is gone: whoever reads it has not restored it."""
        for block_id in range(self.pool.num_blocks):
            if self.pool.refcount(block_id) == 0 and not self.pool.is_cached(block_id):
                self.cache.keys.of_block[block_id] = [None] * self.pool.block_size

    def check(self, plan):
        """What must hold of every plan."""
        scheduler, chunks = self.scheduler, plan.chunks
        assert sum(chunk.stop - chunk.start for chunk in chunks) <= scheduler.max_batch_tokens
        assert all(chunk.stop > chunk.start for chunk in chunks), "a chunk without a token"
        assert sum(1 + each.num_to_fork for each in scheduler.running) <= scheduler.max_sequences
        assert len({chunk.sequence for chunk in chunks}) == len(chunks)
        self.pool.check([*(each.table for each in self.live), self.others])
        queues = scheduler.queues()
        assert all(not each.table.block_ids for name in queues if name != "running" for each in queues[name])
        queued = [each for queue in queues.values() for each in queue]
        assert sorted(queued, key=scheduler.order) == sorted(self.live, key=scheduler.order), "one is lost"
        assert all(list(queue) == sorted(queue, key=scheduler.order) for queue in queues.values()), "in disorder"
        for sequence in plan.admitted:
            waiting = [each for name in queues if name != "running" for each in queues[name]]
            assert all(scheduler.order(sequence) < scheduler.order(each) for each in waiting), "before its turn"
        destinations = [copy.destination for copy in plan.copies]
        assert len(set(destinations)) == len(destinations)
        assert all(self.pool.refcount(block_id) for block_id in destinations)
        if self.live and not self.others.block_ids:
            oldest = min(self.live, key=scheduler.order)
            assert any(chunk.sequence is oldest for chunk in chunks), "the oldest does not go on"
        self.counts += Counter(plan.preempted.values())
        self.counts["forks preempted"] += sum(each.nth > 0 for each in plan.preempted)
        self.counts["cached"] += sum(plan.admitted.values())

    def finish(self):
        """Free what others hold and run until nothing is left: all texts are those that each has alone."""
        self.others.free()
        steps = sum((1 + each.num_to_fork) * (len(each.token_ids) + each.max_tokens + 2) for each in self.live)
        for _ in range(steps + 1):
            if self.live:
                assert self.step().chunks, "no progress"
        assert not self.live
        assert not any(self.scheduler.queues().values())
        assert self.pool.num_used == 0
        self.pool.check([])
        for sequence in self.done:
            prompt = sequence.token_ids[: sequence.num_prompt_tokens]
            assert sequence.output_ids == expected_text(prompt, sequence.seed, sequence.max_tokens)


class OldestGivesWay(Scheduler):
    """A policy that preempts a sequence which has its slots for this step already."""

    def victim(self):
        return self.running[0]


class Roomy(SwappingScheduler):
    """Swaps into little memory."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.max_cpu_blocks = 6


class Limited(FastScheduler):
    """Checks what readers are promised who wait for a token."""

    def schedule(self):
        self.max_prompt_tokens = 3
        texts = [each for each in self.running if each.streaming and each.num_uncomputed == 1]
        plan = super().schedule()
        if texts:
            prompts = [c for c in plan.chunks if c.sequence.length - c.start > 1]
            assert sum(c.stop - c.start for c in prompts) <= 3, "a reader waits"
        return plan


KINDS = {"recompute": Scheduler, "swap": SwappingScheduler, "little memory": Roomy, "limited prompts": Limited}


def fuzz(seed, num_requests, kind):
    """Random requests and aborts on pools just large enough; what happened, counted."""
    rng, counts = random.Random(seed), Counter()
    while counts["requests"] < num_requests:
        engine = ToyEngine(
            rng.randint(6, 24), rng.choice([1, 4, 7, 20, 64]), rng.choice([1, 5, 9, 30]),
            caching=rng.random() < 0.5, kind=kind, size=rng.randint(1, 5),
        )  # fmt: skip
        common = [rng.randrange(1, 50) for _ in range(12)]
        for _ in range(60):
            what = rng.random()
            if what < 0.25:
                own = [rng.randrange(1, 50) for _ in range(rng.choice([0, 0, 1, 5, 8]))]
                prompt = common[: rng.randint(1, 12)] + own
                before = engine.pool.num_used, len(engine.scheduler.waiting)
                try:
                    sequence = engine.add(
                        prompt, rng.randint(1, 40), rng.choice([1, 1, 2, 4]), rng.choice([None, None, 7]),
                        salt=rng.choice([None, "a"]),
                    )  # fmt: skip
                    sequence.streaming = rng.random() < 0.6  # of fast ones
                    counts["requests"] += 1
                except ValueError:
                    assert (engine.pool.num_used, len(engine.scheduler.waiting)) == before
                    counts["refused"] += 1
            elif what < 0.29 and engine.live:
                engine.remove(rng.choice(engine.live), "abort")
                counts["aborted"] += 1
            else:
                engine.others.free()
                if rng.random() < 0.1:
                    engine.others.append(rng.randint(0, engine.pool.num_free) * engine.pool.block_size)
                try:
                    engine.step()
                except OutOfBlocks:  # the engine then makes a new scheduler
                    assert engine.others.block_ids
                    break
        else:
            engine.finish()
        counts += engine.counts
    return counts


@LONG_RUN
@pytest.mark.parametrize("name", KINDS)
def test_every_text_is_the_one_that_a_request_has_alone(name, seed):
    counts = fuzz(seed, OPERATIONS // 8 if OPERATIONS else 400, KINDS[name])
    print(name, dict(counts))
    kinds = ["swap"] if name == "swap" else ["recompute", "swap"] if name == "little memory" else ["recompute"]
    assert min(counts[what] for what in (*kinds, "refused", "aborted", "forks preempted", "cached")) > 0


def bug(method, old, new, kind=Scheduler):
    return Bug(kind, method, old, new)


BUGS = {
    "a preempted one is lost": bug("preempt", "self.add(sequence)", "pass"),
    "the oldest is preempted": bug("victim", "[-1]", "[0]"),
    "a short prompt overtakes": bug("next_waiting", "self.waiting[0]", "min(self.waiting, key=lambda s: s.length)"),
    "copies of a preempted one stay": bug("preempt", "self.pool.refcount(copy.destination) > 0", "True"),
    "its chunk stays": bug("preempt", "self.take_back(sequence)", "pass"),
    "a prompt is found across salts": bug("admit", "salt=sequence.salt", "salt=None"),
    "more run than may": bug("has_room_for", "> self.max_sequences", "> 10**9"),
    "forks to come do not count": bug("has_room_for", "1 + sequence.num_to_fork", "1"),
    "what never fits is accepted": bug("check", "need > self.pool.num_blocks", "False"),
    "a chunk exceeds the budget": bug(
        "num_next", "min(sequence.num_uncomputed, self.budget)", "sequence.num_uncomputed"
    ),
    "drafted names": bug("register", "[: chunk.stop]", "[:]"),
    "KV comes back in disorder": bug(
        "_resume", "(sequence.table.block_ids)", "(sequence.table.block_ids[::-1])", SwappingScheduler
    ),
    "a new one is admitted before a swapped one": bug("_is_first", "not queue or", "True or", SwappingScheduler),
    "swapped before its copy was made": bug("_can_swap", "not is_pending", "True", SwappingScheduler),
}


@pytest.mark.parametrize("planted", BUGS)
def test_the_fuzz_catches(planted, seed):
    kind = BUGS[planted].planted()
    kinds = kind, type("Mixed", (OldestGivesWay, kind), {})
    with pytest.raises((AssertionError, InvariantError, ValueError, IndexError, OutOfBlocks)):
        [fuzz(seed, 4_000, each) for each in kinds]


def add_long(engine, prompt, max_tokens, **options):
    """Add a request whose text does not end before its last token."""
    seed = next(s for s in range(10**6) if len(expected_text(prompt, s, max_tokens)) == max_tokens)
    return engine.add(prompt, max_tokens, seed=seed, **options)


def sizes_of(plan):
    return [(chunk.sequence.name, chunk.stop - chunk.start) for chunk in plan.chunks]


def test_samples_are_forked_and_then_go_their_own_ways():
    engine = ToyEngine(9, 20)
    first = engine.add([1] * 6, 30, n=3)
    assert sizes_of(engine.step()) == [("r0", 6)]
    assert [each.name for each in engine.scheduler.running] == ["r0", "r0.1", "r0.2"]
    assert len({tuple(each.table.block_ids) for each in engine.live}) == 1, "they share the prompt's blocks"
    plan = engine.step()
    assert len(plan.copies) == 2, "the last one owns its block by then"
    engine.finish()
    assert engine.counts["forks preempted"] > 0
    assert first.finish_reason == "length"


def test_blocks_in_the_making_are_found_in_the_same_step():
    engine = ToyEngine(30, 40, caching=True)
    for _ in range(2):
        engine.add(range(1, 14), 1)
    plan = engine.step()
    assert sizes_of(plan) == [("r0", 13), ("r1", 1)]
    assert list(plan.admitted.values()) == [0, 12]


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
    engine = ToyEngine(num_blocks, caching=caching)
    add_long(engine, [1] * 8, 4)
    engine.step()
    later = engine.add([1] * shared + [2] * new_tokens, 1)
    assert engine.scheduler.may_admit(later) is may
    engine.finish()


def test_a_request_that_never_fits_is_refused_with_the_numbers():
    engine = ToyEngine(5, max_sequences=3)
    engine.add([1] * 5, 16)
    with refused(r"needs 6 blocks of 4 tokens \(5 prompt tokens, up to 17 new ones\) and the pool has 5$"):
        engine.add([1] * 5, 17)
    with refused("4 samples of one prompt begin side by side and the engine takes 3$"):
        engine.add([1, 2], 2, n=4)
    assert len(engine.scheduler.waiting) == 1


@pytest.mark.parametrize("kind", [Scheduler, SwappingScheduler])
def test_a_pool_that_others_empty(kind):
    """Somebody outside the engine takes every block: nobody can go on, and the error says so."""
    for free in (0, 1):
        engine = ToyEngine(8, kind=kind)
        add_long(engine, [1] * 4, 3)
        engine.step()
        engine.take_all_but(free)
        if free:
            engine.finish()
            continue
        with pytest.raises(OutOfBlocks, match=r"no request can go on, with . of 8 blocks free: release"):
            engine.scheduler.schedule()


def test_whoever_gives_way_nobody_else_loses_a_step():
    """A policy may choose any victim; who stands behind it in line has its turn all the same."""
    engine = ToyEngine(12, kind=OldestGivesWay)
    sequences = [add_long(engine, [i] * 4, 9) for i in range(1, 4)]
    engine.step()
    engine.take_all_but(0)
    plan = engine.scheduler.schedule()
    # The first gives way to itself, the second takes its block, and loses it to the third.
    assert list(plan.preempted) == sequences[:2]
    assert [chunk.sequence for chunk in plan.chunks] == sequences[2:]


def test_priorities_are_one_line():
    class Urgent(Scheduler):
        def order(self, sequence):
            return sequence.max_tokens, sequence.request_id  # short answers first

    engine = ToyEngine(40, max_sequences=1, kind=Urgent)
    for i, n in enumerate((9, 2, 5)):
        add_long(engine, [i + 1] * 4, n)
    engine.finish()
    assert [each.max_tokens for each in engine.done] == [2, 5, 9]


# The fast scheduler -------------------------------------------------------------------------------------------------


def fast(num_blocks, max_batch_tokens=100, max_prompt_tokens=None):
    engine = ToyEngine(num_blocks, max_batch_tokens, max_sequences=20, kind=FastScheduler)
    engine.scheduler.max_prompt_tokens = max_prompt_tokens or max_batch_tokens
    return engine


def test_who_waits_for_a_token_waits_for_few_of_others_prompts():
    engine = fast(20, 30, max_prompt_tokens=4)
    first = add_long(engine, [1] * 9, 5)
    assert sizes_of(engine.step()) == [("r0", 4)], "a first step is short"
    assert sizes_of(engine.step()) == [("r0", 5)], "nobody waits yet"
    second = add_long(engine, [2] * 10, 5)
    assert [sizes_of(engine.step())[1] for _ in range(3)] == [("r1", 4), ("r1", 4), ("r1", 2)]
    add_long(engine, [3] * 3, 5, streaming=False)
    assert sizes_of(engine.step()) == [("r0", 1), ("r1", 1), ("r2", 3)]
    for sequence in (first, second):
        if sequence in engine.live:
            engine.remove(sequence, "abort")
    add_long(engine, [4] * 10, 5)
    assert sizes_of(engine.step()) == [("r2", 1), ("r3", 10)], "who reads at the end does not wait"


def test_a_first_step_has_few_prompt_tokens():
    """So the device works while the host plans a step that is large."""
    engine = fast(99, 24, max_prompt_tokens=4)
    for _ in range(2):
        for _ in range(6):
            engine.add([1] * 6, 1, streaming=False)
        sizes = []
        while engine.live:
            sizes.append(sum(n for _, n in sizes_of(engine.step())))
        assert sizes == [4, 24, 8]
        engine.scheduler.schedule()  # of nothing


def test_looking_ahead_gives_slots_up_to_the_last_that_a_text_may_need():
    engine = fast(12)
    short, long = add_long(engine, [1] * 4, 3), add_long(engine, [2] * 4, 40)
    chunks = engine.step().chunks
    further = engine.scheduler.reserve_ahead(chunks, 5)
    assert further == [Chunk(short, 0, 6), Chunk(long, 0, 9)]  # the last token needs no slot
    assert [short.table.num_tokens, long.table.num_tokens] == [6, 9]
    assert engine.scheduler.reserve_ahead(further, 5) == [Chunk(short, 0, 6), Chunk(long, 0, 14)]


def test_looking_ahead_stops_where_blocks_are_short_or_somebody_could_come_in():
    engine = fast(6)
    first = add_long(engine, [1] * 4, 16)
    chunks = engine.step().chunks
    engine.others.append(4 * 4)
    assert engine.scheduler.reserve_ahead(chunks, 5) == chunks
    assert (first.table.num_tokens, engine.pool.num_free) == (4, 1)
    engine.others.free()
    later = add_long(engine, [2] * 4, 4)
    assert engine.scheduler.reserve_ahead(chunks, 5) == chunks
    engine.remove(later, "abort")
    engine.others.append(4 * 3)  # two are left, which is just enough
    assert engine.scheduler.reserve_ahead(chunks, 5) == [Chunk(first, 0, 9)]


def test_a_sequence_whose_tokens_are_pending_waits_for_them():
    engine = fast(12)
    sequence = engine.add([1] * 4, 9)
    sequence.num_pending = 2
    engine.scheduler.in_flight = 1
    assert engine.scheduler.schedule() == Plan(), "and this is no error: the device works"
    sequence.num_pending = engine.scheduler.in_flight = 0
    assert sizes_of(engine.step()) == [("r0", 4)]


def test_a_plan_says_what_it_computes():
    engine = ToyEngine(8)
    engine.add([1] * 6, 3)
    assert repr(engine.scheduler.schedule()) == "Plan(computes r0[0:6]; admits r0)"
    assert repr(Plan()) == "Plan(computes nothing)"
