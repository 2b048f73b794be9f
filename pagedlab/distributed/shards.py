"""How a model is split over ranks: Megatron's way (Shoeybi et al. 2019,
https://arxiv.org/abs/1909.08053).

q, k, v, gate and up are split by columns of their output, so that each rank gets whole heads and
its part of the MLP; o and down by columns of their input, so that each rank gets a summand of the
output, and an all-reduce adds them: two a layer. Embedding, norms and output layer are whole on
every rank. Which layer is split in which way is read from transformers' tensor-parallel plan; the
cutting is done here, so that the parts are plain linear layers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch


def check_split(config: Any, size: int) -> None:
    """`ValueError` if a model of this config cannot be split over `size` ranks."""
    if getattr(config, "base_model_tp_plan", None) is None:
        raise ValueError(
            f"transformers has no tensor-parallel plan for {config.model_type} models: use one rank"
        )
    heads, kv_heads, width = (
        config.num_attention_heads,
        config.num_key_value_heads,
        config.intermediate_size,
    )
    for count, what in (
        (kv_heads, "KV heads"),
        (heads, "query heads"),
        (width, "columns of the MLP"),
    ):
        if count % size:
            possible = ", ".join(
                str(n)
                for n in range(1, kv_heads + 1)
                if not (kv_heads % n or heads % n or width % n)
            )
            problem = f"{count} {what} cannot be shared evenly by {size} ranks"
            raise ValueError(f"{problem}: this model takes tensor_parallel = {possible}")


def split_layers(
    module: Any, rank: int, size: int, all_reduce: Callable[[torch.Tensor], Any]
) -> None:
    """Keep rank's share of every linear layer that the config's tensor-parallel plan names, in
    place.

    "colwise": rows of the weight [out, in], that is columns of the output. "rowwise": columns of
    the weight, and the outputs, which are then summands, go through `all_reduce`.
    """

    def share(
        tensor: torch.Tensor, dim: int
    ) -> torch.nn.Parameter:  # a copy, so that the whole tensor can go
        return torch.nn.Parameter(
            tensor.detach().chunk(size, dim)[rank].clone(), requires_grad=False
        )

    plan = module.config.base_model_tp_plan
    for name, layer in module.base_model.named_modules():
        style = plan.get(re.sub(r"\.\d+\.", ".*.", name), "replicated")
        if style.startswith(
            ("replicated", "embedding")
        ):  # some versions would split the embedding; here it is whole
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
                layer.register_parameter("bias", None)  # of a sum, one rank adds it
            layer.register_forward_hook(lambda _, inputs, output: all_reduce(output))


def all_reduce_bytes(config: Any, dtype_bytes: int) -> int:
    """Bytes of the vectors that are summed for one token: 2 all-reduces a layer x hidden size x
    bytes a number.
    """
    return 2 * config.num_hidden_layers * config.hidden_size * dtype_bytes


def ring_bytes(payload: float, size: int) -> float:
    """What each rank sends, and receives, to sum `payload` bytes in a ring: 2 (size - 1) / size of
    them.

    Each sends size - 1 parts of payload / size to make the sums, and as many to spread them.
    """
    return 2 * (size - 1) / size * payload
