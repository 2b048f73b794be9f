"""How a model is split over ranks, as in Megatron (Shoeybi et al. 2019, arxiv.org/abs/1909.08053).

The layers q, k, v, gate and up are split by columns of their output: each rank gets whole heads,
and its part of the MLP. The layers o and down are split by columns of their input: the output of
each rank is a summand, and an all-reduce adds these, twice a layer. Embedding, norms and output
layer are whole on every rank.

Transformers' tensor-parallel plan says which layer is split in which way. The split is done here,
so that the parts are plain linear layers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import torch


def check_split(config: Any, size: int) -> None:
    """Raise `ValueError` if a model of this config cannot be split over `size` ranks."""
    if getattr(config, "base_model_tp_plan", None) is None:
        raise ValueError(
            f"transformers has no tensor-parallel plan for {config.model_type} models: use one rank"
        )
    counts = {
        "KV heads": config.num_key_value_heads,
        "query heads": config.num_attention_heads,
        "columns of the MLP": config.intermediate_size,
    }
    common = math.gcd(*counts.values())
    possible = [str(n) for n in range(1, common + 1) if common % n == 0]
    for name, count in counts.items():
        if count % size:
            raise ValueError(
                f"{count} {name} cannot be shared evenly by {size} ranks: "
                f"this model takes {' or '.join(possible)}"
            )


def split_layers(
    module: Any, rank: int, size: int, all_reduce: Callable[[torch.Tensor], Any]
) -> None:
    """Keep a rank's share of every linear layer that the tensor-parallel plan names, in place.

    "colwise" keeps rows of the weight [out, in], that is, columns of the output. "rowwise" keeps
    columns of the weight; the outputs are then partial sums.

    Args:
        module: a transformers model.
        rank: whose share.
        size: number of ranks.
        all_reduce: replaces a tensor by the sum of every rank's.
    """

    def share(tensor: torch.Tensor, dim: int) -> torch.nn.Parameter:
        part = tensor.detach().chunk(size, dim)[rank]
        # A copy, so that the memory of the whole tensor can be freed.
        return torch.nn.Parameter(part.clone(), requires_grad=False)

    plan = module.config.base_model_tp_plan
    for name, layer in module.base_model.named_modules():
        style = plan.get(re.sub(r"\.\d+\.", ".*.", name), "replicated")
        if style.startswith(("replicated", "embedding")):  # an embedding stays whole here
            continue
        if style not in ("colwise", "rowwise") or not isinstance(layer, torch.nn.Linear):
            raise ValueError(
                f"pagedlab cannot split {name}, which transformers' plan calls {style!r}"
            )
        if style == "colwise":
            layer.weight = share(layer.weight, 0)
            layer.bias = None if layer.bias is None else share(layer.bias, 0)
        else:
            layer.weight = share(layer.weight, 1)
            if rank:
                layer.register_parameter("bias", None)  # rank 0 alone adds the bias to the sum
            layer.register_forward_hook(lambda _, inputs, output: all_reduce(output))


def all_reduce_bytes(config: Any, dtype_bytes: int) -> int:
    """Return the bytes that are summed for one token: two vectors a layer.

    Args:
        config: of the model.
        dtype_bytes: bytes a number.
    """
    return 2 * config.num_hidden_layers * config.hidden_size * dtype_bytes


def ring_bytes(payload: float, size: int) -> float:
    """Return the bytes that each rank sends, and receives, in a ring all-reduce.

    A rank sends size - 1 parts of payload / size to make the sums, and as many to spread them.

    Args:
        payload: bytes that are summed.
        size: number of ranks.
    """
    return 2 * (size - 1) / size * payload
