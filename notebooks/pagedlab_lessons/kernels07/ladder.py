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
`slots_at`, `rows_at`, `take`, `take_rows` and `attend` as building blocks.
"""

import inspect
from collections.abc import Callable
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
def take_rows(m, total, acc, s, v):
    """The same for ROWS queries at once: m and total [ROWS], s [ROWS, TILE], acc [ROWS, DIM]."""
    new_m = tl.maximum(m, tl.max(s, 1))
    p, rescale = tl.exp(s - new_m[:, None]), tl.exp(m - new_m)
    new_acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    return new_m, total * rescale + tl.sum(p, 1), new_acc


@triton.jit
def attend(
    query, k_cache, v_cache, table, kv_head, begin, stop, scale,
    SIZE: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, TILE: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Take positions [begin, stop) into the online softmax of query [ROWS, DIM]: m [ROWS], total
    [ROWS], acc.
    """
    m, total = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    for first in range(begin, stop, TILE):
        position = first + tl.arange(0, TILE)
        filled = position < stop
        slot = slots_at(table, position, filled, SIZE)
        k = rows_at(k_cache, slot, filled, kv_head, KV_HEADS, DIM)
        v = rows_at(v_cache, slot, filled, kv_head, KV_HEADS, DIM)
        s = tl.where(
            filled[None, :],
            tl.dot(query, tl.trans(k), input_precision="ieee") * scale,
            float("-inf"),
        )
        m, total, acc = take_rows(m, total, acc, s, v)
    return m, total, acc


@triton.jit
def one_page_kernel(
    out, q, k_cache, v_cache, tables, seq_lens, table_stride, scale,
    SIZE: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    b, h = tl.program_id(0), tl.program_id(1)
    row = (b * KV_HEADS * GROUP + h) * DIM + tl.arange(0, DIM)
    query = tl.load(q + row).to(tl.float32)
    m, total, acc = float("-inf"), 0.0, tl.zeros([DIM], tl.float32)
    length = tl.load(seq_lens + b)
    for i in range(tl.cdiv(length, SIZE)):
        page = tl.load(tables + b * table_stride + i).to(tl.int64)
        slot = page * SIZE + tl.arange(0, SIZE)
        filled = i * SIZE + tl.arange(0, SIZE) < length
        k = rows_at(k_cache, slot, filled, h // GROUP, KV_HEADS, DIM).to(tl.float32)
        v = rows_at(v_cache, slot, filled, h // GROUP, KV_HEADS, DIM).to(tl.float32)
        s = tl.where(filled, tl.sum(k * query[None, :], 1) * scale, float("-inf"))
        m, total, acc = take(m, total, acc, s, v)
    tl.store(out + row, acc / total)


@triton.jit
def several_pages_kernel(
    out, q, k_cache, v_cache, tables, seq_lens, table_stride, scale,
    SIZE: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    b, h = tl.program_id(0), tl.program_id(1)
    row = (b * KV_HEADS * GROUP + h) * DIM + tl.arange(0, DIM)
    query = tl.load(q + row).to(tl.float32)
    m, total, acc = float("-inf"), 0.0, tl.zeros([DIM], tl.float32)
    length = tl.load(seq_lens + b)
    for first in range(0, length, TILE):
        position = first + tl.arange(0, TILE)
        filled = position < length
        slot = slots_at(tables + b * table_stride, position, filled, SIZE)
        k = rows_at(k_cache, slot, filled, h // GROUP, KV_HEADS, DIM).to(tl.float32)
        v = rows_at(v_cache, slot, filled, h // GROUP, KV_HEADS, DIM).to(tl.float32)
        s = tl.where(filled, tl.sum(k * query[None, :], 1) * scale, float("-inf"))
        m, total, acc = take(m, total, acc, s, v)
    tl.store(out + row, acc / total)


@triton.jit
def shared_loads_kernel(
    out, q, k_cache, v_cache, tables, seq_lens, table_stride, scale,
    SIZE: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    b, kv_head = tl.program_id(0), tl.program_id(1)
    r, dims = tl.arange(0, ROWS)[:, None], tl.arange(0, DIM)[None, :]
    # the group's heads lie side by side in q
    row = ((b * KV_HEADS + kv_head) * GROUP + r) * DIM + dims
    query = tl.load(q + row, mask=r < GROUP, other=0.0).to(tl.float32)
    m = tl.full([ROWS], float("-inf"), tl.float32)
    total, acc = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, DIM], tl.float32)
    length = tl.load(seq_lens + b)
    for first in range(0, length, TILE):
        position = first + tl.arange(0, TILE)
        filled = position < length
        slot = slots_at(tables + b * table_stride, position, filled, SIZE)
        k = rows_at(k_cache, slot, filled, kv_head, KV_HEADS, DIM).to(tl.float32)
        v = rows_at(v_cache, slot, filled, kv_head, KV_HEADS, DIM).to(tl.float32)
        s = tl.sum(query[:, None, :] * k[None, :, :], 2) * scale  # number by number, as in rung 2
        s = tl.where(filled[None, :], s, float("-inf"))
        new_m = tl.maximum(m, tl.max(s, 1))
        p, rescale = tl.exp(s - new_m[:, None]), tl.exp(m - new_m)
        total = total * rescale + tl.sum(p, 1)
        acc = acc * rescale[:, None] + tl.sum(p[:, :, None] * v[None, :, :], 1)
        m = new_m
    tl.store(out + row, acc / total[:, None], mask=r < GROUP)


@triton.jit
def packed_heads_kernel(
    out, q, k_cache, v_cache, tables, seq_lens, table_stride, scale,
    SIZE: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
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


def puzzle_of(answer: Any) -> str:
    """Which of the last three puzzles an answer is for: {"my_split": ...}, or a kernel with or
    without ROWS.
    """
    if isinstance(answer, dict):
        return "split"
    return "grouped" if "ROWS" in answer.arg_names else "decode"


def launch(
    answer: Any, *batch: Tensor, tile: int = 64, rows: int = 16, **options: int
) -> tuple[Tensor, Any]:
    """Run the kernel of puzzle 5, 6 or 7.

    Args:
        answer: the kernel, or {"my_split": ..., "my_merge": ..., "my_splits": ...}.
        batch: q [B, Hq, D], k_cache, v_cache [blocks, block_size, Hkv, D], tables [B, M] and
            seq_lens [B].
        tile: keys a step.
        rows: of a tile of query heads, at least.
        options: num_warps and num_stages, for Triton's compiler.

    Returns:
        What the kernel writes, [B, Hq, D], and what the compiler made of it.
    """
    q, *caches = batch
    given = arguments(q.new_empty(q.shape), q.contiguous(), *caches)
    name = puzzle_of(answer)
    if answer is not one_page_kernel:
        given["TILE"] = tile
    if name != "decode":
        given["ROWS"] = rows_of(given["GROUP"], rows)
    if name == "split":
        tokens = given["SIZE"] * given["tables"].shape[1]
        splits = answer["my_splits"](len(q), given["KV_HEADS"], tokens, multiprocessors(q.device))
        options["splits"] = splits or 1
    # in the interpreter an empty split divides by zero, and says so
    with np.errstate(all="ignore"):
        made = PUZZLES[name].launch(answer, given, **options)
    return given["out"], made


def decoder(answer: Any, **cut: int) -> Callable[..., Tensor]:
    """A function of (q, k_cache, v_cache, tables, seq_lens) that launches a kernel, as `launch`
    does. The answer to puzzle 8 is such a function already.
    """
    if inspect.isfunction(answer):
        return answer
    return lambda *batch: launch(answer, *batch, **cut)[0]


SPLIT = {"my_split": split_kernel, "my_merge": merge_kernel, "my_splits": splits_for}
_DOTS: dict[str, Any] = {"answer": packed_heads_kernel, "tile": 32}
_FEW = {"num_stages": 5, "num_warps": 2}
CUTS: dict[str, dict[str, Any]] = {
    "rung 1, one page at a time": {"answer": one_page_kernel},
    "rung 2, a tile of several pages": {"answer": several_pages_kernel, "tile": 32},
    # without a tensor core 16 rows are not needed
    "rung 3, heads share a load": {"answer": shared_loads_kernel, "tile": 32, "rows": 1},
    "rung 4, tensor cores": _DOTS,
    "rung 5, more in flight": {**_DOTS, "num_stages": 5},
    "rung 6, fewer warps": {**_DOTS, **_FEW},
    "rung 7, a longer tile": {**_DOTS, **_FEW, "tile": 64},
    "rung 8, splits and their merge": {"answer": SPLIT, "tile": 64, **_FEW},
}
RUNGS = {name: decoder(**cut) for name, cut in CUTS.items()}


def compiled(name: str, *batch: Tensor) -> dict[str, int]:
    """What Triton's compiler made of a rung: registers a thread, spills, shared bytes, its cut."""
    cut = dict(CUTS[name])
    kernel = launch(cut.pop("answer"), *batch, **cut)[1]
    made = kernel.metadata
    found = {"registers": kernel.n_regs, "spills": kernel.n_spills, "shared": made.shared}
    return found | {"warps": made.num_warps, "stages": made.num_stages}
