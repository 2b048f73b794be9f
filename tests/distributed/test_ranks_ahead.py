"""Windows on two ranks: one message each, and the texts of one rank; a rank that is lost is noticed when they end.

In fp32 on poisoned caches, on the CPU, launch by launch. The same as CUDA graphs: test_ranks_gpu.py.
"""

import signal
import threading
import time
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

import pagedlab_fast
from pagedlab import SamplingParams
from pagedlab.batch import Batch
from pagedlab.model import TINY_MODEL
from pagedlab.recipes.penalties import Penalties
from pagedlab.recipes.ranks import RankLost
from pagedlab.recipes.ranks.commands import CopyBlocks, Play, Poison
from pagedlab.recipes.ranks.ranks import Ranks
from pagedlab_fast.choose import MAX_STEPS
from pagedlab_fast.fused import Fused
from support.ahead import running_ahead
from support.engines import assert_idle, come_and_go, engine, exactly, prompts_of, texts_of
from support.ranks import other_rank

MIXED = [
    exactly(20),
    SamplingParams(max_tokens=MAX_STEPS + 1),
    SamplingParams(max_tokens=1),
    SamplingParams(max_tokens=14, temperature=0.9, seed=3, n=2),
    SamplingParams(max_tokens=2 * MAX_STEPS, temperature=0.7, seed=5),
    SamplingParams(max_tokens=9, temperature=0.7, seed=6, top_k=5, top_p=0.9),
    SamplingParams(max_tokens=8, temperature=0.7, seed=7, min_p=0.1),
    SamplingParams(max_tokens=12, adjust=Penalties(repetition=1.4)),
]


def ahead(model, num_blocks=256, block_size=16, fused=False, **options):
    """An engine that runs in windows as on GPUs."""
    layers = (lambda llm: Fused(llm.model.module, llm.model.ranks)) if fused else lambda llm: None
    options |= {"num_blocks": num_blocks, "block_size": block_size, "verbose": False}
    llm = pagedlab_fast.LLM(model, **running_ahead(layers), **options)
    llm.cache.poison()
    return llm


def step_on(llm):
    """As long as there is something to do."""
    while llm.num_unfinished:
        llm.step()


def sent(model, monkeypatch):
    """Kinds of the commands that rank 0 sends from now on."""
    kinds, broadcast = [], model.ranks.broadcast

    def noting(command):
        kinds.append(type(command))
        broadcast(command)

    monkeypatch.setattr(model.ranks, "broadcast", noting)
    return kinds


@pytest.mark.parametrize(
    ("num_blocks", "options"),
    [
        (256, {}),
        (30, {"block_size": 4}),
        (256, {"max_batch_tokens": 9, "max_sequences": 4}),
    ],
    ids=["room", "recompute", "chunks"],
)
def test_texts_are_one_ranks(two, tiny, num_blocks, options, monkeypatch):
    """What needs the host runs between windows, as before; copies happen in their order."""
    prompts = prompts_of(tiny, [16, 5, 31, 13, 9, 33, 26, 21])
    expected = engine(tiny).generate(prompts, MIXED)
    llm = ahead(two, num_blocks, **options)
    kinds = sent(two, monkeypatch)
    assert texts_of(llm.generate(prompts, MIXED)) == texts_of(expected)
    assert {Play, Batch, CopyBlocks} <= set(kinds)
    if num_blocks == 30:
        assert llm.stats.preemptions > 0
    assert_idle(llm)


def test_fused_parts_in_windows(two, tiny, monkeypatch):
    """Only rank 0's summands hold the residual stream. One message a window, whatever its steps."""
    prompts = prompts_of(tiny, [16, 5, 33])  # more rows than the small product of queries, keys and values takes
    kinds = {3: 0.0, 2: 0.8, 1: 0.0}
    params = [exactly(n, temperature=t, seed=n) for n, t in kinds.items()]
    expected = texts_of(engine(tiny).generate(prompts, params))
    llm = ahead(two, fused=True)
    kinds, before = sent(two, monkeypatch), two.ranks.plan_bytes
    assert texts_of(llm.generate(prompts, params)) == expected
    assert kinds == [Play]
    assert llm.stats.steps == 3
    ints = 1 + 1 + 3 + 3 * 3  # length, kind, shape, three numbers a step
    assert two.ranks.plan_bytes - before == 8 * ints


def test_who_comes_late_or_leaves_early(two, tiny, rng):
    prompts = prompts_of(tiny, [rng.randint(1, 40) for _ in range(6)])
    params = [SamplingParams(max_tokens=rng.randint(1, 20)) for _ in prompts]
    expected = texts_of(engine(tiny).generate(prompts, params))
    llm = ahead(two, rng.choice([24, 256]))
    come_and_go(llm, prompts, params, expected, rng)


def test_all_shapes_are_played_on_all_ranks(two, monkeypatch):
    """What captures the graphs on GPUs: nothing is stored, nothing is drawn for anybody."""
    llm = ahead(two, 32, attention_backend="torch", max_sequences=3, max_batch_tokens=64)
    kinds = sent(two, monkeypatch)
    llm.runner.decoder.capture()
    assert len(kinds) >= 4, "64 tokens of up to 3 texts, then 1, 2 and 3 rows"
    assert set(kinds) == {Play}
    assert all(part.isnan().all() for part in llm.cache.of_each_rank(range(32)))


def test_a_killed_rank_is_noticed():
    """Within seconds, at every later request too, and nothing is left behind. test_distributed.py silences one."""
    llm = ahead(TINY_MODEL, 64, device="cpu", ranks=2)
    rank = other_rank(llm.model)
    llm.add([1, 2, 3], exactly(400))
    llm.step()
    assert llm.runner.in_flight == 1
    rank.send_signal(signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(RankLost, match=r"rank 1 has ended \(exit code -9\)"):
        step_on(llm)
    assert time.monotonic() - began < 5
    for _ in range(2):
        with pytest.raises(RankLost, match="make a new LLM"):
            llm.generate([[1, 2, 3]])
    assert llm.pool.num_free == llm.pool.num_blocks
    assert not rank.is_running()


def test_ranks_end_with_python_too(monkeypatch):
    """As two GPUs whose engine is not closed: Python 3.12 starts no thread while it ends."""
    ranks, ended, graphs = Ranks(0, 2, "cuda"), [], {"shape": "graph"}

    def abort():
        while graphs:  # as NCCL waits for the graphs that hold its sums
            time.sleep(0.01)
        ended.append(threading.current_thread())

    ranks._data = SimpleNamespace(abort=abort)
    ranks.hold(graphs)
    ranks._start_watcher()
    watcher = ranks._watcher
    over = SimpleNamespace(query=lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: SimpleNamespace(record_event=lambda: over))

    def refused(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refused)
    ranks.shutdown()
    assert ended == [watcher], "once, after its graphs were gone"
    assert ranks._data is None
    ranks.shutdown()
    assert ended == [watcher]


def test_a_window_that_never_ends(monkeypatch):
    """What waits on a GPU for a rank that is alive and silent: no sum within a graph has a limit of its own."""
    ranks = Ranks(0, 2, "cpu")
    monkeypatch.setattr(ranks, "_timeout", 0.05)
    later = iter([False, True])
    ranks.wait(SimpleNamespace(query=lambda: next(later)))
    with pytest.raises(RankLost, match=r"a rank does not answer.*timed out: the sums are not complete after 0 s"):
        ranks.wait(SimpleNamespace(query=lambda: False))
    with pytest.raises(RankLost, match="make a new LLM"):
        ranks.play([1, 0], lambda: None)


def test_nothing_waits_for_a_silent_rank_without_a_limit(two, monkeypatch):
    """Neither who writes the next window while the device has not read the last but one, nor who captures a graph."""
    llm = ahead(two, 32, max_sequences=2, max_batch_tokens=16)
    decoder, ranks = llm.runner.decoder, two.ranks
    monkeypatch.setattr(ranks, "_timeout", 0.05)
    monkeypatch.setattr(ranks, "shutdown", lambda patience: None)  # the other is not really silent
    never = SimpleNamespace(query=lambda: False, record=lambda: None)
    with monkeypatch.context() as patch:
        for host in decoder.hosts:
            patch.setattr(host, "in_use", never)
        with pytest.raises(RankLost, match=r"a rank does not answer.*sums are not complete"):
            decoder.capture()
    ranks.lost = None
    monkeypatch.setattr(ranks, "device", torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(record_event=lambda: never))
    monkeypatch.setattr(decoder.runner, "enabled", True)
    monkeypatch.setattr(ranks, "share", lambda tables: None)  # the other does not play
    shape = decoder.shapes.decode(1)
    decoder.runner._seen.add(shape)
    with pytest.raises(RankLost, match=r"^a rank does not answer.*sums are not complete"):
        ranks.call(Poison(), lambda: decoder.play([shape]))
    ranks.lost = None
