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
    positions, products, cos and sin                 angles_kernel, once a step

With a few rows the products are few_rows.py's, and a layer six to eight launches. The kernels are launched on the
current device: to choose it each time would cost as much again.

The stacked weights take the place of the stock ones, which become views of them, so the memory stays the same and
transformers' own `generate` still runs on the module.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pagedlab.accelerate import few_rows
from pagedlab.attention import PagedAttention
from pagedlab.batch import Batch
from pagedlab.kernels.plan import overlaps
from pagedlab.kernels.runtime import on_device_of, power_of_two, tl, triton
from pagedlab.kv_cache import KVCache

ARCHITECTURES = ("qwen2", "llama")  # whose layers are just what `Fused.layered` computes


@triton.jit
def norm_kernel(x, weight, out, epsilon, WIDTH: tl.constexpr, SIZE: tl.constexpr, OVERLAP: tl.constexpr):
    """RMSNorm of one row a program: x / sqrt(mean(x²) + epsilon) * weight (Zhang, Sennrich, 2019)."""
    if OVERLAP:  # started early, to wait for the kernel ahead here; and the next may start too
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
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
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """One token a program: rotate its query and key heads (RoPE), write its keys and values into its slot.

    Element i of a head turns with element i + HALF by one angle, so both are in hand. A slot of -1 keeps nothing.
    HEADS and LANES are all heads and HALF rounded up to powers of two.
    """
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    token, DIM = tl.program_id(0).to(tl.int64), 2 * HALF
    head, i = tl.arange(0, HEADS)[:, None], tl.arange(0, LANES)[None, :]
    lane = i < HALF
    source = qkv + (token * (Q_HEADS + 2 * KV_HEADS) + head) * DIM + i
    real = (head < Q_HEADS + 2 * KV_HEADS) & lane
    a, b = tl.load(source, mask=real, other=0.0), tl.load(source + HALF, mask=real, other=0.0)
    turned = head < Q_HEADS + KV_HEADS  # values are not
    c = tl.where(turned, tl.load(cos + token * HALF + i, mask=lane, other=0.0).to(tl.float32), 1.0)
    s = tl.where(turned, tl.load(sin + token * HALF + i, mask=lane, other=0.0).to(tl.float32), 0.0)
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
def angles_kernel(positions, frequencies, cos, sin, scaling, HALF: tl.constexpr, LANES: tl.constexpr):
    """Cosines and sines of one token's angles a program."""
    token, i = tl.program_id(0).to(tl.int64), tl.arange(0, LANES)
    angle = tl.load(positions + token).to(tl.float32) * tl.load(frequencies + i, mask=i < HALF, other=0.0)
    tl.store(cos + token * HALF + i, tl.cos(angle) * scaling, mask=i < HALF)
    tl.store(sin + token * HALF + i, tl.sin(angle) * scaling, mask=i < HALF)


@triton.jit
def gate_kernel(x, out, WIDTH, CHUNK: tl.constexpr, OVERLAP: tl.constexpr):
    """silu(gate) * up of one row and chunk a program; a row of x is WIDTH gates, then WIDTH ups."""
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    gate = tl.load(x + row * 2 * WIDTH + i, mask=i < WIDTH, other=0.0)
    up = tl.load(x + row * 2 * WIDTH + WIDTH + i, mask=i < WIDTH, other=0.0)
    exact = gate.to(tl.float32)
    tl.store(out + row * WIDTH + i, (exact / (1 + tl.exp(-exact))).to(x.dtype.element_ty) * up, mask=i < WIDTH)


def early(x: Tensor) -> dict[str, bool]:
    """Options of launches: where the card lets a kernel start before the one ahead has ended, these do."""
    return {"OVERLAP": True, "launch_pdl": True} if overlaps(x.device) else {"OVERLAP": False}


def norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMSNorm of every row: x [T, H], weight [H] -> [T, H]."""
    out, width = torch.empty_like(x), x.shape[1]
    norm_kernel[(len(x),)](x, weight, out, epsilon, width, power_of_two(width), num_warps=4, **early(x))
    return out


def angles(rotary: Any, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, D / 2] in x's dtype, as transformers' module makes them, in one launch for ten."""
    half = len(rotary.inv_freq)
    if rotary.rope_type not in ("default", "linear", "llama3", "yarn"):  # frequencies that may depend on the positions
        cos, sin = (t[0, :, :half].contiguous() for t in rotary(x[None], positions[None]))
        return cos, sin
    cos, sin = x.new_empty((len(x), half)), x.new_empty((len(x), half))
    angles_kernel[(len(x),)](
        positions, rotary.inv_freq, cos, sin, rotary.attention_scaling, half, power_of_two(half), num_warps=1
    )
    return cos, sin


def rotate_and_store(qkv: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, k_cache: Tensor, v_cache: Tensor) -> Tensor:
    """Turn q and k of qkv [T, (Hq + 2 Hkv) D] by cos and sin [T, D / 2], write k and v into `slots` [T] of a layer's
    caches; q [T, Hq, D]."""
    (tokens, width), (kv_heads, head_dim) = qkv.shape, k_cache.shape[2:]
    heads, half = width // head_dim, head_dim // 2
    q = qkv.new_empty((tokens, heads - 2 * kv_heads, head_dim))
    rotate_kernel[(tokens,)](
        qkv, cos, sin, slots, q, k_cache, v_cache, q.shape[1], kv_heads,
        power_of_two(heads), half, power_of_two(half), num_warps=4, **early(qkv),
    )  # fmt: skip
    return q


def gate(x: Tensor) -> Tensor:
    """silu(gate) * up: x [T, 2 I], the gates first -> [T, I]."""
    tokens, width = len(x), x.shape[1] // 2
    out, chunk = x.new_empty((tokens, width)), min(1024, power_of_two(width))
    gate_kernel[(tokens, -(-width // chunk))](x, out, width, chunk, num_warps=4, **early(x))
    return out


class Layer(NamedTuple):
    """The weights of a decoder layer: qkv [(Hq + 2 Hkv) D, H], gate_up [2 I, H], and the others as they were."""

    norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


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
                        layer.input_layernorm.weight,
                        _stacked(projections, "weight"),
                        None if attention.q_proj.bias is None else _stacked(projections, "bias"),
                        attention.o_proj.weight,
                        layer.post_attention_layernorm.weight,
                        _stacked([mlp.gate_proj, mlp.up_proj], "weight"),
                        mlp.down_proj.weight,
                    )
                )
        some = self.layers[0]
        widest = max(weight.shape[1] for weight in (some.qkv, some.out, some.down))
        self.few = few_rows.most_rows(module.dtype, some.qkv.device, widest)

    @torch.inference_mode()  # or each projection keeps its input for a gradient
    def forward(self, batch: Batch, cache: KVCache, attend: PagedAttention) -> Tensor:
        """`Model.forward`: logits [R, V] of the rows asked for, KV stored in `cache`."""
        return self.head(self.layered(batch, cache, attend)[batch.last_rows])

    @torch.inference_mode()
    def layered(self, batch: Batch, cache: KVCache, attend: PagedAttention) -> Tensor:
        """All tokens through all layers: the residual stream [T, H] behind the last, KV stored in `cache`."""
        model = self.module.model
        x = model.embed_tokens(batch.token_ids)  # [T, H], the residual stream, changed in place from here on
        few, lone, epsilon = len(x) <= self.few, len(x) == 1 <= self.few, self.epsilon
        with on_device_of(x):
            cos, sin = angles(model.rotary_emb, x, batch.positions)
            for i, layer in enumerate(self.layers):
                keys, values = cache.keys[i], cache.values[i]
                places = cos, sin, batch.slots, keys, values
                # A lone row's norm is part of what follows.
                y, gain = (x, layer.norm) if lone else (norm(x, layer.norm, epsilon), None)
                if few:
                    q = few_rows.qkv(y, gain, epsilon, layer.qkv, layer.qkv_bias, *places)
                else:
                    q = rotate_and_store(F.linear(y, layer.qkv, layer.qkv_bias), *places)
                mixed = attend(q, keys, values, batch.block_tables, batch.seq_lens, batch.query_starts, None)
                self._add(x, mixed.flatten(1), layer.out)
                y, gain = (x, layer.mlp_norm) if lone else (norm(x, layer.mlp_norm, epsilon), None)
                inner = few_rows.gated(y, gain, epsilon, layer.gate_up) if few else gate(F.linear(y, layer.gate_up))
                self._add(x, inner, layer.down)
        return x

    def _add(self, x: Tensor, inputs: Tensor, weight: Tensor) -> None:
        """Add a product to the residual stream; with several ranks, the sum of all their products."""
        fresh = self.ranks is not None and self.ranks.rank > 0  # rank 0 has the stream in its summand
        if len(x) <= self.few:
            few_rows.add(x, inputs, weight, fresh=fresh)
        elif fresh:
            torch.mm(inputs, weight.t(), out=x)
        else:
            x.addmm_(inputs, weight.t())
        if self.ranks:
            self.ranks.all_reduce(x)

    @torch.inference_mode()
    def head(self, x: Tensor) -> Tensor:
        """Logits [R, V] of rows of the residual stream [R, H]."""
        with on_device_of(x):
            return F.linear(norm(x, self.module.model.norm.weight, self.epsilon), self.module.lm_head.weight)


def _stacked(linears: list[Any], name: str) -> Tensor:
    """The layers' parameters under one another in one tensor, of which they are views from now on."""
    parts = [getattr(linear, name) for linear in linears]
    joined = torch.cat([part.data for part in parts])
    for part, piece in zip(parts, joined.split([len(part) for part in parts]), strict=True):
        part.data = piece
    return joined
