"""A trial when a model is loaded: does it compute the same on pages as in transformers?

Many architectures change attention in ways that no config field names. So a few tokens go through
the model twice: on pages, as in the engine, and with transformers' own attention. If the logits
differ, the model is refused.
"""

from __future__ import annotations

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
LENGTHS = (6, 4)  # tokens of each sequence; the last token of the second runs in a step of its own
BLOCK_SIZE = 4

# How far the logits may be off: the size of the difference over the size of the logits, each
# without the row's mean. Real Qwen2.5-0.5B is off by 3e-6 in float32 and by 0.06 in bfloat16, from
# rounding alone. In float64 too, "eager" computes the softmax in float32.
TOLERANCES = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.25}


def why_not_on_pages(model: Any) -> str | None:
    """Compare the model on pages with transformers' own attention, and return what is wrong, or
    None.

    Two sequences of different lengths run as prompts in one ragged batch; the second then gets one
    more token. With transformers' own pass over both that is three passes over a few tokens.
    Nothing of it stays.

    Args:
        model: a `Model` on its device.
    """
    sequences = [
        [(7 * i + 3 * row + 1) % model.vocab_size for i in range(n)]
        for row, n in enumerate(LENGTHS)
    ]
    try:
        with torch.inference_mode():
            expected = _stock_logits(model, sequences)
            computed = _paged_logits(model, sequences)
    except Exception as error:  # whatever a modelling file raises: it would raise it in `generate`
        if error.args == (NEEDS_PAGES,):
            return (
                "does not run on pages: its code does not pass arguments on to the attention "
                "function"
            )
        return f"does not run on pages: {in_short(error)}"
    off = _relative_error(computed, expected)
    if off <= TOLERANCES[model.module.dtype]:
        return None
    kind = model.module.config.model_type
    return (
        f"is a {kind} model whose logits on pages are off by {off:.1%} from those with its own "
        "attention; "
        "pagedlab runs those built like Qwen2, 3 or Llama"
    )


def _stock_logits(model: Any, sequences: list[list[int]]) -> Tensor:
    """Logits of all tokens, sequence by sequence, with the attention that transformers calls
    "eager".
    """
    width = max(map(len, sequences))
    # Padding at the end needs no mask: attention is causal.
    padded = torch.tensor(
        [ids + [0] * (width - len(ids)) for ids in sequences], device=model.device
    )
    used = model.module.config._attn_implementation  # noqa: SLF001 - transformers has no other way to ask
    model.module.set_attn_implementation("eager")
    try:
        logits = model.module(input_ids=padded, use_cache=False).logits
    finally:
        model.module.set_attn_implementation(used)
    return torch.cat([row[: len(ids)] for row, ids in zip(logits, sequences, strict=True)])


def _paged_logits(model: Any, sequences: list[list[int]]) -> Tensor:
    """The same on pages: all tokens but the last in one step, and the last one in a second step."""
    num_blocks = sum(len(ids) // BLOCK_SIZE + 1 for ids in sequences)
    cache = model.kv_cache(num_blocks, BLOCK_SIZE)
    cache.keys.fill_(torch.nan)  # a slot that is read and was never written shows
    cache.values.fill_(torch.nan)
    pool = BlockPool(num_blocks, BLOCK_SIZE)
    requests = [_request(pool, row, ids) for row, ids in enumerate(sequences)]
    num_tokens = [len(ids) for ids in sequences]
    num_tokens[-1] -= 1
    prompts = _run(model, requests, num_tokens, cache)
    decode = _run(model, requests[-1:], [1], cache)
    return torch.cat([prompts, decode])


def _request(pool: BlockPool, number: int, token_ids: list[int]) -> Request:
    sequence = Sequence(f"r{number}", BlockTable(pool), token_ids, 0, len(token_ids), score_from=0)
    return Request(number, [sequence], 1, 1)


def _run(model: Any, requests: list[Request], num_tokens: list[int], cache: Any) -> Tensor:
    """One step on pages: the logits of each request's next tokens."""
    chunks = []
    for request, count in zip(requests, num_tokens, strict=True):
        [sequence] = request.sequences
        start = sequence.table.num_tokens
        sequence.table.append(count)
        chunks.append(Chunk(request, sequence, start, start + count))
    return model.forward(build_batch(chunks, model.device), cache, torch_attention)


def _relative_error(computed: Tensor, expected: Tensor) -> float:
    """The size of the difference over the size of the logits.

    Values that overflow in both do not count.
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
