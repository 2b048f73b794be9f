"""Real Qwen on the GPU: in fp32 the tokens of `generate`; in bf16, where the texts part and how close the race was.

PAGEDLAB_TEST_MODEL=folder python -m pytest tests/accelerate/test_identity_gpu.py -s
"""

import os
import random

import pytest
import torch
from pagedlab_lessons.baseline import generate_baseline

from pagedlab import SamplingParams
from pagedlab.model import load_model
from pagedlab_fast import LLM
from support.engines import engine, ids_of, plain_logits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif("PAGEDLAB_TEST_MODEL" not in os.environ, reason="PAGEDLAB_TEST_MODEL names no Qwen folder"),
]
NEW_TOKENS = 64
TEXT = """A library keeps its books on shelves, and a catalogue says on which shelf each one stands. The books of one
author need not stand side by side: the catalogue knows. When a reader returns a book, its place is free for any other,
and nobody has to move the rest. """


def model_in(dtype):
    return load_model(os.environ["PAGEDLAB_TEST_MODEL"], "cuda", dtype)


def prompts(model):
    """Eight prompts of 3 to 400 tokens, each beginning somewhere else in the text."""
    ids = model.encode(TEXT * 20)
    starts = random.Random(7)
    return [ids[at : at + n] for n in (3, 15, 16, 17, 64, 131, 256, 400) for at in [starts.randrange(200)]]


@pytest.fixture(scope="module")
def exact():
    model = model_in("float32")
    ids = prompts(model)
    return model, ids, generate_baseline(model, ids, NEW_TOKENS).token_ids


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_fp32_tokens_equal_generate(backend, exact):
    model, ids, expected = exact
    llm = engine(model, 512, kind=LLM, attention_backend=backend)
    completions = llm.generate(ids, SamplingParams(max_tokens=NEW_TOKENS))
    assert ids_of(completions) == expected
    assert llm.pool.num_used == 0
    print(f"\n{torch.cuda.get_device_name()}, {backend}, fp32: {len(ids)} of {len(ids)} texts equal; {llm.stats}")


@pytest.mark.parametrize("backend", ["torch", "triton"])
def test_bf16_parts_only_where_the_race_is_close(backend):
    """Where texts part, the two tokens' logits must lie within bf16's rounding of each other: 8 bits of mantissa."""
    model = model_in("bfloat16")
    ids = prompts(model)
    expected = generate_baseline(model, ids, NEW_TOKENS).token_ids
    llm = LLM(model, num_blocks=512, attention_backend=backend)
    for prompt, theirs, completion in zip(
        ids, expected, llm.generate(ids, SamplingParams(max_tokens=NEW_TOKENS)), strict=True
    ):
        ours = completion.outputs[0].token_ids
        at = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
        if at is None:
            continue
        logits = plain_logits(model, prompt + theirs[:at])[-1].float()
        gap = float(logits[ours[at]] - logits[theirs[at]])
        print(f"\nprompt of {len(prompt)}: parts at token {at}, with logits {gap:.4f} apart")
        assert abs(gap) <= abs(float(logits.max())) * 2**-5, "the texts part where no rounding explains it"
