"""The same texts from transformers' own `generate` and its ordinary cache: what the engine is
compared with.
"""

import time
from typing import NamedTuple

import torch

from pagedlab.model import Model
from pagedlab_lessons.progress import bar

# The engine reads none of these from generation_config.json, so the baseline must not either.
PLAIN = {
    "do_sample": False,
    "repetition_penalty": 1.0,
    **dict.fromkeys(("temperature", "top_p", "top_k")),
}


class Baseline(NamedTuple):
    """New tokens of each prompt, the seconds it all took, and the bytes of the largest cache."""

    token_ids: list[list[int]]
    seconds: float
    cache_bytes: int


def generate_baseline(
    model: Model,
    prompts: list[list[int]],
    max_tokens: int,
    *,
    padded: bool = False,
    ignore_eos: bool = False,
) -> Baseline:
    """Greedy texts of prompts given as token ids, one by one, or `padded` on the left into one
    batch.
    """
    batches = [prompts] if padded else [[prompt] for prompt in prompts]
    began = time.perf_counter()
    eos = [] if ignore_eos else sorted(model.eos_token_ids)
    texts, cache_bytes = list[list[int]](), 0
    with model.stock_attention() as module, bar("generate", len(batches) * max_tokens) as tokens:

        def written(ids: torch.Tensor, _: object) -> torch.Tensor:
            """Asked after every token whether to stop: never."""
            tokens.update()
            return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

        for batch in batches:
            width = max(map(len, batch))
            ids = [[0] * (width - len(prompt)) + prompt for prompt in batch]
            mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in batch]
            out = module.generate(
                torch.tensor(ids, device=model.device),
                attention_mask=torch.tensor(mask, device=model.device),
                max_new_tokens=max_tokens,
                eos_token_id=eos or None,
                pad_token_id=0,
                return_dict_in_generate=True,
                stopping_criteria=[written],
                **PLAIN,
            )
            layers = out.past_key_values.layers
            cache_bytes = max(cache_bytes, sum(2 * layer.keys.nbytes for layer in layers))
            for answer in out.sequences[:, width:].tolist():
                # padding follows
                end = next((i for i, token in enumerate(answer, 1) if token in eos), None)
                texts.append(answer[:end])
    return Baseline(texts, time.perf_counter() - began, cache_bytes)
