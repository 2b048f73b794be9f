"""The prefix cache under the engine: the same logits, tokens and texts as without it, whatever is shared or evicted.

Every KV cache is full of NaN before it is used, so a hit on a block that was never computed has no logits at all.
"Cold" is an engine without prefix cache; ids are also compared with Hugging Face's `generate`. Random traffic with
evictions: tests/test_scheduler.py.
"""

import pytest
import torch
from pagedlab_lessons.replay import replay
from pagedlab_lessons.traces import shared_prompts

from pagedlab import SamplingParams
from pagedlab.recipes.eviction import POOLS
from support.engines import assert_idle, engine, exactly, ids_of, output_of, prompt_of


def answer(llm, prompt):
    """Token ids of a greedy answer, and the logits [n, V] that they were chosen from."""
    logits = []
    stop = llm.on_forward(lambda plan, rows: logits.append(rows))
    ids = output_of(llm, prompt, SamplingParams(max_tokens=3)).token_ids
    stop()
    return ids, torch.cat(logits)


def difference(one, other):
    """The largest difference of two logits, as a share of the largest; infinite where one is not a number."""
    return float((one - other).abs().nan_to_num(nan=torch.inf).max() / other.abs().max())


@pytest.mark.parametrize(("dtype", "block_size"), [("fp64", 1), ("fp64", 4), ("fp32", 16)])
def test_cold_and_cached_logits_are_equal(tiny, exact, hugging_face, block_size, dtype):
    """At every length around a block's edge, for the shared part and for what follows it.

    In fp32 to 1e-5 of the largest logit (about 20): a prompt computed in other pieces is added up in another order.
    In fp64, where that is no excuse, to 1e-12.
    """
    size, tolerance, model = block_size, *((1e-5, tiny) if dtype == "fp32" else (1e-12, exact))
    cold = engine(model, 256, size, prefix_caching=False)
    for shared in sorted({1, size - 1, size, size + 1, 3 * size} - {0}):
        for tail in sorted({0, 1, size}):
            prompt = prompt_of(model, shared) + prompt_of(model, tail, 300)
            cold_ids, cold_logits = answer(cold, prompt)
            warm = engine(model, 256, size)
            warm.generate(prompt_of(model, shared) + prompt_of(model, 2 * size, 200), exactly(1))
            for known in (shared, len(prompt)):
                ids, logits = answer(warm, prompt)
                assert warm.stats.cached_tokens == min(known, len(prompt) - 1) // size * size
                assert warm.stats.prompt_tokens == len(prompt) - warm.stats.cached_tokens
                assert difference(logits, cold_logits) < tolerance
                assert ids == cold_ids
            assert_idle(warm)
    assert ids == hugging_face(model, prompt, 3)[: len(ids)]


def test_the_engine_finds_what_the_cache_alone_would(tiny):
    """Hit for hit the same as `replay`, which serves the same prompts without a model, eviction included."""
    llm = engine(tiny, 48, 16, block_pool=POOLS["slru"])
    served = []
    for prompt, _ in shared_prompts(30, num_systems=3, vocabulary=tiny.vocab_size, seed=5):
        served.append((prompt, output_of(llm, prompt, exactly(2)).token_ids))
    stats = llm.prefix_cache.stats
    assert stats == replay(served, 48, 16, "slru")
    assert stats.hit_rate == stats.hit_tokens / stats.asked_tokens
    assert stats.hit_tokens > 1000
    assert sum(len(prompt) // 16 for prompt, _ in served) > 50 + len(llm.prefix_cache), "blocks were evicted"


def test_prompts_of_one_step_share_what_they_begin_with(tiny, hugging_face):
    """A burst of sixteen that have 192 tokens in common: the first computes them, and the others find them."""
    prompts = [[*prompt_of(tiny, 192), *prompt_of(tiny, 20, 50 + i)] for i in range(16)]
    llm = engine(tiny, 512, 16)
    got = ids_of(llm.generate(prompts, exactly(4)))
    assert llm.stats.cached_tokens == 15 * 192
    assert llm.stats.prompt_tokens == 16 * 212 - 15 * 192
    assert got[:3] == [hugging_face(tiny, prompt, 4) for prompt in prompts[:3]]
    assert_idle(llm)
