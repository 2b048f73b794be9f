"""Log-probabilities of a text: a forward pass over a block table of its own."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from pagedlab.arguments import integer
from pagedlab.batch import build_batch
from pagedlab.blocks import OutOfBlocks, blocks_for
from pagedlab.engine import LLM, Prompt
from pagedlab.outputs import NOT_FINITE
from pagedlab.sampling import report
from pagedlab.sampling_params import SamplingParams, TokenLogprob
from pagedlab.scheduler import Chunk, Sequence

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
    llm.catch_up()  # a reset that is due happens now
    table = llm.new_table(llm.pool)
    sequence = Sequence(
        request_id=0,
        table=table,
        token_ids=ids,
        num_prompt_tokens=len(ids),
        params=SamplingParams(),
        max_tokens=1,
    )
    llm.scheduler.check(sequence)
    need = blocks_for(len(ids), llm.pool.block_size)
    if need > llm.pool.num_free:
        raise OutOfBlocks(f"the text needs {need} blocks and {llm.pool.num_free} are free")
    scores: list[TokenLogprob | None] = [None]
    with llm.whole():
        for start in range(0, len(ids), ROWS):
            stop = min(start + ROWS, len(ids))
            table.append(stop - start)
            batch = build_batch([Chunk(sequence, start, stop)], llm.model.device)
            all_rows = torch.arange(stop - start, device=llm.model.device)
            logits = llm.forward(replace(batch, last_rows=all_rows), llm.cache, llm.attend)
            following = ids[start + 1 : stop + 1]  # the last row of all has none
            for row, token in zip(logits, following, strict=False):
                scores.append(report(row, top, token))
        table.free()
    if any(each is not None and math.isnan(each.logprob) for each in scores):
        raise FloatingPointError(NOT_FINITE)
    return scores
