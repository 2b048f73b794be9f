"""Ranks whose caches can be looked at.

llm = WatchedRanks(model, ranks=2)
llm.keys  # of each rank, after every step
"""

from typing import Any

import torch

from pagedlab.recipes.ranks import TensorParallelLLM
from pagedlab_lessons.pictures.n11 import LAYER


class WatchedRanks(TensorParallelLLM):
    """A `TensorParallelLLM` that shows the keys of each rank.

    The caches are filled with NaN at first, so that what is a number was written.

    Args:
        model: as for `TensorParallelLLM`.
        options: those of `TensorParallelLLM`.

    Attributes:
        keys: [ranks, num_blocks, block_size, head_dim] after the latest step, of each rank's first
            KV head in one layer.
    """

    def __init__(self, model: Any = None, **options: Any) -> None:
        super().__init__(model, **options)
        self.cache.keys.fill_(torch.nan)
        self.keys = torch.stack([self.cache.keys[LAYER, :, :, 0]] * self.ranks.size)
        self.on_forward(lambda *_: self.collect())  # on rank 0, which samples

    def follow(self, *message: Any) -> None:
        """On another rank: do this rank's part of a step."""
        super().follow(*message)
        self.collect()

    def collect(self) -> None:
        """Copy each rank's keys to all ranks: the sum of each rank's own keys and zeros."""
        ranks = self.ranks
        summed = ranks.payload_bytes
        keys = torch.zeros_like(self.keys)
        keys[ranks.rank] = self.cache.keys[LAYER, :, :, 0]
        with ranks.together():
            self.keys = ranks.all_reduce(keys)
        ranks.payload_bytes = summed  # this is no sum of the model
