"""Requests that give way and come back: the texts must be those of one-by-one `generate`, and nothing may be lost.

All in fp32 on caches full of NaN, with the smallest pools that work.
"""

from collections import Counter

import pytest
import torch

from pagedlab import SamplingParams
from pagedlab.scheduler import Scheduler
from support.engines import (
    LENGTHS,
    NEW,
    PREEMPTIONS,
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
    ("preemption", "caching", "chunk"),
    [
        ("swap", True, 1),
        ("recompute", True, 7),
        ("recompute", False, 64),
        ("swap", False, 4096),
    ],
)
def test_tokens_under_pressure(tiny, hugging_face, preemption, caching, chunk):
    # A budget of one token a step never runs two texts side by side, and takes long.
    lengths = LENGTHS if chunk > 1 else LENGTHS[:3]
    prompts = prompts_of(tiny, lengths)
    expected = greedy_ids(hugging_face, tiny, prompts, NEW)
    least = smallest(lengths, NEW, 4)
    gave_way = Counter()
    for num_blocks in (least, least + 5):
        llm = engine(tiny, num_blocks, 4, preemption=preemption, prefix_caching=caching, max_batch_tokens=chunk)
        llm.on_step(lambda llm=llm: gave_way.update(how for _, how in llm.plan.preempted))
        assert ids_of(llm.generate(prompts, SamplingParams(max_tokens=NEW))) == expected, num_blocks
        assert_idle(llm)
    assert gave_way[preemption] > 0 or chunk == 1


@pytest.mark.parametrize("preemption", PREEMPTIONS)
def test_arrivals_in_any_order(tiny, hugging_face, preemption, rng):
    lengths = rng.sample(LENGTHS, len(LENGTHS))
    prompts = prompts_of(tiny, lengths)
    llm = engine(tiny, smallest(LENGTHS, NEW, 4) + 4, 4, preemption=preemption, max_batch_tokens=rng.choice([7, 32]))
    arrive_in_any_order(llm, prompts, rng, lambda prompt: hugging_face(tiny, prompt, 64)[:NEW])


SAMPLES = [exactly(NEW, n=4, temperature=1.0, seed=i) for i in range(5)]


@pytest.mark.parametrize(("preemption", "caching"), [("recompute", True), ("swap", False)])
def test_sequences_of_a_request_move_together(tiny, preemption, caching):
    """Four a prompt, samples at every fill of the prompt's last block."""
    lengths = [13, 14, 15, 16, 17]
    prompts = prompts_of(tiny, lengths)
    roomy = engine(tiny, 512, 4).generate(prompts, SAMPLES)
    llm = engine(tiny, smallest(lengths, NEW, 4, 4), 4, preemption=preemption, prefix_caching=caching)
    tight = llm.generate(prompts, SAMPLES)
    assert all_ids_of(tight) == all_ids_of(roomy)
    for pair in zip(tight, roomy, strict=True):
        scores = [torch.tensor([o.cumulative_logprob for o in c.outputs]) for c in pair]
        torch.testing.assert_close(*scores, rtol=1e-4, atol=1e-4)
    assert llm.stats.preemptions > 0
    assert (llm.stats.swaps > 0) == (preemption == "swap")
    assert_idle(llm)


def test_a_policy_of_the_readers_own(tiny, hugging_face):
    """Static batching: nobody joins a batch that has begun."""

    class Static(Scheduler):
        def may_admit(self, request):
            return len(self.plan.admitted) == len(self.running) and super().may_admit(request)

    prompts = prompts_of(tiny, LENGTHS)
    llm = engine(tiny, 256, 8, scheduler=Static, max_sequences=3)
    batches = []
    llm.on_step(lambda: batches.append([r.request_id for r in llm.plan.admitted]))
    expected = greedy_ids(hugging_face, tiny, prompts, NEW)
    assert ids_of(llm.generate(prompts, SamplingParams(max_tokens=NEW))) == expected
    assert [batch for batch in batches if batch] == [[0, 1, 2], [3, 4, 5], [6, 7]]


@pytest.mark.parametrize("preemption", PREEMPTIONS)
def test_real_qwen_under_pressure(qwen, hugging_face, preemption):
    lengths = [3, 33, 64, 100]
    prompts = prompts_of(qwen, lengths)
    llm = engine(qwen, smallest(lengths, 32, 16) + 2, 16, preemption=preemption, max_batch_tokens=64)
    expected = [hugging_face(qwen, prompt, 32) for prompt in prompts]
    assert ids_of(llm.generate(prompts, SamplingParams(max_tokens=32))) == expected
    assert llm.stats.preemptions > 0
