# mypy: allow-untyped-defs
# ruff: noqa: N803  upper case marks what is known when the kernel is compiled
"""Writing and moving KV in Triton: new tokens into their slots, whole blocks from one place to another.

Both kernels do keys and values in one launch. A GPU moves bytes quickly and starts kernels slowly, and these
move little: what one layer writes for one step of 256 sequences is a few hundred kilobytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from pagedlab.kernels.runtime import on_device_of, tl, triton


@triton.jit
def write_kernel(
    k, v, k_cache, v_cache, slots, k_stride, k_head_stride, v_stride, v_head_stride,
    KV_HEADS: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """One program a token. HEADS and DIM are KV_HEADS and HEAD_DIM rounded up to powers of two."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        head, dim = tl.arange(0, HEADS)[:, None], tl.arange(0, DIM)[None, :]
        real = (head < KV_HEADS) & (dim < HEAD_DIM)
        target = (slot * KV_HEADS + head) * HEAD_DIM + dim
        tl.store(k_cache + target, tl.load(k + token * k_stride + head * k_head_stride + dim, mask=real), mask=real)
        tl.store(v_cache + target, tl.load(v + token * v_stride + head * v_head_stride + dim, mask=real), mask=real)


@triton.jit(do_not_specialize=["from_layer", "to_layer"])
def copy_kernel(
    from_k, from_v, to_k, to_v, from_ids, to_ids, from_layer, to_layer, SIZE: tl.constexpr, CHUNK: tl.constexpr
):
    """One program a pair of blocks and layer. A block has SIZE elements, a layer from_layer or to_layer."""
    layer = tl.program_id(1).to(tl.int64)
    source = layer * from_layer + tl.load(from_ids + tl.program_id(0)).to(tl.int64) * SIZE
    target = layer * to_layer + tl.load(to_ids + tl.program_id(0)).to(tl.int64) * SIZE
    for first in range(0, SIZE, CHUNK):
        i = first + tl.arange(0, CHUNK)
        tl.store(to_k + target + i, tl.load(from_k + source + i, mask=i < SIZE), mask=i < SIZE)
        tl.store(to_v + target + i, tl.load(from_v + source + i, mask=i < SIZE), mask=i < SIZE)


class KV(NamedTuple):
    """Keys and values of all layers, each [L, num_blocks, block_size, Hkv, D], on the GPU or pinned on the host."""

    keys: torch.Tensor
    values: torch.Tensor


def write_kv(
    k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, slots: torch.Tensor
) -> None:
    """Store k and v, each [T, Hkv, D], in `slots` [T] of one layer's caches [num_blocks, block_size, Hkv, D].

    A negative slot stores nothing, so a batch can be padded to the size of a CUDA graph.
    """
    tokens, heads, dim = k.shape
    if k.shape != v.shape or slots.shape != (tokens,) or k_cache.shape[2:] != (heads, dim):
        raise ValueError(
            f"k and v must be [T, Hkv, D] like the caches' last axes, and slots [T], got {list(k.shape)}, "
            f"{list(v.shape)} and {list(slots.shape)} for caches {list(k_cache.shape)}"
        )
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ValueError("KV can be written by slot only into contiguous caches")
    if tokens == 0:
        return
    k, v = (x if x.stride(2) == 1 else x.contiguous() for x in (k, v))
    with on_device_of(k_cache):
        write_kernel[(tokens,)](
            k, v, k_cache, v_cache, slots, k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            heads, triton.next_power_of_2(heads), dim, triton.next_power_of_2(dim),
        )  # fmt: skip


def copy_blocks(source: KV, destination: KV, source_ids: Sequence[int], destination_ids: Sequence[int]) -> None:
    """Copy blocks in every layer: within one cache for copy-on-write, between GPU and host memory for swapping.

    All copies happen at once, so within one cache no block may be read and written in the same call.
    """
    if len(source_ids) != len(destination_ids) or len(set(destination_ids)) != len(destination_ids):
        raise ValueError(
            f"each of {len(source_ids)} blocks needs a destination of its own, got {list(destination_ids)}"
        )
    both = set(source_ids) & set(destination_ids)
    if both and source.keys.data_ptr() == destination.keys.data_ptr():
        raise ValueError(f"blocks {sorted(both)} would be read and written at once: copy in two calls")
    for ids, kv in ((source_ids, source), (destination_ids, destination)):
        if any(not 0 <= i < kv.keys.shape[1] for i in ids):
            raise ValueError(f"there are {kv.keys.shape[1]} blocks, and {list(ids)} are not all among them")
    if not all(x.is_contiguous() for x in (*source, *destination)):
        raise ValueError("blocks can be copied only between contiguous caches")
    if not source_ids:
        return
    cache = source.keys if source.keys.is_cuda else destination.keys
    pairs = torch.tensor([source_ids, destination_ids], dtype=torch.int32)
    if cache.is_cuda:
        pairs = pairs.pin_memory().to(cache.device, non_blocking=True)
    size = cache[0, 0].numel()
    with on_device_of(cache):
        copy_kernel[len(source_ids), len(cache)](
            *source, *destination, pairs[0], pairs[1], source.keys.stride(0), destination.keys.stride(0),
            size, min(4096, triton.next_power_of_2(size)),
        )  # fmt: skip
