"""RMSNorm (Zhang, Sennrich, 2019, arXiv:1910.07467): x / sqrt(mean(x²) + epsilon) * weight, row by
row.
"""

from torch import Tensor

from pagedlab.kernels.plan import overlaps
from pagedlab.kernels.runtime import power_of_two, tl, triton


@triton.jit
def row_of(x, row, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """A row of x [T, WIDTH]."""
    i = tl.arange(0, SIZE)
    return tl.load(x + row * WIDTH + i, mask=i < WIDTH, other=0.0)


@triton.jit
def scale_of(row, epsilon, WIDTH: tl.constexpr):
    """What the norm multiplies a row by, but for the weight."""
    exact = row.to(tl.float32)
    return tl.rsqrt(tl.sum(exact * exact, 0) / WIDTH + epsilon)


@triton.jit
def norm_kernel(
    x, of, weight, out, epsilon, WIDTH: tl.constexpr, SIZE: tl.constexpr, OVERLAP: tl.constexpr
):
    """One row a program: its own of x, or the one that `of` says."""
    if OVERLAP:  # started early, to wait for the kernel ahead here; and the next may start too
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    program, i = tl.program_id(0).to(tl.int64), tl.arange(0, SIZE)
    row = row_of(x, program if of is None else tl.load(of + program), WIDTH, SIZE)
    # Rounded to the model's dtype before the weight, as the stock module does.
    y = (row.to(tl.float32) * scale_of(row, epsilon, WIDTH)).to(row.dtype)
    if weight is not None:
        y *= tl.load(weight + i, mask=i < WIDTH)
    tl.store(out + program * WIDTH + i, y, mask=i < WIDTH)


def early(x: Tensor) -> dict[str, bool]:
    """Options of launches: where the card lets a kernel start before the one ahead has ended, these
    do.
    """
    return {"OVERLAP": True, "launch_pdl": True} if overlaps(x.device) else {"OVERLAP": False}


def norm(x: Tensor, weight: Tensor | None, epsilon: float, rows: Tensor | None = None) -> Tensor:
    """RMSNorm of x [T, H], or of some of its rows, int64 [R]; weight [H], or None for ones -> [T or
    R, H].
    """
    width = x.shape[1]
    out = x.new_empty((len(x) if rows is None else len(rows), width))
    norm_kernel[(len(out),)](
        x, rows, weight, out, epsilon, width, power_of_two(width), num_warps=4, **early(x)
    )
    return out
