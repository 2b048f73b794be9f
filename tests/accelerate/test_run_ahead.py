"""Decode steps whose state stays on the device, and windows of them: the same tokens as the engine's, step by step.

In fp32 on poisoned caches, the kernels in Triton's interpreter. CUDA graphs of the same steps: test_run_ahead_gpu.py.
"""

import asyncio
import gc
import random
import sys
from copy import copy, deepcopy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")
if torch.cuda.is_available():
    reason = "these run in Triton's interpreter, so without a GPU; test_run_ahead_gpu.py has the others"
    pytest.skip(reason, allow_module_level=True)

import pagedlab_fast
from pagedlab import BlockPool
from pagedlab.batch import build_batch
from pagedlab.model import Pages
from pagedlab.recipes.penalties import Penalties
from pagedlab.recipes.speculative import PromptLookup
from pagedlab.scheduler import Chunk
from pagedlab_fast import choose, fused
from pagedlab_fast.fused import Fused
from pagedlab_fast.runner import STREAMED_STEPS
from pagedlab_fast.scheduler import FastScheduler
from pagedlab_fast.shapes import TOKENS
from pagedlab_serve.engine_thread import EngineThread, Ticket
from support.ahead import MIXED, MIXED_LENGTHS, running_ahead
from support.drafters import Recalls
from support.engines import (
    assert_idle,
    breaking_at,
    broken_by,
    engine,
    exactly,
    ids_of,
    prompt_of,
    prompts_of,
    sequence_of,
    texts_of,
)
from support.faults import Fault, raising_at
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
        with torch.inference_mode():
            pages = Pages(cache, batch, attend)
            ids, positions = batch.token_ids[None], batch.positions[None]
            return self.module.model(input_ids=ids, position_ids=positions, use_cache=False, pages=pages)[0][0]

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
    prompts, most = prompts_of(tiny, [20, 33, 7, 12]), 2 * choose.MAX_STEPS
    params = exactly(most, **asked)
    answers = ids_of(engine(tiny).generate(prompts, params))
    token = next(token for i, token in enumerate(answers[0]) if i and token not in answers[0][:i])
    expected = [[broken_by(token, answer)] for answer in answers]
    assert {reason for [(_, reason)] in expected} == {"length", "error"}
    llm = ahead_engine(breaking_at(tiny, token), halves=False)
    done = llm.generate([*prompts, [*prompts[3], token]], params)
    assert texts_of(done) == [*expected, [([], "error")]]
    pieces = []
    with pytest.raises(FloatingPointError, match="logits are not finite"):
        pieces.extend(llm.stream(prompts[0], params))  # in short windows, two in flight
    assert "".join(pieces) == done[0].outputs[0].text
    assert_idle(llm)


@pytest.fixture(scope="module")
def mixed_texts(tiny):
    """Completions of an engine that runs step by step."""
    return engine(tiny).generate(prompts_of(tiny, MIXED_LENGTHS), MIXED)


@pytest.mark.parametrize(
    "options",
    [
        {"num_blocks": 26, "block_size": 4, "max_sequences": 4},
        {"prefix_caching": False, "max_sequences": 4, "max_prompt_tokens": 5},
        {"max_batch_tokens": 9, "halves": False},
        {"drafter": PromptLookup(3), "max_sequences": 5},
    ],
)
def test_windows_give_the_same_texts(tiny, mixed_texts, options):
    """Samples, stop strings and plain texts together; blocks in plenty, and so few that some must give way."""
    llm, prompts = ahead_engine(tiny, **options), prompts_of(tiny, MIXED_LENGTHS)
    for one, other in zip(llm.generate(prompts, MIXED), mixed_texts, strict=True):
        assert (one.outputs, len(one.times)) == (other.outputs, len(other.times))
    assert (llm.stats.preemptions > 0) == ("num_blocks" in options)
    assert_idle(llm)


def window_sizes(llm):
    """A list that gets the engine's steps so far after each window."""
    passes = []
    llm.on_step(lambda: passes.append(llm.stats.steps))
    return passes


@pytest.mark.parametrize("asked", [{}, {"temperature": 1.5, "top_k": 5, "top_p": 0.7, "adjust": Penalties(1.5, 1.0)}])
def test_windows_run_ahead_and_are_counted(tiny, asked):
    """One text of 24 tokens: windows of STREAMED_STEPS, the prompt in the first, two in flight."""
    llm = ahead_engine(tiny)
    passes = window_sizes(llm)
    llm.add(prompt_of(tiny, 10), exactly(24, **asked))
    while not llm.step()[0].finished:
        assert llm.runner.in_flight == 1
    assert passes == [*range(STREAMED_STEPS, 25, STREAMED_STEPS)]
    assert_idle(llm)


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_window_of_long_ones_only_where_nobody_waits_for_a_place(tiny, waiting):
    """Two texts of `generate`, in an engine for two: rows of those that end are idle until the window does. How long
    others' windows were says nothing of these."""
    llm = ahead_engine(tiny, max_sequences=2)
    llm.runner.num_steps = 1
    passes = window_sizes(llm)
    collects = []
    llm.on_step(lambda: collects.append(gc.isenabled()))
    llm.generate(prompts_of(tiny, [5] * (2 + waiting)), exactly(20))
    assert passes[0] == (STREAMED_STEPS if waiting else choose.MAX_STEPS)
    assert not any(collects)


def test_an_engine_that_many_read_from_runs_fewer_steps_ahead(tiny):
    """Through an `EngineThread` the tokens of a text come five at a time; when it has stopped, eight again."""
    llm, prompt = ahead_engine(tiny), prompt_of(tiny, 10)
    passes = window_sizes(llm)
    thread = EngineThread(llm)

    async def hear():
        ticket = Ticket(thread, exactly(40), stream=True)
        await thread.submit(ticket, [prompt], None)
        await ticket.end()

    thread.start()
    asyncio.run(hear())
    thread.stop()
    assert passes == [*range(5, 41, 5)]
    passes.clear()
    list(llm.stream(prompt, exactly(40)))
    assert passes == [*range(8, 41, 8)]


def test_after_a_launch_that_fails_the_next_call_starts_clean(tiny):
    """With a window under way: what it writes, after the reset, is in nobody's blocks."""
    prompts = prompts_of(tiny, [16, 14, 9])
    params = [exactly(40), exactly(40, adjust=Penalties(1.3)), exactly(40, adjust=Penalties(frequency=0.4))]
    expected = texts_of(engine(tiny).generate(prompts, params))
    llm = ahead_engine(tiny, 26, 4, max_sequences=3)
    step = llm.runner.decoder.step
    step.forward = raising_at(20, step.forward)  # in the second window
    with pytest.raises(Fault):
        llm.generate(prompts, params)
    assert llm.runner.in_flight == 0
    assert texts_of(llm.generate(prompts, params)) == expected
    assert_idle(llm)


@pytest.mark.parametrize("index", [0, 1])
def test_graphs_are_for_the_current_gpu(monkeypatch, index):
    """Another one's would be captured empty: torch captures what is launched on the current one."""
    monkeypatch.setattr(choose, "is_on_gpu", lambda *_: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    model = SimpleNamespace(device=torch.device("cuda", index))
    assert choose.takes_graphs("auto", model, None, FastScheduler(BlockPool(4), 4, 4)) == (index == 0)


@pytest.fixture(scope="module")
def known(tiny):
    """Five prompts, and the tokens that follow each."""
    prompts = prompts_of(tiny, [9, 4, 17, 1, 30])
    texts = ids_of(engine(tiny).generate(prompts, exactly(70)))
    return dict(zip(map(tuple, prompts), texts, strict=True))


@pytest.mark.parametrize("texts", [1, 5])
@pytest.mark.parametrize("tokens", [edge + beside for edge in TOKENS[:2] for beside in (-1, 0, 1)])
def test_drafts_at_and_beside_every_buckets_edge(tiny, known, texts, tokens, seed):
    """Steps of so many texts with 15, 16, 17, 63 ... tokens; the texts are those of `generate`."""
    prompts = [list(prompt) for prompt in known][:texts]
    drafter, sizes = Recalls(-(-tokens // texts) - 1, known, 0.1, random.Random(seed)), set()
    llm = ahead_engine(tiny, drafter=drafter, max_sequences=texts, max_batch_tokens=max(tokens, 61))
    llm.on_step(lambda: sizes.add(sum(c.stop - c.start for c in llm.plan.chunks)))
    assert ids_of(llm.generate(prompts, exactly(70))) == list(known.values())[:texts]
    assert llm.stats.accepted_tokens > 0
    assert texts > 1 or tokens in sizes


# Fused layers -----------------------------------------------------------------------------------------------------


def test_a_prompts_last_layer_is_computed_for_the_rows_asked_for(shallow, seed):
    """Of a prompt that goes on, one that ends in a draft, another, and a new token among them."""
    rng, chunks, llm = random.Random(seed), [], engine(shallow)
    ends = [(0, 9, ()), (0, 13, (5, 6)), (0, 12, ()), (7, 8, ())]
    for i, (start, stop, guesses) in enumerate(ends):
        text = sequence_of(llm.pool, prompt_of(shallow, stop + (i == 0)), i)
        text.table.append(stop + len(guesses))
        chunks.append(Chunk(text, start, stop + len(guesses), guesses))
    rng.shuffle(chunks)
    llm.cache.keys.normal_(generator=torch.Generator().manual_seed(seed))  # of what came before the new token
    llm.cache.values.zero_()
    batch, rows, layers = build_batch(chunks, shallow.device), [], Fused(deepcopy(shallow.module))

    def attend(q, *rest):
        rows.append(len(q))
        return llm.attend(q, *rest)

    every = len(batch.token_ids)
    padded = torch.arange(every + 3) % 5  # as a graph of many texts pads them
    for wanted, computed in ((batch.last_rows, 5), (batch.last_rows[:0], 0), (padded, every)):
        asked = replace(batch, last_rows=wanted)
        logits = layers.forward(asked, llm.cache, attend)
        torch.testing.assert_close(logits, shallow.forward(asked, llm.cache, llm.attend), rtol=1e-4, atol=1e-4)
        assert rows[-2:] == [every, computed]


def first_norm_and_projection(module, seed):
    """A module with norms whose weights are not ones, and what its first norm and matrix compute."""
    layer, generator = module.model.layers[0], torch.Generator().manual_seed(seed)
    for norm in (layer.input_layernorm, layer.post_attention_layernorm):
        norm.weight.data.uniform_(0.5, 1.5, generator=generator)
    x = torch.randn(3, module.config.hidden_size, generator=generator)
    return layer, lambda: layer.self_attn.k_proj(layer.input_layernorm(x)).detach()


def test_norms_go_into_the_matrices_behind_them_once(tiny, seed):
    """And the stock module computes what it did: its norms' weights are ones then."""
    module = deepcopy(tiny.module)
    layer, read = first_norm_and_projection(module, seed)
    before = read()
    first = Fused(module)
    assert Fused(module).layers[0].qkv is first.layers[0].qkv, "the second engine shares what the first has stacked"
    module.half().float()  # its weights are elsewhere now
    moved = Fused(module).layers[0].qkv
    assert moved.data_ptr() == layer.self_attn.q_proj.weight.data_ptr() != first.layers[0].qkv.data_ptr()
    assert set(layer.input_layernorm.weight.tolist()) == set(layer.post_attention_layernorm.weight.tolist()) == {1.0}
    torch.testing.assert_close(read(), before, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("line", range(12))
def test_an_interrupt_while_norms_move_leaves_a_module_that_computes_what_it_did(tiny, seed, line):
    module = deepcopy(tiny.module)
    _, read = first_norm_and_projection(module, seed)
    before = read()
    event = raising_at(line, lambda: None, KeyboardInterrupt)

    def interrupted(frame, what, _):
        if what == "line":
            event()
        return interrupted

    sys.settrace(lambda frame, what, _: interrupted if frame.f_code is fused._stacked.__code__ else None)
    try:
        with pytest.raises(KeyboardInterrupt):
            Fused(module)
    finally:
        sys.settrace(None)
    torch.testing.assert_close(read(), before, rtol=1e-5, atol=1e-5)


def test_an_engine_on_fused_layers_writes_the_same_texts(shallow):
    prompts = prompts_of(shallow, [16, 5, 9])
    params = [replace(p, max_tokens=6) for p in (MIXED[0], MIXED[3], MIXED[-1])]
    expected = engine(shallow).generate(prompts, params)
    assert texts_of(engine(shallow, kind=pagedlab_fast.LLM, fused=True).generate(prompts, params)) == texts_of(expected)


def test_what_is_not_fused(tiny):
    """In fp16, what is not normed yet may leave its range; so it is fused only on demand."""
    half = replace(tiny, module=deepcopy(tiny.module).half())
    assert choose.choose_fused(half, "auto", True) is None
    assert choose.choose_fused(half, True, True)
    assert choose.choose_fused(tiny, "auto", True)
    module = copy(tiny.module)
    module.config = copy(module.config)
    module.config.model_type = "gemma3"
    with refused("this gemma3 cannot be fused"):
        Fused(module)
    with refused("cuda_graphs=True takes one NVIDIA GPU"):
        engine(tiny, kind=pagedlab_fast.LLM, cuda_graphs=True)


def test_warming_up_takes_an_idle_engine(tiny):
    llm = engine(tiny, kind=pagedlab_fast.LLM)
    request_id = llm.add([1, 2])
    with refused("warm_up takes an idle engine"):
        llm.warm_up()
    llm.abort(request_id)
    llm.warm_up()
    assert_idle(llm)
