"""Linear layers for a handful of tokens on a CPU, which is what every decode step consists of.

A step that decodes sixteen sequences multiplies each weight matrix W [out, in] with sixteen
vectors. `F.linear` asks MKL for x W^T; asked for W x^T, the same library takes down to a third of
the time for a few vectors, and as long for hundreds (benchmarks/NOTES.md). The sums are the same
but for their rounding.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pagedlab.model import Model

FEW_TOKENS = range(2, 33)
# Smaller matrices stay in the processor's cache, and nothing is gained.
MIN_WEIGHTS = 2**18


class CPULinear(nn.Linear):
    """A linear layer that is faster for the tokens of a decode step, [1, T, in].

    Any other input is computed as by `nn.Linear`: a prompt, and the batch [B, 1, in] of
    transformers' own `generate`.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 3 or x.shape[0] != 1 or x.shape[1] not in FEW_TOKENS:
            return F.linear(x, self.weight, self.bias)
        y = (self.weight @ x[0].T).T.contiguous()
        if self.bias is not None:
            y += self.bias
        return y[None]


def with_cpu_linear(model: Model) -> Model:
    """Another `Model` over the same weights, whose large linear layers are `CPULinear`."""
    weights = [*model.module.parameters(), *model.module.buffers()]
    module = deepcopy(model.module, {id(weight): weight for weight in weights})
    for layer in module.modules():
        if type(layer) is nn.Linear and layer.weight.numel() >= MIN_WEIGHTS:
            layer.__class__ = CPULinear
    return replace(model, module=module)


def is_faster(model: Model) -> bool:
    """Whether this is the kind of model and processor for which `CPULinear` was faster."""
    if model.device.type != "cpu" or model.module.dtype != torch.float32 or model.num_ranks != 1:
        return False
    return torch.backends.mkl.is_available()
