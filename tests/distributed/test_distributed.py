"""Two ranks on the CPU, in fp32, on caches full of NaN: the tokens of one rank, and no process left behind.

Ranks take seconds to start, so most tests share one pair (conftest.py), and give it a new engine each.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import weakref
from copy import deepcopy
from dataclasses import asdict, fields
from types import SimpleNamespace

import psutil
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from pagedlab import SamplingParams
from pagedlab.batch import Batch
from pagedlab.model import TINY_MODEL
from pagedlab.recipes.beam import beam_search
from pagedlab.recipes.ranks import Config, Ranked, RankLost, TensorParallelLLM
from pagedlab.recipes.ranks.commands import KINDS, Poison, pack, unpack
from pagedlab.recipes.ranks.ranks import Ranks
from pagedlab.recipes.ranks.shards import all_reduce_bytes, check_split, ring_bytes, split_layers
from pagedlab.recipes.ranks.workers import Workers
from pagedlab.recipes.swap import SwappingScheduler
from pagedlab_serve.cli.main import main
from support.engines import (
    LENGTHS,
    NEW,
    all_ids_of,
    assert_idle,
    drain,
    engine,
    exactly,
    greedy_ids,
    ids_of,
    prompts_of,
    smallest,
)
from support.ranks import listening, other_rank, poisoned
from support.refused import refused
from support.waiting import until

# Two ranks add in another order than one, so a sum differs in its last digits; 1e-4 is far above that.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


# The same tokens ---------------------------------------------------------------------------------------------------


def test_tokens_are_those_of_generate(two, tiny, hugging_face):
    """Prompts whole and in chunks, of lengths around the block's."""
    prompts = prompts_of(tiny, [1, 3, 15, 16, 17, 33])
    for max_batch_tokens in (4096, 13):
        llm = poisoned(two, max_batch_tokens=max_batch_tokens)
        expected = greedy_ids(hugging_face, tiny, prompts, NEW)
        assert ids_of(llm.generate(prompts, SamplingParams(max_tokens=NEW))) == expected
        assert_idle(llm)


def test_beams(two, tiny):
    """Forks and copies on write reach every rank."""
    (prompt,) = prompts_of(tiny, [14])
    found = [beam_search(llm, prompt, width=3, max_tokens=8) for llm in (poisoned(two, 64, 4), engine(tiny, 64, 4))]
    ours, expected = ([output.token_ids for output in outputs] for outputs in found)
    assert ours == expected


def test_a_whole_day(two, tiny, seed):
    """Requests of all kinds come between steps and some are aborted, in a pool that is short: one rank's texts."""

    def day(llm):
        rng = random.Random(seed)
        prompts = prompts_of(tiny, rng.sample(LENGTHS, 6))
        added, seen = [], {}
        for i, prompt in enumerate(prompts):
            # Of few tokens: over all 4,096 the ranks' sums may round to the other side of an edge that is drawn at.
            kind = rng.choice([{}, {"n": 2, "temperature": 0.8, "top_k": 4, "seed": i}])
            added.append(llm.add(prompt, exactly(NEW, **kind)))
            for _ in range(rng.randrange(8)):
                seen |= {completion.request_id: completion for completion in llm.step()}
            if rng.random() < 0.2:
                llm.abort(rng.choice(added))
        seen |= drain(llm)
        assert llm.stats.preemptions > 0
        assert_idle(llm)
        return all_ids_of([seen[request_id] for request_id in added if request_id in seen])

    blocks = smallest(LENGTHS, NEW, 4) + 4
    assert day(poisoned(two, blocks, 4)) == day(engine(tiny, blocks, 4))


def test_real_qwen(qwen, qwen_folder, hugging_face):
    prompts = prompts_of(qwen, [3, 33, 64])
    with TensorParallelLLM(qwen_folder, num_blocks=64, device="cpu", dtype="float32", verbose=False) as llm:
        expected = [hugging_face(qwen, prompt, 32) for prompt in prompts]
        assert ids_of(llm.generate(prompts, SamplingParams(max_tokens=32))) == expected
    with refused("2 KV heads cannot be shared evenly by 4 ranks"):
        TensorParallelLLM(qwen_folder, ranks=4)


# The same tables, other contents -----------------------------------------------------------------------------------


def test_the_batch_is_the_same_on_every_rank_at_each_step(two, tiny):
    """And its tables are those of the scheduler, copies included."""
    lengths = LENGTHS[:4]
    llm = poisoned(two, smallest(lengths, NEW, 4) + 2, 4, max_batch_tokens=32)
    latest = []
    steps = 0
    real = two.forward

    def forward(batch, *rest):
        latest[:] = [(batch, [list(chunk.sequence.table.block_ids) for chunk in llm.scheduler.plan.chunks])]
        return real(batch, *rest)

    def compare():
        nonlocal steps
        ((batch, tables),) = latest
        first, other = two.batch_of_each_rank(batch)
        assert first == other
        ran = unpack(torch.tensor(other), torch.device("cpu")).block_tables.tolist()
        assert [row[: len(table)] for row, table in zip(ran, tables, strict=True)] == tables
        steps += 1

    llm.on_step(compare)
    llm.forward = forward
    params = exactly(NEW, n=2, temperature=1.0, seed=1)
    llm.generate(prompts_of(tiny, lengths), params)
    assert llm.stats.preemptions > 0
    assert steps == llm.stats.steps > NEW


def test_each_rank_holds_its_heads_of_the_same_blocks(two, tiny):
    (prompt,) = prompts_of(tiny, [40])
    pair, alone = poisoned(two, 16), engine(tiny, 16)
    tables = []
    for llm in (pair, alone):
        llm.add(prompt, SamplingParams(max_tokens=4))
        llm.step()
        tables.append(llm.sequences()[0].table.block_ids)
    assert tables[0] == tables[1]
    halves = pair.cache.of_each_rank(tables[0][:2])  # full blocks
    whole = torch.stack([part[:, tables[0][:2]] for part in (alone.cache.keys, alone.cache.values)])
    assert [half.shape[4] for half in halves] == [1, 1]
    torch.testing.assert_close(torch.cat(halves, dim=4), whole, **CLOSE)
    assert not torch.allclose(*halves, **CLOSE), "the halves differ"
    assert pair.cache.bytes_per_block * 2 == alone.cache.bytes_per_block
    for llm in (pair, alone):
        llm.abort(0)


def test_no_policy_may_move_what_all_ranks_have(two):
    llm = poisoned(two, 12, 4, kind=Ranked, ranks=1, scheduler=SwappingScheduler)
    with refused("SwappingScheduler moves KV, and several ranks have it: take another scheduler"):
        llm.generate([[1] * 9, [2] * 9, [3] * 9], exactly(20))
    with refused("^a block id must be a whole number from 0 to 11, got 99$"):
        llm.cache.copy_blocks([(0, 99)])  # no rank gets it


tensors_of = st.sampled_from([torch.int32, torch.int64]).flatmap(
    lambda dtype: st.lists(st.integers(0, 5), min_size=1, max_size=2).map(
        lambda shape: torch.randint(-(2**31), 2**31 - 1, shape, dtype=dtype)
    )
)


@given(st.lists(tensors_of, min_size=len(Batch.__dataclass_fields__), max_size=len(Batch.__dataclass_fields__)))
def test_an_unpacked_batch_is_the_packed_one(tensors):
    out = unpack(pack(Batch(*tensors)), torch.device("cpu"))
    for name, tensor in zip(Batch.__dataclass_fields__, tensors, strict=True):
        torch.testing.assert_close(getattr(out, name), tensor, rtol=0, atol=0)


integers = st.lists(st.integers(0, 2**31), max_size=4)
VALUES = {"int": st.integers(0, 2**31), "list[int]": integers, "list[tuple[int, int]]": st.just([[1, 2], [3, 4]])}


@given(st.data())
def test_an_unpacked_command_is_the_packed_one(data):
    kind = data.draw(st.sampled_from([kind for kind in KINDS if kind is not Batch]))
    command = kind(**{field.name: data.draw(VALUES[field.type]) for field in fields(kind)})
    assert unpack(pack(command), torch.device("cpu")) == command


# Bytes --------------------------------------------------------------------------------------------------------------


def test_bytes_counted_are_those_of_the_formula(two, tiny, rng):
    """A token that is computed costs two vectors a layer, whatever step it comes in."""
    llm = poisoned(two, max_batch_tokens=rng.choice([5, 64]))
    before = two.ranks.payload_bytes
    prompts = prompts_of(tiny, rng.sample(LENGTHS, 3))
    answers = llm.generate(prompts, exactly(7))
    computed = sum(len(prompt) + len(a.outputs[0].token_ids) - 1 for prompt, a in zip(prompts, answers, strict=True))
    assert two.ranks.payload_bytes - before == computed * all_reduce_bytes(two.module.config, 4)


def test_worked_numbers():
    qwen = SimpleNamespace(num_hidden_layers=24, hidden_size=896)
    assert all_reduce_bytes(qwen, 2) == 86_016  # 84 KiB a token in bf16
    assert [ring_bytes(800, size) for size in (1, 2, 4, 8)] == [0, 800, 1200, 1400]


# The split ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 4])
def test_parts_add_up_to_the_layer(tiny, size, seed):
    """The MLP and the projections of a layer, rank by rank in this process; a row-parallel bias counts once."""
    print(seed)
    torch.manual_seed(seed)
    whole = deepcopy(tiny.module)
    for layer in whole.base_model.layers:
        layer.mlp.down_proj.bias = torch.nn.Parameter(torch.randn(whole.config.hidden_size))
    parts = [deepcopy(whole) for _ in range(size)]
    for rank, part in enumerate(parts):
        split_layers(part, rank, size, lambda x: None)
    x = torch.randn(3, whole.config.hidden_size)
    first, *others = (part.base_model.layers[1] for part in parts)
    layer = whole.base_model.layers[1]
    with torch.inference_mode():
        torch.testing.assert_close(sum((p.mlp(x) for p in others), first.mlp(x)), layer.mlp(x), **CLOSE)
        for name in ("q_proj", "k_proj", "v_proj"):
            columns = [getattr(part.self_attn, name)(x) for part in (first, *others)]
            torch.testing.assert_close(torch.cat(columns, dim=1), getattr(layer.self_attn, name)(x), **CLOSE)
    assert sum(p.base_model.layers[0].mlp.up_proj.weight.numel() for p in parts) == layer.mlp.up_proj.weight.numel()


def config_of(kv_heads, heads, width, plan=None):
    return SimpleNamespace(
        model_type="test",
        num_key_value_heads=kv_heads,
        num_attention_heads=heads,
        intermediate_size=width,
        base_model_tp_plan=plan,
    )


def test_an_embedding_stays_whole(tiny):
    """Some versions of transformers name the embedding in their plan; every rank keeps all of it."""
    module = deepcopy(tiny.module)
    module.config.base_model_tp_plan = {"embed_tokens": "embedding_rowwise", "layers.*.mlp.up_proj": "colwise"}
    shape, up = module.model.embed_tokens.weight.shape, module.model.layers[0].mlp.up_proj.weight.shape
    split_layers(module, 0, 2, lambda x: x)
    assert module.model.embed_tokens.weight.shape == shape
    assert module.model.layers[0].mlp.up_proj.weight.shape == (up[0] // 2, up[1])


def test_what_cannot_be_split():
    with refused("no tensor-parallel plan for test models"):
        check_split(config_of(2, 14, 4864), 2)
    check_split(config_of(2, 14, 4864, {}), 2)  # Qwen2.5-0.5B
    with refused(r"2 KV heads cannot .* 4 ranks: this model takes 1 or 2"):
        check_split(config_of(2, 14, 4864, {}), 4)
    with refused(r"15 query heads .* 2 ranks: this model takes 1$"):
        check_split(config_of(2, 15, 4864, {}), 2)
    with refused("columns of the MLP"):
        check_split(config_of(2, 14, 4863, {}), 2)


def test_a_plan_that_is_not_understood(tiny):
    module = deepcopy(tiny.module)
    module.config.base_model_tp_plan = {"layers.*.mlp.up_proj": "packed_colwise"}
    with refused(r"cannot split layers\.0\.mlp\.up_proj, which .* 'packed_colwise'"):
        split_layers(module, 0, 2, lambda x: None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ranks": 4}, "2 KV heads cannot be shared evenly by 4 ranks"),
        ({"ranks": 2, "device": "cuda:1"}, "device is 'auto', 'cpu' or 'cuda', got 'cuda:1'"),
        ({"ranks": 2, "attention_backend": print}, "a function cannot be sent"),
        ({"ranks": 2, "model": "no/such/model"}, "there is no .*'no/such/model'"),
    ],
)
def test_refused_before_anything_starts(monkeypatch, options, said):
    monkeypatch.setattr("pagedlab.recipes.ranks.workers.Popen", None)
    options = {"model": TINY_MODEL} | options
    with refused(said):
        TensorParallelLLM(**options)


def test_a_loaded_model_cannot_be_split(tiny):
    with refused("each loads its own part"):
        TensorParallelLLM(tiny)


# A rank that dies ---------------------------------------------------------------------------------------------------


def test_a_silent_rank_ends_the_others(monkeypatch):
    """Within seconds, with an error that says so, again at the next step, and with nothing left behind.

    test_ranks_ahead.py kills one.
    """
    monkeypatch.setattr("pagedlab.recipes.ranks.TIMEOUT", 1.0)  # of silence
    ports = listening()
    llm = TensorParallelLLM(TINY_MODEL, device="cpu", num_blocks=32, verbose=False)
    rank, folder = other_rank(llm.model), llm.model.ranks.workers.folder
    llm.add([1, 2, 3], exactly(100))
    llm.step()
    time.sleep(1.5)  # between two steps nobody is silent, however long it takes
    llm.step()
    rank.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    with pytest.raises(RankLost, match="a rank does not answer"):
        llm.step()
    assert time.monotonic() - began < 5
    assert [completion.outputs[0].finish_reason for completion in llm.step()] == ["error"]
    with pytest.raises(RankLost, match="make a new LLM"):
        llm.generate([[1, 2, 3]])
    assert llm.pool.num_free == llm.pool.num_blocks
    assert not rank.is_running()
    assert not folder.exists()
    assert listening() == ports


def test_a_child_ends_with_rank_0():
    """However rank 0 dies, and whatever the child is waiting for."""
    code = (
        "import os, signal, sys; from pagedlab.recipes.ranks import TensorParallelLLM; "
        f"llm = TensorParallelLLM({str(TINY_MODEL)!r}, device='cpu', num_blocks=8, verbose=False); "
        "c = llm.model.ranks.workers; print(c.processes[0].pid, c.folder, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False, text=True)
    assert done.returncode == -9
    pid, folder = done.stdout.split()[-2:]

    def has_ended():
        return not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE

    until(has_ended, why="the child is still there")
    assert not os.path.exists(folder)


def test_a_child_that_cannot_start_is_reported(monkeypatch):
    """With its last words, and long before anybody's patience is at an end."""

    class Misled(Workers):
        """They read another config than rank 0 writes."""

        def __init__(self, size):
            super().__init__(size)
            config = Config("no/such/model", "cpu", "float32", "torch", follow="", timeout=30.0)
            self.store.set("config", json.dumps(asdict(config)))
            self.store = dist.PrefixStore("unread", self.store)

    monkeypatch.setattr("pagedlab.recipes.ranks.Workers", Misled)
    before = set(psutil.Process().children())
    with pytest.raises(RankLost, match=r"rank 1 has ended \(exit code 1\): ValueError: there is no .*'no/such/model'"):
        TensorParallelLLM(TINY_MODEL, device="cpu", num_blocks=8, verbose=False)
    assert set(psutil.Process().children()) == before


def test_an_error_in_the_middle_of_a_step_is_itself_and_ends_the_ranks(monkeypatch):
    """Rank 0 fails alone: the others wait in a sum that will never be complete, so none of them can go on."""

    class OneChild:
        stopped = False

        def exit_report(self, grace=0):
            return None

        def stop(self, patience):
            self.stopped = True

        def remove_folder(self):
            assert self.stopped

    def broken():
        raise ZeroDivisionError("planted")

    child = OneChild()
    ranks = Ranks(0, 2, "cpu", child)
    monkeypatch.setattr(ranks, "broadcast", lambda command: None)
    assert ranks.call(Poison(), lambda: 7) == 7
    with pytest.raises(ZeroDivisionError, match="planted"):
        ranks.call(Poison(), broken)
    assert child.stopped
    with pytest.raises(RankLost, match=r"a step failed half-way \(ZeroDivisionError"):
        ranks.call(Poison(), lambda: 7)


def test_the_groups_end_before_their_store_is_removed():
    """NCCL's group would wait for a thread of its own, and that thread for the store's file: five minutes."""

    class Group:
        pass

    ended = []
    workers = SimpleNamespace(stop=lambda _: ended.append("workers"), remove_folder=lambda: ended.append("store"))
    ranks = Ranks(0, 2, "cpu", workers)
    ranks._data = Group()
    weakref.finalize(ranks._data, ended.append, "group")
    ranks.shutdown()
    assert ended == ["workers", "group", "store"]


def test_an_interrupt_in_a_step_stays_one_and_ends_the_ranks():
    """They may be out of step. The next request hears it."""
    llm = TensorParallelLLM(TINY_MODEL, device="cpu", num_blocks=32, verbose=False)
    rank, folder = other_rank(llm.model), llm.model.ranks.workers.folder
    assert os.getsid(rank.pid) != os.getsid(0), "Ctrl-C in a terminal goes to everybody in its session"
    llm.add([1, 2, 3], exactly(100))
    llm.step()
    layer = llm.model.module.base_model.layers[1]
    layer.register_forward_hook(lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        llm.step()
    assert not rank.is_running()
    assert not folder.exists()
    assert [completion.outputs[0].finish_reason for completion in llm.step()] == ["error"]
    with pytest.raises(RankLost, match=r"a step failed half-way \(KeyboardInterrupt\(\)\).* make a new LLM"):
        llm.generate([[1, 2]])
    assert llm.pool.num_free == llm.pool.num_blocks
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_nothing_of_this_process_is_changed(two):
    """Which interface gloo listens on is said while its groups are made, and not to whoever makes one later."""
    assert not os.environ.get("GLOO_SOCKET_IFNAME")


def test_the_command_line_says_what_is_wrong(capsys):
    assert main(["generate", "Once upon", "--model", str(TINY_MODEL), "--ranks", "4", "--device", "cpu"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "error: 2 KV heads cannot be shared evenly by 4 ranks: this model takes 1 or 2"


def test_an_engine_with_one_rank_closes_too(tiny):
    with engine(tiny, 8, kind=TensorParallelLLM, ranks=1) as llm:
        assert len(llm.generate([[1, 2, 3]], SamplingParams(max_tokens=1))) == 1
