"""silu(gate) * up behind a layer's second norm, for any number of rows: a product and a kernel, or
one kernel for both.

Of many tokens, two numbers are written for each one that is wanted, and read again: a seventh of a
prompt step's time. So there the product has a kernel of its own, whose tile is half of gates and
half of the ups of the same columns. The matrix stays as it is, gates over ups: seen as [2, I, H] it
gives a tile [2, HALF, DEPTH] in one copy, which to the tensor cores is as many rows of one operand,
and both numbers of a pair come out in one thread's registers.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from pagedlab.accelerate.norm import early, row_of, scale_of
from pagedlab.kernels.plan import multiprocessors
from pagedlab.kernels.runtime import power_of_two, tl, triton

MANY = 1024  # tokens, from which on one kernel is faster
# tokens a tile, its gates, columns a turn; how it is pipelined
ROWS, HALF, DEPTH, STAGES, WARPS = (
    128,
    128,
    64,
    4,
    8,
)
GROUP = 4  # tiles of tokens that go through the matrix together, which then comes from the L2 cache


@triton.jit
def gate_kernel(
    product, x, epsilon, out, COLUMNS, CHUNK: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up of one row and chunk a program; a row of the product is COLUMNS gates, then
    COLUMNS ups.
    """
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    source, real = product + token * 2 * COLUMNS + i, i < COLUMNS
    gate, up = (
        tl.load(source, mask=real, other=0.0),
        tl.load(source + COLUMNS, mask=real, other=0.0),
    )
    tl.debug_barrier()  # or the compiler puts these loads behind the sum, to wait once more
    scale = scale_of(row_of(x, token, WIDTH, SIZE), epsilon, WIDTH)
    gate, up = gate.to(tl.float32) * scale, up.to(tl.float32) * scale
    tl.store(out + token * COLUMNS + i, gate / (1 + tl.exp(-gate)) * up, mask=real)


@triton.jit
def scale_kernel(x, epsilon, scales, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """What the norm multiplies one row by, a program."""
    token = tl.program_id(0).to(tl.int64)
    tl.store(scales + token, scale_of(row_of(x, token, WIDTH, SIZE), epsilon, WIDTH))


@triton.jit(do_not_specialize=["TOKENS"])
def gate_up_kernel(
    x, weight, scales, out, TOKENS, COLUMNS, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, HALF: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Tile after tile, as many programs as there are multiprocessors: `gate_kernel` of x's product
    with the weight.

    x [T, H], weight [2, I, H] and out [T, I] are descriptors of tiles; what lies behind their ends
    is read as zeros and not written.
    """
    down, across = tl.cdiv(TOKENS, ROWS), tl.cdiv(COLUMNS, HALF)
    for tile in tl.range(tl.program_id(0), down * across, tl.num_programs(0), flatten=True):
        first = tile // (GROUP * across) * GROUP
        high = tl.minimum(down - first, GROUP)
        token, column = (
            (first + tile % (GROUP * across) % high) * ROWS,
            tile % (GROUP * across) // high * HALF,
        )
        both = tl.zeros((ROWS, 2 * HALF), tl.float32)
        for k in tl.range(0, WIDTH, DEPTH, num_stages=STAGES):
            both = tl.dot(
                x.load([token, k]), weight.load([0, column, k]).reshape(2 * HALF, DEPTH).T, both
            )
        row = token + tl.arange(0, ROWS)
        scale = tl.load(scales + row, mask=row < TOKENS, other=0.0)[:, None]
        gate, up = tl.split(both.reshape(ROWS, 2, HALF).permute(0, 2, 1))
        gate, up = gate * scale, up * scale
        out.store([token, column], (gate / (1 + tl.exp(-gate)) * up).to(out.dtype))


@lru_cache
def takes_tiles(device: torch.device) -> bool:
    """Whether a tile so large pays: on Hopper.

    Cards before copy none by descriptor, later ones were not tried.
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


def gated(x: Tensor, epsilon: float, weight: Tensor) -> Tensor:
    """`few_rows.gated` for any number of rows: silu(gate) * up of x [T, H], [T, I].

    Of MANY, in one kernel.
    """
    (tokens, width), columns = x.shape, len(weight) // 2
    out = x.new_empty((tokens, columns))
    if (
        tokens > MANY
        and takes_tiles(x.device)
        and x.element_size() == 2
        and width % 8 == columns % 8 == 0
    ):
        return one_kernel(x, epsilon, weight, out)
    most, warps = (2048, 8) if tokens <= MANY else (8192, 16)  # of a few tokens, more programs
    chunk = min(most, power_of_two(columns))
    gate_kernel[(tokens, -(-columns // chunk))](
        F.linear(x, weight),
        x,
        epsilon,
        out,
        columns,
        chunk,
        width,
        power_of_two(width),
        num_warps=warps,
        **early(x),
    )
    return out


def one_kernel(x: Tensor, epsilon: float, weight: Tensor, out: Tensor) -> Tensor:
    """`gated` by tiles."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    (tokens, width), columns = x.shape, out.shape[1]
    scales = torch.empty(tokens, dtype=torch.float32, device=x.device)
    scale_kernel[(tokens,)](x, epsilon, scales, width, power_of_two(width), num_warps=4)
    tiles = -(-tokens // ROWS) * -(-columns // HALF)
    gate_up_kernel[(min(tiles, multiprocessors(x.device)),)](
        TensorDescriptor.from_tensor(x, [ROWS, DEPTH]),
        TensorDescriptor.from_tensor(weight.view(2, columns, width), [2, HALF, DEPTH]),
        scales, TensorDescriptor.from_tensor(out, [ROWS, HALF]), tokens, columns, width,
        ROWS, HALF, DEPTH, STAGES, GROUP, num_warps=WARPS,
    )  # fmt: skip
    return out
