"""Two ranks on two GPUs, steps as CUDA graphs with NCCL's sums inside: in fp32 the texts of one rank, step by step.

python -m pytest tests/distributed/test_ranks_gpu.py
"""

import time

import pytest
import torch

from pagedlab import LLM
from pagedlab.distributed import RankLost
from pagedlab.model import TINY_MODEL
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
    return LLM(TINY_MODEL, tensor_parallel=ranks, **how, **options)


def texts(llm, n):
    return ids_of(llm.generate(PROMPTS[:n], PARAMS[:n]))


def test_graphs_on_two_ranks_write_what_one_writes():
    """Shapes seen for the first time, captured, and replayed; and drawn among steps that want the host."""
    expected = texts(engine(1, cuda_graphs=False, fused=False, attention_backend="torch"), 40)
    with engine(2) as llm:
        assert llm.run_ahead is not None
        for n in (1, 3, 40, 40):
            assert texts(llm, n) == expected[:n]
        llm.warm_up()
        beside = llm.add(PROMPTS[5], exactly(9, n=2, temperature=1.0))
        assert texts(llm, 40) == expected
        llm.abort(beside)
        assert llm.pool.num_used == 0


def test_a_killed_rank_is_noticed_and_a_new_engine_runs():
    with engine(2) as llm:
        expected = texts(llm, 3)
        llm.add(PROMPTS[3], exactly(2000))
        llm.step()  # a window is under way
        llm.model.ranks.workers.processes[0].kill()
        began = time.monotonic()
        with pytest.raises(RankLost, match=r"rank 1 has ended \(exit code -9\)"):
            llm.generate(PROMPTS, exactly(2000))
        assert time.monotonic() - began < 20
    with engine(2) as llm:
        assert texts(llm, 3) == expected
