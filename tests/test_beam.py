"""Beam search and parallel sampling over shared blocks: transformers' texts and scores, blocks counted in the pool.

All in fp32, over a cache full of NaN, so that a beam which reads a slot nobody wrote has no score at all.
"""

import pytest
import torch

from pagedlab import OutOfBlocks, SamplingParams
from pagedlab.outputs import NOT_FINITE
from pagedlab.recipes.beam import beam_search, beams
from pagedlab.recipes.speculative import PromptLookup, SpeculativeLLM
from support.engines import assert_idle, breaking_at, drain, exactly, finished, ids_of, prompt_of
from support.engines import engine as poisoned
from support.refused import refused


def engine(model, num_blocks=256, block_size=4, **options):
    return poisoned(model, num_blocks, block_size, **options)


def hugging_face_beams(model, prompt, width, max_tokens, length_penalty=1.0):
    """(new tokens, score) of each beam of `generate`, best first; padding behind an ended text cut off."""
    ids = torch.tensor([prompt])
    with model.stock_attention() as module:
        out = module.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            num_beams=width,
            num_return_sequences=width,
            length_penalty=length_penalty,
            do_sample=False,
            repetition_penalty=1.0,
            pad_token_id=0,
            return_dict_in_generate=True,
            output_scores=True,
        )
    found = []
    for row, score in zip(out.sequences[:, len(prompt) :].tolist(), out.sequences_scores.tolist(), strict=True):
        ends = [i for i, token in enumerate(row) if token in model.eos_token_ids]
        found.append((row[: ends[0] + 1] if ends else row, score))
    return found


def assert_same_beams(outputs, expected, tolerance=1e-4):
    assert [output.token_ids for output in outputs] == [ids for ids, _ in expected]
    scores = [score for _, score in expected]
    assert [output.score for output in outputs] == pytest.approx(scores, rel=1e-6, abs=tolerance)


# As transformers -----------------------------------------------------------------------------------------------------


def ending_tokens(model, prompt, width, count):
    """Tokens that beams of this prompt write, rare and common ones: as ends of text they end some of the beams."""
    outputs = beam_search(engine(model), prompt, width=width, max_tokens=12, ignore_eos=True)
    tokens = [token for output in outputs for token in output.token_ids[2:]]
    ranked = sorted(set(tokens), key=tokens.count)
    return [ranked[i * len(ranked) // count] for i in range(count)]


@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize(("length_penalty", "length", "ends"), [(0.0, 13, 3), (1.0, 8, 1), (1.0, 13, 3), (2.0, 13, 3)])
def test_beams_that_end_are_those_of_generate(tiny, width, length_penalty, length, ends, monkeypatch):
    """One and three tokens that end a text; a prompt that ends inside a block and one that ends with it."""
    llm = engine(tiny)
    prompt = prompt_of(tiny, length, offset=length)
    monkeypatch.setattr(tiny.module.generation_config, "eos_token_id", ending_tokens(tiny, prompt, width, ends))
    options = {"width": width, "max_tokens": 12, "length_penalty": length_penalty}
    outputs = beam_search(llm, prompt, **options)
    assert_same_beams(outputs, hugging_face_beams(tiny, prompt, **options))
    # A penalty above 0 favours long texts, so that none of those that ended may be left in the end.
    assert length_penalty > 0 or any(output.finish_reason == "stop" for output in outputs)
    assert_idle(llm)


@pytest.mark.parametrize("width", [1, 2, 8])
@pytest.mark.parametrize(("length", "penalty"), [(1, 1.0), (16, -1.0), (21, 0.5)])
def test_beams_that_run_to_the_end_are_those_of_generate(tiny, width, length, penalty):
    """With a negative penalty too, which favours short texts; prompts in chunks, and more beams than tokens a step.

    At every step, counts equal the tables that map a block, and at most one block a beam is copied.
    """
    llm = engine(tiny, max_batch_tokens=7)
    copies = []
    llm.pool.subscribe(lambda event: copies.append(event.block_id) if event.kind == "copy" else None)
    prompt = prompt_of(tiny, length)
    options = {"width": width, "max_tokens": 20, "length_penalty": penalty}
    for step, running in enumerate(beams(llm, prompt, **options), 1):
        llm.pool.check([beam.table for beam in running])
        assert len(copies) < max(2, width)  # the last writer of a block stays where it is
        copies.clear()
        assert all(len(beam.output_ids) == step for beam in running)
    outputs = beam_search(llm, prompt, **options)
    assert_idle(llm)
    if width == 1:
        assert [outputs[0].token_ids] == ids_of(llm.generate(prompt, SamplingParams(max_tokens=20)))
        return
    # A score is the sum over length ** penalty, so below 0 the penalty multiplies the error of the sum.
    assert_same_beams(outputs, hugging_face_beams(tiny, prompt, **options), 1e-4 * max(1, 20**-penalty))


# Blocks, counted in the pool -----------------------------------------------------------------------------------------


def keep_beams_apart(llm, width):
    """Logits by which the beams part at the first token and none is ever dropped. KV is computed as usual."""
    forward = llm.forward
    first = llm.model.encode("a b c d e f g h")[:width]

    def apart(*arguments):
        logits = torch.full_like(forward(*arguments), -100.0)
        tokens = first if len(logits) == 1 else first[:1]
        logits[:, tokens] = 0.0
        return logits

    llm.forward = apart


@pytest.mark.parametrize(("prompt_tokens", "shared"), [(64, 4 + 4 * 1), (60, 3 + 4 * 2), (61, 3 + 4 * 2), (1, 4 * 1)])
def test_beams_that_stay_apart_take_the_blocks_that_they_write(tiny, prompt_tokens, shared):
    """With a copy for each beam, the first two take 4 x 5 = 20. No block is to spare."""
    llm = engine(tiny, shared, 16, prefix_caching=False)
    keep_beams_apart(llm, 4)
    # The eleventh token makes ten that are fed back and need a slot.
    assert len(list(beams(llm, prompt_of(tiny, prompt_tokens), width=4, max_tokens=11, ignore_eos=True))) == 10
    assert_idle(llm)


# With other requests, and what goes wrong ---------------------------------------------------------------------------


def test_the_engine_serves_others_between_the_steps(tiny):
    """Two searches at once, in an engine that drafts."""
    prompts = [prompt_of(tiny, 20, offset) for offset in range(4)]
    wanted = ids_of(engine(tiny).generate(prompts, exactly(12)))
    options = {"width": 3, "max_tokens": 10, "ignore_eos": True}
    expected = beams(engine(tiny), prompts[0], **options)
    llm = engine(tiny, 64, prefix_caching=False, kind=SpeculativeLLM, drafter=PromptLookup(k=2))
    added = [llm.add(prompt, exactly(12)) for prompt in prompts]
    done = {}
    searches = [beams(llm, prompts[0], **options) for _ in range(2)]
    for running in zip(*searches, expected, strict=True):
        one, other, alone = ([beam.output_ids for beam in each] for each in running)
        assert one == other == alone
        done |= finished(llm.step())
    done |= drain(llm)
    assert ids_of([done[request_id] for request_id in added]) == wanted
    assert_idle(llm)


def test_blocks_that_others_hold(tiny):
    """Every step that began is whole, and the engine's own requests are not touched."""
    llm = engine(tiny, 12, prefix_caching=False)
    with refused("the request needs 16 blocks of 4 tokens"):
        beams(llm, [5] * 60, width=3, max_tokens=5)
    search = beams(llm, prompt_of(tiny, 9), width=3, max_tokens=8)
    next(search)
    llm.add(prompt_of(tiny, 30), exactly(3))
    llm.step()
    with pytest.raises(OutOfBlocks, match=r"^too few of 12 blocks are free for 3 beams: let other requests end"):
        list(search)
    llm.generate([5], exactly(3))
    assert_idle(llm)


def test_logits_that_are_not_finite_end_the_search(tiny):
    """Its error is the search's alone: a request that runs beside it goes on."""
    llm = engine(breaking_at(tiny, 9))
    request_id = llm.add([5, 6], exactly(3))
    llm.step()
    with pytest.raises(FloatingPointError, match=f"^{NOT_FINITE}$"):
        beam_search(llm, [7, 9], width=3)
    assert len(drain(llm)[request_id].outputs[0].token_ids) == 3
    assert_idle(llm)


# Samples -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "length", "block_size"), [(2, 1, 16), (5, 16, 4), (3, 39, 1)])
def test_n_samples_are_n_runs_with_the_next_seeds(tiny, n, length, block_size):
    prompt = prompt_of(tiny, length)
    llm = engine(tiny, 512, block_size, prefix_caching=False)
    (done,) = llm.generate(prompt, exactly(8, temperature=1.0, n=n, seed=7))
    assert llm.stats.prompt_tokens == length
    alone = llm.generate([prompt] * n, [exactly(8, temperature=1.0, seed=7 + i) for i in range(n)])
    assert [output.token_ids for output in done.outputs] == ids_of(alone)
