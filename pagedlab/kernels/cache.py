"""KV in Triton: writes new tokens into their slots.

One launch handles keys and values. A GPU moves bytes quickly and starts kernels
slowly, and there are few bytes: in a step of 256 sequences, a layer writes some hundred kilobytes.
"""

from torch import Tensor

from pagedlab.kernels.runtime import on_device_of, power_of_two, tl, triton


@triton.jit
def write_kernel(
    k, v, k_cache, v_cache, slots, k_stride, k_head_stride, v_stride, v_head_stride,
    KV_HEADS: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Run one program a token. HEADS and DIM are KV_HEADS and HEAD_DIM as powers of two."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        head = tl.arange(0, HEADS)[:, None]
        dim = tl.arange(0, DIM)[None, :]
        real = (head < KV_HEADS) & (dim < HEAD_DIM)
        target = (slot * KV_HEADS + head) * HEAD_DIM + dim
        key = tl.load(k + token * k_stride + head * k_head_stride + dim, mask=real)
        value = tl.load(v + token * v_stride + head * v_head_stride + dim, mask=real)
        tl.store(k_cache + target, key, mask=real)
        tl.store(v_cache + target, value, mask=real)


def write_kv(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> None:
    """Store the keys and values of T tokens in one layer's caches.

    Args:
        k: keys, [T, Hkv, D].
        v: values, [T, Hkv, D].
        k_cache: [num_blocks, block_size, Hkv, D], contiguous.
        v_cache: [num_blocks, block_size, Hkv, D], contiguous.
        slots: int64 [T]. A token with a negative slot is not stored, so that a batch can be padded
            to the size of a CUDA graph.
    """
    tokens, heads, dim = k.shape
    if tokens == 0:
        return
    k = k if k.stride(2) == 1 else k.contiguous()
    v = v if v.stride(2) == 1 else v.contiguous()
    with on_device_of(k_cache):
        write_kernel[(tokens,)](
            k, v, k_cache, v_cache, slots, k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            heads, power_of_two(heads), dim, power_of_two(dim),
        )  # fmt: skip
