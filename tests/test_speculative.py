"""Speculative decoding: the same texts, the same distribution, and nothing left behind of what was rejected.

In fp32 on caches full of NaN, the draft model's included.
"""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab import SamplingParams
from pagedlab.model import Model
from pagedlab.recipes.speculative import Draft, Drafter, DraftModel, PromptLookup, SpeculativeLLM, accept_or_redraw
from pagedlab.recipes.swap import SwappingScheduler
from pagedlab.sampling import probabilities
from pagedlab.scheduler import Scheduler
from support.engines import (
    LENGTHS,
    NEW,
    SCHEDULERS,
    TEXT,
    all_ids_of,
    arrive_in_any_order,
    assert_idle,
    engine,
    exactly,
    greedy_ids,
    ids_of,
    plain_logits,
    poison,
    prompts_of,
    smallest,
)
from support.faults import Fault, raising_at
from support.refused import refused
from support.toy import toy


class Poisoned(DraftModel):
    """A draft model whose cache is full of NaN before it is used."""

    def _begin(self, llm):
        super()._begin(llm)
        poison(self._cache)


class Scripted(Drafter):
    """Proposes what `say` returns for a text and a limit."""

    def __init__(self, k, say):
        self.k, self.say = k, say

    def propose(self, llm, limits):
        return {sequence: Draft(self.say(sequence, limit)) for sequence, limit in limits.items()}


@pytest.fixture(scope="module")
def noisy(tiny):
    """The tiny model with noise in its weights: right often, wrong often."""
    import copy

    module = copy.deepcopy(tiny.module)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            weight += 0.15 * weight.std() * torch.randn(weight.shape, generator=generator)
    return Model(module, tiny.tokenizer, "noisy", "a test")


def drafter_of(name, k, tiny, noisy):
    if name == "lookup":
        return PromptLookup(k)
    return Poisoned(tiny if name == "itself" else noisy, k)


DRAFTERS = ["lookup", "itself", "noisy"]


def fifty(model):
    """Prompts from the text, some of which repeat themselves."""
    ids = model.encode(TEXT)
    return [ids[3 * i : 3 * i + 2 + i // 2] * (1 + i % 2) for i in range(50)]


# Greedy: lossless ---------------------------------------------------------------------------------------------


def test_fifty_prompts(tiny, noisy, hugging_face):
    prompts = fifty(tiny)
    params = exactly(8)
    plain = engine(tiny, 1024)
    expected = ids_of(plain.generate(prompts, params))
    for i in (0, 7, 23, 49):
        ends = hugging_face(tiny, prompts[i], 8)
        assert expected[i][: len(ends)] == ends
    steps = plain.stats.steps
    for k, drafter in ((1, "noisy"), (5, "itself"), (8, "lookup")):
        llm = engine(tiny, 1024, kind=SpeculativeLLM, drafter=drafter_of(drafter, k, tiny, noisy))
        assert ids_of(llm.generate(prompts, params)) == expected, (k, drafter)
        assert llm.stats.output_tokens == 8 * 50
        assert llm.stats.drafted_tokens > 0
        if drafter == "itself":
            assert llm.stats.accepted_tokens == llm.stats.drafted_tokens
            assert llm.stats.steps == 1 + -(-(8 - 1) // (k + 1)) < steps
        elif drafter == "noisy":
            assert 0 < llm.stats.accepted_tokens < llm.stats.drafted_tokens
        assert_idle(llm)


def test_one_text_of_its_own_draft(tiny):
    """k + 1 tokens a step, and the acceptance length says so."""
    for caching in (True, False):
        llm = engine(tiny, 32, 4, kind=SpeculativeLLM, drafter=Poisoned(tiny, 3), prefix_caching=caching)
        for _ in range(4):  # the draft's own blocks of one text are the next one's, and the other way round
            llm.generate(prompts_of(tiny, [20]), exactly(13))
            assert (llm.stats.steps, llm.stats.drafts, llm.stats.acceptance_length) == (4, 3, 4.0)


@pytest.mark.parametrize(
    ("scheduler", "caching", "name"),
    [
        (SwappingScheduler, True, "lookup"),
        (Scheduler, True, "itself"),
        (Scheduler, False, "noisy"),
    ],
)
def test_under_pressure(tiny, noisy, hugging_face, scheduler, caching, name):
    prompts = prompts_of(tiny, LENGTHS)
    expected = greedy_ids(hugging_face, tiny, prompts, NEW)
    options = {"scheduler": scheduler, "prefix_caching": caching, "max_batch_tokens": 64}
    drafter = drafter_of(name, 3, tiny, noisy)
    llm = engine(tiny, smallest(LENGTHS, NEW, 4) + 5, 4, kind=SpeculativeLLM, drafter=drafter, **options)
    assert ids_of(llm.generate(prompts, SamplingParams(max_tokens=NEW))) == expected
    assert llm.stats.drafts > 0
    assert llm.stats.preemptions > 0
    assert_idle(llm)


def test_the_prefix_cache_never_holds_a_rejected_token(tiny):
    """Wrong drafts over a block's end, then a prompt that begins with exactly that wrong text."""
    (prompt,) = prompts_of(tiny, [14])
    right = ids_of(engine(tiny).generate([prompt], exactly(40)))[0]

    def nearly(text, limit):
        ahead = right[len(text.output_ids) :][:limit]
        return [token if i < 2 else (token + 1) % tiny.vocab_size for i, token in enumerate(ahead)]

    llm = engine(tiny, 256, 4, kind=SpeculativeLLM, drafter=Scripted(7, nearly))
    wrong = []

    def watch():
        for sequence in llm.sequences():
            assert sequence.table.num_tokens == len(sequence.token_ids) - 1
        for chunk in llm.plan.chunks:
            known = [*prompt, *right][: chunk.stop - len(chunk.guesses)]
            if chunk.guesses and [*known, *chunk.guesses] != [*prompt, *right][: chunk.stop]:
                wrong.append([*known, *chunk.guesses])

    llm.on_step(watch)
    assert ids_of(llm.generate([prompt], exactly(40)))[0] == right
    assert 0 < llm.stats.accepted_tokens < llm.stats.drafted_tokens
    assert wrong
    for text in wrong:
        agreed = next(i for i, pair in enumerate(zip(text, [*prompt, *right, -1], strict=False)) if pair[0] != pair[1])
        with_tail = llm.prefix_cache.match(text)
        assert with_tail.num_tokens <= agreed
        with_tail.free()
    # And what it does hold is right: the next turn finds it.
    follow = [*prompt, *right, 5, 6, 7]
    found = llm.generate([follow], SamplingParams(max_tokens=8))
    assert llm.stats.cached_tokens >= len(prompt) + len(right) - 4
    assert ids_of(found) == ids_of(engine(tiny).generate([follow], SamplingParams(max_tokens=8)))


def test_ends(tiny, hugging_face):
    """End of text, stop strings and max_tokens in the midst of an accepted draft."""
    (prompt,) = prompts_of(tiny, [31])
    full = hugging_face(tiny, prompt, 64)
    plain = engine(tiny)
    (whole,) = plain.generate([prompt], SamplingParams(max_tokens=64))
    words = whole.outputs[0].text.split()
    cases = [SamplingParams(max_tokens=n) for n in (1, 2, 5, 6, 64)]
    cases += [SamplingParams(max_tokens=64, stop=" ".join(words[i : i + 2])) for i in (1, 4, 7)]
    for params in cases:
        (expected,) = plain.generate([prompt], params)
        llm = engine(tiny, kind=SpeculativeLLM, drafter=Poisoned(tiny, 4))
        (got,) = llm.generate([prompt], params)
        assert got.outputs[0].token_ids == expected.outputs[0].token_ids == full[: len(got.outputs[0].token_ids)]
        assert got.outputs[0].text == expected.outputs[0].text
        assert got.outputs[0].finish_reason == expected.outputs[0].finish_reason
        assert len(got.times) == len(got.outputs[0].token_ids)
        assert_idle(llm)
    llm = engine(tiny, kind=SpeculativeLLM, drafter=Poisoned(tiny, 4))
    assert "".join(llm.stream(prompt, SamplingParams(max_tokens=64))) == whole.outputs[0].text


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_arrivals_and_aborts(tiny, noisy, hugging_face, scheduler, rng):
    lengths = rng.sample(LENGTHS, len(LENGTHS))
    drafter = drafter_of(rng.choice(DRAFTERS), rng.randint(1, 6), tiny, noisy)
    budget = rng.choice([7, 32])
    llm = engine(
        tiny,
        smallest(LENGTHS, NEW, 4) + 4,
        4,
        scheduler=scheduler,
        max_batch_tokens=budget,
        kind=SpeculativeLLM,
        drafter=drafter,
    )
    prompts = prompts_of(tiny, lengths)
    arrive_in_any_order(llm, prompts, rng, lambda prompt: hugging_face(tiny, prompt, 64)[:NEW])


@pytest.mark.parametrize("call", [0, 11, 30])
def test_a_failing_draft_leaves_nothing_behind(tiny, hugging_face, call):
    """The draft model shares the target's forward here: some calls fail in the draft, some in the check."""
    prompts = prompts_of(tiny, [17, 9])
    llm = engine(tiny, 64, 4, kind=SpeculativeLLM, drafter=Poisoned(tiny, 3))
    llm.attend = raising_at(call, llm.attend)
    with pytest.raises(Fault):
        llm.generate(prompts, exactly(20))
    assert_idle(llm)
    expected = greedy_ids(hugging_face, tiny, prompts, 12)
    assert ids_of(llm.generate(prompts, SamplingParams(max_tokens=12))) == expected


# Sampled: the same distribution -------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_certain_draft_changes_no_sample(tiny, scheduler):
    """Prompt lookup leaves the very same samples, n of them, also when blocks are short."""
    lengths = [13, 16, 17]
    prompts = [prompt * 2 for prompt in prompts_of(tiny, lengths)]
    params = [exactly(NEW, n=3, temperature=0.5, top_k=20, seed=i) for i in range(len(lengths))]
    roomy = engine(tiny, 512, 4).generate(prompts, params)
    for num_blocks in (smallest([2 * n for n in lengths], NEW, 4) + 4, 512):
        llm = engine(tiny, num_blocks, 4, scheduler=scheduler, kind=SpeculativeLLM, drafter=PromptLookup(4))
        got = llm.generate(prompts, params)
        assert all_ids_of(got) == all_ids_of(roomy)
        assert llm.stats.drafts > 0
        assert_idle(llm)


def chi_square_p(observed, expected):
    """The chance of a chi-square as large; expected counts below 5 are pooled."""
    rare = expected < 5
    counts = [torch.cat([x[~rare], x[rare].sum()[None]]) for x in (observed.double(), expected.double())]
    if counts[1][-1] < 5:
        counts = [torch.cat([x[:-2], x[-2:].sum()[None]]) for x in counts]
    statistic = ((counts[0] - counts[1]) ** 2 / counts[1]).sum()
    freedom = torch.tensor(len(counts[0]) - 1, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))


def test_sampled_texts_have_the_models_distribution(tiny, noisy, seed):
    """The first three tokens of 400 texts, two of them drafted, against the products of the model's probabilities."""
    (prompt,) = prompts_of(tiny, [24])
    params = SamplingParams(temperature=1.5, top_k=3)
    expected = {(): 1.0}
    for _ in range(3):
        starts = list(expected)
        rows = []
        for start in starts:
            rows.append(plain_logits(tiny, [*prompt, *start])[-1])
        probs = probabilities(torch.stack(rows), [params] * len(rows))
        expected = {
            (*start, token): expected[start] * p[token].item()
            for start, p in zip(starts, probs, strict=True)
            for token in p.nonzero().flatten().tolist()
        }
    llm = engine(tiny, 512, kind=SpeculativeLLM, drafter=Poisoned(noisy, 2))
    observed = Counter()
    drafted = accepted = 0
    for i in range(2):
        sampling = exactly(4, n=200, temperature=1.5, top_k=3, seed=seed + 1000 * i)
        (completion,) = llm.generate([prompt], sampling)
        observed.update(tuple(output.token_ids[:3]) for output in completion.outputs)
        drafted, accepted = drafted + llm.stats.drafted_tokens, accepted + llm.stats.accepted_tokens
    assert set(observed) <= set(expected)
    assert 0.1 * drafted < accepted < 0.95 * drafted, "both outcomes of the rule must occur"
    total = observed.total()
    counts = [
        torch.tensor([x[text] for text in expected]) for x in (observed, {t: total * p for t, p in expected.items()})
    ]
    assert chi_square_p(*counts) > 1e-6


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


# Nothing leaks ------------------------------------------------------------------------------------------------


def test_a_thousand_rejections(tiny, rng):
    """Whatever part of a draft is accepted, tables and counts stay right, and so do the texts of a toy."""
    prompts = [[rng.randint(1, 50) for _ in range(rng.randint(1, 30))] for _ in range(30)]
    params = [exactly(rng.randint(1, 30)) for _ in prompts]
    plain = toy(tiny, num_blocks=256, max_batch_tokens=64)
    right = {tuple(p): ids for p, ids in zip(prompts, ids_of(plain.generate(prompts, params)), strict=True)}

    def mostly(text, limit):
        ahead = right[tuple(text.token_ids[: text.num_prompt_tokens])][text.num_outputs :]
        return [token if rng.random() < 0.7 else 1 for token in ahead[:limit]]

    rejected = 0
    while rejected < 1000:
        llm = toy(
            tiny, kind=SpeculativeLLM, drafter=Scripted(6, mostly), num_blocks=rng.choice([24, 64]), max_batch_tokens=64
        )
        llm.on_step(lambda llm=llm: llm.pool.check([text.table for text in llm.sequences()]))
        assert ids_of(llm.generate(prompts, params)) == list(right.values())
        rejected += llm.stats.drafted_tokens - llm.stats.accepted_tokens
        assert_idle(llm)


# Prompt lookup, and errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "limit", "expected"),
    [
        ("1239123", 2, "91"),
        ("1239423823", 1, "8"),  # the latest of the longest
        ("71235236123", 1, "5"),  # longer endings come first
        ("44", 3, "444"),  # it runs into itself
        ("1212", 5, "12121"),
        ("123456123", 2, "45"),
        ("123", 4, ""),
        ("1", 4, ""),
    ],
)
def test_look_up(tokens, limit, expected):
    """Each digit is a token."""
    assert PromptLookup(4).look_up([*map(int, tokens)], limit) == [*map(int, expected)]


def test_what_cannot_speculate(tiny):
    for wrong in (4, "lookup", PromptLookup):
        with refused(r"drafter is PromptLookup\(k=4\), DraftModel\(model, k=4\) or None"):
            SpeculativeLLM(tiny, num_blocks=8, drafter=wrong)
    with refused("k, the tokens of a draft, must be a whole number of at least 1, got 0"):
        PromptLookup(0)
    other = Model(tiny.module, type("Tokenizer", (), {"get_vocab": lambda self: {"a": 0}})(), "other", "a test")
    with refused("other cannot draft for tiny-qwen2: their vocabularies differ"):
        SpeculativeLLM(tiny, num_blocks=8, drafter=DraftModel(other))


def test_real_qwen(qwen, hugging_face):
    prompts = [prompt * 2 for prompt in prompts_of(qwen, [9, 33])]
    for drafter in (PromptLookup(4), DraftModel(qwen, 2)):
        llm = engine(qwen, 64, kind=SpeculativeLLM, drafter=drafter)
        expected = [hugging_face(qwen, prompt, 24) for prompt in prompts]
        assert ids_of(llm.generate(prompts, SamplingParams(max_tokens=24))) == expected
        assert llm.stats.accepted_tokens > 0
