"""The schedulers under random requests: every text is the one that its request has alone, and every plan is sound.

The engine is the toy of tests/support/toy.py: it sees only what its blocks hold. Blocks that nobody holds and no cache
keeps are filled with NaN after each step. So a block shared, copied, freed or reused wrongly changes the text. At the
end the real models run in the smallest pools that work.
"""

import random
from collections import Counter
from functools import partial

import pytest
import torch

import pagedlab_fast
from pagedlab import BlockPool, BlockTable, OutOfBlocks
from pagedlab.engine import EagerRunner
from pagedlab.prefix import PrefixCache
from pagedlab.recipes.eviction import POOLS
from pagedlab.recipes.speculative import Draft, Drafter, SpeculativeLLM
from pagedlab.recipes.swap import SwappingScheduler
from pagedlab.scheduler import Scheduler
from pagedlab_fast.scheduler import FastScheduler
from support.engines import SCHEDULERS, all_ids_of, assert_idle, exactly, sequence_of
from support.operations import LONG_RUN, OPERATIONS
from support.toy import likeliest, toy, toy_ahead


def check(scheduler, plan, others):
    """What must hold of every plan."""
    chunks, queues = plan.chunks, scheduler.queues()
    num_tokens = sum(chunk.stop - chunk.start for chunk in chunks)
    assert scheduler.budget == scheduler.max_batch_tokens - num_tokens >= 0
    assert all(chunk.stop > chunk.start for chunk in chunks), "a chunk without a token"
    assert len({chunk.sequence for chunk in chunks}) == len(chunks)
    assert sum(1 + len(each.forks) for each in scheduler.running) <= scheduler.max_sequences
    live = [each for queue in queues.values() for each in queue]
    scheduler.pool.check([*(each.table for each in live), others])
    waiting = [each for name in queues if name != "running" for each in queues[name]]
    assert not any(each.table.block_ids for each in waiting)
    assert all(list(queue) == sorted(queue, key=scheduler.order) for queue in queues.values()), "in disorder"
    for sequence in plan.admitted:
        assert all(scheduler.order(sequence) < scheduler.order(each) for each in waiting), "before its turn"
    destinations = [copy.destination for copy in plan.copies]
    assert len(set(destinations)) == len(destinations)
    assert all(scheduler.pool.refcount(block_id) for block_id in destinations)
    if live and not others.block_ids and not isinstance(scheduler, OldestGivesWay):
        oldest = min(live, key=scheduler.order)
        assert any(chunk.sequence is oldest for chunk in chunks), "the oldest does not go on"


class OldestGivesWay(Scheduler):
    """Short answers first; and a policy that preempts a sequence which has its slots for this step already."""

    def order(self, sequence):
        return sequence.max_tokens, *super().order(sequence)

    def victim(self):
        return self.running[0]


class Roomy(SwappingScheduler):
    """Swaps into little memory."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.max_cpu_blocks = 6


class Guesses(Drafter):
    """Drafts what a text of few tokens goes on with in the toy, with some tokens that are wrong."""

    k = 4

    def propose(self, llm, limits):
        return {sequence: Draft(self.say(sequence, limit)) for sequence, limit in limits.items()}

    def say(self, sequence, limit):
        tokens = sequence.token_ids[:]
        for _ in range(limit):
            tokens.append(likeliest(tokens) if (len(tokens) + tokens[0]) % 3 else 1)
        return tokens[sequence.length :]


class Limited(FastScheduler):
    """Checks what readers are promised who wait for a token."""

    def schedule(self):
        texts = [each for each in self.running if each.streaming and each.num_uncomputed == 1]
        plan = super().schedule()
        prompts = [c for c in plan.chunks if c.sequence.length - c.start > 1]
        assert not texts or sum(c.stop - c.start for c in prompts) <= 3, "a reader waits"
        return plan


FAST = {"kind": pagedlab_fast.LLM, "runner": EagerRunner, "max_prompt_tokens": 3}
KINDS = {
    "recompute": (Scheduler, toy),
    "any victim": (OldestGivesWay, toy),
    "swap": (SwappingScheduler, toy),
    "little memory": (Roomy, toy),
    "limited prompts": (Limited, partial(toy, **FAST)),
    "drafts": (Roomy, partial(toy, kind=SpeculativeLLM, drafter=Guesses())),
    "ahead": (FastScheduler, toy_ahead),
}


def checked(kind, others, counts):
    """The scheduler, with a check of each plan that computes alone."""

    class Checked(kind):
        def schedule(self):
            plan = super().schedule()
            if not getattr(self, "in_flight", 0):
                check(self, plan, others[0])
            counts.update(plan.preempted.values())
            counts["forks preempted"] += sum(each.nth > 0 for each in plan.preempted)
            counts["cached"] += sum(plan.admitted.values())
            return plan

    return Checked


def poison(llm):
    """What nobody holds and no cache keeps is gone: whoever reads it has not restored it."""
    pool = llm.pool
    free = [b for b in range(pool.num_blocks) if not pool.refcount(b) and not pool.keeps(b)]
    llm.cache.keys[:, free] = torch.nan


def some_request(rng, common):
    own = [rng.randrange(1, 50) for _ in range(rng.choice([0, 0, 1, 5, 8]))]
    n = rng.choice([1, 1, 2, 4])
    # Log-probabilities need the host, so such a request leaves the windows of an engine that runs ahead.
    logprobs = rng.choice([None, None, None, 0])
    params = exactly(rng.randint(1, 30), n=n, temperature=float(n > 1), seed=rng.randrange(9), logprobs=logprobs)
    return [*common[: rng.randint(1, 12)], *own], params


def fuzz(tiny, seed, num_requests, kind, make=toy):
    """Random requests and aborts on pools just large enough; what happened, counted."""
    rng, counts, alone = random.Random(seed), Counter(), toy(tiny, num_blocks=256, prefix_caching=False)
    while counts["requests"] < num_requests:
        others = []  # somebody outside the engine, who takes blocks and gives them back
        llm = make(
            tiny,
            num_blocks=rng.randint(6, 24),
            max_batch_tokens=rng.choice([1, 4, 7, 20, 64]),
            max_sequences=rng.choice([1, 5, 9, 30]),
            prefix_caching=rng.random() < 0.5,
            scheduler=checked(kind, others, counts),
            block_pool=rng.choice(list(POOLS.values())),
        )
        others.append(BlockTable(llm.pool))
        if make is not toy_ahead:
            llm.on_step(lambda llm=llm: poison(llm))
        common = [rng.randrange(1, 50) for _ in range(12)]
        asked, done = {}, {}
        for _ in range(60):
            what = rng.random()
            if what < 0.25:
                prompt, params = some_request(rng, common)
                try:
                    request_id = llm.add(prompt, params, salt=rng.choice([None, "a"]))
                    asked[request_id] = prompt, params
                    counts["requests"] += 1
                except ValueError:
                    counts["refused"] += 1
            elif what < 0.29 and asked:
                request_id = rng.choice(list(asked))
                llm.abort(request_id)
                assert all(each.request_id != request_id for queue in llm.scheduler.queues().values() for each in queue)
                counts["aborted"] += request_id not in done
                del asked[request_id]
            elif llm.num_unfinished:
                others[0].free()
                if rng.random() < 0.1:
                    others[0].append(rng.randint(0, llm.pool.num_free) * llm.pool.block_size)
                try:
                    done |= {each.request_id: each for each in llm.step()}
                except OutOfBlocks as error:  # the engine then makes a new scheduler
                    assert others[0].block_ids
                    if "no request can go on" not in str(error):
                        raise
                    break
        else:
            others[0].free()
            while llm.num_unfinished:
                done |= {each.request_id: each for each in llm.step()}
            for request_id, (prompt, params) in asked.items():
                assert all_ids_of([done[request_id]]) == all_ids_of(alone.generate([prompt], params))
            assert_idle(llm)
    return counts


@LONG_RUN
@pytest.mark.parametrize("name", KINDS)
def test_every_text_is_the_one_that_a_request_has_alone(tiny, name, seed):
    counts = fuzz(tiny, seed, OPERATIONS // 8 if OPERATIONS else 80, *KINDS[name])
    print(name, dict(counts))
    kinds = {"swap": ["swap"], "little memory": ["recompute", "swap"]}.get(name, ["recompute"])
    assert min(counts[what] for what in (*kinds, "refused", "aborted", "forks preempted", "cached")) > 0


# Examples -----------------------------------------------------------------------------------------------------------


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
    pool = BlockPool(num_blocks, 4)
    scheduler = Scheduler(pool, 100, 10, PrefixCache(pool) if caching else None)
    first, later = (sequence_of(pool, ids, i) for i, ids in enumerate(([1] * 8, [1] * shared + [2] * new_tokens)))
    scheduler.add(first)
    scheduler.schedule()
    first.token_ids.append(3)
    assert scheduler.may_admit(later) is may


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_copies_of_a_preempted_sequence_are_not_made(kind):
    """And what was to be copied is not there to be swapped. The others go on, one of them in the block that it got."""
    pool = BlockPool(4, 4)
    scheduler = type("Policy", (OldestGivesWay, kind), {})(pool, 100, 10)
    first, sample, other = (sequence_of(pool, ids, i) for i, ids in enumerate(([1] * 7, [1] * 7, [2] * 5)))
    first.table.append(6)
    sample.table = first.table.fork()
    other.table.append(4)
    scheduler.running += [first, sample, other]
    plan = scheduler.schedule()
    assert (plan.preempted, plan.copies) == ({first: "recompute"}, [])
    assert [chunk.sequence for chunk in plan.chunks] == scheduler.running


# A reader's own policies ----------------------------------------------------------------------------------------------


def test_a_first_step_and_one_that_somebody_reads_have_few_prompt_tokens(tiny):
    """So a device works while the host plans a large step, and who reads waits for few of others' tokens."""

    def sizes(llm, steps):
        found = []
        for _ in range(steps):
            llm.step()
            found.append([chunk.stop - chunk.start for chunk in llm.plan.chunks])
        return found

    llm = toy(tiny, max_batch_tokens=30, prefix_caching=False, **FAST)
    llm.add([1] * 8, exactly(5))
    assert sizes(llm, 2) == [[3], [5]], "nobody waits yet"
    llm.add([2] * 8, exactly(5))
    assert sizes(llm, 3) == [[1, 3], [1, 3], [1, 2]]
