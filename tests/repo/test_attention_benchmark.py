"""benchmarks/attention.py: its reference and its methods, as far as a CPU and stand-ins for libraries can tell."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

pytest.importorskip("triton")

import attention
from attention_methods import METHODS, Case, Inputs, reference
from pagedlab.attention import paged_attention

DECODE = Case("decode", "qwen2.5-0.5b", (48, 48, 48), (1, 1, 1))
MIXED = Case("mixed", "llama-3-8b", (33, 70, 16), (1, 70, 5))


def inputs_of(case):
    return Inputs(case, seed=3, rotate_bytes=0, device="cpu")


def distance(out, inputs):
    exact = reference(inputs)
    return float((out.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("case", [DECODE, MIXED], ids=lambda case: case.name)
def test_the_reference_is_attention_over_shuffled_pages(case):
    inputs = inputs_of(case)
    assert distance(paged_attention(*inputs.paged(0), backend="concat"), inputs) < 0.01
    inputs.v[0] = inputs.v[0] + 1
    assert distance(paged_attention(*inputs_of(case).paged(0), backend="concat"), inputs) > 0.1


def flash_attn_varlen_func(q, k, v, **options):
    """Stands in for vLLM's build."""
    assert (options["max_seqlen_q"], options["max_seqlen_k"], options["fa_version"]) == (70, 70, 3)
    return paged_attention(q, k, v, options["block_table"], options["seqused_k"], options["cu_seqlens_q"])


class Wrapper:
    """Stands in for FlashInfer's two: it computes over the pages that the plan names."""

    def __init__(self, space, layout, **options):
        assert layout == "NHD"
        assert options in ({"use_tensor_cores": True}, {"backend": "fa2"})
        self.is_decode = "use_tensor_cores" in options

    def plan(self, *arguments, q_data_type, kv_data_type, causal=False):
        assert causal != self.is_decode
        starts, *rest = (None, *arguments) if self.is_decode else arguments
        indptr, ids, last, _, _, _, size = rest
        pages = indptr.diff()
        self.table = pad_sequence(ids.split(pages.tolist()), batch_first=True)
        self.lengths = (pages - 1) * size + last
        self.starts = torch.arange(len(pages) + 1).int() if starts is None else starts

    def run(self, q, cache):
        return paged_attention(q, *cache, self.table, self.lengths, self.starts)


FLASHINFER = SimpleNamespace(BatchDecodeWithPagedKVCacheWrapper=Wrapper, BatchPrefillWithPagedKVCacheWrapper=Wrapper)
COMPUTED = {
    "gather + SDPA": DECODE,
    "FlashInfer decode": DECODE,
    "FlashInfer fa2": MIXED,
    "FlashAttention paged, vLLM's build": MIXED,
}


@pytest.mark.parametrize(("method", "case"), COMPUTED.items(), ids=COMPUTED)
def test_a_method_computes_the_same(method, case, monkeypatch):
    library = SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func)
    monkeypatch.setitem(sys.modules, "vllm.vllm_flash_attn", library)
    monkeypatch.setitem(sys.modules, "flashinfer", FLASHINFER)
    inputs = inputs_of(case)
    (run,) = METHODS[method](inputs)
    assert distance(run(), inputs) < 0.01


def test_seconds_are_those_of_one_call(monkeypatch):
    called = []

    def milliseconds(work, return_mode):
        work()
        return 4.0

    monkeypatch.setattr(attention, "do_bench_cudagraph", milliseconds)
    runs = [lambda: called.append("first"), lambda: called.append("second")]
    assert attention.seconds(runs) == 0.002
    assert called == ["first", "second"]


def test_a_copy_moves_each_byte_twice(monkeypatch):
    monkeypatch.setattr(attention, "do_bench", lambda work, return_mode: 2.0)
    small = torch.zeros(1000, dtype=torch.bfloat16)
    monkeypatch.setattr(torch, "randn", lambda *size, **options: small)
    assert attention.roofs() == {"copy": 2e6, "read": 1e6}


def test_methods_for_decodes_refuse_others():
    for method in ("gather + SDPA", "unpaged SDPA (cudnn, token first)", "FlashInfer decode"):
        with pytest.raises(NotImplementedError):
            METHODS[method](inputs_of(MIXED))
