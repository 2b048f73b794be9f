"""A trial at load time: does a model compute the same on pages as in transformers?

Many architectures change attention in ways that no field of their config reveals. So a few tokens
run through the model twice: on pages, as in the engine, and with the attention of transformers. If
the logits differ, the model is refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pagedlab.attention.vectorised import torch_attention
from pagedlab.batch import build_batch
from pagedlab.blocks import BlockPool, BlockTable
from pagedlab.scheduler import Chunk
from pagedlab.sequence import Request, Sequence
from pagedlab.validation import in_short

NEEDS_PAGES = (
    "this model attends through pagedlab's blocks: call it with pages=..., as pagedlab.LLM does"
)
NOT_FINITE = "its logits are not finite"
LENGTHS = (6, 4)  # tokens of each sequence; the last one of the second runs in a second step
BLOCK_SIZE = 4

# The largest relative error of the logits. Rounding alone gives Qwen2.5-0.5B 3e-6 in float32 and
# 0.06 in bfloat16. The "eager" attention computes its softmax in float32, in float64 models too.
TOLERANCES = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.25}


def why_not_on_pages(model: Any) -> str | None:
    """Compare the model on pages with the model in transformers.

    Two prompts of different lengths run in one ragged batch, then one more token of the second. In
    transformers both run in one padded batch.

    Args:
        model: a `Model` on its device.

    Returns:
        The reason why the model cannot run on pages, or None if the logits agree.
    """
    sequences = [_token_ids(row, length, model.vocab_size) for row, length in enumerate(LENGTHS)]
    try:
        with torch.inference_mode():
            expected = _stock_logits(model, sequences)
            computed = _paged_logits(model, sequences)
    except Exception as error:  # a modelling file may raise anything
        reason = in_short(error)
        if error.args == (NEEDS_PAGES,):
            reason = "its code does not pass arguments on to the attention function"
        return f"it does not run on pages, {reason}"
    if not expected.amax(dim=1).isfinite().any():  # so no row gives a token
        return NOT_FINITE
    relative_error = _relative_error(computed, expected)
    if relative_error <= TOLERANCES[model.module.dtype]:
        return None
    return f"its logits on pages are off by {relative_error:.1%} from those of its own attention"


def _token_ids(row: int, length: int, vocab_size: int) -> list[int]:
    """Some token ids, different in each row."""
    return [(7 * i + 3 * row + 1) % vocab_size for i in range(length)]


def _stock_logits(model: Any, sequences: list[list[int]]) -> Tensor:
    """Logits of all tokens, sequence by sequence, with the "eager" attention of transformers."""
    width = max(map(len, sequences))
    # Padding at the end needs no mask, because attention is causal.
    padded = [ids + [0] * (width - len(ids)) for ids in sequences]
    input_ids = torch.tensor(padded, device=model.device)
    used = model.module.config._attn_implementation  # noqa: SLF001 - there is no public name
    model.module.set_attn_implementation("eager")
    try:
        logits = model.module(input_ids=input_ids, use_cache=False).logits
    finally:
        model.module.set_attn_implementation(used)
    return torch.cat([row[: len(ids)] for row, ids in zip(logits, sequences, strict=True)])


def _paged_logits(model: Any, sequences: list[list[int]]) -> Tensor:
    """The same logits on pages: all tokens but the last in one step, then the last one."""
    num_blocks = sum(len(ids) // BLOCK_SIZE + 1 for ids in sequences)
    cache = model.kv_cache(num_blocks, BLOCK_SIZE)
    cache.keys.fill_(torch.nan)  # makes it visible if a slot is read that was never written
    cache.values.fill_(torch.nan)
    pool = BlockPool(num_blocks, BLOCK_SIZE)
    requests = [_request(pool, row, ids) for row, ids in enumerate(sequences)]
    num_tokens = [len(ids) for ids in sequences]
    num_tokens[-1] -= 1
    prompts = _run(model, requests, num_tokens, cache)
    decode = _run(model, requests[-1:], [1], cache)
    return torch.cat([prompts, decode])


def _request(pool: BlockPool, number: int, token_ids: list[int]) -> Request:
    sequence = Sequence(f"r{number}", BlockTable(pool), token_ids, 0, len(token_ids))
    return Request(number, [sequence], 1, 1)


def _run(model: Any, requests: list[Request], num_tokens: list[int], cache: Any) -> Tensor:
    """Run the next tokens of each request in one step on pages, and return their logits."""
    chunks = []
    for request, count in zip(requests, num_tokens, strict=True):
        [sequence] = request.sequences
        start = sequence.table.num_tokens
        sequence.table.append(count)
        chunks.append(Chunk(request, sequence, start, start + count))
    batch = build_batch(chunks, model.device)
    every_row = torch.arange(len(batch.token_ids), device=model.device)
    return model.forward(replace(batch, last_rows=every_row), cache, torch_attention)


def _relative_error(computed: Tensor, expected: Tensor) -> float:
    """The norm of the difference over the norm of the logits without each row's mean.

    Values that overflow in both are left out.
    """
    computed = computed.double()
    expected = expected.double()
    both_overflow = ~computed.isfinite() & ~expected.isfinite()
    computed = computed.masked_fill(both_overflow, 0)
    expected = expected.masked_fill(both_overflow, 0)
    error = (computed - expected).norm()
    if error == 0:
        return 0.0
    size = (expected - expected.mean(dim=1, keepdim=True)).norm()
    return float((error / size).nan_to_num(nan=torch.inf))
