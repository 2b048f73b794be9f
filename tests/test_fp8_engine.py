"""Engines with kv_cache_dtype="fp8": the tokens of a plain forward pass that rounds keys and values, whatever happens.

Values and scales of unwritten slots are NaN, so a block that loses its scales on the way shows.
"""

from importlib.util import find_spec

import pytest
import torch
from transformers import AttentionInterface

from pagedlab import LLM, KVCache
from pagedlab.attention import BACKENDS, kv_dtype_for
from pagedlab.fp8 import FP8, dequantise, quantise
from pagedlab.model import TINY_MODEL, load_model
from pagedlab.speculative import DraftModel, PromptLookup
from support.engines import NEW, all_ids_of, assert_idle, engine, exactly, ids_of, prompt_of, prompts_of
from support.refused import refused

LENGTHS = [3, 17, 31, 40]


def rounded(vectors):
    return dequantise(quantise(vectors), vectors.dtype)


def rounding_attention(module, q, k, v, mask, scaling=None, **_):
    """Causal attention [1, T, Hq, D] of transformers' q [1, Hq, T, D], whose keys and values are rounded to FP8."""
    options = {"scale": scaling, "is_causal": True, "enable_gqa": True}
    out = torch.nn.functional.scaled_dot_product_attention(q, rounded(k), rounded(v), **options)
    return out.transpose(1, 2), None


AttentionInterface.register("rounding", rounding_attention)


@pytest.fixture(scope="module")
def plain_ids(tiny):
    """`plain_ids(prompt, n)`: n greedy tokens, each from all tokens before it, without a cache."""
    known = {}

    def ids_after(prompt, num_tokens):
        ids = known.setdefault(tuple(prompt), list(prompt))
        used = tiny.module.config._attn_implementation
        tiny.module.set_attn_implementation("rounding")
        try:
            while len(ids) < len(prompt) + num_tokens:
                with torch.inference_mode():
                    logits = tiny.module(input_ids=torch.tensor([ids]), use_cache=False).logits
                ids.append(int(logits[0, -1].argmax()))
        finally:
            tiny.module.set_attn_implementation(used)
        return ids[len(prompt) : len(prompt) + num_tokens]

    return ids_after


@pytest.fixture
def rounding_engine(tiny, monkeypatch):
    """Makes engines in fp32 that round keys and values when they are written."""
    write = KVCache.write

    def engine_of(**options):
        llm = engine(tiny, **options)
        monkeypatch.setattr(
            llm.cache, "write", lambda layer, k, v, s: write(llm.cache, layer, rounded(k), rounded(v), s)
        )
        return llm

    return engine_of


def fp8_engine(model, **options):
    return engine(model, kv_cache_dtype="fp8", **options)


def expected(plain_ids, prompts, num_tokens=NEW):
    return [plain_ids(prompt, num_tokens) for prompt in prompts]


def test_tokens_are_those_of_a_plain_pass_that_rounds(tiny, plain_ids):
    prompts = prompts_of(tiny, LENGTHS)
    llm = fp8_engine(tiny)
    found = ids_of(llm.generate(prompts, exactly(NEW)))
    assert found == expected(plain_ids, prompts)
    assert found != ids_of(engine(tiny).generate(prompts, exactly(NEW))), "these prompts do not show the rounding"
    assert_idle(llm)


BACKEND_NAMES = [name for name in BACKENDS if name != "torch"] + ["triton"] * (find_spec("triton") is not None)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize(
    ("options", "new"),
    [
        ({"block_size": 1}, NEW),
        ({"block_size": 5}, NEW),
        # A token's numbers depend on no later token, so the cut of a prompt into steps changes nothing.
        ({"max_batch_tokens": 7}, 8),
        *(({"attention_backend": name}, 2) for name in BACKEND_NAMES),
        ({"num_blocks": 8, "preemption": "recompute", "prefix_caching": False}, NEW),
        ({"num_blocks": 8, "preemption": "swap", "prefix_caching": False}, NEW),
        ({"speculative": PromptLookup(k=4)}, NEW),
    ],
    ids=lambda value: str(value).partition(" object at ")[0],  # an address differs between processes
)
def test_the_same_tokens_however_the_engine_works(tiny, plain_ids, options, new):
    prompts = prompts_of(tiny, LENGTHS)
    llm = fp8_engine(tiny, **options)
    assert ids_of(llm.generate(prompts, exactly(new))) == expected(plain_ids, prompts, new)
    assert (llm.stats.preemptions > 0) == ("preemption" in options)
    assert_idle(llm)


def test_a_fork_copies_the_scales_of_its_last_block(tiny, plain_ids):
    prompts = prompts_of(tiny, LENGTHS)
    llm = fp8_engine(tiny)
    found = all_ids_of(llm.generate(prompts, exactly(8, n=3, temperature=1e-4)))
    assert found == [[ids] * 3 for ids in expected(plain_ids, prompts, 8)]
    assert_idle(llm)


def test_cached_blocks_keep_their_scales(tiny, plain_ids):
    prompt = prompt_of(tiny, 64)
    llm = fp8_engine(tiny)
    for _ in range(2):
        before = llm.stats.cached_tokens
        assert ids_of(llm.generate([prompt], exactly(8))) == expected(plain_ids, [prompt], 8)
    assert llm.stats.cached_tokens - before >= 48


@pytest.mark.parametrize("options", [{"beam_width": 3}, {"temperature": 1.0, "n": 3, "seed": 5}, {"logprobs": 2}])
def test_beams_samples_and_logprobs(tiny, rounding_engine, options):
    prompts = prompts_of(tiny, LENGTHS)
    params = exactly(12, **options)
    found = fp8_engine(tiny, num_blocks=40).generate(prompts, params)
    wanted = rounding_engine(num_blocks=40).generate(prompts, params)
    assert all_ids_of(found) == all_ids_of(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.outputs[0].cumulative_logprob == pytest.approx(other.outputs[0].cumulative_logprob, abs=1e-2)


def test_a_draft_models_own_cache_is_in_fp8_too(tiny, plain_ids):
    prompts = prompts_of(tiny, LENGTHS)
    llm = fp8_engine(tiny, speculative=DraftModel(tiny, k=3))
    assert ids_of(llm.generate(prompts, exactly(NEW))) == expected(plain_ids, prompts)
    assert llm.speculation.drafter._cache.is_fp8


def test_bf16_models(tiny):
    model = load_model(TINY_MODEL, device="cpu", dtype="bfloat16", verbose=False)
    prompts = prompts_of(tiny, LENGTHS)
    llm = fp8_engine(model)
    for completion in llm.generate(prompts, exactly(8, logprobs=0)):
        assert len(completion.outputs[0].token_ids) == 8
        assert completion.outputs[0].cumulative_logprob > -100  # NaN is not


# How much fits, and what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "dim", "times"), [(torch.bfloat16, 128, 1.93), (torch.bfloat16, 64, 1.88), (torch.float32, 128, 3.87)]
)
def test_about_twice_the_blocks_of_bf16_fit(dtype, dim, times):
    plain, packed = (KVCache(4, 1, 16, 8, dim, kind) for kind in (dtype, FP8))
    tensors = packed.keys, packed.values, *packed.scales
    assert packed.bytes_per_block == sum(tensor.nbytes for tensor in tensors)
    assert plain.bytes_per_block / packed.bytes_per_block == pytest.approx(times, abs=0.02)


def test_an_engine_takes_the_blocks_that_fit(tiny, monkeypatch):
    monkeypatch.setattr("pagedlab.kv_cache.CPU_KV_BYTES", 1 << 20)
    packed = LLM(tiny, kv_cache_dtype="fp8", verbose=False)
    plain = LLM(tiny, verbose=False)
    assert packed.pool.num_blocks > 3 * plain.pool.num_blocks
    assert packed.pool.num_blocks * packed.cache.bytes_per_block <= 1 << 20
    assert packed.cache.keys.dtype == FP8
    assert plain.cache.keys.dtype == torch.float32


@pytest.mark.parametrize("bad", ["int8", "FP8", "", None, True, torch.float8_e4m3fn])
def test_another_dtype_is_refused_before_a_model_is_looked_for(bad):
    with refused("kv_cache_dtype must be one of 'auto', 'fp8', got"):
        LLM("no such model", kv_cache_dtype=bad)


def test_a_backend_of_your_own_is_refused(tiny):
    with refused("kv_cache_dtype='fp8' takes an attention backend by name"):
        LLM("no such model", kv_cache_dtype="fp8", attention_backend=BACKENDS["torch"])


def test_a_gpu_that_cannot_convert_fp8_is_refused(monkeypatch):
    triton = pytest.importorskip("pagedlab.kernels.attention")
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert kv_dtype_for("auto", gpu, triton.triton_attention) is None
    assert kv_dtype_for("fp8", gpu, BACKENDS["torch"]) == FP8
    with refused("needs compute capability 8.9 for Triton, and this GPU has 8.0: take attention_backend='torch'"):
        kv_dtype_for("fp8", gpu, triton.triton_attention)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert kv_dtype_for("fp8", gpu, triton.triton_attention) == FP8


def test_an_engine_says_that_its_cache_is_in_fp8(tiny):
    assert "256 blocks of 16 in FP8, 0 requests" in repr(fp8_engine(tiny))
    assert "FP8" not in repr(engine(tiny))
