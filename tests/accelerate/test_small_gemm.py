"""Products of a few rows against the stock module, in fp32: one row by itself, up to sixteen as on tensor cores.

In Triton's interpreter, or compiled where there is a GPU. Slots that nobody wrote are NaN, and so is what lies behind
every tensor that a kernel reads.
"""

import random
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

pytest.importorskip("triton")

from pagedlab.attention import get_backend
from pagedlab.batch import build_batch
from pagedlab.blocks import BlockPool
from pagedlab.kernels.runtime import INTERPRETED
from pagedlab.model import Model, paged_hook
from pagedlab.scheduler import Chunk
from pagedlab_fast import small_gemm
from pagedlab_fast.fused import Fused, can_fuse
from support.engines import poison, sequence_of

DEVICE = "cpu" if INTERPRETED else "cuda"
SEVEN, WIDE = (14, 2, 64), (3, 3, 128)  # query heads, KV heads, and the size of one
BLOCK_SIZE, HALF = 8, torch.float16 if INTERPRETED else torch.bfloat16  # which NumPy does not have


def model_of(heads, *, bias, seed):
    """Two layers with random weights, as stock modules: Qwen2's have a bias, Llama's none."""
    q_heads, kv_heads, dim = heads
    config = Qwen2Config if bias else LlamaConfig
    torch.manual_seed(seed)
    module = (Qwen2ForCausalLM if bias else LlamaForCausalLM)(
        config(
            vocab_size=61,
            hidden_size=84,
            intermediate_size=104,
            num_hidden_layers=2,
            num_attention_heads=q_heads,
            num_key_value_heads=kv_heads,
            head_dim=dim,
            max_position_embeddings=64,
            initializer_range=0.2,
        )
    )
    for name, parameter in module.named_parameters():
        if "norm" in name or "bias" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    AttentionInterface.register("pagedlab", paged_hook)
    module.set_attn_implementation("pagedlab")
    return Model(module.to(DEVICE).eval(), None, "random")


def behind(tensor):
    """The same numbers, with NaN before and behind them in memory."""
    memory = tensor.new_full((tensor.numel() + 2048,), torch.nan)
    return memory[1024:-1024].view(tensor.shape).copy_(tensor)


def decodes(model, rows, padding, seed):
    """A step of `rows` texts of several lengths, and rows that are nobody's: what was stored before, and the step."""
    rng, pool, cache = random.Random(seed), BlockPool(4 * rows, BLOCK_SIZE), model.kv_cache(4 * rows, BLOCK_SIZE)
    poison(cache)
    past, new = [], []
    for i in range(rows):
        text = sequence_of(pool, rng.choices(range(model.vocab_size), k=rng.randint(2, 3 * BLOCK_SIZE)), i)
        end = len(text.token_ids)
        text.table.append(end)
        past.append(Chunk(text, 0, end - 1))
        new.append(Chunk(text, end - 1, end))
    model.forward(build_batch(past, model.device), cache, get_backend("torch"))
    batch = build_batch(new, model.device)
    padded = {name: F.pad(getattr(batch, name), (0, padding)) for name in ("token_ids", "positions", "seq_lens")}
    starts = torch.arange(rows + padding + 1, device=DEVICE)
    padded |= {"query_starts": starts.int(), "last_rows": starts[:-1]}
    slots, tables = F.pad(batch.slots, (0, padding), value=-1), F.pad(batch.block_tables, (0, 0, 0, padding))
    return cache, replace(batch, slots=slots, block_tables=tables, **padded)


def take_the_general_path(fused):
    """Turn the small products off."""
    fused.max_qkv = fused.max_out = fused.max_gate_up = fused.max_down = 0


@pytest.mark.parametrize(
    ("rows", "padding", "heads", "kind"),
    [
        (1, 0, SEVEN, "Qwen2"),
        (1, 0, WIDE, "Llama"),
        (3, 2, SEVEN, "Llama"),
        (16, 0, SEVEN, "Qwen2"),
        (17, 0, WIDE, "Llama"),
        (35, 2, SEVEN, "Qwen2"),
    ],
)
def test_a_step_is_the_stock_modules(rows, padding, heads, kind, seed, monkeypatch):
    model, attend = model_of(heads, bias=kind == "Qwen2", seed=seed), get_backend("triton")
    theirs, batch = decodes(model, rows, 0, seed)
    expected = model.forward(batch, theirs, attend)
    fused = Fused(model.module)
    fused.layers = [type(layer)(*(t if t is None else behind(t.data) for t in layer)) for layer in fused.layers]
    if rows > 2 * small_gemm.TILE_ROWS:
        take_the_general_path(fused)
    embed = model.module.model.embed_tokens.weight.data
    monkeypatch.setattr(model.module.model.embed_tokens, "forward", lambda ids: behind(embed[ids]))
    ours, batch = decodes(model, rows, padding, seed)
    got = fused.forward(batch, ours, lambda *args: behind(attend(*args)))[:rows]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    for mine, stock in ((ours.keys, theirs.keys), (ours.values, theirs.values)):
        torch.testing.assert_close(mine, stock, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("rows", [1, 16, 17])
def test_half_precision_is_as_close_to_the_truth_as_on_the_general_path(rows, seed):
    model, attend = model_of(SEVEN, bias=True, seed=seed), get_backend("triton")
    for parameter in model.module.parameters():
        parameter.data = parameter.data.to(HALF)
    exact = Model(deepcopy(model.module).float(), None, "the same numbers in fp32")
    cache, batch = decodes(model, rows, 0, seed)
    exact_cache = exact.kv_cache(4 * rows, BLOCK_SIZE)
    exact_cache.keys.copy_(cache.keys)
    exact_cache.values.copy_(cache.values)
    truth = exact.forward(batch, exact_cache, attend)
    fused, errors = Fused(model.module), []
    limits = [fused.max_qkv, fused.max_out, fused.max_gate_up, fused.max_down]
    assert limits == [small_gemm.MAX_ROWS[role] for role in ("qkv", "add", "gate", "add")]
    for _ in ("small products", "the general path"):
        errors.append((fused.forward(batch, cache, attend) - truth).norm())
        take_the_general_path(fused)
    assert errors[0] <= 2 * errors[1]


def test_a_row_is_the_same_whoever_is_beside_it(seed):
    torch.manual_seed(seed)
    x, weight, out = torch.randn(16, 96), torch.randn(80, 96), torch.randn(16, 80)
    kind = torch.float32 if INTERPRETED else torch.bfloat16  # to the last bit on tensor cores: NumPy's sums may differ
    x, weight, out = (tensor.to(DEVICE, kind) for tensor in (x, weight, out))
    together, tolerance = out.clone(), 1e-5 if INTERPRETED else 0
    small_gemm.add(together, x, weight)
    for first, rows in ((3, 2), (9, 5)):
        some = out[first : first + rows].clone()
        small_gemm.add(some, behind(x[first : first + rows]), weight)
        torch.testing.assert_close(some, together[first : first + rows], rtol=tolerance, atol=tolerance)
    fresh = behind(out[:5])
    small_gemm.add(fresh, x[:5], weight, overwrite=True)
    near = 1e-4 if INTERPRETED else 2**-6
    torch.testing.assert_close(fresh.float(), x[:5].float() @ weight.float().t(), rtol=near, atol=near)


def rotated(scaling):
    """A small Llama whose positions are scaled in this way."""
    rope = {"rope_type": scaling, "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
    rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=40,
        num_attention_heads=2,
        num_hidden_layers=1,
        intermediate_size=8,
        max_position_embeddings=64,
        rope_parameters=rope,
    )
    return LlamaForCausalLM(config).to(DEVICE)


@pytest.mark.parametrize("scaling", ["default", "linear", "llama3", "yarn"])
def test_angles_are_the_stock_modules(scaling):
    module = rotated(scaling)
    fused = Fused(module)
    positions, x = torch.arange(65, device=DEVICE), torch.zeros(5, 1, device=DEVICE)
    for mine, whole in zip((fused.cos, fused.sin), module.model.rotary_emb(x[None], positions[None]), strict=True):
        assert mine.is_contiguous()
        torch.testing.assert_close(mine, whole[0, :, :10], rtol=1e-6, atol=1e-6)
    assert not can_fuse(rotated("dynamic"))
