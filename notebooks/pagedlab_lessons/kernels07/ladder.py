"""The road to the decode kernel in eight rungs, for notebook 07 and benchmarks/attention.py.

    1 one page at a time        a program for each sequence and query head walks along the block
                                table
    2 a tile of several pages   TILE keys a step, whatever the page size: every row looks up its
                                own page
    3 heads share a load        one program for a KV head and all the query heads it serves
    4 tensor cores              the group's heads are the rows of `tl.dot`
    5 more in flight            rung 4 in five pipeline stages instead of Triton's three: two tiles
                                ahead instead of one
    6 fewer warps               rung 5 with two warps a program instead of four
    7 a longer tile             rung 6 with a tile of 64
    8 splits and their merge    several programs for a sequence: the solution of puzzle 7

All compute `puzzles.decode` for every sequence. To keep a kernel short, DIM is a power of two here
(Triton refuses another one), and a sequence has at least one key. The puzzles of notebook 07 use
`slots_at`, `rows_at`, `take` and `attend` as building blocks.
"""

import inspect
from collections.abc import Callable
from itertools import accumulate
from operator import or_
from typing import Any

import numpy as np
from torch import Tensor

from pagedlab.kernels.plan import multiprocessors
from pagedlab.kernels.runtime import tl, triton
from pagedlab_lessons.kernels07.puzzles import PUZZLES, arguments, rows_of, splits_for


@triton.jit
def slots_at(table, position, filled, SIZE: tl.constexpr):
    """Slots of a tile of positions; those that are not `filled` get a slot that is not to be
    read.
    """
    page = tl.load(table + position // SIZE, mask=filled, other=0)
    return page.to(tl.int64) * SIZE + position % SIZE


@triton.jit
def rows_at(cache, slot, filled, head, KV_HEADS: tl.constexpr, DIM: tl.constexpr):
    """Rows [TILE, DIM] of a KV head in these slots, zeros where not `filled`."""
    at = (slot[:, None] * KV_HEADS + head) * DIM + tl.arange(0, DIM)[None, :]
    return tl.load(cache + at, mask=filled[:, None], other=0.0)


@triton.jit
def take(m, total, acc, s, v):
    """A step of online softmax for one query: scores s [TILE], values v [TILE, DIM], acc [DIM]."""
    new_m = tl.maximum(m, tl.max(s, 0))
    p, rescale = tl.exp(s - new_m), tl.exp(m - new_m)
    return new_m, total * rescale + tl.sum(p, 0), acc * rescale + tl.sum(p[:, None] * v, 0)


@triton.jit
def attend(
    query, k_cache, v_cache, table, kv_head, begin, stop, scale,
    SIZE: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Take positions [begin, stop) into the online softmax of query [ROWS, DIM]: m [ROWS], total
    [ROWS], acc.

    Tensor cores multiply 16 rows or more; fewer rows are multiplied number by number.
    """
    m, total = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    for first in range(begin, stop, TILE):
        position = first + tl.arange(0, TILE)
        filled = position < stop
        slot = slots_at(table, position, filled, SIZE)
        k = rows_at(k_cache, slot, filled, kv_head, KV_HEADS, DIM)
        v = rows_at(v_cache, slot, filled, kv_head, KV_HEADS, DIM)
        if ROWS < 16:
            s = tl.sum(query.to(tl.float32)[:, None, :] * k[None, :, :], 2)
        else:
            s = tl.dot(query, tl.trans(k), input_precision="ieee")
        s = tl.where(filled[None, :], s * scale, float("-inf"))
        new_m = tl.maximum(m, tl.max(s, 1))
        p, rescale = tl.exp(s - new_m[:, None]), tl.exp(m - new_m)
        acc = acc * rescale[:, None]
        if ROWS < 16:
            acc += tl.sum(p[:, :, None] * v[None, :, :], 1)
        else:
            acc += tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m, total = new_m, total * rescale + tl.sum(p, 1)
    return m, total, acc


@triton.jit
def several_pages_kernel(
    out, q, k_cache, v_cache, tables, seq_lens, table_stride, scale,
    SIZE: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Rungs 1 and 2: a program for each query head takes one page at a time, or several."""
    b, h = tl.program_id(0), tl.program_id(1)
    row = (b * KV_HEADS * GROUP + h) * DIM + tl.arange(0, DIM)
    query = tl.load(q + row).to(tl.float32)
    m, total, acc = float("-inf"), 0.0, tl.zeros([DIM], tl.float32)
    table, length = tables + b * table_stride, tl.load(seq_lens + b)
    for first in range(0, length, TILE):
        position = first + tl.arange(0, TILE)
        filled = position < length
        if TILE == SIZE:  # one page, looked up once
            slot = tl.load(table + first // SIZE).to(tl.int64) * SIZE + tl.arange(0, SIZE)
        else:
            slot = slots_at(table, position, filled, SIZE)
        k = rows_at(k_cache, slot, filled, h // GROUP, KV_HEADS, DIM).to(tl.float32)
        v = rows_at(v_cache, slot, filled, h // GROUP, KV_HEADS, DIM).to(tl.float32)
        s = tl.where(filled, tl.sum(k * query[None, :], 1) * scale, float("-inf"))
        m, total, acc = take(m, total, acc, s, v)
    tl.store(out + row, acc / total)


@triton.jit
def packed_heads_kernel(
    out, q, k_cache, v_cache, tables, seq_lens, table_stride, scale,
    SIZE: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Rungs 3 to 7: a program for each KV head. Rung 3 has 8 rows, for groups of up to 8."""
    b, kv_head = tl.program_id(0), tl.program_id(1)
    r, dims = tl.arange(0, ROWS)[:, None], tl.arange(0, DIM)[None, :]
    row = ((b * KV_HEADS + kv_head) * GROUP + r) * DIM + dims
    query = tl.load(q + row, mask=r < GROUP, other=0.0)
    _, total, acc = attend(
        query, k_cache, v_cache, tables + b * table_stride, kv_head, 0, tl.load(seq_lens + b),
        scale, SIZE, KV_HEADS, DIM, TILE, ROWS,
    )  # fmt: skip
    tl.store(out + row, acc / total[:, None], mask=r < GROUP)


@triton.jit
def split_kernel(
    parts, logs, q, k_cache, v_cache, tables, seq_lens, table_stride, scale,
    SIZE: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    b, kv_head, split, splits = (
        tl.program_id(0),
        tl.program_id(1),
        tl.program_id(2),
        tl.num_programs(2),
    )
    r, dims = tl.arange(0, ROWS), tl.arange(0, DIM)
    row = (b * KV_HEADS + kv_head) * GROUP + r
    query = tl.load(q + row[:, None] * DIM + dims[None, :], mask=r[:, None] < GROUP, other=0.0)
    length = tl.load(seq_lens + b)
    tiles = tl.cdiv(length, TILE)
    begin = split * tiles // splits * TILE
    stop = tl.minimum((split + 1) * tiles // splits * TILE, length)
    m, total, acc = attend(
        query, k_cache, v_cache, tables + b * table_stride, kv_head, begin, stop, scale,
        SIZE, KV_HEADS, DIM, TILE, ROWS,
    )  # fmt: skip
    o = tl.where(total[:, None] > 0, acc / total[:, None], 0.0)
    part = row * splits + split
    tl.store(parts + part[:, None] * DIM + dims[None, :], o, mask=r[:, None] < GROUP)
    tl.store(logs + part, m + tl.log(total), mask=r < GROUP)


@triton.jit
def merge_kernel(out, parts, logs, splits, DIM: tl.constexpr, SPLITS: tl.constexpr):
    row, split, dims = tl.program_id(0), tl.arange(0, SPLITS), tl.arange(0, DIM)
    part = row * splits + split
    log = tl.load(logs + part, mask=split < splits, other=float("-inf"))
    o = tl.load(
        parts + part[:, None] * DIM + dims[None, :], mask=split[:, None] < splits, other=0.0
    )
    weight = tl.exp(log - tl.max(log, 0))
    tl.store(out + row * DIM + dims, tl.sum(weight[:, None] * o, 0) / tl.sum(weight, 0))


# A kernel as a function ---------------------------------------------------------------------------


def launch(
    *batch: Tensor, answer: Any, tile: int = 64, rows: int = 16, **options: int
) -> tuple[Tensor, Any]:
    """Run the kernel of puzzle 5, 6 or 7.

    Args:
        batch: q [B, Hq, D], k_cache, v_cache [blocks, block_size, Hkv, D], tables [B, M] and
            seq_lens [B].
        answer: the kernel, or {"my_split": ..., "my_merge": ..., "my_splits": ...}.
        tile: keys a step; 0 for a page.
        rows: of a tile of query heads, at least.
        options: num_warps and num_stages, for Triton's compiler.

    Returns:
        What the kernel writes, [B, Hq, D], and what the compiler made of it.
    """
    q, *caches = batch
    given = arguments(q.new_empty(q.shape), q.contiguous(), *caches)
    given["TILE"] = tile or given["SIZE"]
    puzzle = "decode"
    if isinstance(answer, dict) or "ROWS" in answer.arg_names:
        puzzle = "grouped"
        given["ROWS"] = rows_of(given["GROUP"], rows)
    if isinstance(answer, dict):
        tokens = given["SIZE"] * given["tables"].shape[1]
        splits = answer["my_splits"](len(q), given["KV_HEADS"], tokens, multiprocessors(q.device))
        options["splits"] = splits or 1
    # in the interpreter an empty split divides by zero, and says so
    with np.errstate(all="ignore"):
        made = PUZZLES[puzzle].launch(answer, given, **options)
    return given["out"], made


def decoder(answer: Any, **cut: int) -> Callable[..., Tensor]:
    """A function of (q, k_cache, v_cache, tables, seq_lens) that launches a kernel, as `launch`
    does. The answer to puzzle 8 is such a function already.
    """
    if inspect.isfunction(answer):
        return answer
    return lambda *batch: launch(*batch, answer=answer, **cut)[0]


SPLIT = {"my_split": split_kernel, "my_merge": merge_kernel, "my_splits": splits_for}
CHANGES = {
    "rung 1, one page at a time": {"answer": several_pages_kernel, "tile": 0},
    "rung 2, a tile of several pages": {"tile": 32},
    "rung 3, heads share a load": {"answer": packed_heads_kernel, "rows": 1},
    "rung 4, tensor cores": {"rows": 16},
    "rung 5, more in flight": {"num_stages": 5},
    "rung 6, fewer warps": {"num_warps": 2},
    "rung 7, a longer tile": {"tile": 64},
    "rung 8, splits and their merge": {"answer": SPLIT},
}
# Each rung keeps what the one before has.
CUTS = dict(zip(CHANGES, accumulate(CHANGES.values(), or_), strict=True))
RUNGS = {name: decoder(**cut) for name, cut in CUTS.items()}


def compiled(name: str, *batch: Tensor) -> dict[str, int]:
    """What Triton's compiler made of a rung: registers a thread, spills, shared bytes, its cut."""
    kernel = launch(*batch, **CUTS[name])[1]
    made = kernel.metadata
    return {
        "registers": kernel.n_regs,
        "spills": kernel.n_spills,
        "shared": made.shared,
        "warps": made.num_warps,
        "stages": made.num_stages,
    }
