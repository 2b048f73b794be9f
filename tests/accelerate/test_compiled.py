"""Nothing compiles once an engine is warm: what its steps can ask of the Triton kernels, `warm_up` has run.

Without a GPU. Kernels are not run but noted, with all that makes Triton compile another variant: the types of their
arguments, whether a pointer or an integer is a multiple of 16 or an integer is 1, constants and options. Plans are
those of an H200 in bf16, on a model with few numbers in its layers and heads of real ones' sizes.
"""

import inspect
from contextlib import contextmanager
from functools import cache

import pytest
import torch

pytest.importorskip("triton")

from torch.nn import functional
from triton.backends.compiler import BaseBackend
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction, native_specialize_impl

from pagedlab import SamplingParams, kernels
from pagedlab.blocks import BlockCopy
from pagedlab.kernels import attention, plan
from pagedlab.kernels.runtime import INTERPRETED
from pagedlab.model import Model
from pagedlab.recipes.speculative import PromptLookup
from pagedlab.sampling import sample_chunks
from pagedlab.scheduler import Chunk
from pagedlab_fast import LLM, norm, small_gemm, swiglu
from pagedlab_fast.decoder import Decoder
from pagedlab_fast.fused import Fused
from pagedlab_fast.sampling import sample_rows
from pagedlab_fast.shapes import StepShape
from support.ahead import running_ahead
from support.engines import sequence_of

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="here Triton compiles: tests with real kernels count that")
WRITTEN = {"out", "q_out", "tokens"}  # arguments that others read, zeros here
ON_THE_DEVICE = {"begin_kernel", "advance_kernel"}  # these are run: the engine would not come to an end without them


@cache
def parameters_of(kernel):
    """What Triton knows of a kernel's parameters, by name."""
    return {each.name: each for each in JITFunction(kernel.fn, **kernel.kwargs).params}


def variant(kernel, args, options):
    """All that Triton compiles a kernel anew for."""
    parameters = parameters_of(kernel)

    def kind(parameter, value):
        if parameter.is_constexpr:
            return value
        specialises, aligns = not parameter.do_not_specialize, not parameter.do_not_specialize_on_alignment
        return native_specialize_impl(BaseBackend, value, False, specialises, aligns)

    named = dict(zip(parameters, args, strict=False)) | options
    kinds = {name: kind(parameters[name], value) if name in parameters else value for name, value in named.items()}
    return kernel.fn.__name__, tuple(sorted(kinds.items()))


@contextmanager
def noted(monkeypatch, llm):
    """What is launched meanwhile. Nothing is run but, while the engine has requests, what brings them to an end."""
    found, run = set(), InterpretedFunction.run

    def note(kernel, *args, grid, warmup, **options):
        found.add(variant(kernel, args, options))
        if kernel.fn.__name__ in ON_THE_DEVICE:
            if llm.num_unfinished:
                run(kernel, *args, grid=grid, warmup=warmup, **options)
            return
        for name, value in zip(inspect.signature(kernel.fn).parameters, args, strict=False):
            if name in WRITTEN and isinstance(value, torch.Tensor):
                value.zero_()

    with monkeypatch.context() as patch:
        patch.setattr(InterpretedFunction, "run", note)
        # Nobody looks at what the products between them come to, and computing it took most of the time.
        patch.setattr(functional, "linear", lambda x, weight, bias=None: x.new_zeros(*x.shape[:-1], len(weight)))
        yield found


@pytest.fixture
def h200(monkeypatch):
    """Whoever asks is told that this is one."""
    monkeypatch.setattr(kernels, "why_not", lambda device: "")
    monkeypatch.setattr(plan, "INTERPRETED", False)
    monkeypatch.setattr(plan, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(small_gemm, "INTERPRETED", False)
    monkeypatch.setattr(swiglu, "takes_tiles", lambda device: True)
    for module in (plan, attention, norm):
        monkeypatch.setattr(module, "overlaps", lambda device: True)


def small_model(tiny, heads, kv_heads, dim):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=tiny.vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        head_dim=dim,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=32768,
        eos_token_id=3,
        attn_implementation="pagedlab",
    )
    return Model(Qwen2ForCausalLM(config).to(torch.bfloat16).eval(), tiny.tokenizer, "small")


def engine_of(model, tokens, texts, fused=True, drafts=False):
    return LLM(
        model,
        num_blocks=2048,
        max_batch_tokens=tokens,
        max_sequences=texts,
        max_prompt_tokens=2048,
        attention_backend="triton",
        verbose=False,
        drafter=PromptLookup(3) if drafts else None,
        **running_ahead(lambda llm: Fused(model.module) if fused else None),
    )


def shapes_of(decoder, tokens, texts):
    """Of all steps that the scheduler can ask for, drawn by the device or by the host."""
    found = set()
    edges = {edge + i for edge in range(0, tokens + 1, 16) for i in (0, 1)}
    for rows in range(1, texts + 1):
        found.add(decoder.shapes.decode(rows))
        for n in edges | {rows, rows + 1}:
            if rows <= n <= tokens:
                found.add(decoder.shapes.ragged(rows, n))
    return found | {StepShape(rows, n or rows, False) for rows, n, *_ in found}


def ask_for_everything(llm, shapes, copies):
    """One step of each shape, and draws by the host for so many rows, of each kind."""
    decoder = llm.runner.decoder
    step = decoder.step
    decoder.tokens.counts = torch.zeros(llm.scheduler.max_sequences, llm.model.vocab_size, dtype=torch.int32)
    for i, shape in enumerate(sorted(shapes, key=str)):
        if shape.is_sampled and llm.drafter:
            continue
        send = decoder._send_window if shape.is_sampled else decoder._send_chunks
        send([], shape)
        if shape.is_sampled or step.fused:
            decoder.runner.run(shape)
        else:
            step.forward(step.buffers.inputs(shape).batch, step.cache, step.attend)
        if shape.is_sampled and i % 7 == 0:
            decoder.runner.run(shape._replace(is_penalised=True))
    params = [SamplingParams(), SamplingParams(temperature=0.5), SamplingParams(top_k=2, temperature=0.5)]
    for rows in (*range(1, 20), 32, 33, 40):
        logits = torch.zeros(rows, llm.model.vocab_size, dtype=torch.bfloat16)
        if step.fused:
            logits = step.fused.logits(torch.zeros(rows, 32, dtype=torch.bfloat16), torch.arange(rows))
        for p in params:
            chunks = [Chunk(sequence_of(llm.pool, [1, 2], i, params=p), 1, 2) for i in range(rows)]
            sample_chunks(logits, chunks, sample_rows)
            chunks[0].sequence.forks = [chunks[0].sequence]
            sample_chunks(logits, chunks, sample_rows)
    for n in range(1, 10) if copies else ():
        llm.cache.copy_blocks([BlockCopy(i, 100 + i) for i in range(n)])


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "tokens", "texts", "options"),
    [
        (14, 2, 64, 4096, 256, {}),
        (8, 2, 128, 2048, 100, {}),
        (14, 2, 64, 2048, 100, {"drafts": True}),
        (8, 2, 128, 1000, 70, {"fused": False, "drafts": True}),
        (14, 2, 64, 9, 1, {}),
    ],
)
def test_what_steps_can_ask_for_is_warm(tiny, monkeypatch, heads, kv_heads, dim, tokens, texts, options):
    llm = engine_of(small_model(tiny, heads, kv_heads, dim), tokens, texts, **options)
    with noted(monkeypatch, llm) as asked:
        ask_for_everything(llm, shapes_of(llm.runner.decoder, tokens, texts), copies=texts > 1)
    with noted(monkeypatch, llm) as warm:
        llm.warm_up()
    names = {name for name, *_ in asked}
    assert ("gate_up_kernel" in names) == (tokens > swiglu.MANY_TOKENS and options.get("fused", True))
    assert {"ragged_kernel", "decode_kernel", "merge_kernel", "chunk_kernel", "pick_kernel"} <= names
    assert not asked - warm
    monkeypatch.setattr(Decoder, "capture", lambda decoder, is_sampled: None)
    with noted(monkeypatch, llm) as cold:
        llm.warm_up()
    assert asked - cold, "a few texts alone are not enough: if they were, this would show nothing"
