"""The folded solutions of notebook 07's eight puzzles, compiled: what the checks judge interpreted runs on a GPU."""

import pytest
import torch
from pagedlab_lessons.kernels07.ladder import decoder
from pagedlab_lessons.kernels07.puzzles import PUZZLES

from support.exercises import edited_answer as answer

pytestmark = pytest.mark.gpu


def on_gpu(given):
    return {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in given.items()}


@pytest.mark.parametrize("name", ["weights", "scores", "online_step", "paged_scores"])
@pytest.mark.parametrize("n", [3, 16, 50])
def test_one_program(name, n):
    given = PUZZLES[name].given(n=n, **({} if name == "weights" else {"tile": 64}))
    expected, moved = PUZZLES[name].expected(given), on_gpu(given)
    PUZZLES[name].launch(answer(name), moved)
    for out, numbers in expected.items():
        assert torch.allclose(moved[out].cpu(), numbers, atol=1e-5), out


@pytest.mark.parametrize("name", ["decode", "grouped", "split", "launch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(14, 2, 64), (8, 2, 128)])
def test_whole_kernels(name, dtype, heads, kv_heads, dim, rng):
    lengths = (1, 16, rng.randint(2, 40), rng.randint(300, 900))
    given = PUZZLES["grouped"].given(lengths=lengths, heads=heads, kv_heads=kv_heads, size=16, dim=dim)
    for part in ("q", "k_cache", "v_cache"):
        given[part] = given[part].to(dtype).float()  # the same numbers for both
    exact = PUZZLES["grouped"].expected(given)["out"]
    batch = [given[part].cuda() for part in ("q", "k_cache", "v_cache", "tables", "seq_lens")]
    batch[:3] = [x.to(dtype) for x in batch[:3]]
    out = decoder(answer(name), tile=32)(*batch)
    error = float((out.float().cpu() - exact).norm() / exact.norm())
    assert error < (1e-5 if dtype == torch.float32 else 1e-2)
