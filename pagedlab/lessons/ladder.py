"""The road to the decode kernel in three short kernels, each one idea faster than the last.

    one_page          a program for each sequence and query head, one page at a time
    several_pages     a tile of TILE keys, whatever the page size: every row looks up its own page
    packed_heads      one program for a KV head and all the query heads it serves, on the tensor core

The next two steps are the library's own: `decode_kernel` cuts a sequence into splits and merges them,
`ragged_kernel` takes prompts and new tokens in one launch. All of them compute `spec` for every sequence and
query head. To keep a kernel short, HEAD_DIM is a power of two here, and a sequence has at least one key.
"""

from __future__ import annotations

from typing import Any

import torch

from pagedlab.kernels.runtime import tl, triton


def spec(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float) -> torch.Tensor:
    """One query head over its keys, q [D], keys and values [length, D]: what every rung has to give."""
    return torch.softmax(keys @ q * scale, dim=0) @ values


def spec_paged(
    q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, block_tables: torch.Tensor, seq_lens: torch.Tensor
) -> torch.Tensor:
    """`spec` for every sequence and query head of q [B, Hq, D], after gathering the pages."""
    group, scale = q.shape[1] // k_cache.shape[2], q.shape[2] ** -0.5
    out = torch.empty_like(q)
    for b, length in enumerate(seq_lens.tolist()):
        pages = block_tables[b, : -(-length // k_cache.shape[1])].long()
        keys, values = (cache[pages].flatten(0, 1)[:length] for cache in (k_cache, v_cache))
        for h in range(q.shape[1]):
            out[b, h] = spec(q[b, h], keys[:, h // group], values[:, h // group], scale)
    return out


@triton.jit
def one_page_kernel(
    out, q, k_cache, v_cache, block_tables, seq_lens, table_stride, scale,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    b, h = tl.program_id(0), tl.program_id(1)
    row = (b * KV_HEADS * GROUP + h) * HEAD_DIM + tl.arange(0, HEAD_DIM)
    query = tl.load(q + row).to(tl.float32)
    m, total, acc = float("-inf"), 0.0, tl.zeros([HEAD_DIM], tl.float32)
    length = tl.load(seq_lens + b)
    for i in range(tl.cdiv(length, BLOCK_SIZE)):
        page = tl.load(block_tables + b * table_stride + i).to(tl.int64)
        slot = page * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        at = (slot[:, None] * KV_HEADS + h // GROUP) * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
        filled = i * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE) < length
        k = tl.load(k_cache + at, mask=filled[:, None], other=0.0).to(tl.float32)
        v = tl.load(v_cache + at, mask=filled[:, None], other=0.0).to(tl.float32)
        s = tl.where(filled, tl.sum(k * query[None, :], 1) * scale, float("-inf"))
        new_m = tl.maximum(m, tl.max(s, 0))
        p, rescale = tl.exp(s - new_m), tl.exp(m - new_m)
        total = total * rescale + tl.sum(p, 0)
        acc = acc * rescale + tl.sum(p[:, None] * v, 0)
        m = new_m
    tl.store(out + row, acc / total)


@triton.jit
def several_pages_kernel(
    out, q, k_cache, v_cache, block_tables, seq_lens, table_stride, scale, TILE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    b, h = tl.program_id(0), tl.program_id(1)
    row = (b * KV_HEADS * GROUP + h) * HEAD_DIM + tl.arange(0, HEAD_DIM)
    query = tl.load(q + row).to(tl.float32)
    m, total, acc = float("-inf"), 0.0, tl.zeros([HEAD_DIM], tl.float32)
    length = tl.load(seq_lens + b)
    for first in range(0, length, TILE):
        position = first + tl.arange(0, TILE)
        filled = position < length
        page = tl.load(block_tables + b * table_stride + position // BLOCK_SIZE, mask=filled, other=0).to(tl.int64)
        slot = page * BLOCK_SIZE + position % BLOCK_SIZE
        at = (slot[:, None] * KV_HEADS + h // GROUP) * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
        k = tl.load(k_cache + at, mask=filled[:, None], other=0.0).to(tl.float32)
        v = tl.load(v_cache + at, mask=filled[:, None], other=0.0).to(tl.float32)
        s = tl.where(filled, tl.sum(k * query[None, :], 1) * scale, float("-inf"))
        new_m = tl.maximum(m, tl.max(s, 0))
        p, rescale = tl.exp(s - new_m), tl.exp(m - new_m)
        total = total * rescale + tl.sum(p, 0)
        acc = acc * rescale + tl.sum(p[:, None] * v, 0)
        m = new_m
    tl.store(out + row, acc / total)


@triton.jit
def packed_heads_kernel(
    out, q, k_cache, v_cache, block_tables, seq_lens, table_stride, scale, TILE: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    b, kv_head = tl.program_id(0), tl.program_id(1)
    r, dims = tl.arange(0, ROWS)[:, None], tl.arange(0, HEAD_DIM)[None, :]
    row = ((b * KV_HEADS + kv_head) * GROUP + r) * HEAD_DIM + dims  # the group's heads lie side by side in q
    query = tl.load(q + row, mask=r < GROUP, other=0.0)
    m = tl.full([ROWS], float("-inf"), tl.float32)
    total, acc = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, HEAD_DIM], tl.float32)
    length = tl.load(seq_lens + b)
    for first in range(0, length, TILE):
        position = first + tl.arange(0, TILE)
        filled = position < length
        page = tl.load(block_tables + b * table_stride + position // BLOCK_SIZE, mask=filled, other=0).to(tl.int64)
        slot = page * BLOCK_SIZE + position % BLOCK_SIZE
        at = (slot[:, None] * KV_HEADS + kv_head) * HEAD_DIM + dims
        k = tl.load(k_cache + at, mask=filled[:, None], other=0.0)
        v = tl.load(v_cache + at, mask=filled[:, None], other=0.0)
        s = tl.where(filled[None, :], tl.dot(query, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
        new_m = tl.maximum(m, tl.max(s, 1))
        p, rescale = tl.exp(s - new_m[:, None]), tl.exp(m - new_m)
        total = total * rescale + tl.sum(p, 1)
        acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = new_m
    tl.store(out + row, acc / total[:, None], mask=r < GROUP)


def one_page(*batch: torch.Tensor) -> torch.Tensor:
    """First rung: a program for each sequence and query head, page after page.

    batch  what `spec_paged` takes: q [B, Hq, D], k_cache and v_cache [blocks, block_size, Hkv, D], block_tables
           [B, M] and seq_lens [B]; returns [B, Hq, D]. The other two rungs take and return the same.
    """
    return _launch(one_page_kernel, batch, programs=batch[0].shape[1])


def several_pages(*batch: torch.Tensor, tile: int = 64) -> torch.Tensor:
    """Second rung: as many programs, each takes `tile` keys at a time."""
    return _launch(several_pages_kernel, batch, programs=batch[0].shape[1], TILE=tile)


def packed_heads(*batch: torch.Tensor, tile: int = 64) -> torch.Tensor:
    """Third rung: a program for each sequence and KV head; the tensor core takes at least 16 rows."""
    heads, kv_heads = batch[0].shape[1], batch[1].shape[2]
    rows = max(16, triton.next_power_of_2(heads // kv_heads))
    return _launch(packed_heads_kernel, batch, programs=kv_heads, TILE=tile, ROWS=rows, num_stages=5)


def _launch(kernel: Any, batch: tuple[torch.Tensor, ...], programs: int, **known: int) -> torch.Tensor:
    """Run `kernel` with so many programs for each sequence; `known` is for the compiler."""
    q, k_cache, _, block_tables, _ = batch
    _, block_size, kv_heads, head_dim = k_cache.shape
    if head_dim & (head_dim - 1) or block_size & (block_size - 1):
        raise ValueError(f"these short kernels need powers of two, got head_dim {head_dim}, block_size {block_size}")
    known |= {"BLOCK_SIZE": block_size, "GROUP": q.shape[1] // kv_heads, "KV_HEADS": kv_heads, "HEAD_DIM": head_dim}
    out = torch.empty_like(q)
    kernel[len(q), programs](out, *batch, block_tables.stride(0), head_dim**-0.5, **known)
    return out
