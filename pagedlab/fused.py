# mypy: allow-untyped-defs
# ruff: noqa: N803, N806  upper case marks what is known when the kernel is compiled
"""The stock model's own weights in fewer kernels: a decoder layer of Qwen2 or Llama in nine launches in place of forty.

At this size a decode step is hundreds of kernels of a few microseconds, and each costs about as much to start as to
run. What is joined here reads and writes the same numbers once that the stock modules pass from kernel to kernel:

    stock                                            here
    q_proj, k_proj, v_proj                           one matrix product, their weights stacked
    split heads, rotate q and k, write k and v       rotate_kernel, straight into the blocks
    gate_proj, up_proj                               one matrix product
    silu(gate) * up                                  gate_kernel
    o_proj and down_proj, then + residual            products that add to the residual stream in place
    RMSNorm: square, mean, rsqrt, two products       norm_kernel

The stacked weights take the place of the stock ones, which become views of them, so the memory stays the same and
transformers' own `generate` still runs on the module.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F

# First, for it chooses between compiler and interpreter before triton is imported.
from pagedlab.attention.triton_kernels import tl, triton
from pagedlab.batch import Batch
from pagedlab.kv_cache import KVCache

if TYPE_CHECKING:
    from pagedlab.attention import PagedAttention

ARCHITECTURES = ("qwen2", "llama")  # whose layers are just what `Fused.forward` computes


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
    a = tl.load(source, mask=real, other=0.0)
    b = tl.load(source + HALF, mask=real, other=0.0)
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


class Layer(NamedTuple):
    """The weights of a decoder layer: qkv [(Hq + 2 Hkv) D, H], gate_up [2 I, H], and the others as they were."""

    norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    out: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


def why_not(module: Any) -> str | None:
    """What keeps this transformers module from being fused; None if nothing does."""
    config, some = module.config, module.model.layers[0]
    if config.model_type not in ARCHITECTURES:
        return f"its layers are {config.model_type}'s, and {' or '.join(ARCHITECTURES)} is what is known here"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    if some.self_attn.o_proj.bias is not None or some.mlp.down_proj.bias is not None:
        return "its output projections have a bias"
    if module.dtype == torch.float64:
        return "the kernels compute in fp32, and it is in fp64"
    return None


class Fused:
    """The forward pass of a stock transformers module, from its own weights. `ValueError` if it is built otherwise."""

    def __init__(self, module: Any) -> None:
        if problem := why_not(module):
            raise ValueError(f"this model cannot be fused: {problem}")
        config = module.config
        self.module = module
        self.heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.layers = []
        with torch.no_grad():
            for layer in module.model.layers:
                attention, mlp = layer.self_attn, layer.mlp
                projections = [attention.q_proj, attention.k_proj, attention.v_proj]
                self.layers.append(
                    Layer(
                        layer.input_layernorm.weight,
                        _stacked(projections, "weight"),
                        None if attention.q_proj.bias is None else _stacked(projections, "bias"),
                        attention.o_proj.weight,
                        layer.post_attention_layernorm.weight,
                        _stacked([mlp.gate_proj, mlp.up_proj], "weight"),
                        mlp.down_proj.weight,
                    )
                )

    def forward(self, batch: Batch, cache: KVCache, attend: PagedAttention) -> torch.Tensor:
        """`Model.forward`: logits [R, V] of the rows asked for, KV stored in `cache`."""
        model = self.module.model
        x = model.embed_tokens(batch.token_ids)  # [T, H], the residual stream, changed in place from here on
        cos, sin = (t[0].contiguous() for t in model.rotary_emb(x[None], batch.positions[None]))
        with torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext():
            for i, layer in enumerate(self.layers):
                qkv = F.linear(self._norm(x, layer.norm), layer.qkv, layer.qkv_bias)
                q = self._rotate(qkv, cos, sin, batch.slots, cache.keys[i], cache.values[i])
                mixed = attend(
                    q, cache.keys[i], cache.values[i], batch.block_tables, batch.seq_lens, batch.query_starts, None
                )
                x.addmm_(mixed.flatten(1), layer.out.t())
                gated = self._gate(F.linear(self._norm(x, layer.mlp_norm), layer.gate_up))
                x.addmm_(gated, layer.down.t())
            return F.linear(self._norm(x[batch.last_rows], model.norm.weight), self.module.lm_head.weight)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        out, width = torch.empty_like(x), x.shape[1]
        norm_kernel[(len(x),)](
            x, weight, out, self.module.config.rms_norm_eps, width, triton.next_power_of_2(width), num_warps=4
        )
        return out

    def _rotate(self, qkv, cos, sin, slots, keys, values) -> torch.Tensor:
        num_q, num_kv = self.heads
        q = qkv.new_empty((len(qkv), num_q, self.head_dim))
        half = self.head_dim // 2
        rotate_kernel[(len(qkv),)](
            qkv, cos, sin, slots, q, keys, values, num_q, num_kv,
            triton.next_power_of_2(num_q + 2 * num_kv), half, triton.next_power_of_2(half), num_warps=4,
        )  # fmt: skip
        return q

    def _gate(self, x: torch.Tensor) -> torch.Tensor:
        width = x.shape[1] // 2
        out = x.new_empty((len(x), width))
        chunk = min(1024, triton.next_power_of_2(width))
        gate_kernel[(len(x), triton.cdiv(width, chunk))](x, out, width, chunk, num_warps=4)
        return out


def _stacked(linears: list[Any], name: str) -> torch.Tensor:
    """The layers' parameters under one another in one tensor, of which they are views from now on."""
    parts = [getattr(linear, name) for linear in linears]
    joined = torch.cat([part.data for part in parts])
    for part, piece in zip(parts, joined.split([len(part) for part in parts]), strict=True):
        part.data = piece
    return joined
