"""Writing and copying KV in Triton: new tokens into their slots, whole blocks to other blocks of
the same cache.

Both kernels do keys and values in one launch. A GPU moves bytes quickly and starts kernels slowly,
and these move little: what one layer writes for one step of 256 sequences is a few hundred
kilobytes.
"""

import torch
from torch import Tensor

from pagedlab.kernels.runtime import on_device_of, power_of_two, tl, triton


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
        tl.store(
            k_cache + target,
            tl.load(k + token * k_stride + head * k_head_stride + dim, mask=real),
            mask=real,
        )
        tl.store(
            v_cache + target,
            tl.load(v + token * v_stride + head * v_head_stride + dim, mask=real),
            mask=real,
        )


@triton.jit(
    do_not_specialize=["layer_stride"], do_not_specialize_on_alignment=["sources", "destinations"]
)
def copy_kernel(
    keys, values, sources, destinations, layer_stride, SIZE: tl.constexpr, CHUNK: tl.constexpr
):
    """One program a pair of blocks and layer. A block has SIZE elements."""
    layer = tl.program_id(1).to(tl.int64) * layer_stride
    source = layer + tl.load(sources + tl.program_id(0)).to(tl.int64) * SIZE
    target = layer + tl.load(destinations + tl.program_id(0)).to(tl.int64) * SIZE
    for first in range(0, SIZE, CHUNK):
        i = first + tl.arange(0, CHUNK)
        tl.store(keys + target + i, tl.load(keys + source + i, mask=i < SIZE), mask=i < SIZE)
        tl.store(values + target + i, tl.load(values + source + i, mask=i < SIZE), mask=i < SIZE)


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Store k and v, each [T, Hkv, D], in `slots` [T] of one layer's caches [num_blocks,
    block_size, Hkv, D].

    A negative slot stores nothing, so a batch can be padded to the size of a CUDA graph.
    """
    tokens, heads, dim = k.shape
    if k.shape != v.shape or slots.shape != (tokens,) or k_cache.shape[2:] != (heads, dim):
        got = (
            f"{list(k.shape)}, {list(v.shape)} and {list(slots.shape)} for caches "
            f"{list(k_cache.shape)}"
        )
        raise ValueError(
            f"k and v must be [T, Hkv, D] like the caches' last axes, and slots [T], got {got}"
        )
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ValueError("KV can be written by slot only into contiguous caches")
    if tokens == 0:
        return
    k, v = (x if x.stride(2) == 1 else x.contiguous() for x in (k, v))
    with on_device_of(k_cache):
        write_kernel[(tokens,)](
            k, v, k_cache, v_cache, slots, k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            heads, power_of_two(heads), dim, power_of_two(dim),
        )  # fmt: skip


def copy_blocks(keys: Tensor, values: Tensor, sources: list[int], destinations: list[int]) -> None:
    """Copy blocks in every layer of keys and values, each [L, num_blocks, block_size, Hkv, D].

    All copies happen at once, so no block may be read and written in the same call.
    """
    if len(sources) != len(destinations) or len(set(destinations)) != len(destinations):
        raise ValueError(
            f"each of {len(sources)} blocks needs a destination of its own, got {destinations}"
        )
    if both := set(sources) & set(destinations):
        raise ValueError(
            f"blocks {sorted(both)} would be read and written at once: copy in two calls"
        )
    if others := [i for i in sources + destinations if not 0 <= i < keys.shape[1]]:
        raise ValueError(f"there are {keys.shape[1]} blocks, and {others} are not among them")
    if not (keys.is_contiguous() and values.is_contiguous()):
        raise ValueError("blocks can be copied only within contiguous caches")
    if not sources:
        return
    pairs = torch.tensor([sources, destinations], dtype=torch.int32)
    if keys.is_cuda:
        pairs = pairs.pin_memory().to(keys.device, non_blocking=True)
    size, grid = keys[0, 0].numel(), (len(sources), len(keys))
    with on_device_of(keys):
        copy_kernel[grid](keys, values, *pairs, keys.stride(0), size, min(4096, power_of_two(size)))
