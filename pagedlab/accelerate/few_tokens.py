"""Linear layers for a handful of tokens on a CPU, which is what every decode step consists of.

A step that decodes sixteen texts multiplies each weight matrix W [out, in] with sixteen vectors.
`F.linear` asks MKL for x W^T; asked for W x^T, the same library takes down to a third of the time
for a few vectors, and as long for hundreds (benchmarks/NOTES.md). The sums are the same but for
their rounding.
"""

from __future__ import annotations

import torch
from torch import nn

from pagedlab.attention import PagedAttention
from pagedlab.batch import Batch
from pagedlab.kv_cache import KVCache
from pagedlab.model import Model

TOKENS = range(2, 33)
# of a layer; smaller matrices stay in the processor's cache, and there is nothing to win
LEAST_WEIGHTS = 2**18


class _Linear(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = (self.weight @ x.flatten(0, -2).T).T.contiguous()
        if self.bias is not None:
            rows += self.bias
        return rows.view(*x.shape[:-1], self.out_features)


class FewTokens:
    """A model whose large linear layers are turned round in steps of few tokens; otherwise the
    model as it is.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._layers = [
            m
            for m in model.module.modules()
            if type(m) is nn.Linear and m.weight.numel() >= LEAST_WEIGHTS
        ]

    def forward(self, batch: Batch, cache: KVCache, attend: PagedAttention) -> torch.Tensor:
        """As `Model.forward`."""
        if len(batch.token_ids) not in TOKENS:
            return self._model.forward(batch, cache, attend)
        for layer in self._layers:
            layer.__class__ = _Linear
        try:
            return self._model.forward(batch, cache, attend)
        finally:
            for layer in self._layers:
                layer.__class__ = nn.Linear


def pays(model: Model) -> bool:
    """Whether this is the kind of model and processor for which it was faster."""
    here = model.device.type, model.module.dtype, model.num_ranks
    return here == ("cpu", torch.float32, 1) and torch.backends.mkl.is_available()
