"""Linear layers turned round in steps of few tokens: right, taken when they pay, gone afterwards."""

from __future__ import annotations

import pytest
import torch
from test_engine import assert_idle, engine, ids_of, prompts_of
from test_model import random_checkpoint
from torch import nn

from pagedlab import SamplingParams
from pagedlab.accelerate import few_tokens
from pagedlab.accelerate.few_tokens import TOKENS, FewTokens, pays
from pagedlab.model import Model, load_model


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A random model whose layers are large enough."""
    folder = tmp_path_factory.mktemp("wide")
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "head_dim": 64}
    random_checkpoint(folder, "qwen2", num_hidden_layers=2, initializer_range=0.06, **sizes)
    return load_model(folder, device="cpu", dtype="float32", verbose=False)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of every product that was turned round."""
    seen: list[int] = []
    plain = few_tokens._Linear.forward

    def counted(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        seen.append(x.shape[-2])
        return plain(self, x)  # type: ignore[arg-type]

    monkeypatch.setattr(few_tokens._Linear, "forward", counted)
    return seen


@pytest.mark.parametrize("tokens", [2, 3, 16, 32])
@pytest.mark.parametrize("bias", [False, True])
def test_a_product_is_right_within_its_rounding(tokens: int, bias: bool, seed: int) -> None:
    """Whatever the order, a sum of n fp32 products is off by at most n roundings of the sum of their sizes (Higham)."""
    torch.manual_seed(seed)
    layer, x = nn.Linear(700, 900, bias=bias), torch.randn(1, tokens, 700)
    layer.__class__ = few_tokens._Linear
    with torch.inference_mode():
        ours = layer(x)
        weight = layer.weight.double()
        exact = x.double() @ weight.T + (layer.bias.double() if bias else 0)
        allowed = 701 * 2**-24 * (x.double().abs() @ weight.abs().T + (layer.bias.abs() if bias else 0))
    assert ours.dtype == torch.float32
    assert ours.shape == exact.shape
    assert ((ours - exact).abs() <= allowed).all()


def test_chunks_of_a_prompt_want_no_logits(wide: Model, calls: list[int]) -> None:
    (prompt,) = prompts_of(wide, [17])
    expected = ids_of(engine(wide, fused=False).generate([prompt], SamplingParams(max_tokens=3)))
    llm = engine(wide, max_batch_tokens=4)
    assert ids_of(llm.generate([prompt], SamplingParams(max_tokens=3))) == expected
    assert 0 in calls


@pytest.mark.parametrize("num_sequences", [1, 2, 7])
def test_the_same_texts_and_a_stock_module_afterwards(wide: Model, calls: list[int], num_sequences: int) -> None:
    prompts, params = prompts_of(wide, list(range(40, 40 + num_sequences))), SamplingParams(max_tokens=12)
    expected = ids_of(engine(wide, fused=False).generate(prompts, params))
    assert not calls
    llm = engine(wide)
    assert ids_of(llm.generate(prompts, params)) == expected
    assert bool(calls) == (num_sequences > 1)
    assert set(calls) <= set(TOKENS)
    assert all(type(m) is not few_tokens._Linear for m in wide.module.modules())
    assert_idle(llm)


def test_an_error_within_a_step_leaves_a_stock_module(wide: Model) -> None:
    llm = engine(wide, attention_backend=lambda *_: 1 / 0)
    llm.add([5, 6, 7], SamplingParams(max_tokens=4))
    with pytest.raises(ZeroDivisionError):
        llm.step()
    assert all(type(m) is not few_tokens._Linear for m in wide.module.modules())


def test_it_is_taken_for_fp32_on_a_cpu_with_mkl(wide: Model, tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pays(wide)
    assert FewTokens(wide)._layers
    assert len(FewTokens(tiny)._layers) == 1, "of the tiny model the last layer only: small ones are not worth the call"
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.mkl, "is_available", lambda: False)
        assert not pays(wide)
    wide.module.to(torch.bfloat16)
    assert not pays(wide)
    wide.module.to(torch.float32)
