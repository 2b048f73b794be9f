"""Beam search and parallel sampling over shared blocks: the texts and scores of transformers, blocks counted in the pool.

All in fp32, over a cache full of NaN, so that a beam which reads a slot nobody wrote has no score at all.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagedlab import LLM, BlockPool, BlockTable, OutOfBlocks, SamplingParams, blocks_for
from pagedlab.attention import get_backend
from pagedlab.beam import Beam, BeamSearch, EarlyStopping
from pagedlab.broken import NeverCopies

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


def assert_same_beams(completion: Completion, expected: list[tuple[list[int], float]]) -> None:
    assert [output.token_ids for output in completion.outputs] == [ids for ids, _ in expected]
    assert [output.score for output in completion.outputs] == pytest.approx([score for _, score in expected], abs=1e-4)


# As transformers -----------------------------------------------------------------------------------------------------


def ending_tokens(model: Model, prompt: list[int], count: int) -> list[int]:
    """Tokens that beams of this prompt write early and late: as ends of text they end some beams and not others."""
    (completion,) = engine(model).generate(prompt, SamplingParams(max_tokens=16, beam_width=8, ignore_eos=True))
    tokens = [token for output in completion.outputs for token in output.token_ids[2:]]
    ranked = sorted(set(tokens), key=tokens.count)
    return [ranked[i * len(ranked) // count] for i in range(count)]


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0, -1.0])
@pytest.mark.parametrize("early_stopping", STOPPING, ids=str)
@pytest.mark.parametrize("width", [2, 4, 8])
def test_beams_of_generate(
    tiny: Model, width: int, early_stopping: EarlyStopping, length_penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids and scores to 1e-4, with no, one and three tokens that end a text; prompts end inside and at the edge of a block."""
    llm = engine(tiny)
    for length, ends in ((7, 0), (8, 1), (13, 3)):
        prompt = prompt_of(tiny, length, offset=length)
        monkeypatch.setattr(tiny.module.generation_config, "eos_token_id", ending_tokens(tiny, prompt, ends) or None)
        params = SamplingParams(
            max_tokens=16, beam_width=width, early_stopping=early_stopping, length_penalty=length_penalty
        )
        (completion,) = llm.generate(prompt, params)
        assert_same_beams(completion, hugging_face_beams(tiny, prompt, params))
    assert_nothing_held(llm)
