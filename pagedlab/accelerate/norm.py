"""RMSNorm (Zhang, Sennrich, 2019, arXiv:1910.07467): x / sqrt(mean(x²) + epsilon) * weight, row by row."""

import torch
from torch import Tensor

from pagedlab.kernels.plan import overlaps
from pagedlab.kernels.runtime import power_of_two, tl, triton


@triton.jit
def scale_of(x, row, epsilon, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """What the norm multiplies a row of x [T, WIDTH] by, but for the weight."""
    i = tl.arange(0, SIZE)
    exact = tl.load(x + row * WIDTH + i, mask=i < WIDTH, other=0.0).to(tl.float32)
    return tl.rsqrt(tl.sum(exact * exact, 0) / WIDTH + epsilon)


@triton.jit
def norm_kernel(x, weight, out, epsilon, WIDTH: tl.constexpr, SIZE: tl.constexpr, OVERLAP: tl.constexpr):
    """One row a program."""
    if OVERLAP:  # started early, to wait for the kernel ahead here; and the next may start too
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, SIZE)
    x = tl.load(x + row * WIDTH + i, mask=i < WIDTH, other=0.0)
    exact = x.to(tl.float32)
    # Rounded to the model's dtype before the weight, as the stock module does.
    y = (exact * tl.rsqrt(tl.sum(exact * exact, 0) / WIDTH + epsilon)).to(x.dtype)
    if weight is not None:
        y *= tl.load(weight + i, mask=i < WIDTH)
    tl.store(out + row * WIDTH + i, y, mask=i < WIDTH)


def early(x: Tensor) -> dict[str, bool]:
    """Options of launches: where the card lets a kernel start before the one ahead has ended, these do."""
    return {"OVERLAP": True, "launch_pdl": True} if overlaps(x.device) else {"OVERLAP": False}


def norm(x: Tensor, weight: Tensor | None, epsilon: float) -> Tensor:
    """RMSNorm of every row: x [T, H], weight [H], or None for ones -> [T, H]."""
    out, width = torch.empty_like(x), x.shape[1]
    norm_kernel[(len(x),)](x, weight, out, epsilon, width, power_of_two(width), num_warps=4, **early(x))
    return out
