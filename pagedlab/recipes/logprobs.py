"""Log-probabilities of a text: a forward pass over a block table of its own."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from pagedlab.batch import Batch, build_batch
from pagedlab.blocks import BlockTable, OutOfBlocks, blocks_for
from pagedlab.logits import Query, likelihoods
from pagedlab.outputs import NOT_FINITE
from pagedlab.sampling_params import TokenLogprob
from pagedlab.scheduler import Chunk
from pagedlab.sequence import Request, Sequence
from pagedlab.validation import integer

if TYPE_CHECKING:
    from pagedlab.llm import LLM, Prompt

ROWS = 1024  # tokens of a forward pass: Qwen's logits of so many take 620 MB in fp32


def score(llm: LLM, prompt: Prompt, top: int = 0) -> list[TokenLogprob | None]:
    """Return the log-probability of each token of a text, given the tokens before it.

    It runs between two steps, alone. The blocks are free again when it returns.

    Args:
        llm: the engine.
        prompt: a text, a list of token ids, or a list of chat messages.
        top: how many of the likeliest tokens to report at each position.

    Returns:
        An entry for each token; None for the first one, which nothing predicts.

    Raises:
        ValueError: If the prompt cannot be served.
        OutOfBlocks: If too few blocks are free at present.
        FloatingPointError: If the logits are not finite.
    """
    top = integer("top", top)
    ids = llm.model.checked_ids(prompt)
    llm.catch_up()
    need = blocks_for(len(ids), llm.pool.block_size)
    if need > llm.pool.num_blocks:
        raise ValueError(
            f"the text needs {need} blocks and the pool has {llm.pool.num_blocks}: shorten it or "
            "raise num_blocks"
        )
    if need > llm.pool.num_free:
        raise OutOfBlocks(f"the text needs {need} blocks and {llm.pool.num_free} are free")
    scores: list[TokenLogprob | None] = [None]
    with llm.whole():
        table = BlockTable(llm.pool)
        sequence = Sequence("score", table, ids, 0, len(ids))
        for start in range(0, len(ids), ROWS):
            scores += _scores_of_part(llm, sequence, start, min(start + ROWS, len(ids)), top)
        table.free()
    if any(each is not None and math.isnan(each.logprob) for each in scores):
        raise FloatingPointError(NOT_FINITE)
    return scores


def _scores_of_part(
    llm: LLM, sequence: Sequence, start: int, stop: int, top: int
) -> list[TokenLogprob]:
    """Compute tokens start, ..., stop - 1, and score the token after each of them."""
    sequence.table.append(stop - start)
    chunk = Chunk(Request(-1, [sequence], 1, 1), sequence, start, stop)
    batch = _with_all_rows(build_batch([chunk], llm.model.device))
    logits = llm.forward(batch, llm.cache, llm.attend)
    following = sequence.token_ids[start + 1 : stop + 1]
    queries = [Query(row, token, top) for row, token in enumerate(following)]
    return list(likelihoods(logits, queries))


def _with_all_rows(batch: Batch) -> Batch:
    """The same batch with logits for every token."""
    rows = torch.arange(len(batch.token_ids), device=batch.last_rows.device)
    return replace(batch, last_rows=rows)
