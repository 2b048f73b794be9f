"""Two ranks on the CPU, in fp32, on caches full of NaN: the tokens of one rank, and no process left behind."""

import signal
import subprocess
import sys
import time
from copy import deepcopy
from types import SimpleNamespace

import psutil
import pytest
import torch
from pagedlab_lessons.watched_ranks import WatchedRanks

from pagedlab import SamplingParams
from pagedlab.model import TINY_MODEL
from pagedlab.recipes.ranks import RankLost, TensorParallelLLM, group
from pagedlab.recipes.ranks.shards import all_reduce_bytes, check_split, ring_bytes, split_layers
from pagedlab.recipes.swap import SwappingScheduler
from support.checkpoints import random_checkpoint
from support.engines import LENGTHS, assert_idle, come_and_go, engine, exactly, ids_of, prompts_of, texts_of
from support.ranks import listening, other_rank, two
from support.refused import refused
from support.waiting import until

# Two ranks add in another order than one, so a sum differs in its last digits; 1e-4 is far above that.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
ENDED = r"^rank 1 has ended \(exit code -9\)$"


# The same tokens ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"max_batch_tokens": 13}, {"num_blocks": 20, "block_size": 4}])
def test_texts_are_those_of_one_rank(tiny, rng, options):
    """Greedy, sampled and forked, so copied on write; prompts in chunks, and cached; in a pool that is short."""
    prompts = prompts_of(tiny, LENGTHS[:5])
    # Of few tokens: over all 4,096 the ranks' sums may round to the other side of an edge that is drawn at.
    kinds = [{}, {"temperature": 0.8, "top_k": 4}, {"n": 2, "temperature": 0.8, "top_k": 4}]
    params = [exactly(12, seed=i, **kinds[i % 3]) for i in range(len(prompts))]
    expected = texts_of(engine(tiny).generate(prompts, params))
    with two(**options) as llm:
        for _ in range(2):
            assert texts_of(llm.generate(prompts, params)) == expected
            assert bool(llm.stats.preemptions) == ("block_size" in options)
        come_and_go(llm, prompts, params, expected, rng)


def test_real_qwen(qwen, qwen_folder, hugging_face):
    prompts = prompts_of(qwen, [3, 40])
    with TensorParallelLLM(qwen_folder, num_blocks=64, device="cpu", dtype="float32", verbose=False) as llm:
        expected = [hugging_face(qwen, prompt, 8) for prompt in prompts]
        assert ids_of(llm.generate(prompts, SamplingParams(max_tokens=8))) == expected


def test_each_rank_holds_its_heads_of_the_same_blocks(tiny):
    (prompt,) = prompts_of(tiny, [40])
    alone = engine(tiny, 16)
    with two(WatchedRanks, 16) as pair:
        for llm in (pair, alone):
            llm.add(prompt, SamplingParams(max_tokens=4))
            llm.step()
        blocks, expected = (llm.sequences()[0].table.block_ids for llm in (pair, alone))
        assert blocks == expected
        whole = alone.cache.keys[2].transpose(0, 2).transpose(1, 2)  # [heads, blocks, block_size, head_dim]
        torch.testing.assert_close(pair.keys, whole, equal_nan=True, **CLOSE)
        assert pair.keys.isfinite().sum() == 2 * 40 * 32
        assert pair.cache.bytes_per_block * 2 == alone.cache.bytes_per_block


def test_the_pool_fits_the_rank_with_the_least_memory(monkeypatch):
    monkeypatch.setattr("pagedlab.engine.CPU_KV_BYTES", 1 << 31)  # on rank 0; it is half of that on rank 1
    with two(TensorParallelLLM, None, max_sequences=10_000) as llm:
        assert llm.num_blocks == (1 << 30) // llm.cache.bytes_per_block


# Bytes --------------------------------------------------------------------------------------------------------------


def test_bytes_counted_are_those_of_the_formula(tiny):
    """A token that is computed costs two vectors a layer, whatever step it comes in."""
    prompts = prompts_of(tiny, LENGTHS[:3])
    with two(max_batch_tokens=5) as llm:
        llm.generate(prompts, exactly(7))
        computed = sum(len(prompt) + 6 for prompt in prompts)
        assert llm.ranks.payload_bytes == computed * all_reduce_bytes(tiny.module.config, 4)
        assert 0 < llm.ranks.plan_bytes < llm.ranks.payload_bytes / 10
    assert [ring_bytes(800, size) for size in (1, 2, 4, 8)] == [0, 800, 1200, 1400]


# The split ---------------------------------------------------------------------------------------------------------


def test_a_bias_of_a_product_that_is_summed_counts_once(tiny, seed):
    module = deepcopy(tiny.module)
    width = module.config.hidden_size
    x, bias = torch.randn(2, width, generator=torch.Generator().manual_seed(seed))
    module.model.layers[1].mlp.down_proj.bias = torch.nn.Parameter(bias)
    parts = [deepcopy(module) for _ in range(2)]
    for rank, part in enumerate(parts):
        split_layers(part, rank, 2, lambda x: None)
    whole, *parts = (each.model.layers[1].mlp for each in (module, *parts))
    with torch.inference_mode():
        torch.testing.assert_close(parts[0](x) + parts[1](x), whole(x), **CLOSE)
    assert [len(part.up_proj.weight) for part in parts] == [len(whole.up_proj.weight) // 2] * 2


def test_plans_of_other_models(tiny):
    """Some versions of transformers name the embedding in their plan; every rank keeps all of it."""
    module = deepcopy(tiny.module)
    shape = module.model.embed_tokens.weight.shape
    module.config.base_model_tp_plan = {"embed_tokens": "embedding_rowwise"}
    split_layers(module, 0, 2, lambda x: x)
    assert module.model.embed_tokens.weight.shape == shape
    module.config.base_model_tp_plan = {"layers.*.mlp.up_proj": "packed_colwise"}
    with refused(r"cannot split layers\.0\.mlp\.up_proj, which .* 'packed_colwise'"):
        split_layers(module, 0, 2, lambda x: None)


@pytest.mark.parametrize(
    ("plan", "heads", "width", "ranks", "said"),
    [
        (None, 14, 4864, 2, "no tensor-parallel plan for test models"),
        ({}, 15, 4864, 2, "15 query heads .* 2 ranks: this model takes 1$"),
        ({}, 14, 4863, 2, "columns of the MLP"),
    ],
)
def test_what_cannot_be_split(plan, heads, width, ranks, said):
    config = SimpleNamespace(model_type="test", num_key_value_heads=2, base_model_tp_plan=plan)
    config.num_attention_heads, config.intermediate_size = heads, width
    with refused(said):
        check_split(config, ranks)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "cuda:1"}, "device must be one of 'auto', 'cpu', 'cuda'"),
        ({"attention_backend": print}, "the name of an attention backend"),
        ({"model": "no/such/model"}, "'no/such/model' is no folder"),
    ],
)
def test_refused_before_anything_starts(monkeypatch, options, said):
    monkeypatch.setattr(group, "context", None)
    with refused(said):
        two(TensorParallelLLM, **options)


def test_a_model_or_scheduler_that_ranks_cannot_share(tiny):
    with refused("each rank loads its own share"):
        TensorParallelLLM(tiny)
    with refused("SwappingScheduler moves KV"):
        two(scheduler=SwappingScheduler)
    assert not group.context.active_children()


# The end of a rank --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["killed", "killed between steps", "silent", "interrupted", "closed"])
def test_ranks_end_within_seconds_and_the_next_call_starts_new_ones(tiny, monkeypatch, how):
    """A step that fails says why in one line, and drops all requests. Nothing is left of the old ranks."""
    monkeypatch.setattr(group, "TIMEOUT", 2.0)
    prompts = prompts_of(tiny, [20, 5])
    expected = ids_of(engine(tiny).generate(prompts, exactly(8)))
    ports = listening()
    with two() as llm:
        assert ids_of(llm.generate(prompts, exactly(8))) == expected
        rank = other_rank(llm)
        in_a_sum, error, said = {
            "killed": (rank.kill, RankLost, ENDED),
            "killed between steps": (int, RankLost, ENDED),
            "silent": (rank.suspend, RankLost, "^a rank does not answer$"),
            "interrupted": (lambda: signal.raise_signal(signal.SIGINT), KeyboardInterrupt, "^$"),
            "closed": (int, None, ""),
        }[how]
        llm.add(prompts[0], exactly(100))
        llm.step()
        began = time.monotonic()
        if how == "closed":
            llm.close()
        else:
            if how == "killed between steps":
                rank.kill()
            hook = llm.model.module.base_model.layers[1].register_forward_hook(lambda *_: in_a_sum())
            with pytest.raises(error, match=said):
                llm.step()
            hook.remove()
        assert time.monotonic() - began < 5
        assert not rank.is_running()
        assert [completion.outputs[0].finish_reason for completion in llm.step()] == ["error"]
        assert ids_of(llm.generate(prompts, exactly(8))) == expected
        assert_idle(llm)
    assert not group.context.active_children()
    until(lambda: listening() == ports, why="a port is still open")


def test_of_three_ranks_the_one_that_died_is_named(tmp_path):
    """Although not all of them talk to it, and its end ends the others."""
    random_checkpoint(tmp_path, "llama", hidden_size=48, num_attention_heads=6, num_key_value_heads=3)
    with two(model=tmp_path, ranks=3) as llm:
        ranks = llm.ranks.others
        llm.model.module.base_model.layers[1].register_forward_hook(lambda *_: ranks[1].kill())
        with pytest.raises(RankLost, match=r"^rank 2 has ended \(exit code -9\)$"):
            llm.generate([[1, 2, 3]])


def test_the_other_rank_ends_with_rank_0():
    """However rank 0 dies, and whatever the other is waiting for."""
    code = (
        "import os; from pagedlab.recipes.ranks import TensorParallelLLM; "
        f"llm = TensorParallelLLM({str(TINY_MODEL)!r}, device='cpu', num_blocks=8, verbose=False); "
        "print(llm.ranks.others[0].pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert done.returncode == -9
    pid = int(done.stdout.split()[-1])

    def has_ended():
        return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE

    until(has_ended, why="the other rank is still there")


def test_a_rank_that_cannot_start_is_reported(monkeypatch):
    """Long before anybody's patience is at an end."""
    monkeypatch.setattr(TensorParallelLLM, "shared_options", lambda self: {"dtype": "no dtype"})
    with pytest.raises(RankLost, match=r"^rank 1 has ended \(exit code 1\)$"):
        two(TensorParallelLLM)
    assert not group.context.active_children()


def test_ranks_start_after_ipythons_reset(monkeypatch):
    """%reset takes `__spec__` from the main module, and multiprocessing reads it."""
    monkeypatch.delattr(sys.modules["__main__"], "__spec__", raising=False)
    with two() as llm:
        assert llm.generate([5, 6])[0].finished
