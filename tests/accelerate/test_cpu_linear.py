"""Linear layers that are faster in steps of few tokens: right, and used where they are faster."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from torch import nn

import pagedlab
from pagedlab.model import load_model
from pagedlab_fast import LLM, cpu_linear
from pagedlab_fast.cpu_linear import FEW_TOKENS, CPULinear, is_faster, with_cpu_linear
from support.checkpoints import random_checkpoint
from support.engines import engine, exactly, ids_of, prompts_of


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A random model whose layers are large enough."""
    folder = tmp_path_factory.mktemp("wide")
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "head_dim": 64}
    random_checkpoint(folder, "qwen2", num_hidden_layers=2, initializer_range=0.06, **sizes)
    return load_model(folder, device="cpu", dtype="float32", verbose=False)


@pytest.mark.parametrize("bias", [False, True])
def test_a_product_is_right_within_its_rounding(bias, seed):
    torch.manual_seed(seed)
    layer = nn.Linear(700, 900, bias=bias)
    layer.__class__ = CPULinear
    exact = deepcopy(layer).double()
    exact.__class__ = nn.Linear
    for shape in [(1, 0), (1, 1), (1, 2), (1, 16), (1, 32), (1, 33), (3, 1), (2, 5)]:
        x = torch.randn(*shape, 700)
        torch.testing.assert_close(layer(x), exact(x.double()).float(), rtol=1e-5, atol=1e-5)


def test_engines_share_a_model_and_each_has_the_layers_that_it_asked_for(wide, monkeypatch):
    """Two fast ones with one without fast layers between them, and then a plain one. Prompts come in chunks."""
    tokens, forward = [], CPULinear.forward
    monkeypatch.setattr(CPULinear, "forward", lambda layer, x: tokens.append(x.shape[-2]) or forward(layer, x))
    prompts, params = prompts_of(wide, [9, 14, 30, 40, 41, 42, 43]), exactly(12)
    kinds = [{"kind": LLM}, {"kind": LLM, "fused": False}, {"kind": LLM}, {"kind": pagedlab.LLM}]
    engines = [engine(wide, max_batch_tokens=38, **options) for options in kinds]
    expected = ids_of(engine(wide).generate(prompts, params))
    for llm, options in zip(engines, kinds, strict=True):
        tokens.clear()
        assert ids_of(llm.generate(prompts, params)) == expected
        assert bool(set(FEW_TOKENS) & set(tokens)) == (options == {"kind": LLM})
    assert all(type(layer) is not CPULinear for layer in wide.module.modules())
    pairs = zip(wide.module.parameters(), with_cpu_linear(wide).module.parameters(), strict=True)
    assert all(theirs is ours for ours, theirs in pairs)


def test_it_is_taken_for_large_layers_in_fp32_on_a_cpu_with_mkl(wide, tiny, monkeypatch):
    layers = [layer for layer in with_cpu_linear(tiny).module.modules() if isinstance(layer, nn.Linear)]
    large = [layer for layer in layers if layer.weight.numel() >= cpu_linear.MIN_WEIGHTS]
    assert large == [layer for layer in layers if type(layer) is CPULinear] == layers[-1:]
    assert is_faster(wide)
    assert not is_faster(replace(wide, module=deepcopy(wide.module).bfloat16()))
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: False)
    assert not is_faster(wide)
