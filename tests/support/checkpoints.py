"""Checkpoints of any architecture, small and random."""

from __future__ import annotations

from pathlib import Path

import torch

from pagedlab.loading import TINY_MODEL


def random_checkpoint(folder: Path, kind: str, **changes):
    """Save a small model with random weights, large enough that its tokens depend on what it attends to."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from pagedlab.model import load_model

    tokenizer = load_model(TINY_MODEL, device="cpu", verbose=False).tokenizer
    config = AutoConfig.for_model(
        kind,
        **{
            "vocab_size": len(tokenizer),
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 256,
            "initializer_range": 0.3,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": 0,
            "pad_token_id": None,
            **changes,
        },
    )
    torch.manual_seed(1)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
