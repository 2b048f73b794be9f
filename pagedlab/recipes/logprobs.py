"""Log-probabilities of a text: a forward pass over a block table of its own."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from pagedlab.arguments import integer
from pagedlab.batch import build_batch
from pagedlab.blocks import OutOfBlocks, blocks_for
from pagedlab.engine import LLM, Prompt
from pagedlab.outputs import NOT_FINITE
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
    with llm.whole():  # a reset that is due happens now
        pass
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
            scores += _scores(logits, ids[start + 1 : stop + 1], top)
        table.free()
    if any(each is not None and math.isnan(each.logprob) for each in scores):
        raise FloatingPointError(NOT_FINITE)
    return scores


def _scores(logits: Tensor, following: list[int], top: int) -> list[TokenLogprob]:
    """Score the token that follows each row of logits [R, V]; the last row may have none."""
    logprobs = torch.log_softmax(logits[: len(following)].float(), dim=1)
    tokens = torch.tensor(following, device=logits.device, dtype=torch.int64)
    own = logprobs.gather(1, tokens[:, None]).squeeze(1).tolist()
    best, ids = logprobs.topk(min(top, logits.shape[1]), dim=1)
    scores = []
    for i, (row_ids, row_best) in enumerate(zip(ids.tolist(), best.tolist(), strict=True)):
        pairs = list(zip(row_ids, row_best, strict=True))
        scores.append(TokenLogprob(following[i], own[i], pairs))
    return scores
