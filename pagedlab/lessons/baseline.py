"""The same texts from transformers' own `generate` and its ordinary cache: what the engine is compared with."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch

from pagedlab.model import Model


class Baseline(NamedTuple):
    """New tokens of each prompt, the seconds it all took, and the bytes of the largest cache."""

    token_ids: list[list[int]]
    seconds: float
    cache_bytes: int


def generate_baseline(
    model: Model, prompts: list[list[int]], max_tokens: int, *, padded: bool = False, ignore_eos: bool = False
) -> Baseline:
    """Greedy texts of prompts given as token ids, one by one, or `padded` on the left into one batch."""
    batches = [prompts] if padded else [[prompt] for prompt in prompts]
    began = time.perf_counter()
    texts: list[list[int]] = []
    cache_bytes = 0
    with model.stock_attention() as module:
        for batch in batches:
            width = max(map(len, batch))
            ids = torch.tensor([[0] * (width - len(p)) + p for p in batch], device=model.device)
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in batch], device=model.device)
            eos = None if ignore_eos else sorted(model.eos_token_ids)
            out = module.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=max_tokens,
                do_sample=False,
                # The engine reads none of these from generation_config.json, so the baseline must not either.
                repetition_penalty=1.0,
                temperature=None,
                top_p=None,
                top_k=None,
                eos_token_id=eos,
                pad_token_id=0,
                return_dict_in_generate=True,
            )
            cache = out.past_key_values
            cache_bytes = max(cache_bytes, sum(2 * layer.keys.nbytes for layer in cache.layers))
            texts += [_until_eos(row[width:].tolist(), eos or []) for row in out.sequences]
    return Baseline(texts, time.perf_counter() - began, cache_bytes)


def _until_eos(ids: list[int], eos: list[int]) -> list[int]:
    """Cut the padding that follows the first end-of-text token."""
    return next((ids[: i + 1] for i, token in enumerate(ids) if token in eos), ids)
