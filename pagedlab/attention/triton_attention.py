"""Launching the Triton kernels: which tiles, how many programs, into how many splits.

Everything here is decided from shapes, dtypes and the card, never from values on the device: nothing waits
for the GPU, and a CUDA graph of a call stays right for any lengths that fit its block table.
"""

from __future__ import annotations

import contextlib
import math
from functools import lru_cache
from typing import NamedTuple

import torch

from pagedlab.attention.triton_kernels import INTERPRETED, decode_kernel, merge_kernel, ragged_kernel

MIN_SPLIT = 128  # keys in a piece, and two pieces at least: less costs more to start and to merge than it saves
MAX_SPLITS = 64  # what the merge holds at once


class Tiles(NamedTuple):
    """How a kernel is cut: query rows and keys a step, warps a program, depth of the pipeline of loads."""

    rows: int
    tile: int
    warps: int
    stages: int
    registers: int | None = None  # a thread, at most

    @property
    def cut(self) -> tuple[int, int, int]:
        """What the kernels are told."""
        return self.rows, self.tile, self.stages

    @property
    def options(self) -> dict[str, int | None]:
        """What Triton's compiler is told."""
        return {"num_warps": self.warps, "maxnreg": self.registers}


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def _padded(head_dim: int) -> int:
    """DIM: a tile's axes are powers of two, and 16 is the least that a tensor core sums over."""
    return max(16, _power_of_two(head_dim))


def decode_tiles(dtype: torch.dtype, dim: int, group: int, crowd: float, split: bool) -> Tiles:
    """Tiles for one query a sequence: 16 rows are the fewest that a tensor core takes.

    `crowd` is programs a multiprocessor. One that is nearly alone there needs warps of its own to have enough
    loads in flight; many of a warp or two each, none of which waits for another, do better than few large ones.
    """
    rows = max(16, _power_of_two(group))
    if dtype == torch.float32 or INTERPRETED:  # no tensor core: registers are what is short
        return Tiles(rows, 32 if dim <= 64 else 16, 4, 2)
    if dim > 128:
        return Tiles(rows, 32, 4, 5)
    if crowd <= (2 if dim <= 64 else 1):
        return Tiles(rows, 64, 4, 5)
    if dim <= 64:  # 32 keys and 7 stages are 1 % faster for equal lengths, but 4 to 18 % slower for unequal ones
        return Tiles(rows, 64, 1, 5)
    return Tiles(rows, 32, 1, 5) if split else Tiles(rows, 64, 2, 5)


def ragged_tiles(dtype: torch.dtype, dim: int, group: int, many: bool) -> tuple[Tiles, Tiles]:
    """Tiles for sequences of few queries, and of many, in one launch: the warps are those of the second.

    `many`: most tokens belong to prompts. Then large tiles of queries load each key seldom, and 128
    registers a thread let two programs share a multiprocessor: one computes while the other waits.
    Otherwise most programs are decodes, and small tiles leave them room.
    """
    rows, least = max(16, _power_of_two(group)), _power_of_two(group)
    if dtype == torch.float32 or INTERPRETED:
        few = decode_tiles(dtype, dim, group, 0, False)
        return few, few._replace(rows=max(32, least)) if INTERPRETED else few
    if dim > 128:
        return Tiles(rows, 64, 8, 3), Tiles(max(128, least), 32, 8, 2)
    if dim <= 64:
        return Tiles(rows, 128, 4, 3), Tiles(max(64, least), 64, 4, 3)
    large, small = Tiles(max(128, least), 64, 8, 2, registers=128), Tiles(max(64, least), 32, 4, 2)
    return Tiles(rows, 128, 4, 3), large if many else small


@lru_cache
def multiprocessors(device: torch.device) -> int:
    """Streaming multiprocessors of the card, each of which runs a few programs at a time; 4 without a card."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@lru_cache
def overlaps(device: torch.device) -> bool:
    """Whether the merge may start before the splits have ended, and wait for them: on Hopper and later.

    NVIDIA calls it programmatic dependent launch. It hides the start of a kernel, a microsecond or so.
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


class Plan(NamedTuple):
    """How a call is launched. `many` is None for a batch of decodes, which has a kernel of its own."""

    few: Tiles
    many: Tiles | None
    splits: int  # at most, of a sequence's keys


def choose_plan(q: torch.Tensor, k_cache: torch.Tensor, block_tables: torch.Tensor) -> Plan:
    """The plan for these shapes: enough programs to fill the card, and no more splits than that takes."""
    num_tokens, num_heads, head_dim = q.shape
    num_sequences, pages = block_tables.shape
    _, block_size, kv_heads, _ = k_cache.shape
    group, dim = num_heads // kv_heads, _padded(head_dim)
    # As many tokens as sequences: a batch of decodes. If it is none (two tokens here, none there), the result
    # is right all the same.
    few, many = None, None
    if num_tokens != num_sequences:
        few, many = ragged_tiles(q.dtype, dim, group, many=num_tokens >= 8 * num_sequences)
    programs = query_tiles(num_tokens, num_sequences, group, many) * kv_heads
    processors = multiprocessors(q.device)
    # Three programs a multiprocessor keep enough loads in flight to fill the memory's pipe. At most three, but for
    # narrow heads the nearest to three: 256 programs of theirs (unequal lengths, on an H200's 132 multiprocessors)
    # took 25.2 us whole and 21.3 in two splits each; 256 of wide heads, with twice the bytes each, gained nothing.
    room = 3 * processors / programs
    room = round(room) if few is None and dim <= 64 else int(room)
    keys = pages * block_size
    pieces = -(-keys // MIN_SPLIT) if keys >= 2 * MIN_SPLIT else 1
    splits = max(1, min(room, pieces, MAX_SPLITS))
    if few is None:
        few = decode_tiles(q.dtype, dim, group, programs * splits / processors, splits > 1)
    return Plan(few, many, splits)


def query_tiles(num_tokens: int, num_sequences: int, group: int, many: Tiles | None) -> int:
    """Tiles of queries that the grid must have room for: see `find_sequence`."""
    return num_sequences if many is None else num_tokens // (many.rows // group) + num_sequences


def triton_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    query_starts: torch.Tensor,
    scale: float | None = None,
    *,
    plan: Plan | None = None,
) -> torch.Tensor:
    """`paged_attention` on an NVIDIA GPU, without a look at any value; on the CPU in Triton's interpreter.

    Rows of q behind the last query of the last sequence are left as the memory was. `plan` overrules the one
    that `choose_plan` makes. `ValueError` for a dtype other than fp32, fp16 and bf16, for caches that are not
    contiguous, and for a scale that is not positive.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_sequences = len(block_tables)
    _, block_size, kv_heads, _ = k_cache.shape
    scale = head_dim**-0.5 if scale is None else scale
    _check(q, k_cache, v_cache, scale)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if num_tokens == 0 or num_sequences == 0:
        return out
    few, many, splits = plan or choose_plan(q, k_cache, block_tables)
    group, dim = num_heads // kv_heads, _padded(head_dim)
    parts = (num_sequences, splits, num_heads) if splits > 1 else (0, 0, 0)
    split_out = torch.empty((*parts, head_dim), dtype=torch.float32, device=q.device)
    split_sums = torch.empty((*parts, 2), dtype=torch.float32, device=q.device)
    grid = (query_tiles(num_tokens, num_sequences, group, many) * kv_heads, splits)
    common = (
        out, split_out, split_sums, q.contiguous(), k_cache, v_cache, block_tables, seq_lens, query_starts,
        scale * math.log2(math.e), block_tables.stride(0), num_sequences,
    )  # fmt: skip
    overlap = splits > 1 and overlaps(q.device)
    shape = {"GROUP": group, "KV_HEADS": kv_heads, "HEAD_DIM": head_dim, "DIM": dim, "BLOCK_SIZE": block_size}
    shape["OVERLAP"] = overlap
    with torch.cuda.device(q.device) if q.is_cuda else contextlib.nullcontext():
        if many is None:
            decode_kernel[grid](*common, *few.cut, MIN_SPLIT, **shape, SPLIT=splits > 1, **few.options)
        else:
            ragged_kernel[grid](*common, *many.cut, *few.cut, MIN_SPLIT, **shape, **many.options)
        if splits > 1:
            merge_kernel[(num_sequences * num_heads,)](
                out, split_out, split_sums, seq_lens, query_starts, splits,
                _power_of_two(splits), MIN_SPLIT, num_heads, head_dim, dim, overlap,
                num_warps=2, **({"launch_pdl": True} if overlap else {}),
            )  # fmt: skip
    return out


def _check(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, scale: float) -> None:
    if q.dtype not in (torch.float32, torch.float16, torch.bfloat16) or not q.dtype == k_cache.dtype == v_cache.dtype:
        raise ValueError(
            "the Triton kernels take q and both caches in one dtype, float32, float16 or bfloat16, "
            f"got {q.dtype}, {k_cache.dtype} and {v_cache.dtype}"
        )
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ValueError("the Triton kernels need contiguous caches, [num_blocks, block_size, Hkv, D]")
    if not scale > 0:
        raise ValueError(f"scale must be positive, got {scale}: negate q instead of scale")
    if not q.is_cuda and not INTERPRETED:
        raise ValueError(
            f"q is on {q.device} and Triton compiles for the GPU: move the tensors there, take backend='torch', "
            "or set TRITON_INTERPRET=1 before Python starts"
        )
