"""Decode steps whose state stays on the device: the same tokens as the engine's, whatever the batch's size.

In fp32 on poisoned caches. The CUDA graphs of the same steps are tested in tests/gpu.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from test_engine import engine, prompts_of

from pagedlab import SamplingParams
from pagedlab.batch import build_batch
from pagedlab.blocks import BlockTable, blocks_for
from pagedlab.decode import BUCKETS, Decoder, Row
from pagedlab.sampling import sample
from pagedlab.scheduler import Chunk, Request, Sequence

if TYPE_CHECKING:
    from pagedlab import LLM
    from pagedlab.model import Model

LENGTHS = [1, 3, 15, 16, 17, 31, 33, 48, 64]


def prefilled(llm: LLM, prompts: list[list[int]], params: list[SamplingParams], room: int) -> list[Sequence]:
    """Texts with their prompt computed, their first token drawn, and slots for `room` more."""
    texts = [Sequence("", BlockTable(llm.pool), list(p), i, len(p)) for i, p in enumerate(prompts)]
    chunks = [Chunk(Request(i, [text], 1, 99), text, 0, len(text.token_ids)) for i, text in enumerate(texts)]
    for text in texts:
        text.table.append(len(text.token_ids) + room)
    logits = llm.model.forward(build_batch(chunks, llm.model.device), llm.cache, llm._attend)
    seeds = torch.tensor([text.seed for text in texts])
    tokens, _ = sample(logits, params, seeds, torch.tensor([len(text.token_ids) for text in texts]))
    for text, token in zip(texts, tokens.tolist(), strict=True):
        text.token_ids.append(token)
    return texts


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("size", [1, 2, 3, 9, 16, 17])
def test_tokens_and_logprobs_are_the_engines(tiny: Model, size: int, temperature: float) -> None:
    """In runs of 1, 5 and 4 steps, at and beside the sizes that graphs are captured for."""
    assert {1, 2, 16} <= set(BUCKETS)
    lengths = [LENGTHS[i % len(LENGTHS)] for i in range(size)]
    prompts = prompts_of(tiny, lengths)
    params = [SamplingParams(max_tokens=11, ignore_eos=True, temperature=temperature, seed=i) for i in range(size)]
    expected = engine(tiny).generate(prompts, params)
    llm = engine(tiny)
    texts = prefilled(llm, prompts, params, 10)
    decoder = Decoder(tiny, llm.cache, llm._attend, 20, 8, 5, graphs=False)
    logprobs = [0.0] * size
    for steps in (1, 5, 4):
        rows = [Row(text, len(text.token_ids) - 1 + steps, False, temperature) for text in texts]
        for i, (tokens, some) in enumerate(decoder.run(rows, steps)):
            assert len(tokens) == len(some) == steps
            texts[i].token_ids += tokens
            logprobs[i] += sum(some)
    assert [text.output_ids for text in texts] == [c.outputs[0].token_ids for c in expected]
    first = [
        c.outputs[0].cumulative_logprob
        for c in engine(tiny).generate(prompts, [replace(p, max_tokens=1) for p in params])
    ]
    rest = [c.outputs[0].cumulative_logprob for c in expected]
    torch.testing.assert_close(torch.tensor([a + b for a, b in zip(first, logprobs, strict=True)]), torch.tensor(rest))


def test_a_row_stops_where_its_blocks_end_and_leaves_the_others_alone(tiny: Model) -> None:
    prompts = prompts_of(tiny, [16, 5, 30])
    params = [SamplingParams(max_tokens=9, ignore_eos=True)] * 3
    expected = [c.outputs[0].token_ids for c in engine(tiny).generate(prompts, params)]
    llm = engine(tiny)
    texts = prefilled(llm, prompts, params, 8)
    before = llm.cache.keys.clone()
    steps = [8, 2, 5]
    rows = [Row(text, len(text.token_ids) - 1 + n, False, 0.0) for text, n in zip(texts, steps, strict=True)]
    for (tokens, _), n, text, ids in zip(
        Decoder(tiny, llm.cache, llm._attend, 4, 8, 8, graphs=False).run(rows, 8), steps, texts, expected, strict=True
    ):
        assert tokens == ids[1 : 1 + n]
        known = len(text.token_ids) - 1
        written = set(text.table.slots(known, known + n))
        others = [slot for slot in text.table.slots(0, text.table.num_tokens) if slot not in written]
        now, then = (keys.flatten(1, 2)[:, others] for keys in (llm.cache.keys, before))
        torch.testing.assert_close(now, then, rtol=0, atol=0, equal_nan=True)


def test_end_of_text_ends_a_row(tiny: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = prompts_of(tiny, [20, 40])
    params = [SamplingParams(max_tokens=9, ignore_eos=True)] * 2
    expected = [c.outputs[0].token_ids for c in engine(tiny).generate(prompts, params)]
    end = expected[0][4]
    monkeypatch.setattr(type(tiny), "eos_token_ids", property(lambda self: frozenset([end, tiny.vocab_size - 1])))
    llm = engine(tiny)
    texts = prefilled(llm, prompts, params, 8)
    decoder = Decoder(tiny, llm.cache, llm._attend, 2, 8, 8, graphs=False)
    for may_end in (True, False):
        rows = [Row(text, len(text.token_ids) + 7, may_end, 0.0) for text in texts]
        for (tokens, _), ids in zip(decoder.run(rows, 8), expected, strict=True):
            rest = ids[1:]
            assert tokens == (rest[: rest.index(end) + 1] if may_end and end in rest else rest)
    assert blocks_for(20 + 8, 16) == len(texts[0].table.block_ids)
