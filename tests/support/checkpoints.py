"""Checkpoints of any architecture, small and random."""

import shutil
from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from pagedlab.loading import TINY_MODEL

LAYERS = 2
SIZES = [
    (4096, "vocab_size"),
    (32, "hidden_size"),
    (LAYERS, "num_hidden_layers"),
    (4, "num_attention_heads"),
    (2, "num_key_value_heads"),
    (8, "head_dim v_head_dim"),
    (48, "intermediate_size"),
    (128, "max_position_embeddings"),
    (4, "num_experts num_local_experts n_routed_experts moe_num_experts"),
    (2, "num_experts_per_tok moe_topk moe_k"),
    (16, "moe_intermediate_size shared_expert_intermediate_size"),
    (1, "n_group topk_group first_k_dense_replace"),
    (0.3, "initializer_range"),  # so that attention is far from uniform
    (0, "pad_token_id"),
    (1, "bos_token_id"),
    (2, "eos_token_id"),
]
SMALL = {name: size for size, names in SIZES for name in names.split()}


def small_config(kind: str, **changes):
    """A tiny config with full attention: fields that this kind has are set, but for those that it refuses."""
    config_class = CONFIG_MAPPING[kind]
    default = config_class()
    known = {*vars(default), *default.attribute_map}
    wanted = {name: value for name, value in SMALL.items() if name in known}
    if getattr(default, "layer_types", None):
        wanted["layer_types"] = ["full_attention"] * LAYERS
    elif "sliding_window" in known:
        wanted["sliding_window"] = None
    while True:
        try:
            return config_class(**wanted | changes)
        except Exception as error:  # of a validator
            refused_names = [name for name in wanted if name in str(error)]
            if not refused_names:
                raise
            for name in refused_names:
                del wanted[name]


def random_checkpoint(folder: Path, kind: str, **changes):
    """Save a tiny model with random weights and the tiny model's tokenizer, and return its module."""
    for path in [*TINY_MODEL.glob("tokenizer*"), *TINY_MODEL.glob("chat_template*")]:
        shutil.copy(path, folder)
    torch.manual_seed(0)
    config = small_config(kind, **changes)
    module = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    module.save_pretrained(folder)
    return module
