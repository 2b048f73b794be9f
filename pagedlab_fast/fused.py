"""The stock model's own weights in fewer kernels: a layer of Qwen2 or Llama in seven launches in
place of forty.

At this size a decode step is hundreds of kernels of a few microseconds, and each costs about as
much to start as to run. The joined kernels read and write the same numbers once that the stock
modules pass from kernel to kernel:

    stock                                   here
    q_proj, k_proj, v_proj                  one matrix product, their weights stacked
    split heads, rotate, write KV           rotate_kernel, straight into the blocks
    gate_proj, up_proj                      one matrix product
    silu(gate) * up                         swiglu.py: a kernel after the product, or in its kernel
    o_proj, down_proj, then + residual      products that add to the residual stream in place
    RMSNorm: square, mean, rsqrt, products  its weight in the next matrix, the rest in its kernel
    positions, products, cos and sin        a table of all positions, once and for all

RMSNorm divides a row by one number and multiplies its columns by a weight, and a product is linear
in both. So the columns of the matrix take the weight, once, and the kernel that reads the product
divides. In bf16 that is as close to the model in fp64 as the stock order; fp16 has no room for what
is divided so late.

With a few rows the products are those of small_gemm.py, and a layer is six to eight launches. The
kernels are launched on the current device: to choose it each time would cost as much again.

The stacked weights take the place of the stock ones, which become views of them, and the norms'
weights become ones. So the memory stays the same, and transformers' own `generate` still runs on
the module. A second engine on the same module shares what the first has stacked.
"""

from itertools import repeat
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from pagedlab.attention import PagedAttention
from pagedlab.batch import Batch
from pagedlab.kernels.runtime import on_device_of, power_of_two, tl, triton
from pagedlab.kv_cache import KVCache
from pagedlab_fast import small_gemm
from pagedlab_fast.norm import norm, overlap, overlap_options, row_of, scale_of
from pagedlab_fast.small_gemm import KVTarget, store_heads
from pagedlab_fast.swiglu import swiglu

ARCHITECTURES = ("qwen2", "llama")
# frequencies that do not depend on the positions
STATIC_ROPE = ("default", "linear", "llama3", "yarn")


@triton.jit
def rotate_kernel(
    product, bias,                               # [T, (Hq + 2 Hkv) D]; as many, or None
    x, epsilon,                                  # [T, WIDTH], before the norm
    cos, sin, slots,                             # [T, HALF] twice; [T]
    q_out,                                       # [T, Hq, D]
    k_cache, v_cache,                            # [num_blocks, block_size, Hkv, D]
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    HEADS: tl.constexpr,                         # all heads, rounded up to a power of two
    HALF: tl.constexpr, LANES: tl.constexpr,     # D / 2; rounded up to a power of two
    WIDTH: tl.constexpr, SIZE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One token a program: scale its heads and add the bias, rotate queries and keys (RoPE), write
    keys and values into its slot.

    Elements i and i + HALF of a head are rotated together, by one angle. A slot of -1 stores
    nothing.
    """
    token = tl.program_id(0).to(tl.int64)
    DIM = 2 * HALF
    head = tl.arange(0, HEADS)[:, None]
    i = tl.arange(0, LANES)[None, :]
    lane = i < HALF
    place = head * DIM + i
    real = (head < Q_HEADS + 2 * KV_HEADS) & lane
    source = product + token * (Q_HEADS + 2 * KV_HEADS) * DIM + place
    if bias is not None:
        bias_a = tl.load(bias + place, mask=real, other=0.0).to(tl.float32)
        bias_b = tl.load(bias + place + HALF, mask=real, other=0.0).to(tl.float32)
    overlap(OVERLAP)
    a = tl.load(source, mask=real, other=0.0)
    b = tl.load(source + HALF, mask=real, other=0.0)
    turned = head < Q_HEADS + KV_HEADS  # values are not
    c = tl.where(turned, tl.load(cos + token * HALF + i, mask=lane, other=0.0).to(tl.float32), 1.0)
    s = tl.where(turned, tl.load(sin + token * HALF + i, mask=lane, other=0.0).to(tl.float32), 0.0)
    slot = tl.load(slots + token).to(tl.int64)
    tl.debug_barrier()  # or the compiler moves these loads after the sum, and waits once more
    scale = scale_of(row_of(x, token, WIDTH, SIZE), epsilon, WIDTH)
    a = a.to(tl.float32) * scale
    b = b.to(tl.float32) * scale
    if bias is not None:
        a += bias_a
        b += bias_b
    store_heads(
        a * c - b * s, b * c + a * s, q_out, k_cache, v_cache, token, slot, head, i, real,
        Q_HEADS, KV_HEADS, HALF,
    )  # fmt: skip


def qkv(x: Tensor, epsilon: float, weight: Tensor, bias: Tensor | None, target: KVTarget) -> Tensor:
    """`small_gemm.qkv` for any number of rows: queries [T, Hq, D] of x [T, H]."""
    tokens, width = x.shape
    kv_heads, head_dim = target.k_cache.shape[2:]
    heads = len(weight) // head_dim
    q_heads = heads - 2 * kv_heads
    half = head_dim // 2
    q = x.new_empty((tokens, q_heads, head_dim))
    product = F.linear(x, weight)
    rotate_kernel[(tokens,)](
        product, bias, x, epsilon, target.cos, target.sin, target.slots,
        q, target.k_cache, target.v_cache,
        q_heads, kv_heads, power_of_two(heads), half, power_of_two(half),
        width, power_of_two(width), num_warps=4, **overlap_options(x),
    )  # fmt: skip
    return q


class Layer(NamedTuple):
    """The weights of a decoder layer.

    Args:
        qkv: [(Hq + 2 Hkv) D, H], with the weight of the norm before it.
        qkv_bias: [(Hq + 2 Hkv) D], or None.
        out: [H, Hq D].
        gate_up: [2 I, H], gates first, with the weight of the norm before it.
        down: [H, I].
    """

    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    gate_up: Tensor
    down: Tensor


# Of modules whose weights are stacked. Another engine on such a module shares them.
_layers = WeakKeyDictionary[Any, list[Layer]]()


def can_fuse(module: Any) -> bool:
    """Whether the layers of a transformers module are just what `Fused.hidden_states` computes."""
    config = module.config
    layer = module.model.layers[0]
    has_biases = layer.self_attn.o_proj.bias is not None or layer.mlp.down_proj.bias is not None
    is_known = config.model_type in ARCHITECTURES and config.hidden_act == "silu"
    is_static = module.model.rotary_emb.rope_type in STATIC_ROPE
    return is_known and is_static and not has_biases and module.dtype != torch.float64


class Fused:
    """The forward pass of a stock transformers module, from its own weights.

    Args:
        module: of transformers, or this rank's part of it.
        ranks: this process among the ranks that share the model; None if it runs alone.

    Raises:
        ValueError: If the module is built otherwise.
    """

    def __init__(self, module: Any, ranks: Any = None) -> None:
        if not can_fuse(module):
            raise ValueError(
                f"this {module.config.model_type} cannot be fused: that takes layers of "
                f"{' or '.join(ARCHITECTURES)} with silu and static RoPE, no biases but those of "
                "queries, keys and values, and at most fp32"
            )
        self.module = module
        self.epsilon = module.config.rms_norm_eps
        self.ranks = ranks
        self.layers = _layers_of(module)
        self.cos, self.sin = _angles_of(module)
        first = self.layers[0]
        # Rows up to which each product of a layer is one of small_gemm.py.
        self.max_qkv = small_gemm.max_rows("qkv", first.qkv)
        self.max_out = small_gemm.max_rows("add", first.out)
        self.max_gate_up = small_gemm.max_rows("gate", first.gate_up)
        self.max_down = small_gemm.max_rows("add", first.down)

    @torch.inference_mode()  # or each projection keeps its input for a gradient
    def forward(self, batch: Batch, cache: KVCache, attend: PagedAttention) -> Tensor:
        """`Model.forward`: logits [R, V] of the rows asked for, KV stored in `cache`."""
        x = self.hidden_states(batch, cache, attend)
        is_selected = len(x) != len(batch.token_ids)
        return self.logits(x, None if is_selected else batch.last_rows)

    @torch.inference_mode()
    def hidden_states(
        self, batch: Batch, cache: KVCache, attend: PagedAttention, all_rows: bool = False
    ) -> Tensor:
        """Run all tokens through all layers, and store KV in `cache`.

        Where logits of fewer rows than there are tokens are wanted, the last layer stores KV of all
        tokens and goes on with those rows alone: the others are read by nobody.

        Args:
            batch: the tokens.
            cache: where keys and values are.
            attend: the attention function.
            all_rows: go on with all tokens.

        Returns:
            The residual stream after the last layer, [T, H] or [R, H].
        """
        model = self.module.model
        # [T, H], the residual stream, changed in place from here on
        x = model.embed_tokens(batch.token_ids)
        seen = batch.block_tables, batch.seq_lens, batch.query_starts
        project = small_gemm.qkv if len(x) <= self.max_qkv else qkv
        with on_device_of(x):
            cos = self.cos[batch.positions]
            sin = self.sin[batch.positions]
            for i, layer in enumerate(self.layers):
                target = KVTarget(cos, sin, batch.slots, cache.keys[i], cache.values[i])
                q = project(x, self.epsilon, layer.qkv, layer.qkv_bias, target)
                is_last = layer is self.layers[-1]
                if is_last and not all_rows and len(batch.last_rows) < len(x):
                    x = x[batch.last_rows]
                    q = q[batch.last_rows]
                    seen = _as_sequences(batch)
                attended = attend(q, target.k_cache, target.v_cache, *seen, None).flatten(1)
                self._add(x, attended, layer.out, self.max_out)
                is_small = len(x) <= self.max_gate_up
                activate = small_gemm.swiglu if is_small else swiglu
                inner = activate(x, self.epsilon, layer.gate_up)
                self._add(x, inner, layer.down, self.max_down)
        return x

    def _add(self, x: Tensor, inputs: Tensor, weight: Tensor, max_rows: int) -> None:
        """Add a product to the residual stream; with several ranks, the sum of all their products.

        The sum counts the stream once: rank 0 adds to it, and the others overwrite theirs.
        """
        overwrite = self.ranks is not None and self.ranks.rank > 0
        if len(x) <= max_rows:
            small_gemm.add(x, inputs, weight, overwrite=overwrite)
        elif overwrite:
            torch.mm(inputs, weight.t(), out=x)
        else:
            x.addmm_(inputs, weight.t())
        if self.ranks:
            self.ranks.all_reduce(x)

    @torch.inference_mode()
    def logits(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        """Logits [R, V] of some rows [R] of the residual stream [T, H], or of all."""
        with on_device_of(x):
            normed = norm(x, self.module.model.norm.weight, self.epsilon, rows)
            return F.linear(normed, self.module.lm_head.weight)


def _as_sequences(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Block tables, lengths and starts of the rows asked for, as if each were a sequence of one new
    token.
    """
    rows = batch.last_rows
    sequences = torch.searchsorted(batch.query_starts[:-1], rows.int(), right=True) - 1
    seq_lens = (batch.positions[rows] + 1).int()
    query_starts = torch.arange(len(rows) + 1, dtype=torch.int32, device=rows.device)
    return batch.block_tables[sequences], seq_lens, query_starts


@torch.no_grad()
def _layers_of(module: Any) -> list[Layer]:
    """The stacked weights of a transformers module. They are stacked once."""
    layers = _layers.get(module)
    first = module.model.layers[0].self_attn.q_proj.weight
    if layers is None or layers[0].qkv.data_ptr() != first.data_ptr():  # it was moved since
        layers = _layers[module] = [_joined(layer) for layer in module.model.layers]
        # Torch's allocator still holds the separate weights' memory, and CUDA graphs need some that
        # it does not hold.
        torch.cuda.empty_cache()
    return layers


@torch.no_grad()
def _angles_of(module: Any) -> tuple[Tensor, Tensor]:
    """Cosines and sines of each position's angles (RoPE), [positions, D / 2] each."""
    rotary = module.model.rotary_emb
    # A row that has stopped may be one position further.
    positions = torch.arange(module.config.max_position_embeddings + 1, device=module.device)
    cos, sin = rotary(module.lm_head.weight, positions[None])
    half = len(rotary.inv_freq)
    return cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous()


def _joined(layer: Any) -> Layer:
    """A transformers layer's weights, stacked."""
    attention = layer.self_attn
    mlp = layer.mlp
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    biases = [each.bias for each in projections]
    gate_up = [mlp.gate_proj.weight, mlp.up_proj.weight]
    return Layer(
        qkv=_stacked([each.weight for each in projections], layer.input_layernorm.weight),
        qkv_bias=None if biases[0] is None else _stacked(biases),
        out=attention.o_proj.weight,
        gate_up=_stacked(gate_up, layer.post_attention_layernorm.weight),
        down=mlp.down_proj.weight,
    )


def _stacked(parts: list[Tensor], gain: Tensor | None = None) -> Tensor:
    """Stack parameters of several linear layers in one tensor, and make them views of it.

    Args:
        parts: the parameters.
        gain: weight of the norm that all of them read. Their columns take it, and it becomes ones.
    """
    stacked = torch.cat([part.data for part in parts])
    if gain is not None:
        stacked *= gain.data
    views = list(stacked.split([len(part) for part in parts]))
    if gain is not None:
        parts = [*parts, gain]
        views.append(torch.ones_like(gain.data))
    # One call, so that no interrupt leaves a module that computes something else.
    list(map(setattr, parts, repeat("data"), views))
    return stacked
