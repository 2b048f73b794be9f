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

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F

from pagedlab.batch import Batch
from pagedlab.kernels.layers import gate, norm, rotate_and_store
from pagedlab.kernels.runtime import on_device_of
from pagedlab.kv_cache import KVCache

if TYPE_CHECKING:
    from pagedlab.attention import PagedAttention

ARCHITECTURES = ("qwen2", "llama")  # whose layers are just what `Fused.forward` computes


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
        self.module, self.epsilon = module, module.config.rms_norm_eps
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
        with on_device_of(x):
            for i, layer in enumerate(self.layers):
                qkv = F.linear(norm(x, layer.norm, self.epsilon), layer.qkv, layer.qkv_bias)
                q = rotate_and_store(qkv, cos, sin, batch.slots, cache.keys[i], cache.values[i])
                mixed = attend(
                    q, cache.keys[i], cache.values[i], batch.block_tables, batch.seq_lens, batch.query_starts, None
                )
                x.addmm_(mixed.flatten(1), layer.out.t())
                x.addmm_(gate(F.linear(norm(x, layer.mlp_norm, self.epsilon), layer.gate_up)), layer.down.t())
            return F.linear(norm(x[batch.last_rows], model.norm.weight, self.epsilon), self.module.lm_head.weight)


def _stacked(linears: list[Any], name: str) -> torch.Tensor:
    """The layers' parameters under one another in one tensor, of which they are views from now on."""
    parts = [getattr(linear, name) for linear in linears]
    joined = torch.cat([part.data for part in parts])
    for part, piece in zip(parts, joined.split([len(part) for part in parts]), strict=True):
        part.data = piece
    return joined
