"""Requests that give way and come back: the texts must be those of one-by-one `generate`, and nothing may be lost.

All in fp32 on caches full of NaN, with the smallest pools that work.
"""

from collections import Counter

import pytest

from pagedlab import SamplingParams
from pagedlab.recipes.swap import SwappingScheduler
from pagedlab.scheduler import Scheduler
from support.engines import (
    LENGTHS,
    NEW,
    SCHEDULERS,
    all_ids_of,
    arrive_in_any_order,
    assert_idle,
    engine,
    exactly,
    greedy_ids,
    ids_of,
    prompts_of,
    smallest,
)


@pytest.mark.parametrize(
    ("scheduler", "caching", "chunk"),
    [
        (SwappingScheduler, True, 1),
        (Scheduler, True, 7),
        (Scheduler, False, 64),
        (SwappingScheduler, False, 4096),
    ],
)
def test_tokens_under_pressure(tiny, hugging_face, scheduler, caching, chunk):
    # A budget of one token a step never runs two texts side by side, and takes long.
    lengths = LENGTHS if chunk > 1 else LENGTHS[:3]
    prompts = prompts_of(tiny, lengths)
    expected = greedy_ids(hugging_face, tiny, prompts, NEW)
    least = smallest(lengths, NEW, 4)
    gave_way = Counter()
    for num_blocks in (least, least + 5):
        llm = engine(tiny, num_blocks, 4, scheduler=scheduler, prefix_caching=caching, max_batch_tokens=chunk)
        llm.on_step(lambda llm=llm: gave_way.update(llm.plan.preempted.values()))
        assert ids_of(llm.generate(prompts, SamplingParams(max_tokens=NEW))) == expected, num_blocks
        assert_idle(llm)
    how = "swap" if scheduler is SwappingScheduler else "recompute"
    assert gave_way[how] > 0 or chunk == 1


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_arrivals_in_any_order(tiny, hugging_face, scheduler, rng):
    lengths = rng.sample(LENGTHS, len(LENGTHS))
    prompts = prompts_of(tiny, lengths)
    llm = engine(tiny, smallest(LENGTHS, NEW, 4) + 4, 4, scheduler=scheduler, max_batch_tokens=rng.choice([7, 32]))
    arrive_in_any_order(llm, prompts, rng, lambda prompt: hugging_face(tiny, prompt, 64)[:NEW])


SAMPLES = [exactly(NEW, n=4, temperature=1.0, seed=i) for i in range(5)]


@pytest.mark.parametrize(("scheduler", "caching"), [(Scheduler, True), (SwappingScheduler, False)])
def test_samples_are_preempted_one_by_one(tiny, scheduler, caching):
    """Four a prompt, at every fill of the prompt's last block."""
    lengths = [13, 14, 15, 16, 17]
    prompts = prompts_of(tiny, lengths)
    roomy = engine(tiny, 512, 4).generate(prompts, SAMPLES)
    llm = engine(tiny, smallest(lengths, NEW, 4) + 3, 4, scheduler=scheduler, prefix_caching=caching)
    seen = Counter()
    llm.on_step(lambda: seen.update(sequence.nth for sequence in llm.plan.preempted))
    tight = llm.generate(prompts, SAMPLES)
    assert all_ids_of(tight) == all_ids_of(roomy)
    assert len(seen) > 1
    assert llm.stats.preemptions == sum(seen.values())
    assert_idle(llm)


def test_a_policy_of_the_readers_own(tiny, hugging_face):
    """Static batching: nobody joins a batch that has begun."""

    class Static(Scheduler):
        def may_admit(self, sequence):
            return len(self.plan.admitted) == len(self.running) and super().may_admit(sequence)

    prompts = prompts_of(tiny, LENGTHS)
    llm = engine(tiny, 256, 8, scheduler=Static, max_sequences=3)
    batches = []
    llm.on_step(lambda: batches.append([r.request_id for r in llm.plan.admitted]))
    expected = greedy_ids(hugging_face, tiny, prompts, NEW)
    assert ids_of(llm.generate(prompts, SamplingParams(max_tokens=NEW))) == expected
    assert [batch for batch in batches if batch] == [[0, 1, 2], [3, 4, 5], [6, 7]]


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_real_qwen_under_pressure(qwen, hugging_face, scheduler):
    lengths = [3, 33, 64, 100]
    prompts = prompts_of(qwen, lengths)
    llm = engine(qwen, smallest(lengths, 32, 16) + 2, 16, scheduler=scheduler, max_batch_tokens=64)
    expected = [hugging_face(qwen, prompt, 32) for prompt in prompts]
    assert ids_of(llm.generate(prompts, SamplingParams(max_tokens=32))) == expected
    assert llm.stats.preemptions > 0
