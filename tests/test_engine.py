"""The engine against Hugging Face `generate`, token for token, and against everything that may go wrong in it.

All in fp32, where identity is exact. Every KV cache is full of NaN before it is used: whoever reads a slot
that was not written gets no text at all.
"""

import gc
import inspect
import pickle
import re
import weakref
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pagedlab_lessons.checks.scheduling import ToyEngine

import pagedlab_fast
from pagedlab import LLM, SamplingParams, blocks_for
from pagedlab.attention import BACKENDS
from pagedlab.engine import GPU_MEMORY
from pagedlab.recipes.speculative import SpeculativeLLM
from support.engines import (
    TEXT,
    all_ids_of,
    assert_idle,
    drain,
    engine,
    exactly,
    ids_of,
    output_of,
    plain_logits,
    prompt_of,
    prompts_of,
)
from support.faults import Fault, raising_at
from support.plain_pool import PlainPool
from support.refused import refused

LENGTHS = [1, 2, 3, 15, 16, 17, 31, 33, 48, 64, 100, 150]


# The same tokens as generate ---------------------------------------------------------------------------------------


def assert_identity(llm, hugging_face, lengths, new_tokens):
    prompts = prompts_of(llm.model, lengths)
    completions = llm.generate(prompts, SamplingParams(max_tokens=new_tokens))
    for prompt, completion in zip(prompts, completions, strict=True):
        assert completion.prompt_token_ids == prompt
        assert completion.outputs[0].token_ids == hugging_face(llm.model, prompt, 64)[:new_tokens], len(prompt)
    assert_idle(llm)


CHUNKED = [1, 17, 3, 31, 33, 16]


# The reference backends loop over blocks: the smaller the blocks, the less there is time for.
@pytest.mark.parametrize(
    ("block_size", "options", "lengths", "new_tokens"),
    [
        (1, {}, LENGTHS, 20),
        (3, {}, LENGTHS, 32),
        (16, {}, LENGTHS, 64),
        (16, {"attention_backend": "concat"}, LENGTHS, 32),
        (3, {"attention_backend": "safe", "max_batch_tokens": 20}, LENGTHS[:7], 16),
        (1, {"attention_backend": "online", "max_batch_tokens": 7}, [1, 2, 17], 8),
        (3, {"max_batch_tokens": 1}, CHUNKED, 8),
        (16, {"max_batch_tokens": 7}, CHUNKED, 16),
        (3, {"max_batch_tokens": 64}, LENGTHS, 32),
    ],
    ids=str,
)
def test_tokens_are_those_of_generate(tiny, hugging_face, block_size, options, lengths, new_tokens):
    assert_identity(engine(tiny, 2048 // block_size, block_size, **options), hugging_face, lengths, new_tokens)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_batch_in_fp64(exact, data):
    """Prompts, limits and sizes drawn: each request as if alone. In fp64, where chance cannot bring two logits near."""
    requests = data.draw(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 6)), min_size=2, max_size=6))
    options = {
        "block_size": data.draw(st.integers(1, 20)),
        "max_batch_tokens": data.draw(st.sampled_from([1, 3, 10, 50, 1000])),
        "max_sequences": data.draw(st.integers(1, 6)),
    }
    token = st.integers(0, exact.vocab_size - 1)
    prompts = [data.draw(st.lists(token, min_size=n, max_size=n)) for n, _ in requests]
    params = [exactly(n) for _, n in requests]
    llm = engine(exact, num_blocks=60, **options)
    together = ids_of(llm.generate(prompts, params))
    assert_idle(llm)
    alone = engine(exact, 60, 16)
    assert together == [ids_of(alone.generate(p, s))[0] for p, s in zip(prompts, params, strict=True)]


# Sampling -----------------------------------------------------------------------------------------------------------


def test_prompt_blocks_are_shared_by_n_texts(tiny):
    llm = engine(tiny, block_size=16)
    prompt = prompt_of(tiny, 64)
    llm.generate(prompt, exactly(10, n=4, seed=1, temperature=1.0))
    assert llm.stats.blocks_peak == 4 + 4 * 1  # copied, it would be 4 x 5


def test_requests_without_a_seed_do_not_share_their_draws(tiny):
    """Text 1 of the first request and text 0 of the second are two draws, not one."""
    llm = engine(tiny)
    prompt = prompt_of(tiny, 8)
    hot = exactly(8, n=3, temperature=10.0)
    texts = [tuple(o.token_ids) for c in llm.generate([prompt, prompt, prompt], hot) for o in c.outputs]
    assert len(set(texts)) == 9


def test_draws_repeat_with_the_seed_and_only_with_it(tiny):
    prompt = prompt_of(tiny, 8)
    hot = {"max_tokens": 8, "temperature": 10.0, "ignore_eos": True}

    def draw(engine_seed, seed, **options):
        return ids_of(engine(tiny, seed=engine_seed, **options).generate(prompt, SamplingParams(seed=seed, **hot)))[0]

    assert draw(0, 3) == draw(1, 3) == draw(0, 3, max_batch_tokens=3, block_size=5, attention_backend="safe")
    assert draw(0, None) == draw(0, None)
    assert draw(0, None) != draw(1, None)
    assert draw(0, 3) != draw(0, 4)


def test_numpys_seed_and_a_top_k_beyond_all_numbers(tiny):
    """Each made every step fail, for everybody, until its request was aborted."""
    llm = engine(tiny)
    params = exactly(4, temperature=1.0, seed=5)
    strange = replace(params, seed=np.int64(5), top_k=10**400)
    assert ids_of(llm.generate([5, 6], strange)) == ids_of(llm.generate([5, 6], params))
    (completion,) = llm.generate([4, 5], SamplingParams(n=2, seed=2**63 - 1, temperature=1.0, max_tokens=2))
    assert completion.finished
    assert_idle(llm)


# Where a text ends --------------------------------------------------------------------------------------------------


def test_the_end_of_text_token(tiny, hugging_face, monkeypatch):
    prompt = prompt_of(tiny, 17)
    full = ids_of(engine(tiny).generate(prompt, exactly(40)))[0]
    assert len(full) == 40
    stop = full[11]
    monkeypatch.setattr(tiny.module.generation_config, "eos_token_id", [stop, tiny.vocab_size - 1])
    llm = engine(tiny)
    output = output_of(llm, prompt, SamplingParams(max_tokens=40))
    assert output.token_ids == full[: full.index(stop) + 1]
    assert output.finish_reason == "stop"
    assert output.token_ids == hugging_face(tiny, prompt, 41)[:40]
    assert_idle(llm)
    ignored = output_of(llm, prompt, exactly(40))
    assert (ignored.token_ids, ignored.finish_reason) == (full, "length")


def test_a_real_end_of_text_is_no_text(tiny):
    """The tokenizer's own end-of-text token ends the text and leaves no trace in it."""
    end = tiny.tokenizer.eos_token_id
    for params in (SamplingParams(max_tokens=30), SamplingParams(max_tokens=30, stop="zzz")):
        calls = iter([*tiny.encode(" one two"), end])
        llm = engine(tiny)
        llm.sample_rows = lambda *_, calls=calls: torch.tensor([next(calls)])
        output = output_of(llm, [5], params)
        assert (output.text, output.token_ids[-1], output.finish_reason) == (" one two", end, "stop")


@pytest.mark.parametrize("max_tokens", [1, 2, 15, 16, 17])
def test_max_tokens(tiny, max_tokens):
    llm = engine(tiny)
    prompt = prompt_of(tiny, 16)
    output = output_of(llm, prompt, exactly(max_tokens))
    assert (len(output.token_ids), output.finish_reason) == (max_tokens, "length")
    # The token sampled last is never fed back, so it takes no slot.
    assert llm.stats.blocks_peak == blocks_for(16 + max_tokens - 1, 16)


def test_the_models_context_is_the_limit(tiny, monkeypatch):
    monkeypatch.setattr(tiny.module.config, "max_position_embeddings", 40)
    llm = engine(tiny)
    ids = prompt_of(tiny, 150)
    for length in (1, 30, 39):
        output = output_of(llm, ids[:length], exactly(100))
        assert (len(output.token_ids), output.finish_reason) == (40 - length, "length")
    for length in (40, 41):
        with refused(f"the prompt has {length} tokens and .* takes 40, new ones included"):
            llm.generate(ids[:length])
    assert_idle(llm)


def test_stop_strings(tiny):
    """Every stop string cut out of the text itself, so many of them lie across tokens."""
    prompt = prompt_of(tiny, 33)
    full = output_of(engine(tiny), prompt, exactly(40)).text
    llm = engine(tiny)
    starts = [i for i in range(1, len(full) - 8) if "\ufffd" not in full][:24:3]
    stops = [full[i : i + 4] for i in starts]
    params = [exactly(40, stop=("not in the text", stop)) for stop in stops]
    for stop, completion in zip(stops, llm.generate([prompt] * len(stops), params), strict=True):
        output = completion.outputs[0]
        assert output.text == full[: full.index(stop)]
        assert output.finish_reason == "stop"
        # It ends with the token that completes the stop string, not one later.
        assert stop in tiny.decode(output.token_ids)
        assert stop not in tiny.decode(output.token_ids[:-1])
    assert_idle(llm)


def test_each_of_n_texts_stops_for_itself(tiny):
    llm = engine(tiny, block_size=4)
    prompt = prompt_of(tiny, 9)
    hot = {"n": 4, "seed": 3, "max_tokens": 30, "temperature": 1.5, "ignore_eos": True}
    full = [o.text for o in llm.generate(prompt, SamplingParams(**hot))[0].outputs]
    stopped = llm.generate(prompt, SamplingParams(**hot, stop="e"))[0].outputs
    assert [o.text for o in stopped] == [text.split("e")[0] for text in full]
    assert [o.finish_reason for o in stopped] == ["stop" if "e" in text else "length" for text in full]
    assert_idle(llm)


# Streaming ----------------------------------------------------------------------------------------------------------


def test_pieces_join_to_the_text(tiny):
    llm = engine(tiny)
    for prompt in prompts_of(tiny, [1, 16, 33]):
        params = SamplingParams(max_tokens=40)
        pieces = list(llm.stream(prompt, params))
        assert "".join(pieces) == llm.generate(prompt, params)[0].outputs[0].text
        assert len(pieces) > 5
        assert all(pieces)
        assert_idle(llm)


def test_a_stream_never_shows_part_of_a_stop_string(tiny):
    prompt = prompt_of(tiny, 33)
    full = output_of(engine(tiny), prompt, exactly(40)).text
    llm = engine(tiny)
    for start in range(5, 30, 6):
        stop = full[start : start + 5]
        expected = full[: full.index(stop)]
        shown = ""
        for piece in llm.stream(prompt, exactly(40, stop=(stop, stop + "#"))):
            shown += piece
            assert expected.startswith(shown)
        assert shown == expected


def test_an_error_of_the_streams_reader_frees_its_blocks(tiny):
    llm = engine(tiny)

    def read():
        for _ in llm.stream("Once upon a time", exactly(50)):
            assert llm.sequences()
            raise RuntimeError("the reader's own error")

    with pytest.raises(RuntimeError, match="the reader's own"):
        read()
    assert_idle(llm)


def test_a_stream_that_nobody_reads(tiny):
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


def test_streams_side_by_side(tiny, hugging_face):
    """Each pass computes for all of them, so one may be complete before its reader looks."""
    llm = engine(tiny)
    prompts = prompts_of(tiny, [5, 17, 31])
    streams = [llm.stream(p, SamplingParams(max_tokens=n)) for p, n in zip(prompts, (30, 6, 12), strict=True)]
    texts = ["".join(stream) for stream in streams]  # the first reader takes all, then the second
    expected = [hugging_face(tiny, p, 64)[:n] for p, n in zip(prompts, (30, 6, 12), strict=True)]
    assert texts == [tiny.decode(ids) for ids in expected]
    assert_idle(llm)


def test_times_of_the_tokens(tiny):
    (completion,) = engine(tiny).generate([5, 6, 7], exactly(4, n=2, temperature=1.0))
    assert len(completion.times) == 4
    assert completion.added < completion.times[0]
    assert completion.times == sorted(completion.times)


# Step by step -------------------------------------------------------------------------------------------------------


def test_step_returns_what_it_touched(tiny):
    llm = engine(tiny)
    a, b = llm.add([5, 6], SamplingParams(max_tokens=2)), llm.add([7], exactly(1))
    first = llm.step()
    assert [c.request_id for c in first] == [a, b]
    assert [len(c.outputs[0].token_ids) for c in first] == [1, 1]
    assert first[1].finished
    assert b not in [c.request_id for c in llm.step()]
    drain(llm)
    assert_idle(llm)


@pytest.mark.parametrize("moment", range(6))
@pytest.mark.parametrize("n", [1, 3])
def test_abort_at_any_moment(tiny, hugging_face, moment, n):
    """Waiting, in the middle of its prompt, at its first token, later: the block counts fit, and the neighbour ends."""
    llm = engine(tiny, 40, 4, max_batch_tokens=10)
    neighbour, prompt = prompts_of(tiny, [17, 21])
    other = llm.add(neighbour, SamplingParams(max_tokens=10))
    params = exactly(9, n=n, temperature=1.0 if n > 1 else 0.0)
    mine = llm.add(prompt, params)
    last = {}
    for _ in range(moment):
        last |= {c.request_id: c for c in llm.step()}
    llm.abort(mine)
    if mine in last:
        assert last[mine].finished
        assert {o.finish_reason for o in last[mine].outputs} == {"abort"}
    llm.abort(mine)
    llm.pool.check([s.table for s in llm.sequences()])
    assert drain(llm)[other].outputs[0].token_ids == hugging_face(tiny, neighbour, 64)[:10]
    assert_idle(llm)


def test_abort_takes_the_id_that_add_returned(tiny):
    llm = engine(tiny)
    llm.add([5, 6], SamplingParams(max_tokens=1))
    with refused("^request_id must be a whole number of at least 0, got"):
        llm.abort("0")
    llm.abort(99)  # nobody's
    assert llm.num_unfinished == 1
    llm.abort(np.int64(0))
    assert_idle(llm)


def test_a_stopper_that_is_called_twice_ends_its_own_calls_alone(tiny):
    llm = engine(tiny)
    calls = []
    toy = ToyEngine()
    for listen in (llm.on_step, llm.on_forward, toy.on_step):
        stops = [listen(lambda *_: calls.append(1)) for _ in range(2)]
        stops[0]()
        stops[0]()
    llm.generate([5, 6], exactly(1))
    toy.add(4, 1)
    toy.run()
    assert len(calls) == 3, "one of each kind still listens"


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (5, "^token_ids must be a list of token ids, got 5$"),
        ([10**9], r"^a token id in token_ids must be .*, got 1000000000$"),
    ],
)
def test_decode_takes_token_ids(tiny, ids, said):
    with refused(said):
        engine(tiny).decode(ids)


def test_a_loaded_model_stays_where_and_as_it_is(tiny):
    for options in ({"dtype": "bfloat16"}, {"device": "cpu"}):
        with refused("^the model is loaded already: leave device and dtype at 'auto'$"):
            engine(tiny, **options)


def test_abort_from_a_callback(tiny):
    """A widget's stop button: the engine is told between two steps, and generate returns what there is."""
    llm = engine(tiny)
    steps = []

    def stop_after_four():
        steps.append(len(llm.sequences()))
        if len(steps) == 4:
            llm.abort(0)

    unsubscribe = llm.on_step(stop_after_four)
    (completion,) = llm.generate([5, 6], exactly(50))
    assert (len(completion.outputs[0].token_ids), completion.outputs[0].finish_reason) == (4, "abort")
    assert steps == [1, 1, 1, 1]
    unsubscribe()
    llm.generate([5, 6], SamplingParams(max_tokens=2))
    assert len(steps) == 4
    assert_idle(llm)


def test_stats(tiny):
    llm = engine(tiny, 64, 16)
    prompts = prompts_of(tiny, [16, 17, 5])
    llm.generate(prompts, exactly(8))
    stats = llm.stats
    assert (stats.prompt_tokens, stats.output_tokens, stats.steps) == (38, 24, 8)
    assert (stats.num_blocks, stats.blocks_used, stats.blocks_peak) == (64, 0, 5)  # 23, 24 and 12 slots
    assert stats.bytes_per_block == llm.cache.keys[:, 0].nbytes * 2
    assert stats.bytes_peak == 5 * stats.bytes_per_block
    assert stats.tokens_per_second == pytest.approx(24 / stats.seconds)
    assert "24 tokens in" in str(stats)
    assert "peak 5 of 64 blocks" in str(stats)
    llm.generate([5], SamplingParams(max_tokens=1))
    assert (llm.stats.prompt_tokens, llm.stats.output_tokens, llm.stats.blocks_peak) == (1, 1, 1)


def test_stats_of_chunks_and_samples(tiny):
    llm = engine(tiny, 64, 4, max_batch_tokens=6)
    llm.generate(prompt_of(tiny, 15), exactly(4, n=3, temperature=1.0))
    assert (llm.stats.prompt_tokens, llm.stats.output_tokens, llm.stats.steps) == (15, 12, 3 + 3)


# Prompts and parameters ---------------------------------------------------------------------------------------------


def test_prompts_of_all_kinds_in_one_call(tiny):
    llm = engine(tiny)
    chat = [{"role": "user", "content": "Hello"}]
    prompts = ["A cat", [5, 6, 7], chat, (8, 9), np.array([10, 11]), "A dog"]
    completions = llm.generate(prompts, SamplingParams(max_tokens=2))
    assert [c.prompt_token_ids for c in completions] == [
        tiny.encode("A cat"),
        [5, 6, 7],
        tiny.encode(chat),
        [8, 9],
        [10, 11],
        tiny.encode("A dog"),
    ]


@pytest.mark.parametrize("prompt", ["A cat", (5, 6), np.array([5, 6]), [{"role": "user", "content": "Hello"}]])
def test_one_prompt_needs_no_list(tiny, prompt):
    llm = engine(tiny)
    (completion,) = llm.generate(prompt, SamplingParams(max_tokens=2))
    assert llm.generate([]) == []
    assert completion.prompt_token_ids == list(tiny.encode(prompt))
    assert all(type(i) is int for i in completion.prompt_token_ids)


def test_parameters_one_each(tiny):
    llm = engine(tiny)
    params = [exactly(n) for n in (3, 1, 2)]
    for given_as in (params, tuple(params)):
        completions = llm.generate([[5], [6], [7]], given_as)
        assert [len(c.outputs[0].token_ids) for c in completions] == [3, 1, 2]
    with refused("3 prompts and 2 SamplingParams: give one for all, or one each"):
        llm.generate([[5], [6], [7]], params[:2])
    assert_idle(llm)


BAD_PROMPTS = [
    ("", "the prompt is empty: give at least one token"),
    ([[]], "the prompt is empty"),
    ([5, 10**9], "a token id in the prompt must be a whole number from 0 to 4095, got 1000000000"),
    ([5, "a"], "a token id in the prompt must be a whole number from 0 to 4095, got 'a'"),
    (None, "the prompt must be a list of token ids, got None"),
    ([{"role": "user"}], "no chat template for these messages .'dict object' has no attribute 'content'.: pass a text"),
    ("caf\udce9", "the prompt must be valid Unicode, got"),
    ([{"role": "user", "content": "caf\udce9"}], "the chat must be valid Unicode, got"),
    ([5] * 100_000, "the prompt has 100000 tokens and .* shorten it"),
    ([5] * 200, r"needs \d+ blocks of 4 tokens \(200 prompt tokens, up to \d+ new ones.* and the pool has 20"),
]


@pytest.mark.parametrize(("prompt", "said"), BAD_PROMPTS)
def test_bad_prompts(tiny, prompt, said):
    llm = engine(tiny, 20, 4)
    for call in (llm.generate, llm.stream, llm.add):
        argument = prompt[0] if call != llm.generate and prompt == [[]] else prompt
        with refused(said):
            call(argument)
        assert_idle(llm)
    if isinstance(prompt, str) or (isinstance(prompt, list) and isinstance(prompt[0], int)):
        with refused(f"prompt 1: .*{said}"):
            llm.generate([[5], prompt, [6]])
        assert_idle(llm)
        assert llm.stats.steps == 0, "a neighbour was started"
    assert len(ids_of(llm.generate([5, 6], exactly(3)))[0]) == 3


def test_help_lists_every_public_attribute(tiny):
    llm = engine(tiny)
    methods = {name for name in dir(LLM) if callable(getattr(LLM, name))}
    attributes = {name for name in dir(llm) if not name.startswith("_")} - methods
    section = inspect.getdoc(LLM).partition("Attributes:\n")[2].partition("\n\n")[0]
    named = re.findall(r"^    ([\w, ]+): ", section, re.MULTILINE)
    assert {name for names in named for name in names.split(", ")} == attributes


@pytest.mark.parametrize(
    "params",
    [
        exactly(5, logprobs=1),
        exactly(5, temperature=0.9, n=2, stop=["zzz"]),
    ],
    ids=["greedy", "samples"],
)
def test_a_completion_holds_no_engine(tiny, params):
    """It can be copied and pickled, and an engine that nobody else holds is freed."""
    model = replace(tiny, module=deepcopy(tiny.module))
    llm = engine(model)
    (done,) = llm.generate([prompt_of(tiny, 20)], params)
    for copied in (deepcopy(done), pickle.loads(pickle.dumps(done))):  # noqa: S301 - our own
        assert copied == done
        assert [each.text for each in copied.outputs] == [each.text for each in done.outputs]
        assert repr(copied) == repr(done)
        assert copied.finished
    held = [weakref.ref(each) for each in (llm, model.module, llm.pool, llm.cache)]
    del llm, model
    gc.collect()
    assert [each() for each in held] == [None] * 4
    assert done.outputs[0].text


@pytest.mark.parametrize("kind", [LLM, pagedlab_fast.LLM, SpeculativeLLM])
def test_an_engine_is_freed_with_its_last_reference(tiny, kind):
    """Without the garbage collector: on a GPU the next engine needs the memory of this one."""
    llm = engine(replace(tiny), kind=kind)
    llm.generate([5, 6], exactly(3))
    held = [weakref.ref(each) for each in (llm, llm.model, llm.cache)]
    gc.collect()
    gc.disable()
    try:
        del llm
        assert [each() for each in held] == [None] * 3
    finally:
        gc.enable()


def test_too_many_texts(tiny):
    llm = engine(tiny, max_sequences=3)
    with refused("4 samples of one prompt begin side by side and the engine takes 3"):
        llm.generate([5], SamplingParams(n=4, temperature=1.0))
    with refused("stream yields one text"):
        llm.stream([5], SamplingParams(n=2, temperature=1.0))
    assert_idle(llm)


def test_blocks_for_as_many_texts_as_may_run(tiny):
    llm = LLM(tiny, max_sequences=2)
    assert llm.pool.num_blocks == 2 * blocks_for(tiny.max_length, 16)


def blocks_on_a_gpu(tiny, free, max_batch_tokens):
    """How many blocks an engine would take on a GPU with so many free bytes."""
    cache = tiny.kv_cache(1, 16)
    cache.free_bytes = lambda: free
    on_gpu = SimpleNamespace(
        device=torch.device("cuda"), kv_cache=lambda *sizes: cache, working_bytes=tiny.working_bytes, max_length=2**40
    )
    llm = object.__new__(LLM)
    llm.model, llm.block_size, llm.max_sequences, llm.max_batch_tokens = on_gpu, 16, 256, max_batch_tokens
    return llm.blocks_that_fit()


def test_on_a_gpu_the_work_of_a_step_takes_its_part(tiny):
    """Three tensors of the widest layer for all tokens, and the logits in fp32 three times, twice over; and counts."""
    config = tiny.module.config
    logits = 256 * config.vocab_size
    work = 2 * (3 * 1000 * config.intermediate_size * 4 + logits * (4 + 2 * 4)) + logits * 4
    block = tiny.kv_cache(1, 16).bytes_per_block
    assert blocks_on_a_gpu(tiny, (work + 7.5 * block) / GPU_MEMORY, 1000) == 7
    with refused("a step of 1,000 tokens leaves no memory for a block: lower max_batch_tokens"):
        blocks_on_a_gpu(tiny, (work + block / 2) / GPU_MEMORY, 1000)


# When something fails in the middle -----------------------------------------------------------------------------------


def test_a_callback_that_raises(tiny):
    llm = engine(tiny)
    stop = llm.on_step(raising_at(2, lambda: None, Fault))
    with pytest.warns(UserWarning, match="a callback raised Fault"):
        assert len(llm.generate([[5], [6, 7]], SamplingParams(max_tokens=8))) == 2
    assert_idle(llm)
    stop()
    assert len(llm.generate([[5], [6, 7]], SamplingParams(max_tokens=8))) == 2


# The reader's own classes -----------------------------------------------------------------------------------------


class OwnPool(PlainPool):
    """Hands out its blocks in no order."""

    def __init__(self, num_blocks, block_size):
        super().__init__(num_blocks, block_size)
        self.unused.sort(key=lambda block_id: block_id * 7919 % 31)


def own_attention(
    q,
    k_cache,
    v_cache,
    block_tables,
    seq_lens,
    query_starts,
    scale=None,
):
    """Attention as a reader writes it: a loop over sequences, blocks put side by side, a mask."""
    out = torch.empty_like(q)
    for b, length in enumerate(seq_lens.tolist()):
        start, stop = query_starts[b].item(), query_starts[b + 1].item()
        blocks = block_tables[b, : -(-length // k_cache.shape[1])].long()
        k, v = (cache[blocks].flatten(0, 1)[:length] for cache in (k_cache, v_cache))
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        scores = torch.einsum("nhd,lhd->hnl", q[start:stop], k) * (scale or q.shape[2] ** -0.5)
        late = torch.arange(length) > torch.arange(length - (stop - start), length)[:, None]
        out[start:stop] = torch.einsum("hnl,lhd->nhd", scores.masked_fill(late, -torch.inf).softmax(2), v)
    return out


def test_qwen_runs_on_what_a_reader_wrote(tiny, hugging_face):
    llm = engine(tiny, 160, block_pool=OwnPool, attention_backend=own_attention, max_batch_tokens=50)
    assert isinstance(llm.pool, OwnPool)
    assert_identity(llm, hugging_face, LENGTHS, 32)
    hot = exactly(12, n=3, seed=4, temperature=1.0)
    prompt = prompt_of(tiny, 21)
    mine, ours = (all_ids_of(e.generate(prompt, hot)) for e in (llm, engine(tiny)))
    assert mine == ours
    assert_idle(llm)


# Real Qwen ----------------------------------------------------------------------------------------------------------

QWEN_LENGTHS = [3, 16, 17, 33, 64, 128, 250, 400]


@pytest.fixture(scope="module")
def qwen_prompts(qwen):
    ids = qwen.encode(TEXT + "\n\n" + TEXT.swapcase() + "\n\n" + TEXT.upper())
    return [ids[11 * i : 11 * i + n] for i, n in enumerate(QWEN_LENGTHS)]


def assert_same_but_for_ties(model, prompt, mine, theirs):
    """Both texts are equal up to the first place where fp32 cannot tell the two likeliest tokens apart, if any."""
    at = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b), None)
    if at is None:
        return
    logits = plain_logits(model, prompt + theirs[:at])[-1]
    gap = float(abs(logits[mine[at]] - logits[theirs[at]]))
    assert gap < 2e-5, f"token {at} is {mine[at]} in place of {theirs[at]}, with logits {gap} apart"


@pytest.mark.timeout(1800)
def test_real_qwen_says_what_generate_says(qwen, qwen_prompts, hugging_face):
    """8 prompts of 3 to 400 tokens in one batch, fp32, every backend: 32 new tokens each, 16 with those to read.

    One test, so that workers side by side do not each compute what `generate` says, which takes the most time.
    """
    assert [len(prompt) for prompt in qwen_prompts] == QWEN_LENGTHS
    expected = [hugging_face(qwen, prompt, 32) for prompt in qwen_prompts]
    for backend in BACKENDS:
        new = 32 if backend == "torch" else 16
        llm = engine(qwen, 128, attention_backend=backend)
        outputs = ids_of(llm.generate(qwen_prompts, SamplingParams(max_tokens=new)))
        print(f"{backend}: {llm.stats}")
        for prompt, mine, theirs in zip(qwen_prompts, outputs, expected, strict=True):
            assert_same_but_for_ties(qwen, prompt, mine, theirs[:new])
        assert_idle(llm)
