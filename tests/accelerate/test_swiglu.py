"""Gate and up in one kernel write what the two kernels write, and nothing behind the ends.

In the interpreter, or compiled where there is a GPU that takes such tiles.
"""

import pytest
import torch

pytest.importorskip("triton")

from pagedlab.kernels.runtime import INTERPRETED
from pagedlab_fast.swiglu import one_kernel, swiglu, takes_tiles

DEVICE = torch.device("cpu" if INTERPRETED else "cuda", None if INTERPRETED else 0)
pytestmark = pytest.mark.skipif(not (INTERPRETED or takes_tiles(DEVICE)), reason="tiles are Hopper's")


@pytest.mark.parametrize(("tokens", "columns", "width"), [(1, 8, 8), (128, 128, 64), (130, 152, 72), (300, 384, 136)])
def test_one_kernel_writes_what_two_write(tokens, columns, width, seed):
    torch.manual_seed(seed)
    how = {"device": DEVICE, "dtype": torch.float32 if INTERPRETED else torch.bfloat16}
    rows, weight = torch.randn(tokens + 2, width, **how), torch.randn(2 * columns, width, **how) / width**0.5
    rows[tokens:] = torch.nan  # what nobody owns
    x, all_out = rows[:tokens], torch.full((tokens + 2, columns), torch.nan, **how)
    one_kernel(x, 1e-6, weight, all_out[:tokens])
    near = 1e-5 if INTERPRETED else 0.05
    torch.testing.assert_close(all_out[:tokens], swiglu(x, 1e-6, weight), rtol=near, atol=near)
    assert all_out[tokens:].isnan().all()
