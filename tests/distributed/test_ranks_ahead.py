"""Windows on two ranks: one message each, and the texts of one rank; a rank that is lost is noticed when they end.

In fp32 on poisoned caches, on the CPU, launch by launch. The same as CUDA graphs: test_ranks_gpu.py.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

pytest.importorskip("triton")

from test_distributed import other_rank, poisoned
from test_engine import assert_idle, engine, prompts_of

from pagedlab import LLM, SamplingParams
from pagedlab.accelerate import MAX_STEPS, make_run_ahead
from pagedlab.accelerate.fused import Fused
from pagedlab.batch import Batch
from pagedlab.distributed import RankLost, open_model
from pagedlab.distributed.commands import Command, CopyBlocks, Play, Poison, SwapIn
from pagedlab.distributed.ranks import Ranks
from pagedlab.distributed.shared import SharedCache, SharedModel
from pagedlab.llm import FOLLOW
from pagedlab.model import TINY_MODEL, Model

if TYPE_CHECKING:
    from pagedlab import Completion
    from pagedlab.model import Model

MIXED = [
    SamplingParams(max_tokens=20, ignore_eos=True),
    SamplingParams(max_tokens=MAX_STEPS + 1),
    SamplingParams(max_tokens=1),
    SamplingParams(max_tokens=14, temperature=0.9, seed=3, n=2),
    SamplingParams(max_tokens=2 * MAX_STEPS, temperature=0.7, seed=5),
    SamplingParams(max_tokens=9, temperature=0.7, seed=6, top_k=5),
    SamplingParams(max_tokens=6, beam_width=2),
]


@pytest.fixture(scope="module")
def two() -> Iterator[SharedModel]:
    model = open_model(TINY_MODEL, "cpu", "float32", False, 2, "torch", FOLLOW)
    assert isinstance(model, SharedModel)
    yield model
    model.close()


def ahead(llm: LLM, fused: bool = False) -> LLM:
    """The engine, running in windows as on GPUs."""
    assert isinstance(llm.model, SharedModel)
    layers = Fused(llm.model.module, llm.model.ranks) if fused else None
    llm.run_ahead = make_run_ahead(llm.model, llm.cache, llm.attend, llm.scheduler, layers, graphs=False)
    assert isinstance(llm.cache, SharedCache)
    llm.cache.poison()
    return llm


def step_on(llm: LLM) -> None:
    """As long as there is something to do."""
    while llm.step():
        pass


def sent(model: SharedModel, monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """Kinds of the commands that rank 0 sends from now on."""
    kinds, broadcast = [], model.ranks.broadcast

    def noting(command: Command) -> None:
        kinds.append(type(command))
        broadcast(command)

    monkeypatch.setattr(model.ranks, "broadcast", noting)
    return kinds


def texts_of(completions: list[Completion]) -> list[list[tuple[list[int], str | None]]]:
    return [[(output.token_ids, output.finish_reason) for output in c.outputs] for c in completions]


@pytest.mark.parametrize(
    ("num_blocks", "options"),
    [
        (256, {}),
        (30, {"block_size": 4}),
        (30, {"block_size": 4, "preemption": "swap"}),
        (256, {"max_batch_tokens": 9, "max_sequences": 4}),
    ],
    ids=["room", "recompute", "swap", "chunks"],
)
def test_texts_are_one_ranks(
    two: SharedModel, tiny: Model, num_blocks: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What needs the host runs between windows, as before; copies and swaps happen in their order."""
    prompts = prompts_of(tiny, [16, 5, 30, 12, 1, 33, 8])
    expected = engine(tiny).generate(prompts, MIXED)
    llm = ahead(poisoned(two, num_blocks, **options))
    kinds = sent(two, monkeypatch)
    assert texts_of(llm.generate(prompts, MIXED)) == texts_of(expected)
    assert {Play, Batch, CopyBlocks} <= set(kinds)
    if num_blocks == 30:
        assert llm.stats.preemptions > 0
        assert (SwapIn in kinds) == ("preemption" in options)
    assert_idle(llm)


def test_fused_parts_in_windows(two: SharedModel, tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rank 0's summands hold the residual stream. One message a window, whatever its steps."""
    prompts = prompts_of(tiny, [16, 5, 33])
    kinds = {6: 0.0, 4: 0.8, 2: 0.0}
    params = [SamplingParams(max_tokens=n, ignore_eos=True, temperature=t, seed=n) for n, t in kinds.items()]
    expected = texts_of(engine(tiny).generate(prompts, params))
    llm = ahead(poisoned(two), fused=True)
    kinds, before = sent(two, monkeypatch), two.ranks.plan_bytes
    assert texts_of(llm.generate(prompts, params)) == expected
    assert kinds == [Play]
    assert llm.stats.steps == 6
    ints = 1 + 1 + 3 + 6 * 2  # length, kind, shape, two numbers a step
    assert two.ranks.plan_bytes - before == 8 * ints


def test_who_comes_late_or_leaves_early(two: SharedModel, tiny: Model, seed: int) -> None:
    rng = random.Random(seed)
    prompts = prompts_of(tiny, [rng.randint(1, 40) for _ in range(6)])
    params = [SamplingParams(max_tokens=rng.randint(1, 20)) for _ in prompts]
    expected = texts_of(engine(tiny).generate(prompts, params))
    llm = ahead(poisoned(two, rng.choice([24, 256])))
    todo, ids, done, dropped = list(range(len(prompts))), {}, {}, set()
    while todo or llm.num_unfinished:
        if todo and rng.random() < 0.5:
            i = todo.pop(0)
            ids[llm.add(prompts[i], params[i])] = i
        done |= {ids[c.request_id]: c for c in llm.step() if c.finished}
        if ids and rng.random() < 0.15 and ids[request_id := rng.choice(list(ids))] not in done:
            llm.abort(request_id)
            dropped.add(ids[request_id])
    assert {i: texts_of([c])[0] for i, c in done.items()} == {i: expected[i] for i in done}
    assert sorted({*done, *dropped}) == list(range(len(prompts)))
    assert_idle(llm)


def test_all_shapes_are_played_on_all_ranks(two: SharedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """What captures the graphs on GPUs: nothing is stored, nothing is drawn for anybody."""
    llm = ahead(LLM(two, num_blocks=32, attention_backend="torch", max_sequences=3, max_batch_tokens=64))
    assert llm.run_ahead is not None
    kinds = sent(two, monkeypatch)
    llm.run_ahead.decoder.capture()
    assert len(kinds) >= 4, "64 tokens of up to 3 texts, then 1, 2 and 3 rows"
    assert set(kinds) == {Play}
    assert isinstance(llm.cache, SharedCache)
    assert all(part.isnan().all() for part in llm.cache.of_each_rank(range(32)))


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "silent"])
def test_a_lost_rank_is_noticed(monkeypatch: pytest.MonkeyPatch, fault: signal.Signals) -> None:
    """Within seconds, at every later step too, and nothing is left behind."""
    monkeypatch.setattr("pagedlab.distributed.TIMEOUT", 2.0)  # of silence
    llm = ahead(LLM(TINY_MODEL, device="cpu", num_blocks=64, tensor_parallel=2, verbose=False))
    assert isinstance(llm.model, SharedModel)
    rank = other_rank(llm.model)
    request = llm.add([1, 2, 3], SamplingParams(max_tokens=400, ignore_eos=True))
    llm.step()
    assert llm.run_ahead is not None
    assert llm.run_ahead.in_flight == 1
    rank.send_signal(fault)
    began = time.monotonic()
    said = "rank 1 has ended .exit code -9." if fault == signal.SIGKILL else "a rank does not answer"
    with pytest.raises(RankLost, match=said):
        step_on(llm)
    assert time.monotonic() - began < (5 if fault == signal.SIGKILL else 20)
    for _ in range(2):
        with pytest.raises(RankLost, match="make a new LLM"):
            llm.step()
    llm.abort(request)
    assert llm.pool.num_free == llm.pool.num_blocks
    assert not rank.is_running()


def test_ranks_end_with_python_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As two GPUs whose engine is not closed: Python 3.12 starts no thread while it ends."""
    ranks, ended, graphs = Ranks(0, 2, "cuda"), [], {"shape": "graph"}

    def abort() -> None:
        while graphs:  # as NCCL waits for the graphs that hold its sums
            time.sleep(0.01)
        ended.append(threading.current_thread())

    ranks._data = SimpleNamespace(abort=abort)
    ranks.hold(graphs)
    ranks._start_watcher()
    watcher = ranks._watcher
    over = SimpleNamespace(query=lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: SimpleNamespace(record_event=lambda: over))

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refused)
    ranks.shutdown()
    assert ended == [watcher], "once, after its graphs were gone"
    assert ranks._data is None
    ranks.shutdown()
    assert ended == [watcher]


def test_a_window_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits on a GPU for a rank that is alive and silent: no sum within a graph has a limit of its own."""
    ranks = Ranks(0, 2, "cpu")
    monkeypatch.setattr(ranks, "_timeout", 0.05)
    later = iter([False, True])
    ranks.wait(SimpleNamespace(query=lambda: next(later)))  # type: ignore[arg-type]
    with pytest.raises(RankLost, match=r"a rank does not answer.*timed out: the sums are not complete after 0 s"):
        ranks.wait(SimpleNamespace(query=lambda: False))  # type: ignore[arg-type]
    with pytest.raises(RankLost, match="make a new LLM"):
        ranks.play([1, 0], lambda: None)


def test_nothing_waits_for_a_silent_rank_without_a_limit(two: SharedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither who writes the next window while the device has not read the last but one, nor who captures a graph."""
    llm = ahead(LLM(two, num_blocks=32, max_sequences=2, max_batch_tokens=16, verbose=False))
    assert llm.run_ahead is not None
    decoder, ranks = llm.run_ahead.decoder, two.ranks
    monkeypatch.setattr(ranks, "_timeout", 0.05)
    monkeypatch.setattr(ranks, "shutdown", lambda patience: None)  # the other is not really silent
    never = SimpleNamespace(query=lambda: False, record=lambda: None)
    with monkeypatch.context() as patch:
        for host in decoder.hosts:
            patch.setattr(host, "in_use", never)
        with pytest.raises(RankLost, match=r"a rank does not answer.*sums are not complete"):
            decoder.capture()
    monkeypatch.setattr(ranks, "lost", None)
    monkeypatch.setattr(ranks, "device", torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(record_event=lambda: never))
    monkeypatch.setattr(decoder.runner, "enabled", True)
    monkeypatch.setattr(ranks, "share", lambda tables: None)  # the other does not play
    shape = decoder.shapes.decode(1)
    decoder.runner.mark_seen(shape)
    with pytest.raises(RankLost, match=r"^a rank does not answer.*sums are not complete"):
        ranks.call(Poison(), lambda: decoder.play([shape]))
    monkeypatch.setattr(ranks, "lost", None)
