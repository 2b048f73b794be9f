"""Requests that give way and come back: the texts must be those of one-by-one `generate`, and nothing may be lost.

All in fp32 on caches full of NaN, with pools from the smallest that works to one that is never short.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from test_engine import assert_idle, drain, engine, ids_of, prompts_of

from pagedlab import LLM, SamplingParams
from pagedlab.blocks import blocks_for
from pagedlab.scheduler import Request, Scheduler

if TYPE_CHECKING:
    from conftest import Generate

    from pagedlab.model import Model

LENGTHS = [3, 17, 31, 40, 9, 64, 48, 5]
NEW = 24
PREEMPTIONS = ["recompute", "swap"]


def smallest(lengths: list[int], new_tokens: int, block_size: int, num_sequences: int = 1) -> int:
    """Blocks of the smallest pool that takes each of these requests alone."""
    return max(
        n // block_size + num_sequences * (blocks_for(n + new_tokens - 1, block_size) - n // block_size)
        for n in lengths
    )


def arrive_in_any_order(
    llm: LLM, prompts: list[list[int]], rng: random.Random, expected: Callable[[list[int]], list[int]]
) -> None:
    """Add prompts one by one between steps and abort some; who stays must get the expected tokens."""
    ids: dict[int, list[int]] = {}
    aborted: set[int] = set()
    done = {}
    for prompt in prompts:
        ids[llm.add(prompt, SamplingParams(max_tokens=NEW))] = prompt
        for _ in range(rng.randrange(6)):
            done |= {c.request_id: c for c in llm.step() if c.finished}
        if rng.random() < 0.25:
            aborted.add(victim := rng.choice(list(ids)))
            llm.abort(victim)
    done |= drain(llm)
    for request_id, prompt in ids.items():
        if request_id not in aborted:
            assert done[request_id].outputs[0].token_ids == expected(prompt)
    assert_idle(llm)


@pytest.mark.parametrize("preemption", PREEMPTIONS)
@pytest.mark.parametrize("caching", [False, True], ids=["cold", "cached"])
@pytest.mark.parametrize("chunk", [1, 7, 64, 4096])
def test_tokens_under_pressure(tiny: Model, hugging_face: Generate, preemption: str, caching: bool, chunk: int) -> None:
    """From the smallest pool that works to one that is never short."""
    # A budget of one token a step never runs two texts side by side, and takes long.
    lengths = LENGTHS if chunk > 1 else LENGTHS[:3]
    prompts = prompts_of(tiny, lengths)
    expected = [hugging_face(tiny, prompt, 64)[:NEW] for prompt in prompts]
    block_size = 4
    least = smallest(lengths, NEW, block_size)
    gave_way: Counter[str] = Counter()
    for num_blocks in (least, least + 5, 512):
        llm = engine(
            tiny, num_blocks, block_size, preemption=preemption, prefix_caching=caching, max_batch_tokens=chunk
        )
        llm.on_step(lambda llm=llm: gave_way.update(how for _, how in llm.plan.preempted))
        assert ids_of(llm.generate(prompts, SamplingParams(max_tokens=NEW))) == expected, num_blocks
        assert_idle(llm)
    assert gave_way[preemption] > 0 or chunk == 1
    assert llm.stats.preemptions == 0, "a pool that is never short"


@pytest.mark.parametrize("backend", ["concat", "safe", "online", "torch"])
@pytest.mark.parametrize("preemption", PREEMPTIONS)
def test_every_backend(tiny: Model, hugging_face: Generate, backend: str, preemption: str) -> None:
    lengths = [17, 31, 9, 16, 14]
    prompts = prompts_of(tiny, lengths)
    llm = engine(tiny, smallest(lengths, NEW, 4) + 3, 4, preemption=preemption, attention_backend=backend)
    expected = [hugging_face(tiny, prompt, 64)[:NEW] for prompt in prompts]
    assert ids_of(llm.generate(prompts, SamplingParams(max_tokens=NEW))) == expected
    assert llm.stats.preemptions > 0
    assert (llm.stats.swaps > 0) == (preemption == "swap")


@pytest.mark.parametrize("preemption", PREEMPTIONS)
def test_arrivals_in_any_order(tiny: Model, hugging_face: Generate, preemption: str, seed: int) -> None:
    rng = random.Random(seed)
    lengths = rng.sample(LENGTHS, len(LENGTHS))
    prompts = prompts_of(tiny, lengths)
    llm = engine(tiny, smallest(LENGTHS, NEW, 4) + 4, 4, preemption=preemption, max_batch_tokens=rng.choice([7, 32]))
    arrive_in_any_order(llm, prompts, rng, lambda prompt: hugging_face(tiny, prompt, 64)[:NEW])


@pytest.mark.parametrize("preemption", PREEMPTIONS)
@pytest.mark.parametrize("caching", [False, True], ids=["cold", "cached"])
def test_samples_move_together(tiny: Model, preemption: str, caching: bool) -> None:
    """Four texts a prompt, at every fill of the prompt's last block."""
    lengths = [13, 14, 15, 16, 17]
    prompts = prompts_of(tiny, lengths)
    params = [SamplingParams(max_tokens=NEW, n=4, temperature=1.0, seed=i, ignore_eos=True) for i in range(5)]
    roomy = engine(tiny, 512, 4).generate(prompts, params)
    llm = engine(tiny, smallest(lengths, NEW, 4, 4), 4, preemption=preemption, prefix_caching=caching)
    tight = llm.generate(prompts, params)
    assert [[o.token_ids for o in c.outputs] for c in tight] == [[o.token_ids for o in c.outputs] for c in roomy]
    for a, b in zip(tight, roomy, strict=True):
        logprobs = [[o.cumulative_logprob for o in c.outputs] for c in (a, b)]
        torch.testing.assert_close(*map(torch.tensor, logprobs), rtol=1e-4, atol=1e-4)
    assert llm.stats.preemptions > 0
    assert (llm.stats.swaps > 0) == (preemption == "swap")
    assert_idle(llm)


@pytest.mark.parametrize("preemption", PREEMPTIONS)
@pytest.mark.parametrize("caching", [False, True], ids=["cold", "cached"])
def test_beams_move_together(tiny: Model, preemption: str, caching: bool) -> None:
    lengths = [14, 16, 23, 9]
    prompts = prompts_of(tiny, lengths)
    params = SamplingParams(max_tokens=NEW, beam_width=4)
    roomy = engine(tiny, 512, 4).generate(prompts, params)
    llm = engine(tiny, smallest(lengths, NEW, 4, 4), 4, preemption=preemption, prefix_caching=caching)
    tight = llm.generate(prompts, params)
    assert [[o.token_ids for o in c.outputs] for c in tight] == [[o.token_ids for o in c.outputs] for c in roomy]
    for a, b in zip(tight, roomy, strict=True):
        scores = [[o.score for o in c.outputs] for c in (a, b)]
        torch.testing.assert_close(*map(torch.tensor, scores), rtol=1e-4, atol=1e-4)
    assert llm.stats.preemptions > 0
    assert_idle(llm)


def test_abort_of_a_swapped_request(tiny: Model) -> None:
    lengths = [40, 40]
    prompts = prompts_of(tiny, lengths)
    llm = engine(tiny, smallest(lengths, NEW, 4) + 6, 4, preemption="swap")
    first, second = (llm.add(prompt, SamplingParams(max_tokens=NEW, ignore_eos=True)) for prompt in prompts)
    while not llm.scheduler.swapped:
        assert llm.step()
    llm.abort(second)
    done = drain(llm)
    assert list(done) == [first]
    assert_idle(llm)


def test_a_policy_of_the_readers_own(tiny: Model, hugging_face: Generate) -> None:
    """Static batching: nobody joins a batch that has begun."""

    class Static(Scheduler):
        def may_admit(self, request: Request) -> bool:
            return len(self.plan.admitted) == len(self.running) and super().may_admit(request)

    prompts = prompts_of(tiny, LENGTHS)
    llm = engine(tiny, 256, 8, scheduler=Static, max_sequences=3)
    batches = []
    llm.on_step(lambda: batches.append([r.request_id for r in llm.plan.admitted]))
    expected = [hugging_face(tiny, prompt, 64)[:NEW] for prompt in prompts]
    assert ids_of(llm.generate(prompts, SamplingParams(max_tokens=NEW))) == expected
    assert [batch for batch in batches if batch] == [[0, 1, 2], [3, 4, 5], [6, 7]]


@pytest.mark.parametrize("options", [{"preemption": "drop"}, {"preemption": None}])
def test_ways_to_give_way(tiny: Model, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="preemption must be one of 'recompute', 'swap', got"):
        LLM(tiny, num_blocks=8, **options)


@pytest.mark.parametrize("preemption", PREEMPTIONS)
def test_real_qwen_under_pressure(qwen: Model, hugging_face: Generate, preemption: str) -> None:
    lengths = [3, 33, 64, 100]
    prompts = prompts_of(qwen, lengths)
    llm = engine(qwen, smallest(lengths, 32, 16) + 2, 16, preemption=preemption, max_batch_tokens=64)
    expected = [hugging_face(qwen, prompt, 32) for prompt in prompts]
    assert ids_of(llm.generate(prompts, SamplingParams(max_tokens=32))) == expected
    assert llm.stats.preemptions > 0
