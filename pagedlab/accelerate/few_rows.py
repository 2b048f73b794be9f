"""A layer's products for a handful of rows on a GPU: what stands before and behind a product is
folded into it.

A decode step of few texts reads every weight once and does next to nothing with it: its time is
that of the memory's pipe, and of the pauses between kernels in which the pipe is empty. Here a
layer of one row is six launches in place of seven or eight,

    norm, qkv, bias, rotate, store    product_kernel        o and down: product + residual      product_kernel
    attention and its merge           kernels/attention.py  norm, gate and up, silu(gate) * up  product_kernel

and on Hopper and later they overlap: a program loads its weights, which no kernel writes, before it
waits for the kernel ahead of it (programmatic dependent launch), so the pipe is filled while the
others still compute. Several rows go through tensor cores, sixteen at a time; there the norm has a
launch of its own, or every program would repeat it. The larger matrices are read once, so for one
such tile; the smaller ones may be read again for each of a few. Sums are in fp32, rounded once, in
an order that does not depend on who is beside a row.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pagedlab.accelerate.norm import early, norm
from pagedlab.kernels.runtime import INTERPRETED, tl, triton

ROWS = 16  # of a tile of the tensor cores
# rows that cuBLAS does not do better, of matrices of at most WIDE columns
MOST = {
    "qkv": 48,
    "gate": ROWS,
    "add": 64,
}
WIDE = 1024  # columns of a matrix beyond which eight warps share them
WIDEST = 12288  # columns that one row's programs can hold in registers


class Cut(NamedTuple):
    """How a product is cut: rows of weights a program, its warps, which share the columns, and
    columns a warp takes.
    """

    block: int
    warps: int
    columns: int


def cut_of(role: str, width: int, rows: int) -> Cut:
    """What was fastest for Qwen2.5-0.5B's shape on an H200."""
    if INTERPRETED:  # there a program is slow to start, and not to run
        return Cut(512, 2, 64)
    if (
        rows > 1
        # so wide, where they fit, that all weights are asked for before the first go to the tensor
        # cores
    ):
        if width > WIDE:
            return Cut(8, 8, 256 if width <= 6144 else 64)
        return {"gate": Cut(16, 2, 64), "qkv": Cut(8, 4, 256)}.get(role, Cut(16, 4, 256))
    if width > WIDE:
        return Cut(4, 8, 256)
    return {"qkv": Cut(2, 1, 256), "gate": Cut(8, 2, 256)}.get(role, Cut(4, 4, 256))


def most_rows(role: str, weight: Tensor) -> int:
    """Rows up to which this does better than cuBLAS with such a weight [N, K].

    Several rows are held in shared memory at full width. In fp32 they would not meet a tensor core.
    """
    width = weight.shape[1]
    if weight.is_cuda:
        shared = torch.cuda.get_device_properties(weight.device).shared_memory_per_block_optin  # type: ignore[attr-defined]
        _, warps, columns = cut_of(role, width, ROWS)
        padded = -(-width // (warps * columns)) * warps * columns
        if weight.dtype.itemsize > 2 or 2 * (ROWS * padded + 8 * 8 * 64) > shared:
            return int(width <= WIDEST)
    return ROWS if width > WIDE else MOST[role]


@triton.jit
def tiles_of(matrix, row, real, k, WIDTH: tl.constexpr, STEP: tl.constexpr):
    """Rows of a matrix [N, WIDTH], as a tuple of tiles of STEP columns; `row` and `k` say how a
    tile is laid out.
    """
    tiles = ()
    for start in tl.static_range(0, WIDTH, STEP):
        at = matrix + row.to(tl.int64) * WIDTH + (start + k)
        tiles += (tl.load(at, mask=real & (start + k < WIDTH), other=0.0),)  # type: ignore[assignment]
    return tiles


@triton.jit
def normed(x, epsilon, WIDTH: tl.constexpr, COUNT: tl.constexpr):
    """RMSNorm without its weight of one row in tiles [1, STEP], in fp32."""
    square = x[0].to(tl.float32) * x[0].to(tl.float32)
    for i in tl.static_range(1, COUNT):
        square += x[i].to(tl.float32) * x[i].to(tl.float32)
    scale = tl.rsqrt(tl.sum(square, 1) / WIDTH + epsilon)[:, None]
    tiles = ()
    for i in tl.static_range(COUNT):
        tiles += (x[i].to(tl.float32) * scale,)  # type: ignore[assignment]
    return tiles


@triton.jit(do_not_specialize=["rows", "epsilon"])
def product_kernel(
    x, weight, bias, out, cos, sin, slots, k_cache, v_cache, rows, epsilon,
    ROLE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, OUTPUTS: tl.constexpr, HALF: tl.constexpr,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    BLOCK: tl.constexpr, WARPS: tl.constexpr, COLUMNS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Some ROWS of x [rows, WIDTH] times BLOCK rows of the weight a program.

    it. The first two take pairs of outputs HALF apart, and OUTPUTS counts those. ROWS: 1, which
    they norm first, or 16 a program, normed.

    Args:
        ROLE: "qkv" does what `fused.rotate_kernel` does, "gate" what its gate_kernel does, "add"
            adds to out, "plain" sets
    """
    PAIRS: tl.constexpr = (ROLE == "qkv") | (ROLE == "gate")
    STEP: tl.constexpr = WARPS * COLUMNS
    COUNT: tl.constexpr = (WIDTH + STEP - 1) // STEP
    n = tl.arange(0, BLOCK)
    if PAIRS:
        j = tl.program_id(0) * (BLOCK // 2) + n // 2
        of = j // HALF * (2 * HALF) + j % HALF + n % 2 * HALF
    else:
        j = tl.program_id(0) * BLOCK + n
        of = j
    if ROWS > 1:  # a matrix a warp, so that each has columns of its own
        k = tl.arange(0, WARPS)[:, None, None] * COLUMNS + tl.arange(0, COLUMNS)[None, None, :]
        w = tiles_of(weight, of[None, :, None], (j < OUTPUTS)[None, :, None], k, WIDTH, STEP)
    else:
        k = tl.arange(0, STEP)[None, :]
        w = tiles_of(weight, of[:, None], (j < OUTPUTS)[:, None], k, WIDTH, STEP)
    if bias is not None:
        b = tl.load(bias + of, mask=j < OUTPUTS, other=0.0).to(tl.float32)
    if OVERLAP:
        # the next kernel may start as soon as all of these programs are here
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()  # from here on, what the kernels before this one wrote is there
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    if ROWS > 1:
        v = tiles_of(x, row[None, :, None], (row < rows)[None, :, None], k, WIDTH, STEP)
    else:
        v = tiles_of(x, row[:, None], k >= 0, k, WIDTH, STEP)
    # All that is to be read is asked for at once; or the compiler puts what is needed late behind
    # the sums.
    row = row[:, None]
    if PAIRS:
        pair = (tl.program_id(0) * (BLOCK // 2) + tl.arange(0, BLOCK // 2))[None, :]
        real = (row < rows) & (pair < OUTPUTS)
        if ROLE == "qkv":
            head, lane = pair // HALF, pair % HALF
            turned = real & (head < Q_HEADS + KV_HEADS)  # values are not
            c = tl.load(cos + row * HALF + lane, mask=turned, other=1.0).to(tl.float32)
            s = tl.load(sin + row * HALF + lane, mask=turned, other=0.0).to(tl.float32)
            slot = tl.load(slots + row, mask=row < rows, other=-1).to(tl.int64)
    else:
        here, real = out + row * OUTPUTS + j[None, :], (row < rows) & (j < OUTPUTS)[None, :]
        if ROLE == "add":
            before = tl.load(here, mask=real, other=0.0).to(tl.float32)
    tl.debug_barrier()
    if ROWS > 1:
        sums = tl.zeros([WARPS, ROWS, BLOCK], tl.float32)
        for i in tl.static_range(COUNT):
            sums = tl.dot(v[i], tl.permute(w[i], (0, 2, 1)), sums, input_precision="ieee")
        y = tl.sum(sums, 0)
    else:
        if PAIRS:
            v = normed(v, epsilon, WIDTH, COUNT)
        sums = w[0].to(tl.float32) * v[0].to(tl.float32)
        for i in tl.static_range(1, COUNT):
            sums += w[i].to(tl.float32) * v[i].to(tl.float32)
        y = tl.sum(sums, 1)[None, :]
    if bias is not None:
        y += b[None, :]
    if not PAIRS:
        tl.store(here, y + before if ROLE == "add" else y, mask=real)
    else:
        y, z = tl.split(tl.reshape(y, [ROWS, BLOCK // 2, 2]))
        if ROLE == "gate":
            tl.store(out + row * OUTPUTS + pair, y / (1 + tl.exp(-y)) * z, mask=real)
        else:
            y, z = y * c - z * s, z * c + y * s
            q = out + (row * Q_HEADS + head) * (2 * HALF) + lane
            tl.store(q, y, mask=real & (head < Q_HEADS))
            tl.store(q + HALF, z, mask=real & (head < Q_HEADS))
            kept = real & (slot >= 0)
            key = k_cache + (slot * KV_HEADS + head - Q_HEADS) * (2 * HALF) + lane
            is_key = kept & (head >= Q_HEADS) & turned
            tl.store(key, y, mask=is_key)
            tl.store(key + HALF, z, mask=is_key)
            value = v_cache + (slot * KV_HEADS + head - Q_HEADS - KV_HEADS) * (2 * HALF) + lane
            is_value = kept & (head >= Q_HEADS + KV_HEADS)
            tl.store(value, y, mask=is_value)
            tl.store(value + HALF, z, mask=is_value)


def _product(
    role: str, x: Tensor, weight: Tensor, out: Tensor, epsilon: float = 0.0, bias: Tensor | None = None,
    half: int = 1, heads: tuple[int, int] = (0, 0), places: tuple[Tensor | None, ...] = (None,) * 5,
) -> Tensor:  # fmt: skip
    (rows, width), pairs = x.shape, 2 if role in ("qkv", "gate") else 1
    cut = cut_of(role, width, rows)
    if pairs > 1 and rows > 1:
        x = norm(x, None, epsilon)
    product_kernel[(-(-len(weight) // cut.block), -(-rows // ROWS))](
        x, weight, bias, out, *places, rows, epsilon, role, ROWS if rows > 1 else 1, width, len(weight) // pairs,
        half, *heads, *cut, num_warps=cut.warps, **early(x),
    )  # fmt: skip
    return out


def qkv(
    x: Tensor, epsilon: float, weight: Tensor, bias: Tensor | None,
    cos: Tensor, sin: Tensor, slots: Tensor, k_cache: Tensor, v_cache: Tensor,
) -> Tensor:  # fmt: skip
    """Queries [T, Hq, D] of RMSNorm of x [T, H], turned by cos and sin [T, D / 2]; keys and values
    go into `slots` [T].

    Args:
        weight: [(Hq + 2 Hkv) D, H], with that of the norm in it.
    """
    kv_heads, dim = k_cache.shape[2:]
    out = x.new_empty((len(x), len(weight) // dim - 2 * kv_heads, dim))
    places = cos, sin, slots, k_cache, v_cache
    return _product(
        "qkv", x, weight, out, epsilon, bias, dim // 2, (out.shape[1], kv_heads), places
    )


def gated(x: Tensor, epsilon: float, weight: Tensor) -> Tensor:
    """silu(gate) * up of RMSNorm of x [T, H], weight [2 I, H] with the gates first, and the norm's
    in it: [T, I].
    """
    inner = len(weight) // 2
    return _product("gate", x, weight, x.new_empty((len(x), inner)), epsilon, half=inner)


def add(out: Tensor, x: Tensor, weight: Tensor, *, fresh: bool = False) -> None:
    """Add x [T, K] times weight [N, K] to out [T, N]; or let it be all of `out`, if that is to be
    `fresh`.
    """
    _product("plain" if fresh else "add", x, weight, out)
