"""Linear layers that are faster in steps of few tokens: right, and used where they are faster."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import pagedlab
from pagedlab import SamplingParams
from pagedlab.model import load_model
from pagedlab_fast import LLM, cpu_linear
from pagedlab_fast.cpu_linear import FEW_TOKENS, CPULinear, is_faster, with_cpu_linear
from support.checkpoints import random_checkpoint
from support.engines import assert_idle, engine, ids_of, prompts_of


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A random model whose layers are large enough."""
    folder = tmp_path_factory.mktemp("wide")
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "head_dim": 64}
    random_checkpoint(folder, "qwen2", num_hidden_layers=2, initializer_range=0.06, **sizes)
    return load_model(folder, device="cpu", dtype="float32", verbose=False)


@pytest.fixture
def calls(monkeypatch):
    """Tokens of every product of a `CPULinear`."""
    seen = []
    plain = CPULinear.forward

    def counted(self, x):
        seen.append(x.shape[-2])
        return plain(self, x)

    monkeypatch.setattr(CPULinear, "forward", counted)
    return seen


@pytest.fixture
def stock(monkeypatch):
    """Rows of every product that is computed as by a stock layer."""
    seen = []
    linear = cpu_linear.F.linear

    def counted(x, *weights):
        seen.append(x.shape[-2])
        return linear(x, *weights)

    monkeypatch.setattr(cpu_linear, "F", SimpleNamespace(linear=counted))
    return seen


@pytest.mark.parametrize("tokens", [2, 3, 16, 32])
@pytest.mark.parametrize("bias", [False, True])
def test_a_product_is_right_within_its_rounding(tokens, bias, seed):
    """Whatever the order, a sum of n fp32 products is off by at most n roundings of the sum of their sizes (Higham)."""
    torch.manual_seed(seed)
    layer, x = nn.Linear(700, 900, bias=bias), torch.randn(1, tokens, 700)
    layer.__class__ = CPULinear
    with torch.inference_mode():
        ours = layer(x)
        weight = layer.weight.double()
        exact = x.double() @ weight.T + (layer.bias.double() if bias else 0)
        allowed = 701 * 2**-24 * (x.double().abs() @ weight.abs().T + (layer.bias.abs() if bias else 0))
    assert ours.dtype == torch.float32
    assert ours.shape == exact.shape
    assert ((ours - exact).abs() <= allowed).all()


@pytest.mark.parametrize("shape", [(1, 1), (1, 33), (3, 1), (2, 5), (1, 0)])
def test_other_inputs_are_a_stock_layers(shape, stock, seed):
    """One token, a prompt, nothing, and the batch of transformers' own `generate`."""
    torch.manual_seed(seed)
    layer, x = nn.Linear(70, 90), torch.randn(*shape, 70)
    inputs = [x, x[0]]
    expected = [layer(each) for each in inputs]
    layer.__class__ = CPULinear
    for each, right in zip(inputs, expected, strict=True):
        assert torch.equal(layer(each), right)
    assert len(stock) == 2


def test_chunks_of_a_prompt_want_no_logits(wide, calls):
    (prompt,) = prompts_of(wide, [17])
    expected = ids_of(engine(wide, kind=LLM, fused=False).generate([prompt], SamplingParams(max_tokens=3)))
    llm = engine(wide, kind=LLM, max_batch_tokens=4)
    assert ids_of(llm.generate([prompt], SamplingParams(max_tokens=3))) == expected
    assert 0 in calls


@pytest.mark.parametrize("num_sequences", [1, 2, 7])
def test_the_same_texts(wide, calls, num_sequences, stock):
    prompts, params = prompts_of(wide, list(range(40, 40 + num_sequences))), SamplingParams(max_tokens=12)
    expected = ids_of(engine(wide, kind=LLM, fused=False).generate(prompts, params))
    assert not calls
    llm = engine(wide, kind=LLM)
    assert ids_of(llm.generate(prompts, params)) == expected
    few = [n for n in calls if n in FEW_TOKENS]
    assert bool(few) == (num_sequences > 1)
    assert len(few) + len(stock) == len(calls)
    assert_idle(llm)


def test_engines_share_a_model_and_leave_it_as_it_is(wide, calls):
    """Two fast ones with one without fast layers between them, and then a plain one."""
    prompts, params = prompts_of(wide, [9, 14, 30]), SamplingParams(max_tokens=6)
    kinds = [{"kind": LLM}, {"kind": LLM, "fused": False}, {"kind": LLM}, {"kind": pagedlab.LLM}]
    engines = [engine(wide, **options) for options in kinds]
    expected = ids_of(engine(wide).generate(prompts, params))
    for llm, options in zip(engines, kinds, strict=True):
        calls.clear()
        assert ids_of(llm.generate(prompts, params)) == expected
        assert bool(calls) == (options == {"kind": LLM}), "and each has the layers that it asked for"
    assert all(type(layer) is not CPULinear for layer in wide.module.modules())


def test_fast_layers_have_the_weights_of_the_model(wide):
    theirs = with_cpu_linear(wide).module
    weights = [*wide.module.parameters(), *wide.module.buffers()]
    assert all(a is b for a, b in zip(weights, [*theirs.parameters(), *theirs.buffers()], strict=True))


def test_it_is_taken_for_fp32_on_a_cpu_with_mkl(wide, tiny, monkeypatch):
    assert is_faster(wide)
    layers = [layer for layer in with_cpu_linear(tiny).module.modules() if isinstance(layer, nn.Linear)]
    large = [layer for layer in layers if layer.weight.numel() >= cpu_linear.MIN_WEIGHTS]
    assert len(large) == 1, "of the tiny model the last layer only: small ones are not worth the call"
    for layer in layers:
        assert (type(layer) is CPULinear) == (layer in large)
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.mkl, "is_available", lambda: False)
        assert not is_faster(wide)
    wide.module.to(torch.bfloat16)
    assert not is_faster(wide)
    wide.module.to(torch.float32)
