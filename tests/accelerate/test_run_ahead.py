"""Decode steps whose state stays on the device, and windows of them: the same tokens as the engine's, step by step.

In fp32 on poisoned caches, the kernels in Triton's interpreter. CUDA graphs of the same steps: test_run_ahead_gpu.py.
"""

import asyncio
import itertools
import random
import sys
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    reason = "these run in Triton's interpreter, so without a GPU; test_run_ahead_gpu.py has the others"
    pytest.skip(reason, allow_module_level=True)

import pagedlab_fast
from pagedlab import BlockPool, SamplingParams
from pagedlab.batch import build_batch
from pagedlab.model import Model, Pages
from pagedlab.recipes.beam import beams
from pagedlab.recipes.penalties import Penalties
from pagedlab.scheduler import Chunk
from pagedlab_fast import choose as choosing
from pagedlab_fast import fused as fused_layers
from pagedlab_fast.choose import MAX_STEPS, choose_fused, takes_graphs
from pagedlab_fast.device_step import GraphRunner
from pagedlab_fast.fused import Fused
from pagedlab_fast.runner import STREAMED_STEPS
from pagedlab_fast.scheduler import FastScheduler
from pagedlab_fast.shapes import TOKENS
from pagedlab_fast.token_counts import TokenCounts
from pagedlab_fast.window import RowPlan
from pagedlab_serve.engine_thread import EngineThread, Ticket
from support.ahead import running_ahead
from support.drafters import Recalls
from support.engines import (
    assert_idle,
    breaking_at,
    come_and_go,
    drain,
    engine,
    exactly,
    finished,
    ids_of,
    prompt_of,
    prompts_of,
    sequence_of,
    texts_of,
)
from support.refused import refused


@pytest.fixture(scope="module")
def tiny(tiny):
    """One of this file's own: layers that are fused change their module's weights."""
    return replace(tiny, module=deepcopy(tiny.module))


@pytest.fixture(scope="module")
def shallow(tiny):
    """Its first two layers: fused ones take a second each in Triton's interpreter."""
    module = deepcopy(tiny.module)
    module.model.layers = module.model.layers[:2]
    module.config.num_hidden_layers = 2
    return replace(tiny, module=module)


# The engine, running ahead ------------------------------------------------------------------------------------------


class Halves(Fused):
    """The stock modules in two halves, like fused ones. In Triton's interpreter those take seconds a step."""

    def __init__(self, module):
        self.module = module

    def hidden_states(self, batch, cache, attend, all_rows=False):
        ids, positions = batch.token_ids[None], batch.positions[None]
        with torch.inference_mode():
            pages = Pages(cache, batch, attend)
            out = self.module.model(input_ids=ids, position_ids=positions, use_cache=False, pages=pages)
            return out.last_hidden_state[0]

    def logits(self, x, rows=None):
        with torch.inference_mode():
            return self.module.lm_head(x[rows])


def ahead_engine(model, num_blocks=256, block_size=16, halves=True, **options):
    """An engine that decodes in windows, as on a GPU, but launch by launch; the host draws behind the layers, or runs
    its steps as they are."""
    ahead = running_ahead(lambda llm: Halves(model.module) if halves else None)
    return engine(model, num_blocks, block_size, kind=pagedlab_fast.LLM, **ahead, **options)


@pytest.mark.parametrize("asked", [{}, {"adjust": Penalties(1 + 1e-6)}, {"temperature": 1e-6}], ids=str)
def test_a_text_whose_logits_are_not_finite_ends_alone(tiny, asked):
    """In a window, at its end, in its first step with a prompt, and while the next window is in flight."""
    prompts = prompts_of(tiny, [20, 33, 7, 12])
    params = exactly(2 * MAX_STEPS, **asked)
    answers = ids_of(engine(tiny).generate(prompts, params))
    place = next(i for i, token in enumerate(answers[0]) if i and token not in answers[0][:i])
    token = answers[0][place]
    model = breaking_at(tiny, token)
    llm = ahead_engine(model, halves=False)
    done = llm.generate([*prompts, [*prompts[3], token]], params)
    for prompt, answer, completion in zip(prompts, answers, done, strict=False):
        (output,) = completion.outputs
        assert token not in prompt
        end = answer.index(token) + 1 if token in answer[:-1] else len(answer)
        assert output.token_ids == answer[:end]
        assert output.finish_reason == ("length" if end == 2 * MAX_STEPS else "error")
    assert (done[4].outputs[0].token_ids, done[4].outputs[0].finish_reason) == ([], "error")
    assert {completion.outputs[0].finish_reason for completion in done[:4]} == {"length", "error"}
    pieces = []
    with pytest.raises(FloatingPointError, match="logits are not finite"):
        pieces.extend(llm.stream(prompts[0], params))  # in short windows, two in flight
    assert "".join(pieces) == done[0].outputs[0].text
    assert_idle(llm)


MIXED = [
    exactly(30),
    SamplingParams(max_tokens=MAX_STEPS + 1),
    SamplingParams(max_tokens=1),
    SamplingParams(max_tokens=25, temperature=0.9, seed=3, n=3),
    SamplingParams(max_tokens=17, temperature=0.7, seed=4, stop=("e",)),
    SamplingParams(max_tokens=2 * MAX_STEPS, temperature=0.7, seed=5),
    SamplingParams(max_tokens=12, temperature=0.7, seed=6, top_k=5),
    SamplingParams(max_tokens=11, temperature=1.2, seed=7, top_p=0.8),
    SamplingParams(max_tokens=10, temperature=0.7, seed=8, min_p=0.1),
    SamplingParams(max_tokens=20, adjust=Penalties(1.4)),
    SamplingParams(max_tokens=2 * MAX_STEPS, temperature=0.8, seed=9, adjust=Penalties(presence=1.0, frequency=0.4)),
    SamplingParams(max_tokens=9, temperature=0.9, seed=10, n=2, adjust=Penalties(1.2), top_k=9, top_p=0.9),
]
MIXED_LENGTHS = [16, 5, 30, 12, 1, 33, 8, 7, 9, 18, 3, 6]


@pytest.fixture(scope="module")
def mixed_texts(tiny):
    """Completions of an engine that runs step by step."""
    return engine(tiny).generate(prompts_of(tiny, MIXED_LENGTHS), MIXED)


@pytest.mark.parametrize(
    ("num_blocks", "options"),
    [
        (256, {}),
        (30, {"block_size": 4}),
        (256, {"prefix_caching": False, "max_sequences": 4}),
        (256, {"max_batch_tokens": 9}),
        (256, {"halves": False}),
    ],
)
def test_windows_give_the_same_texts(tiny, mixed_texts, num_blocks, options):
    """Samples, stop strings and plain texts together; blocks in plenty, and so few that some must give way."""
    llm = ahead_engine(tiny, num_blocks, **options)
    got = llm.generate(prompts_of(tiny, MIXED_LENGTHS), MIXED)
    assert texts_of(got) == texts_of(mixed_texts)
    outputs, expected = ([output for c in some for output in c.outputs] for some in (got, mixed_texts))
    assert [output.text for output in outputs] == [output.text for output in expected]
    if num_blocks == 30:
        assert llm.stats.preemptions > 0
    assert [len(c.times) for c in got] == [len(c.times) for c in mixed_texts]
    assert_idle(llm)


def test_beams_advance_between_windows(tiny):
    """A window is in flight while their tables are forked and freed."""
    prompts = prompts_of(tiny, [16, 5, 30])
    alone, wanted = engine(tiny), engine(tiny).generate(prompts[:2], exactly(40))
    options = {"width": 3, "max_tokens": 9, "ignore_eos": True}
    expected = [[beam.output_ids for beam in running] for running in beams(alone, prompts[2], **options)]
    llm = ahead_engine(tiny, block_size=4)
    added = [llm.add(prompt, exactly(40)) for prompt in prompts[:2]]
    done = finished(llm.step())
    for running, ids in zip(beams(llm, prompts[2], **options), expected, strict=True):
        assert [beam.output_ids for beam in running] == ids
        done |= finished(llm.step())
    done |= drain(llm)
    assert texts_of([done[request_id] for request_id in added]) == texts_of(wanted)
    assert_idle(llm)


def test_limits_and_penalties_are_applied_on_the_device(tiny):
    prompts = prompts_of(tiny, [9, 20, 12, 15])
    params = [
        exactly(9, temperature=0.9, seed=1, top_k=5),
        exactly(9, temperature=1.5, seed=2, top_p=0.7),
        exactly(40, adjust=Penalties(1.5)),
        exactly(40, adjust=Penalties(presence=0.5, frequency=1.0)),
    ]
    expected = texts_of(engine(tiny).generate(prompts, params))
    llm = ahead_engine(tiny)
    llm.runner.decoder.runner = replays = Replays(llm.runner.decoder.runner)
    assert texts_of(llm.generate(prompts, params)) == expected
    assert all(shape.is_sampled for shape in replays.shapes)


def test_a_row_of_the_counts_is_given_on_and_counts_anew(tiny):
    """Two rows for four sequences that take turns: one whose blocks are freed gives its row on."""
    counts = TokenCounts(2, tiny.vocab_size, torch.device("cpu"))
    params = SamplingParams(adjust=Penalties(1.2))
    pool = BlockPool(4)
    sequences = [sequence_of(pool, [7, 7, 8, 10 + i], i, num_prompt_tokens=2, params=params) for i in range(4)]

    def plan(sequence, num_samples):
        length = len(sequence.token_ids)
        return RowPlan(sequence, Chunk(sequence, length - 1, length), length, num_samples, sequence.token_ids[-1])

    def check(samples):
        """Samples of each sequence in the next window; the others hold no blocks."""
        for i, sequence in enumerate(sequences):
            sequence.table.free()
            sequence.table.append(int(i in samples))
        plans = [plan(sequences[i], n) for i, n in samples.items()]
        assert counts.prepare(plans)
        numbers = [each.counts_row for each in plans]
        for (i, n), number in zip(samples.items(), numbers, strict=True):
            assert (number >= 0) == (n > 0)
            if n:
                ids = sequences[i].token_ids
                expected = 2 * torch.bincount(torch.tensor(ids[2:]), minlength=tiny.vocab_size)
                expected[7] += 1
                assert torch.equal(counts.counts[number].long(), expected)
                with torch.inference_mode():
                    counts.counts[number, 5] += 2 * n  # as the device does
                ids += [5] * n
        return numbers

    assert not counts.prepare([plan(sequence_of(pool, [7, 8]), 1)])
    assert counts.counts is None
    with torch.inference_mode():
        assert sorted(check({0: 2, 1: 0, 2: 1})) == [-1, 0, 1]
    sequences[0].token_ids.append(9)  # by the host, in a step of its own
    first = check({2: 1, 0: 3})
    assert check({0: 1, 3: 1}) == [first[1], first[0]]
    check({2: 1, 1: 1})
    counts.forget()  # the device has sampled what is not taken
    with torch.inference_mode():
        counts.counts += 2
    check({1: 1, 2: 1})


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_end_of_text_ends_a_row(tiny, monkeypatch, ignore_eos):
    prompts = prompts_of(tiny, [20, 40])
    end = ids_of(engine(tiny).generate(prompts, exactly(30)))[0][4]
    monkeypatch.setattr(type(tiny), "eos_token_ids", property(lambda self: frozenset([end, tiny.vocab_size - 1])))
    params = SamplingParams(max_tokens=30, ignore_eos=ignore_eos)
    expected, got = (make(tiny).generate(prompts, params) for make in (engine, ahead_engine))
    assert texts_of(got) == texts_of(expected)
    assert (got[0].outputs[0].finish_reason == "stop") != ignore_eos


def test_windows_run_ahead_and_are_counted(tiny):
    """One text of 40 tokens: windows of STREAMED_STEPS, the prompt in the first, two in flight."""
    llm = ahead_engine(tiny)
    in_flight, tokens = [], []
    llm.add(prompt_of(tiny, 10), exactly(40))
    while not (touched := llm.step())[0].finished:
        in_flight.append(llm.runner.in_flight)
        tokens.append(len(touched[0].outputs[0].token_ids))
    assert tokens == [8, 16, 24, 32]
    assert in_flight == [1, 1, 1, 1]
    assert llm.stats.steps == 40
    assert llm.stats.output_tokens == 40
    assert_idle(llm)


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_window_of_long_ones_only_where_nobody_waits_for_a_place(tiny, waiting):
    """Two texts of `generate`, in an engine for two: rows of those that end are idle until the window does. How long
    others' windows were says nothing of these."""
    llm, passes = ahead_engine(tiny, max_sequences=2), []
    llm.runner.num_steps = 1
    llm.on_step(lambda: passes.append(llm.stats.steps))
    llm.generate(prompts_of(tiny, [5] * (2 + waiting)), exactly(40))
    assert passes[0] == (STREAMED_STEPS if waiting else MAX_STEPS)
    assert_idle(llm)


def test_an_engine_that_many_read_from_runs_fewer_steps_ahead(tiny):
    """Through an `EngineThread` the tokens of a text come five at a time; when it has stopped, eight again."""
    llm, passes = ahead_engine(tiny), []
    llm.on_step(lambda: passes.append(llm.stats.steps))
    params = exactly(40)
    (expected,) = engine(tiny).generate(prompts := prompts_of(tiny, [10]), params)
    thread = EngineThread(llm)

    async def heard():
        ticket = Ticket(thread, params, stream=True)
        await thread.submit(ticket, prompts, None)
        return "".join([piece.text async for pieces in ticket for piece in pieces])

    thread.start()
    try:
        assert asyncio.run(heard()) == expected.outputs[0].text
    finally:
        thread.stop()
    assert passes == [5 * (i + 1) for i in range(8)]
    llm.add(prompts[0], params)
    while llm.num_unfinished:
        llm.step()
    assert passes[8:] == [STREAMED_STEPS * (i + 1) for i in range(5)]
    assert_idle(llm)


def test_after_a_launch_that_fails_the_next_call_starts_clean(tiny):
    """With a window under way: what it writes, after the reset, is in nobody's blocks."""
    prompts = prompts_of(tiny, [16, 14, 9])
    params = [exactly(40), exactly(40, adjust=Penalties(1.3)), exactly(40, adjust=Penalties(frequency=0.4))]
    expected = texts_of(engine(tiny).generate(prompts, params))
    llm = ahead_engine(tiny, 26, 4)
    start, in_flight = llm.runner.decoder._start, []

    def failing(steps):
        in_flight.append(llm.runner.in_flight)
        if len(in_flight) == 3:
            raise RuntimeError("planted")
        start(steps)

    llm.runner.decoder._start = failing
    with pytest.raises(RuntimeError, match="planted"):
        llm.generate(prompts, params)
    assert in_flight[-1] > 0
    assert llm.runner.in_flight == 0
    assert texts_of(llm.generate(prompts, params)) == expected
    assert_idle(llm)


@pytest.mark.parametrize(("index", "ahead"), [(0, True), (1, False)])
def test_graphs_are_for_the_current_gpu(monkeypatch, index, ahead):
    """Another one's would be captured empty: torch captures what is launched on the current one."""
    monkeypatch.setattr(choosing, "is_on_gpu", lambda *_: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    parts = SimpleNamespace(device=torch.device("cuda", index)), None, FastScheduler(BlockPool(4), 4, 4)
    assert takes_graphs("auto", *parts) == ahead
    assert not takes_graphs(False, *parts)
    if not ahead:
        with refused("torch's current one"):
            takes_graphs(True, *parts)


# Drafts -----------------------------------------------------------------------------------------------------------


class Replays(GraphRunner):
    """Has a graph of every shape, or what replaying one leaves behind."""

    def __init__(self, runner):
        super().__init__(runner.step, runner._max_tokens, enabled=True)
        self.shapes = set()
        self.graphs = Graphs(self._replay)

    def _replay(self, shape):
        self.shapes.add(shape)
        if (hidden := self.step.run(shape)) is not None:
            self._hidden.fill_(torch.nan)  # what earlier ones left is not to be read
            self._hidden[: len(hidden)] = hidden


class Graphs(dict):
    def __init__(self, replay):
        self.replay = replay

    def __contains__(self, shape):
        return True

    def __getitem__(self, shape):
        return SimpleNamespace(replay=lambda: self.replay(shape))


@pytest.mark.parametrize("texts", [1, 5])
def test_drafts_at_and_beside_every_buckets_edge(tiny, texts, seed):
    """Steps of so many texts with 15, 16, 17, 63, 64, 65, 127 ... tokens; the texts are those of `generate`."""
    new = 40
    prompts = prompts_of(tiny, [9, 4, 17, 1, 30][:texts])
    params = exactly(new)
    expected = ids_of(engine(tiny).generate(prompts, params))
    known = {tuple(p): ids for p, ids in zip(prompts, expected, strict=True)}
    sizes, sampled = set(), set()
    for edge in TOKENS[:3]:
        for tokens in (edge - 1, edge, edge + 1):
            drafter = Recalls(-(-tokens // texts) - 1, known, 0.1, random.Random(seed))
            if not 0 < drafter.k < new - 1:
                continue
            llm = ahead_engine(tiny, drafter=drafter, max_sequences=texts, max_batch_tokens=max(tokens, 61))
            llm.on_step(lambda llm=llm: sizes.add(sum(c.stop - c.start for c in llm.plan.chunks)))
            llm.runner.decoder.runner = replays = Replays(llm.runner.decoder.runner)
            assert ids_of(llm.generate(prompts, params)) == expected, tokens
            assert llm.stats.accepted_tokens > 0
            sampled |= {shape.is_sampled for shape in replays.shapes}
            assert_idle(llm)
    assert sampled == {False}
    if texts == 1:
        assert {15, 16, 17} <= sizes


# Fused layers -----------------------------------------------------------------------------------------------------


def test_a_prompts_last_layer_is_computed_for_the_rows_asked_for(shallow, seed):
    """Prompts to their end or not, one of which ends in a draft, and a new token among them."""
    rng, chunks, llm = random.Random(seed), [], engine(shallow)
    for i, prompt in enumerate(prompts_of(shallow, [rng.randint(8, 20) for _ in range(4)])):
        text = sequence_of(llm.pool, prompt, i)
        start, stop = (len(prompt) - 1, len(prompt)) if i == 3 else (0, len(prompt) - (i == 1))
        guesses = (5, 6) if i == 2 else ()
        text.table.append(stop + len(guesses))
        chunks.append(Chunk(text, start, stop + len(guesses), guesses))
    rng.shuffle(chunks)
    llm.cache.keys.normal_(generator=torch.Generator().manual_seed(seed))  # of what came before the new token
    llm.cache.values.zero_()
    batch, rows, fused = build_batch(chunks, shallow.device), [], Fused(deepcopy(shallow.module))

    def attend(q, *rest):
        rows.append(len(q))
        return llm.attend(q, *rest)

    assert len(batch.last_rows) == 5  # none of the prompt that goes on, three of the one with a draft
    expected = shallow.forward(batch, llm.cache, llm.attend)
    logits = fused.forward(batch, llm.cache, attend)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    assert rows == [len(batch.token_ids)] * (len(rows) - 1) + [5]
    none = replace(batch, last_rows=batch.last_rows[:0])  # of a prompt that goes on in the next step
    assert fused.forward(none, llm.cache, attend).shape == (0, shallow.vocab_size)
    more = replace(batch, last_rows=torch.arange(len(batch.token_ids) + 3) % 5)  # as a graph of many texts pads them
    logits = fused.forward(more, llm.cache, attend)
    torch.testing.assert_close(logits, shallow.forward(more, llm.cache, llm.attend), rtol=1e-4, atol=1e-4)
    assert rows[-1] == len(batch.token_ids)


def test_norms_go_into_the_matrices_behind_them_once(tiny, seed):
    """And the stock module computes what it did: its norms' weights are ones then."""
    module = deepcopy(tiny.module)
    generator = torch.Generator().manual_seed(seed)
    for layer in module.model.layers:
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.weight.data.uniform_(0.5, 1.5, generator=generator)
    x = torch.randn(3, module.config.hidden_size, generator=generator)
    some = module.model.layers[0]

    def read():
        with torch.inference_mode():
            return some.self_attn.k_proj(some.input_layernorm(x))

    def places(fused):
        return [weight.data_ptr() for layer in fused.layers for weight in layer if weight is not None]

    before = read()
    first = Fused(module)
    assert places(Fused(module)) == places(first), "the second engine shares what the first has stacked"
    module.half().float()  # its weights are elsewhere now
    for fused in (first, Fused(module)):
        assert (fused.layers[0].qkv.data_ptr() == some.self_attn.q_proj.weight.data_ptr()) == (fused is not first)
        assert set(some.input_layernorm.weight.tolist()) == set(some.post_attention_layernorm.weight.tolist()) == {1.0}
        torch.testing.assert_close(read(), before, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("line", range(12))
def test_an_interrupt_while_norms_move_leaves_a_module_that_computes_what_it_did(tiny, seed, line):
    module = deepcopy(tiny.module)
    some = module.model.layers[0]
    some.input_layernorm.weight.data.fill_(0.5)
    x = torch.randn(3, module.config.hidden_size, generator=torch.Generator().manual_seed(seed))
    before = some.self_attn.k_proj(some.input_layernorm(x))
    lines = itertools.count()

    def interrupted(frame, what, _):
        if what == "line" and next(lines) == line:
            raise KeyboardInterrupt
        return interrupted

    sys.settrace(lambda frame, what, _: interrupted if frame.f_code is fused_layers._stacked.__code__ else None)
    try:
        with pytest.raises(KeyboardInterrupt):
            Fused(module)
    finally:
        sys.settrace(None)
    torch.testing.assert_close(some.self_attn.k_proj(some.input_layernorm(x)), before, rtol=1e-5, atol=1e-5)


def test_fp16_is_fused_only_on_demand(tiny):
    """What is not normed yet may leave its range."""
    half = Model(deepcopy(tiny.module).half(), tiny.tokenizer, "half", "")
    assert choose_fused(half, "auto", True) is None
    assert isinstance(choose_fused(half, True, True), Fused)
    assert isinstance(choose_fused(tiny, "auto", True), Fused)


def test_an_engine_on_fused_layers_writes_the_same_texts(shallow):
    prompts, params = (
        prompts_of(shallow, [16, 5, 9]),
        [replace(p, max_tokens=6) for p in (MIXED[0], MIXED[3], MIXED[-1])],
    )
    expected = engine(shallow).generate(prompts, params)
    assert texts_of(engine(shallow, kind=pagedlab_fast.LLM, fused=True).generate(prompts, params)) == texts_of(expected)


def test_what_cannot_be_fused_says_why(tiny):
    from copy import copy

    other = copy(tiny.module.config)
    other.model_type = "gemma3"
    module = copy(tiny.module)
    module.config = other
    with refused("this gemma3 cannot be fused"):
        Fused(module)
    with refused("cuda_graphs=True takes one NVIDIA GPU"):
        engine(tiny, kind=pagedlab_fast.LLM, cuda_graphs=True)


def test_warming_up_takes_an_idle_engine(tiny):
    llm = engine(tiny, kind=pagedlab_fast.LLM)
    request_id = llm.add([1, 2], SamplingParams(max_tokens=2))
    with refused("warm_up takes an idle engine, and 1 requests are queued"):
        llm.warm_up()
    llm.abort(request_id)
    llm.warm_up()
    assert llm.pool.num_used == 0


# Everything at once -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafts", [False, True])
def test_windows_and_drafts_among_arrivals_aborts_prefixes_and_those_who_want_the_host(tiny, rng, drafts):
    """Prompts that begin alike come and go between steps, and blocks are short. Some drafts are wrong.

    Greedy: in fp32 a draw at a rounding edge may differ with who else is in the batch.
    """
    shared = prompt_of(tiny, 40)
    prompts = [[*shared[: rng.choice([8, 16, 24, 40])], *[100 + i] * rng.randint(1, 12)] for i in range(14)]
    kinds = [{}, {}, {"min_p": 1.0, "temperature": 1.0}, {"logprobs": 1}]
    kinds += [{"adjust": Penalties(1.3)}, {"adjust": Penalties(presence=1.0, frequency=0.5)}]
    params = [exactly(rng.randint(1, 20), **rng.choice(kinds)) for _ in prompts]
    alone = [engine(tiny).generate([prompt], [asked])[0] for prompt, asked in zip(prompts, params, strict=True)]
    known = {tuple(prompt): ids for prompt, ids in zip(prompts, ids_of(alone), strict=True)}
    llm = ahead_engine(
        tiny, rng.choice([14, 20, 200]), 8, prefix_caching=rng.random() < 0.7,
        max_prompt_tokens=rng.choice([5, 24, None]),
        drafter=Recalls(rng.randint(1, 9), known, 0.2, rng) if drafts else None,
    )  # fmt: skip
    llm.runner.num_steps = rng.choice([1, 2, 5])
    come_and_go(llm, prompts, params, texts_of(alone), rng)
