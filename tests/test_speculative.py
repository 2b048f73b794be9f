"""Speculative decoding: the same texts, the same distribution, and nothing left behind of what was rejected.

In fp32 on caches full of NaN, the draft model's included.
"""

from collections import Counter
from copy import deepcopy
from math import sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab import SamplingParams
from pagedlab.model import Model
from pagedlab.recipes.speculative import DraftModel, PromptLookup, SpeculativeLLM, accept_or_redraw
from pagedlab.sampling import probabilities
from support.engines import TEXT, assert_idle, engine, exactly, ids_of, output_of, plain_logits, poison, prompts_of
from support.faults import Fault, raising_at
from support.refused import refused


class Poisoned(DraftModel):
    """A draft model whose cache is full of NaN before it is used."""

    def _begin(self, llm):
        super()._begin(llm)
        poison(self._cache)


@pytest.fixture(scope="module")
def noisy(tiny):
    """The tiny model with noise in its weights: right often, wrong often."""
    module = deepcopy(tiny.module)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight += 0.15 * weight.std() * torch.randn(weight.shape, generator=generator)
    return Model(module, tiny.tokenizer, "noisy")


@pytest.fixture(params=["lookup", "itself", "noisy"])
def drafter(request, tiny, noisy):
    if request.param == "lookup":
        return PromptLookup(8)
    return Poisoned(tiny, 5) if request.param == "itself" else Poisoned(noisy, 3)


# Greedy: lossless ---------------------------------------------------------------------------------------------


def test_fifty_prompts(tiny, drafter):
    """Some of them repeat themselves. tests/test_scheduler.py has arrivals, aborts, preemptions and rejections."""
    ids = tiny.encode(TEXT)
    prompts = [ids[3 * i : 3 * i + 2 + i // 2] * (1 + i % 2) for i in range(50)]
    expected = ids_of(engine(tiny, 1024).generate(prompts, exactly(8)))
    llm = engine(tiny, 1024, kind=SpeculativeLLM, drafter=drafter)
    assert ids_of(llm.generate(prompts, exactly(8))) == expected
    assert llm.stats.output_tokens == 8 * 50
    assert llm.stats.drafted_tokens > 0
    assert llm.stats.drafted_tokens >= llm.stats.accepted_tokens
    assert_idle(llm)


@pytest.mark.parametrize("caching", [True, False])
def test_one_text_of_its_own_draft(tiny, caching):
    """k + 1 tokens a step, and the acceptance length says so. The draft's own blocks serve request after request."""
    llm = engine(tiny, 9, 4, kind=SpeculativeLLM, drafter=Poisoned(tiny, 3), prefix_caching=caching)
    assert "draft" not in str(llm.stats)
    for _ in range(4):  # the draft's own blocks of one text are the next one's, and the other way round
        llm.generate(prompts_of(tiny, [20]), exactly(13))
        assert (llm.stats.steps, llm.stats.drafts, llm.stats.acceptance_length) == (4, 3, 4.0)
    assert_idle(llm)


def test_ends(tiny):
    """End of text, stop strings and max_tokens in the midst of an accepted draft."""
    (prompt,) = prompts_of(tiny, [31])
    plain, llm = engine(tiny), engine(tiny, kind=SpeculativeLLM, drafter=Poisoned(tiny, 4))
    words = output_of(plain, prompt, SamplingParams(max_tokens=64)).text.split()
    cases = [SamplingParams(max_tokens=n) for n in (1, 2, 5, 6, 64)]
    cases += [SamplingParams(max_tokens=64, stop=" ".join(words[i : i + 2])) for i in (1, 4, 7)]
    for params in cases:
        (expected,), (got,) = (each.generate([prompt], params) for each in (plain, llm))
        assert got.outputs == expected.outputs
        assert got.outputs[0].text == expected.outputs[0].text
        assert len(got.times) == len(got.outputs[0].token_ids)
        assert_idle(llm)


@pytest.mark.parametrize("call", [0, 11, 30])
def test_a_failing_draft_leaves_nothing_behind(tiny, call):
    """The draft model shares the target's forward here: some calls fail in the draft, some in the check."""
    prompts = prompts_of(tiny, [17, 9])
    llm = engine(tiny, 64, 4, kind=SpeculativeLLM, drafter=Poisoned(tiny, 3))
    llm.attend = raising_at(call, llm.attend)
    with pytest.raises(Fault):
        llm.generate(prompts, exactly(20))
    assert_idle(llm)
    assert ids_of(llm.generate(prompts, exactly(12))) == ids_of(engine(tiny).generate(prompts, exactly(12)))


# Sampled: the same distribution -------------------------------------------------------------------------------


def test_sampled_texts_have_the_models_distribution(tiny, noisy, seed):
    """The first three tokens of 250 texts, two of them drafted, against the products of the model's probabilities."""
    (prompt,) = prompts_of(tiny, [24])
    options = {"temperature": 1.5, "top_k": 3}
    expected = {(): 250.0}
    for _ in range(3):
        starts, expected_before = list(expected), expected
        rows = torch.stack([plain_logits(tiny, [*prompt, *start])[-1] for start in starts])
        probs = probabilities(rows, [SamplingParams(**options)] * len(rows))
        expected = {
            (*start, token): expected_before[start] * row[token].item()
            for start, row in zip(starts, probs, strict=True)
            for token in row.nonzero().flatten().tolist()
        }
    llm = engine(tiny, 512, kind=SpeculativeLLM, drafter=Poisoned(noisy, 2))
    params = [exactly(4, n=125, seed=seed + 1000 * i, **options) for i in range(2)]
    completions = llm.generate([prompt] * 2, params)
    observed = Counter(tuple(output.token_ids[:3]) for completion in completions for output in completion.outputs)
    drafted = llm.stats.drafted_tokens
    assert 0.1 * drafted < llm.stats.accepted_tokens < 0.95 * drafted, "both outcomes of the rule must occur"
    assert set(observed) <= set(expected)
    chi_square = sum((observed[text] - count) ** 2 / count for text, count in expected.items())
    freedom = len(expected) - 1
    assert chi_square < freedom + 6 * sqrt(2 * freedom)


def distributions(vocabulary=5):
    weights = st.lists(st.integers(0, 9), min_size=vocabulary, max_size=vocabulary).filter(any)
    return weights.map(lambda w: torch.tensor(w, dtype=torch.float64) / sum(w))


@settings(max_examples=60)
@given(distributions(), distributions())
def test_the_rule_gives_p_exactly(p, q):
    """Over a fine grid of both uniforms: what comes out is p, for each p and q."""
    n = 40
    grid = [(i + 0.5) / n for i in range(n)]
    out = torch.zeros_like(p)
    for token in q.nonzero().flatten().tolist():
        taken = [u for u in grid if accept_or_redraw(p, q, token, u, 0.5) is None]
        out[token] += q[token] * len(taken) / n
        if len(taken) < n:
            redrawn = Counter(accept_or_redraw(p, q, token, 1 - 1e-9, u) for u in grid)
            for other, times in redrawn.items():
                out[other] += q[token] * (1 - len(taken) / n) * times / n
    assert (out - p).abs().max() < 5 / n


# Prompt lookup, and errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "limit", "expected"),
    [
        ("1239123", 2, "91"),
        ("1239423823", 1, "8"),  # the latest of the longest
        ("71235236123", 1, "5"),  # longer endings come first
        ("1212", 5, "12121"),  # it runs into itself
        ("123", 4, ""),
        ("1", 4, ""),
    ],
)
def test_look_up(tokens, limit, expected):
    """Each digit is a token."""
    assert PromptLookup(4).look_up([*map(int, tokens)], limit) == [*map(int, expected)]


def test_what_cannot_speculate(tiny):
    other = Model(tiny.module, type("Tokenizer", (), {"get_vocab": lambda self: {"a": 0}})(), "other")
    with refused("other cannot draft for tiny-qwen2: their vocabularies differ"):
        SpeculativeLLM(tiny, num_blocks=8, drafter=DraftModel(other))
