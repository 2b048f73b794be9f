"""Beam search and parallel sampling over shared blocks: transformers' texts and scores, blocks counted in the pool.

All in fp32, over a cache full of NaN, so that a beam which reads a slot nobody wrote has no score at all.
"""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab import SamplingParams, blocks_for
from pagedlab.beam import BeamSearch
from support.engines import assert_idle, drain, exactly
from support.engines import engine as poisoned
from support.refused import refused

TEXT = "Once upon a time there was a little girl who lived in a house near the sea. Every morning she walked to the "
STOPPING = [True, False, "never"]


def engine(model, num_blocks=256, block_size=4, **options):
    return poisoned(model, num_blocks, block_size, **options)


def prompt_of(model, length, offset=0):
    ids = model.encode(TEXT) * 20
    return ids[offset : offset + length]


def hugging_face_beams(model, prompt, params):
    """(new tokens, score) of each beam of `generate`, best first; padding behind an ended text cut off."""
    ids = torch.tensor([prompt])
    with model.stock_attention() as module:
        out = module.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=params.max_tokens,
            num_beams=params.beam_width,
            num_return_sequences=params.beam_width,
            length_penalty=params.length_penalty,
            early_stopping=params.early_stopping,
            do_sample=False,
            repetition_penalty=1.0,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
        )
    beams = []
    for row, score in zip(out.sequences[:, len(prompt) :].tolist(), out.sequences_scores.tolist(), strict=True):
        ends = [i for i, token in enumerate(row) if token in model.eos_token_ids]
        beams.append((row[: ends[0] + 1] if ends else row, score))
    return beams


def assert_same_beams(completion, expected, tolerance=1e-4):
    assert [output.token_ids for output in completion.outputs] == [ids for ids, _ in expected]
    scores = [score for _, score in expected]
    assert [output.score for output in completion.outputs] == pytest.approx(scores, rel=1e-6, abs=tolerance)


# As transformers -----------------------------------------------------------------------------------------------------


def ending_tokens(model, prompt, width, count):
    """Tokens that beams of this prompt write, rare and common ones: as ends of text they end some of the beams."""
    (completion,) = engine(model).generate(prompt, exactly(12, beam_width=width))
    tokens = [token for output in completion.outputs for token in output.token_ids[2:]]
    ranked = sorted(set(tokens), key=tokens.count)
    return [ranked[i * len(ranked) // count] for i in range(count)]


# Each pair of values once: a width, a way to stop and a penalty.
@pytest.mark.parametrize(
    ("width", "early_stopping", "length_penalty"),
    [(width, STOPPING[i], (0.0, 1.0, 2.0)[(i + shift) % 3]) for shift, width in enumerate((2, 4, 8)) for i in range(3)],
)
def test_beams_that_end_are_those_of_generate(tiny, width, early_stopping, length_penalty, monkeypatch):
    """One and three tokens that end a text; a prompt that ends inside a block and one that ends with it."""
    llm = engine(tiny)
    for length, ends in ((8, 1), (13, 3)) if length_penalty == 1 else ((13, 3),):
        prompt = prompt_of(tiny, length, offset=length)
        monkeypatch.setattr(tiny.module.generation_config, "eos_token_id", ending_tokens(tiny, prompt, width, ends))
        params = SamplingParams(
            max_tokens=12, beam_width=width, early_stopping=early_stopping, length_penalty=length_penalty
        )
        (completion,) = llm.generate(prompt, params)
        assert_same_beams(completion, hugging_face_beams(tiny, prompt, params))
        # A penalty above 0 favours long texts, so that none of those that ended may be left in the end.
        assert length_penalty > 0 or any(output.finish_reason == "stop" for output in completion.outputs)
    assert_idle(llm)


@pytest.mark.parametrize("width", [2, 4, 8])
def test_beams_that_run_to_the_end_are_those_of_generate(tiny, width):
    """Side by side in one ragged batch, with a negative penalty too, which favours short texts."""
    params = [
        SamplingParams(max_tokens=20, beam_width=width, length_penalty=penalty, early_stopping=stopping)
        for penalty, stopping in ((1.0, False), (-1.0, "never"), (0.5, True))
    ]
    prompts = [prompt_of(tiny, length) for length in (1, 16, 21)]
    llm = engine(tiny, 512)
    for prompt, p, completion in zip(prompts, params, llm.generate(prompts, params), strict=True):
        # A score is the sum over length ** penalty, so below 0 the penalty multiplies the error of the sum.
        tolerance = 1e-4 * max(1, p.max_tokens**-p.length_penalty)
        assert_same_beams(completion, hugging_face_beams(tiny, prompt, p), tolerance)
    assert_idle(llm)


def test_a_beam_of_one_is_greedy(tiny):
    prompt = prompt_of(tiny, 9)
    llm = engine(tiny)
    (beam,) = llm.generate(prompt, SamplingParams(max_tokens=15, beam_width=1, length_penalty=2.0))[0].outputs
    (greedy,) = llm.generate(prompt, SamplingParams(max_tokens=15))[0].outputs
    assert beam.token_ids == greedy.token_ids
    assert beam.finish_reason == greedy.finish_reason
    assert beam.score == pytest.approx(greedy.cumulative_logprob / len(greedy.token_ids) ** 2, abs=1e-4)


@pytest.mark.qwen
def test_beams_of_real_qwen(qwen):
    prompt = qwen.encode("The three largest cities of Italy are")
    params = SamplingParams(max_tokens=8, beam_width=4)
    llm = engine(qwen, 64, 16)
    (completion,) = llm.generate(prompt, params)
    assert_same_beams(completion, hugging_face_beams(qwen, prompt, params))
    assert_idle(llm)


@given(st.data())
def test_a_beam_wide_enough_finds_the_best_of_all_texts(data):
    """Against every text there is, up to three tokens of a vocabulary of three, of which up to two end it."""
    vocabulary, max_tokens = 3, 3
    chance = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31), label="seed"))
    logprobs = torch.randn(vocabulary + 1, vocabulary, generator=chance).log_softmax(1)  # by the token before
    ends = frozenset(data.draw(st.sets(st.integers(0, vocabulary - 1), max_size=2), label="ends"))
    penalty = data.draw(st.sampled_from([-1.0, 0.0, 0.7, 1.0, 2.0]), label="length penalty")
    search = BeamSearch(vocabulary**max_tokens, max_tokens, ends, penalty, "never")
    while search.advance(
        torch.stack([logprobs[beam.token_ids[-1] if beam.token_ids else -1] for beam in search.running])
    ):
        pass
    expected = {}
    for length in range(1, max_tokens + 1):
        for text in itertools.product(range(vocabulary), repeat=length):
            if not ends & set(text[:-1]) and (length == max_tokens or text[-1] in ends):
                total = sum(float(logprobs[before, token]) for before, token in zip((-1, *text), text, strict=False))
                expected[text] = total / length**penalty
    assert {beam.token_ids: pytest.approx(beam.score, abs=1e-5) for beam in search.ended} == expected
    assert [beam.score for beam in search.ended] == sorted((beam.score for beam in search.ended), reverse=True)


# Blocks, counted in the pool -----------------------------------------------------------------------------------------


def keep_beams_apart(llm, width, monkeypatch):
    """Logits by which the beams part at the first token and none is ever dropped. KV is computed as usual."""
    forward = llm.model.forward
    first = llm.model.encode("a b c d e f g h")[:width]

    def apart(*arguments):
        logits = torch.full_like(forward(*arguments), -100.0)
        tokens = first if len(logits) == 1 else first[:1]
        logits[:, tokens] = 0.0
        return logits

    monkeypatch.setattr(llm.model, "forward", apart)


@pytest.mark.parametrize(("prompt_tokens", "shared"), [(64, 4 + 4 * 1), (60, 3 + 4 * 2), (61, 3 + 4 * 2), (1, 4 * 1)])
def test_beams_that_stay_apart_take_the_blocks_that_they_write(tiny, prompt_tokens, shared, monkeypatch):
    """The first two are the specified cases; with a copy for each beam both take 4 x 5 = 20."""
    llm = engine(tiny, 64, 16, prefix_caching=False)
    keep_beams_apart(llm, 4, monkeypatch)
    # The eleventh token makes ten that are fed back and need a slot.
    llm.add(prompt_of(tiny, prompt_tokens), exactly(11, beam_width=4))
    used, copied = [], []
    llm.on_step(lambda: used.append(llm.pool.num_blocks - llm.pool.num_free))
    llm.on_step(lambda: copied.append(sum(len(s.table.block_ids) for s in llm.sequences())))
    drain(llm)
    assert max(used) == shared
    assert max(copied) == 4 * blocks_for(prompt_tokens + 10, 16)
    assert llm.stats.blocks_peak == shared
    assert_idle(llm)


def test_ten_steps_of_real_beams_hold_eight_blocks(tiny):
    """Behind the edge of a block, beams that come and go take as many as beams that stay apart: each writes its own."""
    llm = engine(tiny, 64, 16, prefix_caching=False)
    llm.generate(prompt_of(tiny, 64), exactly(11, beam_width=4))
    assert llm.stats.blocks_peak == 8


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize(("width", "block_size"), [(4, 4), (6, 1), (3, 16), (5, 3)])
def test_every_step_of_beams_balances(tiny, width, block_size, prefix_caching, rng):
    """Counts equal the tables that map a block; no slot is written twice; at most one copy a beam and step."""
    llm = engine(tiny, 512, block_size, prefix_caching=prefix_caching)
    copies = []
    llm.pool.subscribe(lambda event: copies.append(event.block_id) if event.kind == "copy" else None)

    def balance():
        tables = [sequence.table for sequence in llm.sequences()]
        llm.pool.check(tables)
        used = {block_id for table in tables for block_id in table.block_ids}
        assert len(used) == llm.pool.num_used == llm.stats.blocks_used
        assert len(copies) < max(2, width)  # the last writer of a block stays where it is
        copies.clear()

    llm.on_step(balance)
    for _ in range(2):
        prompt = prompt_of(tiny, rng.randint(1, 40), rng.randint(0, 40))
        llm.generate(prompt, SamplingParams(max_tokens=rng.randint(1, 24), beam_width=width))
        assert_idle(llm)


# Samples -------------------------------------------------------------------------------------------------------------


@settings(max_examples=10)
@given(st.data())
def test_n_samples_are_n_runs_with_the_next_seeds(tiny, data):
    n, block_size = data.draw(st.integers(2, 5), label="n"), data.draw(st.sampled_from([1, 4, 16]), label="block size")
    prompt = prompt_of(tiny, data.draw(st.integers(1, 40), label="prompt tokens"))
    seed = data.draw(st.integers(0, 2**40), label="seed")
    hot = {"max_tokens": 8, "temperature": data.draw(st.sampled_from([0.5, 1.0, 2.0]), label="temperature")}
    llm = engine(tiny, 512, block_size, prefix_caching=False)
    (completion,) = llm.generate(prompt, SamplingParams(n=n, seed=seed, **hot))
    assert llm.stats.prompt_tokens == len(prompt)
    alone = llm.generate([prompt] * n, [SamplingParams(seed=seed + i, **hot) for i in range(n)])
    assert llm.stats.prompt_tokens == n * len(prompt)
    for output, (expected,) in zip(completion.outputs, (each.outputs for each in alone), strict=True):
        assert (output.token_ids, output.text) == (expected.token_ids, expected.text)
        assert output.cumulative_logprob == pytest.approx(expected.cumulative_logprob, abs=1e-3)
    assert_idle(llm)


def test_a_pool_that_is_too_small_for_the_beams_says_so(tiny):
    llm = engine(tiny, num_blocks=10, block_size=16)
    with refused(r"needs 11 blocks .* and the pool has 10"):
        llm.generate(prompt_of(tiny, 60), SamplingParams(max_tokens=11, beam_width=4))
    assert_idle(llm)
