"""The engine against Hugging Face `generate`, token for token, and against everything that may go wrong in it.

All in fp32, where identity is exact. Every KV cache is full of NaN before it is used: whoever reads a slot
that was not written gets no text at all.
"""

import gc
import pickle
import weakref
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import pagedlab_fast
from pagedlab import LLM, SamplingParams, blocks_for
from pagedlab.attention import BACKENDS, paged_attention
from pagedlab.engine import GPU_MEMORY
from pagedlab.recipes.speculative import DraftModel, PromptLookup, SpeculativeLLM
from support.engines import (
    SCHEDULERS,
    TEXT,
    all_ids_of,
    assert_idle,
    engine,
    exactly,
    ids_of,
    output_of,
    plain_logits,
    prompt_of,
    prompts_of,
)
from support.plain_pool import PlainPool
from support.refused import refused

LENGTHS = [1, 2, 3, 15, 16, 17, 31, 33, 48, 64, 100, 150]
HOT = {"temperature": 1.5, "seed": 3}


# The same tokens as generate ---------------------------------------------------------------------------------------


def readers_attention(q, k_cache, v_cache, block_tables, seq_lens, query_starts, scale=None):
    return paged_attention(q, k_cache, v_cache, block_tables, seq_lens, query_starts, scale, backend="concat")


class ReadersPool(PlainPool):
    """Hands out its blocks in no order."""

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.unused.sort(key=lambda block_id: block_id * 7919 % 31)


# The reference backends loop over blocks: the smaller the blocks, the less there is time for.
@pytest.mark.parametrize(
    ("block_size", "options", "lengths", "new_tokens"),
    [
        (1, {"max_batch_tokens": 64}, LENGTHS, 20),
        (16, {}, LENGTHS, 40),
        (3, {"attention_backend": "safe", "max_batch_tokens": 20}, LENGTHS[:7], 16),
        (1, {"attention_backend": "online", "max_batch_tokens": 7}, [1, 2, 17], 8),
        (16, {"block_pool": ReadersPool, "attention_backend": readers_attention, "max_batch_tokens": 50}, LENGTHS, 32),
    ],
)
def test_tokens_are_those_of_generate(tiny, hugging_face, block_size, options, lengths, new_tokens):
    llm = engine(tiny, 2048 // block_size, block_size, **options)
    assert type(llm.pool) is options.get("block_pool", type(llm.pool))
    prompts = prompts_of(tiny, lengths)
    for prompt, completion in zip(prompts, llm.generate(prompts, SamplingParams(max_tokens=new_tokens)), strict=True):
        assert completion.prompt_token_ids == prompt
        assert completion.outputs[0].token_ids == hugging_face(tiny, prompt, 40)[:new_tokens], len(prompt)
    assert_idle(llm)


# Sampling -----------------------------------------------------------------------------------------------------------


def test_draws_repeat_with_the_seed_and_only_with_it(tiny):
    def draw(engine_seed, seed, **options):
        llm = engine(tiny, seed=engine_seed, **options)
        return all_ids_of(llm.generate([[5, 6], [5, 6]], exactly(8, n=3, temperature=10.0, seed=seed)))

    first, second = draw(0, 3)
    assert first == second
    assert draw(1, 3) == draw(0, np.int64(3), max_batch_tokens=3, block_size=5) == [first, second]
    assert draw(0, 4)[0] != first
    assert draw(0, None) == draw(0, None) != draw(1, None)
    # Text 1 of the first request and text 0 of the second are two draws, not one.
    assert len({tuple(ids) for request in draw(0, None) for ids in request}) == 6


def test_the_largest_numbers_that_a_request_may_have(tiny):
    """Each made every step fail, for everybody, until its request was aborted."""
    params = exactly(2, n=2, seed=2**63 - 1, temperature=1.0, top_k=10**400)
    assert engine(tiny).generate([4, 5], params)[0].finished


# Where a text ends --------------------------------------------------------------------------------------------------


def test_the_end_of_text_token(tiny, hugging_face, monkeypatch):
    prompt = prompt_of(tiny, 17)
    full = ids_of(engine(tiny).generate(prompt, exactly(40)))[0]
    stop = full[11]
    monkeypatch.setattr(tiny.module.generation_config, "eos_token_id", [stop, tiny.vocab_size - 1])
    llm = engine(tiny)
    output = output_of(llm, prompt, SamplingParams(max_tokens=40))
    assert (output.token_ids, output.finish_reason) == (full[: full.index(stop) + 1], "stop")
    assert output.token_ids == hugging_face(tiny, prompt, 41)[:40]
    assert_idle(llm)
    ignored = output_of(llm, prompt, exactly(40))
    assert (ignored.token_ids, ignored.finish_reason) == (full, "length")


@pytest.mark.parametrize("stop", [(), "zzz"])
def test_a_real_end_of_text_is_no_text(tiny, stop):
    """The tokenizer's own end-of-text token ends the text and leaves no trace in it."""
    end = tiny.tokenizer.eos_token_id
    calls = iter([*tiny.encode(" one two"), end])
    llm = engine(tiny)
    llm.sample_rows = lambda *_: torch.tensor([next(calls)])
    output = output_of(llm, [5], SamplingParams(max_tokens=30, stop=stop))
    assert (output.text, output.token_ids[-1], output.finish_reason) == (" one two", end, "stop")


def test_the_models_context_is_the_limit(tiny, monkeypatch):
    monkeypatch.setattr(tiny.module.config, "max_position_embeddings", 40)
    llm = engine(tiny)
    ids = prompt_of(tiny, 150)
    for length in (1, 39):
        output = output_of(llm, ids[:length], exactly(100))
        assert (len(output.token_ids), output.finish_reason) == (40 - length, "length")
    with refused("the prompt has 40 tokens and .* takes 40, new ones included"):
        llm.generate(ids[:40])
    assert_idle(llm)


def test_stop_strings(tiny):
    """Each is cut out of the first of three texts, so many lie across tokens. Each text ends for itself."""
    prompt = prompt_of(tiny, 33)
    llm = engine(tiny, block_size=4, prefix_caching=False)  # rounding, which depends on it, would decide a draw
    [plain] = llm.generate(prompt, exactly(24, n=3, **HOT))
    full = [output.text for output in plain.outputs]
    for i in range(1, 19, 3):
        stop = full[0][i : i + 4]
        [done] = llm.generate(prompt, exactly(24, n=3, stop=("#?#", stop), **HOT))
        for text, output in zip(full, done.outputs, strict=True):
            assert (output.text, output.finish_reason) == (text.split(stop)[0], "stop" if stop in text else "length")
            assert stop not in tiny.decode(output.token_ids[:-1]), "its last token completes the stop string"
        assert "".join(llm.stream(prompt, exactly(24, stop=stop, **HOT))) == full[0].split(stop)[0]
    assert_idle(llm)


# Streaming ----------------------------------------------------------------------------------------------------------


def test_pieces_join_to_the_text(tiny, hugging_face):
    """Each step computes for all streams, so one may be complete before its reader looks."""
    llm = engine(tiny)
    prompts = prompts_of(tiny, [1, 16, 33])
    counts = (40, 6, 12)
    streams = [llm.stream(p, SamplingParams(max_tokens=n)) for p, n in zip(prompts, counts, strict=True)]
    next_to_all = [next(stream) for stream in streams]
    pieces = [[first, *stream] for first, stream in zip(next_to_all, streams, strict=True)]
    expected = [hugging_face(tiny, p, 40)[:n] for p, n in zip(prompts, counts, strict=True)]
    assert ["".join(each) for each in pieces] == [tiny.decode(ids) for ids in expected]
    assert len(pieces[0]) > 5
    assert all(all(each) for each in pieces)
    assert_idle(llm)


def test_a_stream_that_is_not_read_to_its_end(tiny):
    llm = engine(tiny)
    stream = llm.stream("Once upon a time")
    assert llm.num_unfinished == 0, "bad prompts are refused at the call; the request starts with the first piece"
    stream.close()
    assert_idle(llm)
    stream = llm.stream("Once upon a time")
    next(stream)
    assert llm.num_unfinished == 1
    del stream
    assert_idle(llm)


# Step by step -------------------------------------------------------------------------------------------------------


def test_step_returns_what_it_touched(tiny):
    llm = engine(tiny)
    a, b = llm.add([5, 6], exactly(2)), llm.add([7], exactly(1))
    first = llm.step()
    assert [(c.request_id, len(c.outputs[0].token_ids), c.finished) for c in first] == [(a, 1, False), (b, 1, True)]
    assert llm.step() == first[:1]
    assert_idle(llm)


def test_a_subscriber_stops_a_request_and_leaves(tiny):
    """A widget's stop button: `generate` returns what there is."""
    llm = engine(tiny)
    steps = []

    def stop_after_four():
        steps.append(len(llm.sequences()))
        if len(steps) == 4:
            llm.abort(0)

    unsubscribe = llm.on_step(stop_after_four)
    stays = []
    llm.on_forward(lambda plan, logits: stays.append(logits.shape))
    output = output_of(llm, [5, 6], exactly(50))
    assert (len(output.token_ids), output.finish_reason) == (4, "abort")
    assert steps == [1, 1, 1, 1]
    unsubscribe()
    unsubscribe()
    llm.abort(99)  # nobody's
    llm.generate([5, 6], exactly(2))
    assert len(steps) == 4
    assert stays == [(1, tiny.vocab_size)] * 6
    assert_idle(llm)


@pytest.mark.parametrize(
    ("lengths", "asked", "options", "prompt_tokens", "output_tokens", "steps", "blocks_peak"),
    [
        ([16, 17, 5], exactly(8), {}, 38, 24, 8, 5),  # 23, 24 and 12 slots
        ([15], exactly(4, n=3, **HOT), {"max_batch_tokens": 6, "block_size": 4}, 15, 12, 6, 3 + 3 * 2),
        ([64], exactly(10, n=4, **HOT), {}, 64, 40, 10, 4 + 4 * 1),  # copied, it would be 4 x 5
        # The token sampled last is never fed back, so it takes no slot.
        *(([16], exactly(n), {}, 16, n, n, blocks_for(15 + n, 16)) for n in (1, 17)),
    ],
    ids=str,
)
def test_stats(tiny, lengths, asked, options, prompt_tokens, output_tokens, steps, blocks_peak):
    llm = engine(tiny, 64, **options)
    llm.generate([5], exactly(1))
    completion = llm.generate(prompts_of(tiny, lengths), asked)[0]
    stats = llm.stats
    assert (stats.prompt_tokens, stats.output_tokens, stats.steps) == (prompt_tokens, output_tokens, steps)
    assert stats.bytes_peak == blocks_peak * llm.cache.keys[:, 0].nbytes * 2
    assert stats.tokens_per_second == pytest.approx(output_tokens / stats.seconds)
    assert f"peak {blocks_peak} of 64 blocks" in str(stats)
    assert len(completion.times) == asked.max_tokens
    assert [completion.added, *completion.times] == sorted([completion.added, *completion.times])
    assert {o.finish_reason for o in completion.outputs} == {"length"}


# Prompts and parameters ---------------------------------------------------------------------------------------------


def test_prompts_of_all_kinds(tiny):
    llm = engine(tiny)
    chat = [{"role": "user", "content": "Hello"}]
    prompts = ["A cat", [5, 6, 7], chat, (8, 9), np.array([10, 11])]
    text = tiny.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    ids = [tiny.tokenizer(each, add_special_tokens=False)["input_ids"] for each in ("A cat", text)]
    expected = [ids[0], [5, 6, 7], ids[1], [8, 9], [10, 11]]
    params = [exactly(n) for n in (3, 1, 2, 1, 1)]  # one each
    done = [*llm.generate(prompts, params), *(llm.generate(prompt, params[1])[0] for prompt in prompts)]
    assert [c.prompt_token_ids for c in done] == expected * 2
    assert [len(ids) for ids in ids_of(done)] == [3, 1, 2] + [1] * 7
    assert {type(token) for c in done for token in c.prompt_token_ids} == {int}
    assert llm.generate([]) == []


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("", "the prompt is empty"),
        ([5, 10**9], "a token id in the prompt must be a whole number from 0 to 4095, got 1000000000"),
        ([{"role": "user", "content": 5}], "cannot take these messages .* a content that is a text"),
        ("caf\udce9", "the prompt must be valid Unicode"),
        ([{"role": "user", "content": "caf\udce9"}], "the prompt must be valid Unicode"),
        ([5] * 100_000, "the prompt has 100000 tokens and .* shorten it"),
        ([5] * 200, r"needs \d+ blocks of 4 tokens \(200 prompt tokens, up to \d+ new ones.* and the pool has 20"),
    ],
)
def test_bad_prompts(tiny, prompt, said):
    llm = engine(tiny, 20, 4)
    for call in (llm.generate, lambda prompt: next(llm.stream(prompt)), llm.add):
        with refused(f"^{said}" if said.startswith("the ") else said):
            call(prompt)
    with refused(f"^prompt 1: .*{said}"):
        llm.generate([[5], prompt, [6]])
    assert llm.stats.steps == 0, "a neighbour was started"
    assert_idle(llm)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda llm: llm.generate([[5], [6]], (exactly(1),)), "a list of 2, one for each prompt"),
        (lambda llm: llm.generate([5], exactly(1, n=4, **HOT)), "4 samples of one prompt .* engine takes 3"),
        (lambda llm: next(llm.stream([5], exactly(1, n=2, **HOT))), "stream yields one text"),
        (lambda llm: llm.abort("0"), "^request_id must be a whole number"),
        (lambda llm: llm.decode(5), "^token_ids must be a list of token ids, got 5$"),
        (lambda llm: llm.decode([10**9]), "^a token id in token_ids must be"),
        (lambda llm: LLM(llm.model, dtype="bfloat16"), "^the model is loaded already"),
    ],
)
def test_bad_calls(tiny, call, said):
    llm = engine(tiny, max_sequences=3)
    with refused(said):
        call(llm)
    assert_idle(llm)


# Memory -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LLM, pagedlab_fast.LLM, SpeculativeLLM])
@pytest.mark.parametrize("params", [exactly(5, logprobs=1), exactly(5, n=2, stop=["zzz"], **HOT)], ids=str)
def test_a_completion_can_be_copied_and_its_engine_is_freed_with_the_last_reference(tiny, kind, params):
    """Without the garbage collector: on a GPU the next engine needs the memory of this one."""
    llm = engine(replace(tiny), kind=kind)
    (done,) = llm.generate([prompt_of(tiny, 20)], params)
    for copied in (deepcopy(done), pickle.loads(pickle.dumps(done))):  # noqa: S301 - our own
        assert copied == done
        assert repr(copied) == repr(done)
    held = [weakref.ref(each) for each in (llm, llm.model, llm.cache)]
    gc.collect()
    gc.disable()
    try:
        del llm
        assert [each() for each in held] == [None] * 3
    finally:
        gc.enable()
    assert done.outputs[0].text


def test_blocks_for_as_many_texts_as_may_run(tiny):
    assert LLM(tiny, max_sequences=2).pool.num_blocks == 2 * blocks_for(tiny.max_length, 16)


def test_on_a_gpu_its_free_memory_counts_with_what_torch_holds_and_the_work_of_a_step_takes_its_part(tiny, monkeypatch):
    work = tiny.working_bytes(1000, 256)
    cache = tiny.kv_cache(1, 16)
    llm = object.__new__(LLM)
    llm.block_size, llm.max_sequences, llm.max_batch_tokens = 16, 256, 1000
    llm.model = SimpleNamespace(
        device=torch.device("cuda"), kv_cache=lambda *sizes: cache, working_bytes=tiny.working_bytes, max_length=2**40
    )

    def leave(blocks):
        free = (work + blocks * cache.bytes_per_block) / GPU_MEMORY
        for name, told in {"mem_get_info": (free - 6, 80 << 30), "memory_reserved": 9, "memory_allocated": 3}.items():
            monkeypatch.setattr(torch.cuda, name, lambda device, told=told: told)

    leave(7.5)
    assert llm.blocks_that_fit() == 7
    leave(0.5)
    with refused("a step of 1,000 tokens leaves no memory for a block"):
        llm.blocks_that_fit()


# Real Qwen ----------------------------------------------------------------------------------------------------------


def assert_same_but_for_ties(model, prompt, mine, theirs):
    """Both texts are equal up to the first place where fp32 cannot tell the two likeliest tokens apart, if any."""
    at = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b), None)
    if at is None:
        return
    logits = plain_logits(model, prompt + theirs[:at])[-1]
    gap = float(abs(logits[mine[at]] - logits[theirs[at]]))
    assert gap < 2e-5, f"token {at} is {mine[at]} in place of {theirs[at]}, with logits {gap} apart"


@pytest.mark.timeout(1800)
def test_real_qwen_says_what_generate_says(qwen, hugging_face):
    """5 prompts of 15 to 49 tokens in one batch, fp32: every attention, few blocks, drafts.

    One test, so that workers side by side do not each compute what `generate` says, which takes the most time.
    """
    ids = qwen.encode(TEXT + "\n\n" + TEXT.swapcase() + "\n\n" + TEXT.upper())
    prompts = [ids[11 * i : 11 * i + n] for i, n in enumerate([49, 15, 16, 17, 32])]
    expected = [hugging_face(qwen, prompt, 9) for prompt in prompts]
    kinds = [{"attention_backend": backend} for backend in BACKENDS]
    kinds += [{"scheduler": scheduler} for scheduler in SCHEDULERS]
    kinds += [{"kind": SpeculativeLLM, "drafter": drafter} for drafter in (PromptLookup(4), DraftModel(qwen, 2))]
    for options in kinds:
        new = 3 if "attention_backend" in options else 9
        llm = engine(qwen, 40, 4, max_batch_tokens=64, **options)
        outputs = ids_of(llm.generate(prompts, SamplingParams(max_tokens=new)))
        assert llm.stats.preemptions or new == 3
        for prompt, mine, theirs in zip(prompts, outputs, expected, strict=True):
            assert_same_but_for_ties(qwen, prompt, mine, theirs[:new])
        assert_idle(llm)
