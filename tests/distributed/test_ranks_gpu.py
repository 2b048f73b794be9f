"""Two ranks on two GPUs, steps as CUDA graphs with NCCL's sums inside: in fp32 the texts of one rank, step by step.

python -m pytest tests/distributed/test_ranks_gpu.py
"""

import threading
import time

import pytest
import torch

from pagedlab.model import TINY_MODEL, load_model
from pagedlab.recipes.ranks import RankLost
from pagedlab.recipes.ranks.group import Ranks
from pagedlab.sampling import probabilities, uniform
from pagedlab_fast import LLM
from pagedlab_fast.runner import FastRunner
from support.engines import exactly, ids_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch sees no two GPUs"),
]
PROMPTS = [[(37 * i + j) % 4000 + 5 for j in range(7 * i % 90 + 1)] for i in range(40)]
PARAMS = [exactly(5 + i, temperature=i % 2, seed=i) for i in range(40)]


def engine(ranks, **options):
    limits = {"num_blocks": 512, "max_sequences": 48, "max_batch_tokens": 512}
    how = {"device": "cuda", "dtype": "float32", "verbose": False, **limits}
    return LLM(TINY_MODEL, ranks=ranks, **how, **options)


def texts(llm, n):
    return ids_of(llm.generate(PROMPTS[:n], PARAMS[:n]))


def assert_same(written, expected):
    """Equal, but for samples whose random number is so near the end of a token that a rounded sum decides."""
    model = load_model(TINY_MODEL, "cpu", "float64", verbose=False)
    for i, (one, other) in enumerate(zip(written, expected, strict=True)):
        if one != other:
            at = next(k for k, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
            assert PARAMS[i].temperature, f"prompt {i} is greedy"
            with model.stock_attention() as module, torch.no_grad():
                logits = module(torch.tensor([PROMPTS[i] + one[:at]])).logits[0, -1:]
            ends = probabilities(logits, [PARAMS[i]])[0].cumsum(0)
            u = uniform(i, len(PROMPTS[i]) + at)
            assert abs(ends[min(one[at], other[at])] - u) < 1e-6, f"prompt {i} differs at token {at}"


def test_graphs_on_two_ranks_write_what_one_writes():
    """Shapes seen for the first time, captured, and replayed; and drawn among steps that want the host."""
    expected = texts(engine(1, cuda_graphs=False, fused=False, attention_backend="torch"), 40)
    with engine(2) as llm:
        assert isinstance(llm.runner, FastRunner)
        for n in (1, 3, 40, 40):
            assert_same(texts(llm, n), expected[:n])
        llm.warm_up()
        beside = llm.add(PROMPTS[5], exactly(9, n=2, temperature=1.0))
        assert_same(texts(llm, 40), expected)
        llm.abort(beside)
        assert llm.pool.num_used == 0


class Killer:
    """Kills rank 1 after a delay, in a thread, and knows when it did."""

    def __init__(self, delay_s):
        self.delay_s = delay_s
        self.killed_at = None

    def aim_at(self, ranks):
        threading.Thread(target=self._kill, args=[ranks.others[0]], daemon=True).start()

    def _kill(self, process):
        time.sleep(self.delay_s)
        self.killed_at = time.monotonic()
        process.kill()


def kill_in_an_eager_step(killer, monkeypatch):
    with engine(2, cuda_graphs=False, fused=False) as llm:
        killer.aim_at(llm.ranks)
        llm.generate(PROMPTS, exactly(2000))


def kill_in_a_window(killer, monkeypatch):
    with engine(2) as llm:
        texts(llm, 3)
        killer.aim_at(llm.ranks)
        llm.generate(PROMPTS, exactly(2000))


def kill_while_graphs_are_captured(killer, monkeypatch):
    with engine(2) as llm:
        killer.aim_at(llm.ranks)
        llm.warm_up()


def kill_while_weights_load(killer, monkeypatch):
    """Of this process or of the other: which one is at it depends on the delay."""

    start = Ranks.start

    def start_and_aim(ranks):
        start(ranks)
        killer.aim_at(ranks)

    monkeypatch.setattr(Ranks, "start", start_and_aim)
    engine(2)


def test_the_next_call_after_a_killed_rank_starts_a_new_one():
    with engine(2) as llm:
        expected = texts(llm, 40)
        for warm in (False, True):  # once with graphs of all shapes
            if warm:
                llm.warm_up()
            killer = Killer(0.1)
            killer.aim_at(llm.ranks)
            with pytest.raises(RankLost):
                llm.generate(PROMPTS, exactly(2000))
            assert_same(texts(llm, 40), expected)


@pytest.mark.parametrize(
    ("moment", "delay_s"),
    [
        (kill_in_an_eager_step, 0.5),
        (kill_in_a_window, 0.1),
        (kill_while_graphs_are_captured, 0.3),
        (kill_while_weights_load, 0.2),
        (kill_while_weights_load, 0.5),
    ],
)
def test_a_killed_rank_is_reported_and_new_engines_run(moment, delay_s, monkeypatch):
    """In one line within five seconds, and the next engines of one rank and of two write the same."""
    killer = Killer(delay_s)
    with monkeypatch.context() as patch, pytest.raises(RankLost, match=r"rank 1 has ended \(exit code -9\)") as lost:
        moment(killer, patch)
    assert time.monotonic() - killer.killed_at < 5
    assert len(str(lost.value).splitlines()) == 1
    with engine(2) as two:
        written_by_two = texts(two, 3)
    assert_same(written_by_two, texts(engine(1), 3))
