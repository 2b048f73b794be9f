"""Matrix products of a few rows on a GPU, with the work before and after a product in its kernel.

A decode step of few sequences reads every weight once and does next to nothing with it. Its time is
that of reading memory, and of the pauses between kernels in which nothing is read. Here a layer of
one row is six launches in place of seven or eight:

    norm, qkv, bias, rotate, store         product_kernel
    attention and its merge                kernels/attention.py
    o: product + residual                  product_kernel
    norm, gate and up, silu(gate) * up     product_kernel
    down: product + residual               product_kernel

On Hopper and later the launches overlap (programmatic dependent launch): a program loads its
weights, which no kernel writes, before it waits for the kernel ahead of it. So memory is read while
the other kernel still computes.

Several rows use tensor cores, sixteen rows a tile. Then the norm has a launch of its own, or every
program would repeat it. The larger matrices are read once, so they take one tile; the smaller ones
may be read again for each of a few tiles. Sums are in fp32 and rounded once, in an order that does
not depend on the other rows.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from pagedlab.kernels.runtime import INTERPRETED, tl, triton
from pagedlab_fast.norm import norm, overlap, overlap_options

TILE_ROWS = 16  # of the tensor cores
# rows up to which this is not slower than cuBLAS, for matrices of at most WIDE columns
MAX_ROWS = {
    "qkv": 48,
    "gate": TILE_ROWS,
    "add": 64,
}
WIDE = 1024  # columns of a matrix beyond which eight warps share them
WIDEST = 12288  # columns that the programs of one row can hold in registers


class Cut(NamedTuple):
    """How a product is cut into programs.

    Args:
        block: rows of the weight a program.
        warps: of a program; they share the columns.
        columns: columns a warp loads at once.
    """

    block: int
    warps: int
    columns: int


class KVTarget(NamedTuple):
    """How queries and keys are rotated, and where keys and values are stored.

    Args:
        cos, sin: [T, D / 2].
        slots: int64 [T]; -1 stores nothing.
        k_cache, v_cache: [num_blocks, block_size, Hkv, D].
    """

    cos: Tensor
    sin: Tensor
    slots: Tensor
    k_cache: Tensor
    v_cache: Tensor


def cut_of(role: str, width: int, rows: int) -> Cut:
    """The cut that was fastest for the shape of Qwen2.5-0.5B on an H200.

    For several rows it is so wide, where they fit, that all weights are asked for before the first
    go to the tensor cores.
    """
    if INTERPRETED:  # there a program is slow to start, and not to run
        return Cut(512, 2, 64)
    if rows > 1:
        if width > WIDE:
            return Cut(8, 8, 256 if width <= 6144 else 64)
        return {"gate": Cut(16, 2, 64), "qkv": Cut(8, 4, 256)}.get(role, Cut(16, 4, 256))
    if width > WIDE:
        return Cut(4, 8, 256)
    return {"qkv": Cut(2, 1, 256), "gate": Cut(8, 2, 256)}.get(role, Cut(4, 4, 256))


def max_rows(role: str, weight: Tensor) -> int:
    """Rows up to which this is not slower than cuBLAS with such a weight [N, K].

    Several rows are held in shared memory at full width. In fp32 they would not use a tensor core.
    """
    width = weight.shape[1]
    if weight.is_cuda:
        properties = torch.cuda.get_device_properties(weight.device)
        shared_memory = properties.shared_memory_per_block_optin  # type: ignore[attr-defined]
        _, warps, columns = cut_of(role, width, TILE_ROWS)
        padded_width = -(-width // (warps * columns)) * warps * columns
        needed = 2 * (TILE_ROWS * padded_width + 8 * 8 * 64)  # bytes
        if weight.dtype.itemsize > 2 or needed > shared_memory:
            return int(width <= WIDEST)
    return TILE_ROWS if width > WIDE else MAX_ROWS[role]


@triton.jit
def tiles_of(matrix, row, real, k, WIDTH: tl.constexpr, STEP: tl.constexpr):
    """Rows of a matrix [N, WIDTH], as a tuple of tiles of STEP columns.

    The layout of a tile is that of `row` and `k`. Rows that are not `real` are zeros.
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


@triton.jit
def store_heads(
    first, second, queries, k_cache, v_cache, row, slot, head, lane, real,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Store queries in their row, and keys and values in the row's slot. A slot of -1 stores none.

    Args:
        first, second: elements `lane` and `lane` + HALF of each head.
        head: its number. Queries come first, then keys, then values.
        real: which elements there are.
    """
    query = queries + (row * Q_HEADS + head) * (2 * HALF) + lane
    tl.store(query, first, mask=real & (head < Q_HEADS))
    tl.store(query + HALF, second, mask=real & (head < Q_HEADS))
    of_key = head - Q_HEADS
    is_key = real & (slot >= 0) & (of_key >= 0) & (of_key < KV_HEADS)
    key = k_cache + (slot * KV_HEADS + of_key) * (2 * HALF) + lane
    tl.store(key, first, mask=is_key)
    tl.store(key + HALF, second, mask=is_key)
    of_value = of_key - KV_HEADS
    is_value = real & (slot >= 0) & (of_value >= 0)
    value = v_cache + (slot * KV_HEADS + of_value) * (2 * HALF) + lane
    tl.store(value, first, mask=is_value)
    tl.store(value + HALF, second, mask=is_value)


@triton.jit(do_not_specialize=["rows", "epsilon"])
def product_kernel(
    x,                                           # [rows, WIDTH]
    weight,                                      # [OUTPUTS or 2 OUTPUTS, WIDTH]
    bias,                                        # as many as the weight has rows, or None
    out,                                         # [rows, OUTPUTS]; queries of "qkv"
    cos, sin, slots, k_cache, v_cache,           # a KVTarget, for "qkv"
    rows, epsilon,
    ROLE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    OUTPUTS: tl.constexpr, HALF: tl.constexpr,   # pairs of outputs are HALF apart
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    BLOCK: tl.constexpr, WARPS: tl.constexpr, COLUMNS: tl.constexpr,   # a Cut
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """ROWS rows of x times BLOCK rows of the weight a program.

    ROLE says what becomes of a product:

        "qkv"    heads are rotated, and keys and values stored, as by `fused.rotate_kernel`
        "gate"   silu(gate) * up, as by `swiglu.gate_kernel`
        "add"    added to out
        "plain"  written to out

    "qkv" and "gate" take pairs of outputs, and OUTPUTS counts pairs. With ROWS = 1 they norm x
    first; with ROWS = 16 x is normed already.
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
    overlap(OVERLAP)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    if ROWS > 1:
        v = tiles_of(x, row[None, :, None], (row < rows)[None, :, None], k, WIDTH, STEP)
    else:
        v = tiles_of(x, row[:, None], k >= 0, k, WIDTH, STEP)
    # All loads are issued here. Else the compiler moves those that are needed late after the sums.
    row = row[:, None]
    if PAIRS:
        pair = (tl.program_id(0) * (BLOCK // 2) + tl.arange(0, BLOCK // 2))[None, :]
        real = (row < rows) & (pair < OUTPUTS)
        if ROLE == "qkv":
            head = pair // HALF
            lane = pair % HALF
            turned = real & (head < Q_HEADS + KV_HEADS)  # values are not
            c = tl.load(cos + row * HALF + lane, mask=turned, other=1.0).to(tl.float32)
            s = tl.load(sin + row * HALF + lane, mask=turned, other=0.0).to(tl.float32)
            slot = tl.load(slots + row, mask=row < rows, other=-1).to(tl.int64)
    else:
        here = out + row * OUTPUTS + j[None, :]
        real = (row < rows) & (j < OUTPUTS)[None, :]
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
            store_heads(
                y * c - z * s, z * c + y * s, out, k_cache, v_cache, row, slot, head, lane, real,
                Q_HEADS, KV_HEADS, HALF,
            )  # fmt: skip


def _product(
    role: str, x: Tensor, weight: Tensor, out: Tensor,
    epsilon: float = 0.0, bias: Tensor | None = None, target: KVTarget | None = None,
) -> Tensor:  # fmt: skip
    rows, width = x.shape
    outputs = len(weight)
    half = 1
    q_heads = 0
    kv_heads = 0
    if role in ("qkv", "gate"):
        outputs = half = len(weight) // 2
        if rows > 1:
            x = norm(x, None, epsilon)
    if target is not None:
        q_heads = out.shape[1]
        kv_heads, head_dim = target.k_cache.shape[2:]
        half = head_dim // 2
    cut = cut_of(role, width, rows)
    grid = -(-len(weight) // cut.block), -(-rows // TILE_ROWS)
    product_kernel[grid](
        x, weight, bias, out, *(target or (None,) * len(KVTarget._fields)), rows, epsilon,
        role, TILE_ROWS if rows > 1 else 1, width, outputs, half, q_heads, kv_heads, *cut,
        num_warps=cut.warps, **overlap_options(x),
    )  # fmt: skip
    return out


def qkv(x: Tensor, epsilon: float, weight: Tensor, bias: Tensor | None, target: KVTarget) -> Tensor:
    """Norm x, project it, rotate queries and keys, and store keys and values.

    Args:
        x: [T, H].
        epsilon: of the norm.
        weight: [(Hq + 2 Hkv) D, H], with the weight of the norm in it.
        bias: [(Hq + 2 Hkv) D], or None.
        target: angles, slots and caches.

    Returns:
        Queries [T, Hq, D].
    """
    kv_heads, head_dim = target.k_cache.shape[2:]
    q_heads = len(weight) // head_dim - 2 * kv_heads
    out = x.new_empty((len(x), q_heads, head_dim))
    return _product("qkv", x, weight, out, epsilon, bias, target)


def swiglu(x: Tensor, epsilon: float, weight: Tensor) -> Tensor:
    """Norm x, and return silu(gate) * up of it.

    Args:
        x: [T, H].
        epsilon: of the norm.
        weight: [2 I, H], the gates first, with the weight of the norm in it.

    Returns:
        [T, I].
    """
    out = x.new_empty((len(x), len(weight) // 2))
    return _product("gate", x, weight, out, epsilon)


def add(out: Tensor, x: Tensor, weight: Tensor, *, overwrite: bool = False) -> None:
    """Add x [T, K] times weight [N, K] to out [T, N]; with `overwrite`, set it."""
    _product("plain" if overwrite else "add", x, weight, out)
