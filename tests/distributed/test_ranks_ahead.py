"""Windows on two ranks: one message each, and the texts of one rank; a rank that is lost is noticed when they end.

In fp32 on caches full of NaN, on the CPU, launch by launch. The same as CUDA graphs: test_ranks_gpu.py.
"""

import time

import pytest

pytest.importorskip("triton")

from pagedlab.recipes.ranks import RankLost
from support.ahead import MIXED, MIXED_LENGTHS
from support.engines import assert_idle, come_and_go, drain, engine, exactly, prompts_of, texts_of
from support.ranks import Ahead, other_rank, two

# Plain texts of several lengths, forks, and a stop string. Limits and penalties change what rank 0 draws, and it draws
# alone, as in test_run_ahead.py.
KINDS = MIXED[:5]


def sent(llm, monkeypatch):
    """The inputs of all messages that rank 0 sends from now on."""
    inputs, step = [], llm.ranks.step
    monkeypatch.setattr(llm.ranks, "step", lambda each: (inputs.append(each), step(each))[1])
    return inputs


@pytest.mark.parametrize(
    "options", [{}, {"num_blocks": 20, "block_size": 4}, {"max_batch_tokens": 9, "max_sequences": 4}]
)
def test_texts_are_one_ranks(tiny, options, rng):
    """What needs the host runs between windows, as before; copies happen in their order."""
    prompts = prompts_of(tiny, MIXED_LENGTHS[:5])
    expected = texts_of(engine(tiny).generate(prompts, KINDS))
    with two(Ahead, fused=False, **options) as llm:
        assert texts_of(llm.generate(prompts, KINDS)) == expected
        assert bool(llm.stats.preemptions) == ("block_size" in options)
        come_and_go(llm, prompts, KINDS, expected, rng)


def test_fused_parts_in_windows(tiny, monkeypatch):
    """Only rank 0's summands hold the residual stream. One message a window, whatever its steps."""
    prompts = prompts_of(tiny, [16, 5, 33])  # more rows than the small product of queries, keys and values takes
    kinds = {3: 0.0, 2: 0.8, 1: 0.0}
    params = [exactly(n, temperature=t, seed=n) for n, t in kinds.items()]
    expected = texts_of(engine(tiny).generate(prompts, params))
    with two(Ahead, fused=True) as llm:
        messages = sent(llm, monkeypatch)
        assert texts_of(llm.generate(prompts, params)) == expected
    assert [len(shapes) for shapes in messages] == [3]


def test_all_shapes_run_on_all_ranks(tiny, monkeypatch):
    """What captures the graphs on GPUs: nothing is stored, nothing is drawn for anybody."""
    with two(Ahead, 32, fused=False, max_sequences=3, max_batch_tokens=64) as llm:
        messages = sent(llm, monkeypatch)
        llm.runner.warm_up()
        assert len(messages) >= 4, "64 tokens of up to 3 texts, then 1, 2 and 3 rows"
        assert llm.cache.keys.isnan().all()
        assert_idle(llm)


def test_a_killed_rank_is_noticed_in_a_window(tiny):
    """Within seconds, and the next call starts a new one."""
    prompt = [1, 2, 3]
    with two(Ahead, 64, fused=False) as llm:
        (expected,) = texts_of(engine(tiny).generate([prompt], exactly(40)))
        llm.add(prompt, exactly(400))
        llm.step()
        assert llm.runner.in_flight == 1
        other_rank(llm).kill()
        began = time.monotonic()
        with pytest.raises(RankLost, match=r"^rank 1 has ended \(exit code -9\)$"):
            drain(llm)
        assert time.monotonic() - began < 5
        assert texts_of(llm.generate([prompt], exactly(40))) == [expected]
        assert_idle(llm)
