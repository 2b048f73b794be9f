# ruff: noqa: N803  upper case marks what is known when the kernel is compiled
"""Plausible wrong answers to the exercises of notebook 07, and right ones that differ from the solution."""

from __future__ import annotations

from typing import Any

from pagedlab.kernels.runtime import tl, triton
from pagedlab.lessons.ladder import one_page_kernel

# the page look-up ---------------------------------------------------------------------------------------------


@triton.jit
def without_the_table(out, table, positions, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):
    i = tl.arange(0, TILE)
    tl.store(out + i, tl.load(positions + i))


@triton.jit
def quotient_for_remainder(out, table, positions, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):
    i = tl.arange(0, TILE)
    position = tl.load(positions + i)
    page = tl.load(table + position // BLOCK_SIZE).to(tl.int64)
    tl.store(out + i, page * BLOCK_SIZE + position // BLOCK_SIZE)


@triton.jit
def one_page_for_all(out, table, positions, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):
    i = tl.arange(0, TILE)
    position = tl.load(positions + i)
    tl.store(out + i, tl.load(table).to(tl.int64) * BLOCK_SIZE + position)


@triton.jit
def in_32_bits(out, table, positions, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):
    i = tl.arange(0, TILE)
    position = tl.load(positions + i)
    tl.store(out + i, tl.load(table + position // BLOCK_SIZE) * BLOCK_SIZE + position % BLOCK_SIZE)


@triton.jit
def cast_too_late(out, table, positions, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):
    i = tl.arange(0, TILE)
    position = tl.load(positions + i)
    tl.store(out + i, (tl.load(table + position // BLOCK_SIZE) * BLOCK_SIZE).to(tl.int64) + position % BLOCK_SIZE)


@triton.jit
def half_the_tile(out, table, positions, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):
    i = tl.arange(0, TILE // 2)
    position = tl.load(positions + i)
    page = tl.load(table + position // BLOCK_SIZE).to(tl.int64)
    tl.store(out + i, page * BLOCK_SIZE + position % BLOCK_SIZE)


@triton.jit
def never_ends(out, table, positions, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):
    i = tl.arange(0, TILE)
    while TILE > 0:
        tl.store(out + i, tl.load(positions + i))


@triton.jit
def one_by_one(out, table, positions, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr):
    """Right, and slow: no tile at all."""
    for i in range(TILE):
        position = tl.load(positions + i)
        page = tl.load(table + position // BLOCK_SIZE).to(tl.int64)
        tl.store(out + i, page * BLOCK_SIZE + position - position // BLOCK_SIZE * BLOCK_SIZE)


# three bugs ---------------------------------------------------------------------------------------------------


@triton.jit
def _kernel(
    out, q, k_cache, v_cache, tables, seq_lens, stride, scale,
    SIZE: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    BUG: tl.constexpr,
):  # fmt: skip
    """The mended kernel, with the bug of that name."""
    b, h, dims, offset = tl.program_id(0), tl.program_id(1), tl.arange(0, DIM), tl.arange(0, SIZE)
    row = (b * KV_HEADS * GROUP + h) * DIM + dims
    query, m, total, acc = tl.load(q + row), float("-inf"), 0.0, tl.zeros([DIM], tl.float32)
    length = tl.load(seq_lens + b)
    kv_head = h % KV_HEADS if BUG == "group" else h // GROUP
    for i in range(length // SIZE if BUG == "last page" else tl.cdiv(length, SIZE)):
        filled = i * SIZE + offset < length
        slot = tl.load(tables + b * stride + i).to(tl.int64) * SIZE + offset
        at = (slot[:, None] * KV_HEADS + kv_head) * DIM + dims
        if BUG == "unmasked values":
            k, v = tl.load(k_cache + at, mask=filled[:, None], other=0.0), tl.load(v_cache + at)
        else:
            k, v = (tl.load(k_cache + at, mask=filled[:, None], other=0.0),
                    tl.load(v_cache + at, mask=filled[:, None], other=0.0))  # fmt: skip
        s = tl.sum(k * query, 1) * scale
        s = s if BUG == "scores of zero" else tl.where(filled, s, float("-inf"))
        new_m = tl.maximum(m, tl.max(s, 0))
        p, rescale = tl.exp(s - new_m), tl.exp(m - new_m)
        total = (total if BUG == "sum not rescaled" else total * rescale) + tl.sum(p, 0)
        acc = (acc if BUG == "output not rescaled" else acc * rescale) + tl.sum(p[:, None] * v, 0)
        m = new_m
    tl.store(out + row, acc if BUG == "not divided" else acc / total)


class Kernel:
    """`_kernel` with one bug, launched like a kernel."""

    def __init__(self, bug: str) -> None:
        self.__name__ = bug.replace(" ", "_")
        self.bug = bug

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args: _kernel[grid](*args, self.bug)


# splits -------------------------------------------------------------------------------------------------------


def always_one(batch: int, kv_heads: int, tokens: int, processors: int) -> int:
    return 1


def rounded_up(batch: int, kv_heads: int, tokens: int, processors: int) -> int:
    return max(1, min(-(-3 * processors // (batch * kv_heads)), -(-tokens // 128)))


def without_a_least(batch: int, kv_heads: int, tokens: int, processors: int) -> int:
    return min(3 * processors // (batch * kv_heads), -(-tokens // 128))


def however_short(batch: int, kv_heads: int, tokens: int, processors: int) -> int:
    return max(1, 3 * processors // (batch * kv_heads))


def heads_forgotten(batch: int, kv_heads: int, tokens: int, processors: int) -> int:
    return max(1, min(3 * processors // batch, -(-tokens // 128)))


def one_a_multiprocessor(batch: int, kv_heads: int, tokens: int, processors: int) -> int:
    return max(1, min(processors // (batch * kv_heads), -(-tokens // 128)))


BUGS = ["group", "last page", "unmasked values", "scores of zero", "sum not rescaled", "output not rescaled"]
WRONG: dict[str, list[Any]] = {
    "page_lookup": [
        without_the_table,
        quotient_for_remainder,
        one_page_for_all,
        in_32_bits,
        cast_too_late,
        half_the_tile,
        never_ends,
    ],
    "mended_kernel": [Kernel(bug) for bug in (*BUGS, "not divided")],
    "splits": [always_one, rounded_up, without_a_least, however_short, heads_forgotten, one_a_multiprocessor],
}
RIGHT: dict[str, list[Any]] = {"page_lookup": [one_by_one], "mended_kernel": [one_page_kernel, Kernel("none")]}
