"""What a decoder layer does between its matrix products, in three kernels: normalise, rotate and store, gate.

Launched on the current device: a layer has four of them, and to choose the device each time would cost as much again.
"""

import torch
from torch import Tensor

from pagedlab.kernels.runtime import power_of_two, tl, triton


@triton.jit
def norm_kernel(x, weight, out, epsilon, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """RMSNorm of one row a program: x / sqrt(mean(x²) + epsilon) * weight (Zhang, Sennrich, 2019)."""
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, SIZE)
    x = tl.load(x + row * WIDTH + i, mask=i < WIDTH, other=0.0)
    exact = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(exact * exact, 0) / WIDTH + epsilon)
    # Rounded to the model's dtype before the weight, as the stock module does.
    y = (exact * scale).to(x.dtype) * tl.load(weight + i, mask=i < WIDTH)
    tl.store(out + row * WIDTH + i, y, mask=i < WIDTH)


@triton.jit
def rotate_kernel(
    qkv, cos, sin, slots, q_out, k_cache, v_cache,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """One token a program: rotate its query and key heads (RoPE), write its keys and values into its slot.

    Element i of a head turns with element i + HALF by one angle, so both are in hand. A slot of -1 keeps nothing.
    HEADS and LANES are all heads and HALF rounded up to powers of two.
    """
    token, DIM = tl.program_id(0).to(tl.int64), 2 * HALF
    head, i = tl.arange(0, HEADS)[:, None], tl.arange(0, LANES)[None, :]
    lane = i < HALF
    source = qkv + (token * (Q_HEADS + 2 * KV_HEADS) + head) * DIM + i
    real = (head < Q_HEADS + 2 * KV_HEADS) & lane
    a, b = tl.load(source, mask=real, other=0.0), tl.load(source + HALF, mask=real, other=0.0)
    turned = head < Q_HEADS + KV_HEADS  # values are not
    c = tl.where(turned, tl.load(cos + token * DIM + i, mask=lane, other=0.0).to(tl.float32), 1.0)
    s = tl.where(turned, tl.load(sin + token * DIM + i, mask=lane, other=0.0).to(tl.float32), 0.0)
    first = (a.to(tl.float32) * c - b.to(tl.float32) * s).to(a.dtype)
    second = (b.to(tl.float32) * c + a.to(tl.float32) * s).to(a.dtype)
    is_query = (head < Q_HEADS) & lane
    q = q_out + (token * Q_HEADS + head) * DIM + i
    tl.store(q, first, mask=is_query)
    tl.store(q + HALF, second, mask=is_query)
    slot = tl.load(slots + token).to(tl.int64)
    stored = lane & (slot >= 0)
    is_key = stored & (head >= Q_HEADS) & turned
    k = k_cache + (slot * KV_HEADS + head - Q_HEADS) * DIM + i
    tl.store(k, first, mask=is_key)
    tl.store(k + HALF, second, mask=is_key)
    is_value = stored & (head >= Q_HEADS + KV_HEADS) & real
    v = v_cache + (slot * KV_HEADS + head - Q_HEADS - KV_HEADS) * DIM + i
    tl.store(v, first, mask=is_value)
    tl.store(v + HALF, second, mask=is_value)


@triton.jit
def gate_kernel(x, out, WIDTH, CHUNK: tl.constexpr):
    """silu(gate) * up of one row and chunk a program; a row of x is WIDTH gates, then WIDTH ups."""
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    gate = tl.load(x + row * 2 * WIDTH + i, mask=i < WIDTH, other=0.0)
    up = tl.load(x + row * 2 * WIDTH + WIDTH + i, mask=i < WIDTH, other=0.0)
    exact = gate.to(tl.float32)
    tl.store(out + row * WIDTH + i, (exact / (1 + tl.exp(-exact))).to(x.dtype.element_ty) * up, mask=i < WIDTH)


def norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm of every row: x [T, H], weight [H] -> [T, H]."""
    out, width = torch.empty_like(x), x.shape[1]
    norm_kernel[(len(x),)](x, weight, out, epsilon, width, power_of_two(width), num_warps=4)
    return out


def rotate_and_store(qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
    """Turn q and k of qkv [T, (Hq + 2 Hkv) D], write k and v into `slots` [T] of a layer's caches; q [T, Hq, D]."""
    (tokens, width), (kv_heads, head_dim) = qkv.shape, k_cache.shape[2:]
    heads, half = width // head_dim, head_dim // 2
    q = qkv.new_empty((tokens, heads - 2 * kv_heads, head_dim))
    rotate_kernel[(tokens,)](
        qkv, cos, sin, slots, q, k_cache, v_cache, q.shape[1], kv_heads,
        power_of_two(heads), half, power_of_two(half), num_warps=4,
    )  # fmt: skip
    return q


def gate(x: Tensor) -> Tensor:
    """silu(gate) * up: x [T, 2 I], the gates first -> [T, I]."""
    tokens, width = len(x), x.shape[1] // 2
    out, chunk = x.new_empty((tokens, width)), min(1024, power_of_two(width))
    gate_kernel[(tokens, -(-width // chunk))](x, out, width, chunk, num_warps=4)
    return out
