"""RMSNorm (Zhang, Sennrich, 2019, arXiv:1910.07467).

y = x / sqrt(mean(x²) + epsilon) * weight, row by row.
"""

from torch import Tensor

from pagedlab.kernels.plan import overlaps
from pagedlab.kernels.runtime import power_of_two, tl, triton


@triton.jit
def overlap(OVERLAP: tl.constexpr):
    """If this kernel was started early, wait for what the kernels ahead of it write.

    The next kernel may start as soon as all programs of this one are here.
    """
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()


@triton.jit
def row_of(x, row, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """A row of x [T, WIDTH]."""
    i = tl.arange(0, SIZE)
    return tl.load(x + row * WIDTH + i, mask=i < WIDTH, other=0.0)


@triton.jit
def scale_of(row, epsilon, WIDTH: tl.constexpr):
    """The factor by which the norm multiplies a row, without the weight."""
    exact = row.to(tl.float32)
    return tl.rsqrt(tl.sum(exact * exact, 0) / WIDTH + epsilon)


@triton.jit
def norm_kernel(
    x,            # [T, WIDTH]
    rows,         # int64 [R], rows of x; None for all of them
    weight,       # [WIDTH]; None for ones
    out,          # [R, WIDTH]
    epsilon, WIDTH: tl.constexpr, SIZE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One row of `out` a program."""
    overlap(OVERLAP)
    program = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, SIZE)
    row = row_of(x, program if rows is None else tl.load(rows + program), WIDTH, SIZE)
    # Rounded to the model's dtype before the weight, as the stock module does.
    y = (row.to(tl.float32) * scale_of(row, epsilon, WIDTH)).to(row.dtype)
    if weight is not None:
        y *= tl.load(weight + i, mask=i < WIDTH)
    tl.store(out + program * WIDTH + i, y, mask=i < WIDTH)


def overlap_options(x: Tensor) -> dict[str, bool]:
    """Options of a launch: start before the kernel ahead has ended, where the card allows it."""
    return {"OVERLAP": True, "launch_pdl": True} if overlaps(x.device) else {"OVERLAP": False}


def norm(x: Tensor, weight: Tensor | None, epsilon: float, rows: Tensor | None = None) -> Tensor:
    """RMSNorm of x [T, H], or of some of its rows.

    Args:
        x: [T, H].
        weight: [H]; None for ones.
        epsilon: added to the mean square.
        rows: int64 [R]; None for all.

    Returns:
        [T, H], or [R, H].
    """
    width = x.shape[1]
    out = x.new_empty((len(x) if rows is None else len(rows), width))
    norm_kernel[(len(out),)](
        x, rows, weight, out, epsilon, width, power_of_two(width), num_warps=4, **overlap_options(x)
    )
    return out
