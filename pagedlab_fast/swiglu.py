"""silu(gate) * up after a layer's second norm, for any number of rows.

Of few tokens it is two kernels: a product, and `gate_kernel`. Of many tokens the product writes two
numbers for each one that is wanted, and they are read again: a seventh of the time of a step with
prompts. So there one kernel does both. Its tile is half of gates and half of the ups of the same
columns. The matrix stays as it is, gates over ups: seen as [2, I, H] it gives a tile [2, HALF,
DEPTH] in one copy, which to the tensor cores is as many rows of one operand. Both numbers of a pair
are in the registers of one thread then.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from pagedlab.kernels.plan import multiprocessors
from pagedlab.kernels.runtime import power_of_two, tl, triton
from pagedlab_fast.norm import overlap, overlap_options, row_of, scale_of

MANY_TOKENS = 1024  # with more tokens one kernel is faster
# a tile of the one kernel
ROWS = 128  # tokens
HALF = 128  # gates, and as many ups
DEPTH = 64  # columns a step
STAGES = 4  # of the pipeline of loads
WARPS = 8
GROUP = 4  # tiles of tokens that read the matrix together, which then is in the L2 cache


@triton.jit
def gate_kernel(
    product,                                     # [T, 2 COLUMNS], gates first
    x, epsilon,                                  # [T, WIDTH], before the norm
    out, COLUMNS,                                # [T, COLUMNS]
    CHUNK: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up of one row and chunk a program."""
    overlap(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    source = product + token * 2 * COLUMNS + i
    real = i < COLUMNS
    gate = tl.load(source, mask=real, other=0.0)
    up = tl.load(source + COLUMNS, mask=real, other=0.0)
    tl.debug_barrier()  # or the compiler moves these loads after the sum, and waits once more
    scale = scale_of(row_of(x, token, WIDTH, SIZE), epsilon, WIDTH)
    gate = gate.to(tl.float32) * scale
    up = up.to(tl.float32) * scale
    tl.store(out + token * COLUMNS + i, gate / (1 + tl.exp(-gate)) * up, mask=real)


@triton.jit
def scale_kernel(x, epsilon, scales, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """The factor by which the norm multiplies a row; one row a program."""
    token = tl.program_id(0).to(tl.int64)
    tl.store(scales + token, scale_of(row_of(x, token, WIDTH, SIZE), epsilon, WIDTH))


@triton.jit(do_not_specialize=["TOKENS"])
def gate_up_kernel(
    x, weight,                                   # descriptors of tiles: [T, H] and [2, I, H]
    scales,                                      # [T]
    out,                                         # descriptor of tiles: [T, I]
    TOKENS, COLUMNS, WIDTH: tl.constexpr,        # T, I and H
    ROWS: tl.constexpr, HALF: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """`gate_kernel` of x's product with the weight, tile after tile.

    There are as many programs as multiprocessors. A descriptor reads zeros after the ends of its
    tensor, and writes nothing there.
    """
    down = tl.cdiv(TOKENS, ROWS)
    across = tl.cdiv(COLUMNS, HALF)
    for tile in tl.range(tl.program_id(0), down * across, tl.num_programs(0), flatten=True):
        first = tile // (GROUP * across) * GROUP
        high = tl.minimum(down - first, GROUP)
        token = (first + tile % (GROUP * across) % high) * ROWS
        column = tile % (GROUP * across) // high * HALF
        both = tl.zeros((ROWS, 2 * HALF), tl.float32)
        for k in tl.range(0, WIDTH, DEPTH, num_stages=STAGES):
            both = tl.dot(
                x.load([token, k]), weight.load([0, column, k]).reshape(2 * HALF, DEPTH).T, both
            )
        row = token + tl.arange(0, ROWS)
        scale = tl.load(scales + row, mask=row < TOKENS, other=0.0)[:, None]
        gate, up = tl.split(both.reshape(ROWS, 2, HALF).permute(0, 2, 1))
        gate = gate * scale
        up = up * scale
        out.store([token, column], (gate / (1 + tl.exp(-gate)) * up).to(out.dtype))


@lru_cache
def takes_tiles(device: torch.device) -> bool:
    """Whether so large a tile is faster: on Hopper.

    Earlier cards copy none by descriptor, and later ones were not tried.
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == 9


def swiglu(x: Tensor, epsilon: float, weight: Tensor) -> Tensor:
    """`small_gemm.swiglu` for any number of rows: silu(gate) * up of x [T, H], [T, I]."""
    tokens, width = x.shape
    columns = len(weight) // 2
    out = x.new_empty((tokens, columns))
    is_aligned = x.element_size() == 2 and width % 8 == columns % 8 == 0
    if tokens > MANY_TOKENS and takes_tiles(x.device) and is_aligned:
        return one_kernel(x, epsilon, weight, out)
    # of a few tokens, more programs
    max_chunk, warps = (2048, 8) if tokens <= MANY_TOKENS else (8192, 16)
    chunk = min(max_chunk, power_of_two(columns))
    product = F.linear(x, weight)
    gate_kernel[(tokens, -(-columns // chunk))](
        product, x, epsilon, out, columns, chunk, width, power_of_two(width),
        num_warps=warps, **overlap_options(x),
    )  # fmt: skip
    return out


def one_kernel(x: Tensor, epsilon: float, weight: Tensor, out: Tensor) -> Tensor:
    """`swiglu` by tiles, in one kernel after that of the norm's scales."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    tokens, width = x.shape
    columns = out.shape[1]
    scales = torch.empty(tokens, dtype=torch.float32, device=x.device)
    scale_kernel[(tokens,)](x, epsilon, scales, width, power_of_two(width), num_warps=4)
    num_tiles = -(-tokens // ROWS) * -(-columns // HALF)
    gate_up_kernel[(min(num_tiles, multiprocessors(x.device)),)](
        TensorDescriptor.from_tensor(x, [ROWS, DEPTH]),
        TensorDescriptor.from_tensor(weight.view(2, columns, width), [2, HALF, DEPTH]),
        scales,
        TensorDescriptor.from_tensor(out, [ROWS, HALF]),
        tokens, columns, width, ROWS, HALF, DEPTH, STAGES, GROUP, num_warps=WARPS,
    )  # fmt: skip
    return out
