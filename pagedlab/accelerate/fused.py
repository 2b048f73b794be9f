"""The stock model's own weights in fewer kernels: a layer of Qwen2 or Llama in seven launches in
place of forty.

At this size a decode step is hundreds of kernels of a few microseconds, and each costs about as
much to start as to run. What is joined here reads and writes the same numbers once that the stock
modules pass from kernel to kernel:

    stock                                            here
    q_proj, k_proj, v_proj                           one matrix product, their weights stacked
    split heads, rotate q and k, write k and v       rotate_kernel, straight into the blocks
    gate_proj, up_proj                               one matrix product
    silu(gate) * up                                  gate.py: a kernel behind it, or in the product's own
    o_proj and down_proj, then + residual            products that add to the residual stream in place
    RMSNorm: square, mean, rsqrt, two products       its weight in the matrix behind it, the rest in that one's kernel
    positions, products, cos and sin                 angles_kernel, once a step

RMSNorm divides a row by one number and multiplies its columns by a weight, and a product is linear
in both: so columns of the matrix take up the weight once and for all, and whoever reads the product
divides. In bf16 that is as close to the model in fp64 as the stock order of things; fp16 has no
room for what is divided so late.

With a few rows the products are few_rows.py's, and a layer six to eight launches. The kernels are
launched on the current device: to choose it each time would cost as much again.

The stacked weights take the place of the stock ones, which become views of them, and the norms'
weights become ones. So the memory stays the same and transformers' own `generate` still runs on the
module.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pagedlab.accelerate import few_rows
from pagedlab.accelerate.gate import gated
from pagedlab.accelerate.norm import early, norm, row_of, scale_of
from pagedlab.attention import PagedAttention
from pagedlab.batch import Batch
from pagedlab.interrupts import deferred_interrupts
from pagedlab.kernels.runtime import on_device_of, power_of_two, tl, triton
from pagedlab.kv_cache import KVCache

ARCHITECTURES = ("qwen2", "llama")  # whose layers are just what `Fused.layered` computes


@triton.jit
def rotate_kernel(
    product, bias, x, epsilon, cos, sin, slots, q_out, k_cache, v_cache,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, LANES: tl.constexpr,
    WIDTH: tl.constexpr, SIZE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One token a program: scale its heads and add the bias, rotate queries and keys (RoPE), write
    keys and values into its slot.

    Element i of a head turns with element i + HALF by one angle, so both are in hand. A slot of -1
    keeps nothing. HEADS and LANES are all heads and HALF rounded up to powers of two.
    """
    token, DIM = tl.program_id(0).to(tl.int64), 2 * HALF
    head, i = tl.arange(0, HEADS)[:, None], tl.arange(0, LANES)[None, :]
    lane = i < HALF
    dtype: tl.constexpr = product.dtype.element_ty
    place, real = head * DIM + i, (head < Q_HEADS + 2 * KV_HEADS) & lane
    source = product + token * (Q_HEADS + 2 * KV_HEADS) * DIM + place
    if bias is not None:
        bias_a = tl.load(bias + place, mask=real, other=0.0).to(tl.float32)
        bias_b = tl.load(bias + place + HALF, mask=real, other=0.0).to(tl.float32)
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    a, b = tl.load(source, mask=real, other=0.0), tl.load(source + HALF, mask=real, other=0.0)
    turned = head < Q_HEADS + KV_HEADS  # values are not
    c = tl.where(turned, tl.load(cos + token * HALF + i, mask=lane, other=0.0).to(tl.float32), 1.0)
    s = tl.where(turned, tl.load(sin + token * HALF + i, mask=lane, other=0.0).to(tl.float32), 0.0)
    slot = tl.load(slots + token).to(tl.int64)
    tl.debug_barrier()  # or the compiler puts these loads behind the sum, to wait once more
    scale = scale_of(row_of(x, token, WIDTH, SIZE), epsilon, WIDTH)
    a, b = a.to(tl.float32) * scale, b.to(tl.float32) * scale
    if bias is not None:
        a += bias_a
        b += bias_b
    first, second = (a * c - b * s).to(dtype), (b * c + a * s).to(dtype)
    is_query = (head < Q_HEADS) & lane
    q = q_out + (token * Q_HEADS + head) * DIM + i
    tl.store(q, first, mask=is_query)
    tl.store(q + HALF, second, mask=is_query)
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
def angles_kernel(
    positions, frequencies, cos, sin, scaling, HALF: tl.constexpr, LANES: tl.constexpr
):
    """Cosines and sines of one token's angles a program."""
    token, i = tl.program_id(0).to(tl.int64), tl.arange(0, LANES)
    angle = tl.load(positions + token).to(tl.float32) * tl.load(
        frequencies + i, mask=i < HALF, other=0.0
    )
    tl.store(cos + token * HALF + i, tl.cos(angle) * scaling, mask=i < HALF)
    tl.store(sin + token * HALF + i, tl.sin(angle) * scaling, mask=i < HALF)


def angles(rotary: Any, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, D / 2] in x's dtype, as transformers' module makes them, in one launch
    for ten.
    """
    half = len(rotary.inv_freq)
    if rotary.rope_type not in (
        "default",
        "linear",
        "llama3",
        "yarn",
    ):  # frequencies that may depend on the positions
        cos, sin = (t[0, :, :half].contiguous() for t in rotary(x[None], positions[None]))
        return cos, sin
    cos, sin = x.new_empty((len(x), half)), x.new_empty((len(x), half))
    angles_kernel[(len(x),)](
        positions,
        rotary.inv_freq,
        cos,
        sin,
        rotary.attention_scaling,
        half,
        power_of_two(half),
        num_warps=1,
    )
    return cos, sin


def qkv(
    x: Tensor, epsilon: float, weight: Tensor, bias: Tensor | None,
    cos: Tensor, sin: Tensor, slots: Tensor, k_cache: Tensor, v_cache: Tensor,
) -> Tensor:  # fmt: skip
    """`few_rows.qkv` for any number of rows: queries [T, Hq, D] of x [T, H]; keys and values go
    into `slots` [T].
    """
    tokens, (kv_heads, head_dim), width = len(x), k_cache.shape[2:], x.shape[1]
    heads, half = len(weight) // head_dim, head_dim // 2
    q = x.new_empty((tokens, heads - 2 * kv_heads, head_dim))
    rotate_kernel[(tokens,)](
        F.linear(x, weight), bias, x, epsilon, cos, sin, slots, q, k_cache, v_cache, q.shape[1], kv_heads,
        power_of_two(heads), half, power_of_two(half), width, power_of_two(width), num_warps=4, **early(x),
    )  # fmt: skip
    return q


class Layer(NamedTuple):
    """The weights of a decoder layer: qkv [(Hq + 2 Hkv) D, H] and gate_up [2 I, H], with those of
    the norms ahead of them, and the others as they were.
    """

    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    gate_up: Tensor
    down: Tensor


def why_not(module: Any) -> str | None:
    """What keeps this transformers module from being fused; None if nothing does."""
    config, some = module.config, module.model.layers[0]
    if config.model_type not in ARCHITECTURES:
        return (
            f"its layers are {config.model_type}'s, and {' or '.join(ARCHITECTURES)} is what is "
            "known here"
        )
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    if some.self_attn.o_proj.bias is not None or some.mlp.down_proj.bias is not None:
        return "its output projections have a bias"
    if module.dtype == torch.float64:
        return "the kernels compute in fp32, and it is in fp64"
    return None


class Fused:
    """The forward pass of a stock transformers module, from its own weights.

    `ValueError` if it is built otherwise.
    """

    def __init__(self, module: Any, ranks: Any = None) -> None:
        """ranks: distributed's, if this is one's part of the module."""
        if problem := why_not(module):
            raise ValueError(f"this model cannot be fused: {problem}")
        self.module, self.epsilon, self.ranks = module, module.config.rms_norm_eps, ranks
        self.layers = []
        with torch.no_grad():
            for layer in module.model.layers:
                attention, mlp = layer.self_attn, layer.mlp
                projections = [attention.q_proj, attention.k_proj, attention.v_proj]
                self.layers.append(
                    Layer(
                        _stacked(projections, "weight", layer.input_layernorm.weight),
                        None if attention.q_proj.bias is None else _stacked(projections, "bias"),
                        attention.o_proj.weight,
                        _stacked(
                            [mlp.gate_proj, mlp.up_proj],
                            "weight",
                            layer.post_attention_layernorm.weight,
                        ),
                        mlp.down_proj.weight,
                    )
                )
        some, roles = self.layers[0], {"qkv": "qkv", "out": "add", "gate_up": "gate", "down": "add"}
        self.few = {
            name: few_rows.most_rows(role, getattr(some, name)) for name, role in roles.items()
        }

    @torch.inference_mode()  # or each projection keeps its input for a gradient
    def forward(self, batch: Batch, cache: KVCache, attend: PagedAttention) -> Tensor:
        """`Model.forward`: logits [R, V] of the rows asked for, KV stored in `cache`."""
        x = self.layered(batch, cache, attend)
        return self.head(x, batch.last_rows if len(x) == len(batch.token_ids) else None)

    @torch.inference_mode()
    def layered(
        self, batch: Batch, cache: KVCache, attend: PagedAttention, every: bool = False
    ) -> Tensor:
        """All tokens through all layers, KV stored in `cache`: the residual stream behind the last,
        [T, H].

        Where fewer rows are asked for than there are tokens, the last layer stores KV of all but
        goes on with those rows alone, [R, H]: nobody would read the others. With `every` all come
        back.
        """
        model = self.module.model
        # [T, H], the residual stream, changed in place from here on
        x = model.embed_tokens(batch.token_ids)
        seen = batch.block_tables, batch.seq_lens, batch.query_starts
        project = few_rows.qkv if len(x) <= self.few["qkv"] else qkv
        with on_device_of(x):
            cos, sin = angles(model.rotary_emb, x, batch.positions)
            for i, layer in enumerate(self.layers):
                keys, values = cache.keys[i], cache.values[i]
                q = project(
                    x, self.epsilon, layer.qkv, layer.qkv_bias, cos, sin, batch.slots, keys, values
                )
                if layer is self.layers[-1] and not every and len(batch.last_rows) < len(x):
                    x, q, seen = x[batch.last_rows], q[batch.last_rows], _alone(batch)
                self._add(
                    x, attend(q, keys, values, *seen, None).flatten(1), layer.out, self.few["out"]
                )
                gate = few_rows.gated if len(x) <= self.few["gate_up"] else gated
                self._add(x, gate(x, self.epsilon, layer.gate_up), layer.down, self.few["down"])
        return x

    def _add(self, x: Tensor, inputs: Tensor, weight: Tensor, few: int) -> None:
        """Add a product to the residual stream; with several ranks, the sum of all their
        products.
        """
        # rank 0 has the stream in its summand
        fresh = self.ranks is not None and self.ranks.rank > 0
        if len(x) <= few:
            few_rows.add(x, inputs, weight, fresh=fresh)
        elif fresh:
            torch.mm(inputs, weight.t(), out=x)
        else:
            x.addmm_(inputs, weight.t())
        if self.ranks:
            self.ranks.all_reduce(x)

    @torch.inference_mode()
    def head(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Logits [R, V] of some rows [R] of the residual stream [T, H], or of all."""
        with on_device_of(x):
            return F.linear(
                norm(x, self.module.model.norm.weight, self.epsilon, rows),
                self.module.lm_head.weight,
            )


def _alone(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Block tables, lengths and starts of the rows asked for, as if each were a sequence of one new
    token.
    """
    rows = batch.last_rows
    whose = torch.searchsorted(batch.query_starts[:-1], rows.int(), right=True) - 1
    lengths = (batch.positions[rows] + 1).int()
    return (
        batch.block_tables[whose],
        lengths,
        torch.arange(len(rows) + 1, dtype=torch.int32, device=rows.device),
    )


def _stacked(linears: list[Any], name: str, gain: Tensor | None = None) -> Tensor:
    """The layers' parameters under one another in one tensor, of which they are views from now on.

    Args:
        gain: of the norm that all of them read; their columns take it up, and it becomes ones.
    """
    parts = [getattr(linear, name) for linear in linears]
    joined = torch.cat([part.data for part in parts])
    if gain is not None:
        joined *= gain.data
    with (
        deferred_interrupts()
    ):  # an interrupt in between would leave a module that computes something else
        if gain is not None:
            gain.data.fill_(1)
        for part, piece in zip(parts, joined.split([len(part) for part in parts]), strict=True):
            part.data = piece
    return joined
