"""Beam search and parallel sampling over shared blocks: transformers' texts and scores, blocks counted in the pool.

All in fp32, over a cache full of NaN, so that a beam which reads a slot nobody wrote has no score at all.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab import LLM, BlockPool, BlockTable, SamplingParams, blocks_for
from pagedlab.attention import get_backend
from pagedlab.beam import BeamSearch, EarlyStopping
from pagedlab.lessons.broken import NeverCopies

if TYPE_CHECKING:
    from pagedlab.model import Model
    from pagedlab.outputs import Completion

TEXT = "Once upon a time there was a little girl who lived in a house near the sea. Every morning she walked to the "
STOPPING: list[EarlyStopping] = [True, False, "never"]


def engine(model: Model, num_blocks: int = 256, block_size: int = 4, **options: Any) -> LLM:
    llm = LLM(model, num_blocks=num_blocks, block_size=block_size, **options)
    llm.cache.keys.fill_(torch.nan)
    llm.cache.values.fill_(torch.nan)
    return llm


def assert_nothing_held(llm: LLM) -> None:
    assert llm.sequences() == []
    assert llm.pool.num_free == llm.pool.num_blocks
    assert isinstance(llm.pool, BlockPool)
    llm.pool.check([])


def run_until_idle(llm: LLM) -> None:
    while llm.step():
        pass


def prompt_of(model: Model, length: int, offset: int = 0) -> list[int]:
    ids = model.encode(TEXT) * 20
    return ids[offset : offset + length]


def hugging_face_beams(model: Model, prompt: list[int], params: SamplingParams) -> list[tuple[list[int], float]]:
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


def assert_same_beams(completion: Completion, expected: list[tuple[list[int], float]], tolerance: float = 1e-4) -> None:
    assert [output.token_ids for output in completion.outputs] == [ids for ids, _ in expected]
    scores = [score for _, score in expected]
    assert [output.score for output in completion.outputs] == pytest.approx(scores, rel=1e-6, abs=tolerance)


# As transformers -----------------------------------------------------------------------------------------------------


def ending_tokens(model: Model, prompt: list[int], width: int, count: int) -> list[int]:
    """Tokens that beams of this prompt write, rare and common ones: as ends of text they end some of the beams."""
    (completion,) = engine(model).generate(prompt, SamplingParams(max_tokens=12, beam_width=width, ignore_eos=True))
    tokens = [token for output in completion.outputs for token in output.token_ids[2:]]
    ranked = sorted(set(tokens), key=tokens.count)
    return [ranked[i * len(ranked) // count] for i in range(count)]


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("early_stopping", STOPPING, ids=str)
@pytest.mark.parametrize("width", [2, 4, 8])
def test_beams_that_end_are_those_of_generate(
    tiny: Model, width: int, early_stopping: EarlyStopping, length_penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert_nothing_held(llm)


@pytest.mark.parametrize("width", [2, 4, 8])
def test_beams_that_run_to_the_end_are_those_of_generate(tiny: Model, width: int) -> None:
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
    assert_nothing_held(llm)


def test_a_beam_of_one_is_greedy(tiny: Model) -> None:
    prompt = prompt_of(tiny, 9)
    llm = engine(tiny)
    (beam,) = llm.generate(prompt, SamplingParams(max_tokens=15, beam_width=1, length_penalty=2.0))[0].outputs
    (greedy,) = llm.generate(prompt, SamplingParams(max_tokens=15))[0].outputs
    assert beam.token_ids == greedy.token_ids
    assert beam.finish_reason == greedy.finish_reason
    assert beam.score == pytest.approx(greedy.cumulative_logprob / len(greedy.token_ids) ** 2, abs=1e-4)


@pytest.mark.qwen
def test_beams_of_real_qwen(qwen: Model) -> None:
    prompt = qwen.encode("The three largest cities of Italy are")
    params = SamplingParams(max_tokens=8, beam_width=4)
    llm = engine(qwen, 64, 16)
    (completion,) = llm.generate(prompt, params)
    assert_same_beams(completion, hugging_face_beams(qwen, prompt, params))
    assert_nothing_held(llm)


@given(st.data())
def test_a_beam_wide_enough_finds_the_best_of_all_texts(data: st.DataObject) -> None:
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
    expected: dict[tuple[int, ...], float] = {}
    for length in range(1, max_tokens + 1):
        for text in itertools.product(range(vocabulary), repeat=length):
            if not ends & set(text[:-1]) and (length == max_tokens or text[-1] in ends):
                total = sum(float(logprobs[before, token]) for before, token in zip((-1, *text), text, strict=False))
                expected[text] = total / length**penalty
    assert {beam.token_ids: pytest.approx(beam.score, abs=1e-5) for beam in search.ended} == expected
    assert [beam.score for beam in search.ended] == sorted((beam.score for beam in search.ended), reverse=True)


# Blocks, counted in the pool -----------------------------------------------------------------------------------------


def keep_beams_apart(llm: LLM, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits by which the beams part at the first token and none is ever dropped. KV is computed as usual."""
    forward = llm.model.forward
    first = llm.model.encode("a b c d e f g h")[:width]

    def apart(*arguments: Any) -> torch.Tensor:
        logits = torch.full_like(forward(*arguments), -100.0)
        tokens = first if len(logits) == 1 else first[:1]
        logits[:, tokens] = 0.0
        return logits

    monkeypatch.setattr(llm.model, "forward", apart)


@pytest.mark.parametrize(("prompt_tokens", "shared"), [(64, 4 + 4 * 1), (60, 3 + 4 * 2), (61, 3 + 4 * 2), (1, 4 * 1)])
def test_beams_that_stay_apart_take_the_blocks_that_they_write(
    tiny: Model, prompt_tokens: int, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first two are the specified cases; with a copy for each beam both take 4 x 5 = 20."""
    llm = engine(tiny, 64, 16, prefix_caching=False)
    keep_beams_apart(llm, 4, monkeypatch)
    # The eleventh token makes ten that are fed back and need a slot.
    llm.add(prompt_of(tiny, prompt_tokens), SamplingParams(max_tokens=11, beam_width=4, ignore_eos=True))
    used, copied = [], []
    llm.on_step(lambda: used.append(llm.pool.num_blocks - llm.pool.num_free))
    llm.on_step(lambda: copied.append(sum(len(s.table.block_ids) for s in llm.sequences())))
    run_until_idle(llm)
    assert max(used) == shared
    assert max(copied) == 4 * blocks_for(prompt_tokens + 10, 16)
    assert llm.stats.blocks_peak == shared
    assert_nothing_held(llm)


def test_ten_steps_of_real_beams_hold_eight_blocks(tiny: Model) -> None:
    """Behind the edge of a block, beams that come and go take as many as beams that stay apart: each writes its own."""
    llm = engine(tiny, 64, 16, prefix_caching=False)
    llm.generate(prompt_of(tiny, 64), SamplingParams(max_tokens=11, beam_width=4, ignore_eos=True))
    assert llm.stats.blocks_peak == 8


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize(("width", "block_size"), [(4, 4), (6, 1), (3, 16), (5, 3)])
def test_every_step_of_beams_balances(
    tiny: Model, width: int, block_size: int, prefix_caching: bool, seed: int
) -> None:
    """Counts equal the tables that map a block; no slot is written twice; at most one copy a beam and step."""
    chance = random.Random(seed)
    llm = engine(tiny, 512, block_size, prefix_caching=prefix_caching)
    assert isinstance(llm.pool, BlockPool)
    copies: list[int] = []
    llm.pool.subscribe(lambda event: copies.append(event.block_id) if event.kind == "copy" else None)

    def balance() -> None:
        assert isinstance(llm.pool, BlockPool)
        tables = [sequence.table for sequence in llm.sequences()]
        llm.pool.check(tables)
        assert len({block for table in tables for block in table.block_ids}) == llm.pool.num_used
        assert len(copies) < max(2, width)  # the last writer of a block stays where it is
        copies.clear()

    llm.on_step(balance)
    for _ in range(2):
        prompt = prompt_of(tiny, chance.randint(1, 40), chance.randint(0, 40))
        llm.generate(prompt, SamplingParams(max_tokens=chance.randint(1, 24), beam_width=width))
        assert_nothing_held(llm)


@pytest.mark.parametrize("early_stopping", STOPPING, ids=str)
def test_beams_that_end_early_leave_nothing(
    tiny: Model, early_stopping: EarlyStopping, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompt_of(tiny, 13)
    monkeypatch.setattr(tiny.module.generation_config, "eos_token_id", ending_tokens(tiny, prompt, 4, 100))
    llm = engine(tiny)
    params = SamplingParams(max_tokens=40, beam_width=4, early_stopping=early_stopping, length_penalty=0.0)
    (completion,) = llm.generate(prompt, params)
    assert completion.finished
    assert llm.stats.steps < 40
    assert_nothing_held(llm)


def test_a_table_that_never_copies_spoils_the_beams(tiny: Model) -> None:
    """What the comparisons with generate would miss if copies did not matter."""
    params = SamplingParams(max_tokens=20, beam_width=4, ignore_eos=True)
    right, wrong = (
        engine(tiny, block_table=table, prefix_caching=False).generate(prompt_of(tiny, 13), params)[0].outputs
        for table in (BlockTable, NeverCopies)
    )
    assert [o.token_ids for o in right] != [o.token_ids for o in wrong]


# Samples -------------------------------------------------------------------------------------------------------------


@settings(max_examples=10)
@given(st.data())
def test_n_samples_are_n_runs_with_the_next_seeds(tiny: Model, data: st.DataObject) -> None:
    n, block_size = data.draw(st.integers(2, 5), label="n"), data.draw(st.sampled_from([1, 4, 16]), label="block size")
    prompt = prompt_of(tiny, data.draw(st.integers(1, 40), label="prompt tokens"))
    seed = data.draw(st.integers(0, 2**40), label="seed")
    hot = {"max_tokens": 8, "temperature": data.draw(st.sampled_from([0.5, 1.0, 2.0]), label="temperature")}
    llm = engine(tiny, 512, block_size, prefix_caching=False)
    (completion,) = llm.generate(prompt, SamplingParams(n=n, seed=seed, **hot))
    assert llm.stats.prompt_tokens == len(prompt)
    alone = llm.generate([prompt] * n, [SamplingParams(seed=seed + i, **hot) for i in range(n)])
    assert llm.stats.prompt_tokens == n * len(prompt)
    assert [o.token_ids for o in completion.outputs] == [c.outputs[0].token_ids for c in alone]
    assert_nothing_held(llm)


# Failures ------------------------------------------------------------------------------------------------------------


class Fault(Exception):
    pass


def fails_once(function: Callable[..., Any], call: int) -> Callable[..., Any]:
    calls = itertools.count()

    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        if next(calls) == call:
            raise Fault
        return function(*arguments, **keywords)

    return wrapped


@pytest.mark.parametrize("call", [0, 1, 4])
@pytest.mark.parametrize("part", ["attention", "copies", "append"])
def test_beams_go_on_after_a_step_that_failed(
    tiny: Model, part: str, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that failed has not happened: the next one does its work, and the beams are the same."""
    params = SamplingParams(max_tokens=8, beam_width=4, ignore_eos=True)
    prompts = [prompt_of(tiny, 9), prompt_of(tiny, 12, 5)]
    expected = engine(tiny).generate(prompts, params)
    attend = get_backend("torch")
    llm = engine(tiny, attention_backend=fails_once(attend, 2 * call) if part == "attention" else attend)
    if part == "copies":
        monkeypatch.setattr(llm.cache, "copy_blocks", fails_once(llm.cache.copy_blocks, call))
    elif part == "append":
        monkeypatch.setattr(BlockTable, "append", fails_once(BlockTable.append, 3 * call))
    done: dict[int, Completion] = {}
    ids = [llm.add(prompt, params) for prompt in prompts]
    faults = 0
    while len(done) < len(ids):
        try:
            done |= {completion.request_id: completion for completion in llm.step() if completion.finished}
        except Fault:
            faults += 1
    assert faults == 1
    for i, completion in zip(ids, expected, strict=True):
        assert_same_beams(done[i], [(o.token_ids, o.score or 0.0) for o in completion.outputs])
    assert_nothing_held(llm)


@pytest.mark.parametrize("call", [0, 1, 6, 7])
def test_no_search_goes_on_from_half_a_step(tiny: Model, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two searches in a step that fails once one has chosen its beams: who goes on must not be ahead of its tables."""
    monkeypatch.setattr(BeamSearch, "advance", fails_once(BeamSearch.advance, call))
    llm = engine(tiny)
    params = SamplingParams(max_tokens=8, beam_width=4, ignore_eos=True)
    completions = [llm._states[llm.add(prompt_of(tiny, n), params)].completion for n in (9, 12)]
    with pytest.raises(Fault):
        run_until_idle(llm)
    run_until_idle(llm)
    monkeypatch.undo()
    for completion in completions:
        if completion.outputs[0].finish_reason != "abort":
            expected = engine(tiny).generate(completion.prompt_token_ids, params)[0].outputs
            assert_same_beams(completion, [(o.token_ids, o.score or 0.0) for o in expected])
    assert_nothing_held(llm)


def test_a_pool_that_is_too_small_for_the_beams_says_so(tiny: Model) -> None:
    llm = engine(tiny, num_blocks=10, block_size=16)
    with pytest.raises(ValueError, match=r"needs 11 blocks .* and the pool has 10"):
        llm.generate(prompt_of(tiny, 60), SamplingParams(max_tokens=11, beam_width=4))
    assert_nothing_held(llm)


def test_abort_between_two_steps(tiny: Model) -> None:
    llm = engine(tiny)
    request_id = llm.add(prompt_of(tiny, 9), SamplingParams(max_tokens=20, beam_width=4))
    for _ in range(5):
        llm.step()
    assert len(llm.sequences()) == 4
    llm.abort(request_id)
    assert_nothing_held(llm)
