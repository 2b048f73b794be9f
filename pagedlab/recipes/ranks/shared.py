"""A model and a cache that several ranks share: the other ranks repeat what rank 0 does.

The cache of each rank holds that rank's KV heads of every block. Which sequence owns which block is
the same on all ranks: scheduler, pool and tables exist on rank 0 alone. It tells the other ranks
which batches to run, and which blocks to copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from pagedlab.attention import PagedAttention
from pagedlab.batch import Batch
from pagedlab.blocks import BlockCopy
from pagedlab.kv_cache import KVCache
from pagedlab.model import Model
from pagedlab.recipes.ranks.commands import (
    Command,
    CopyBlocks,
    CountFreeBytes,
    Follow,
    NewCache,
    Play,
    Poison,
    ShowBatch,
    ShowBlocks,
    Stop,
    pack,
)
from pagedlab.recipes.ranks.ranks import Ranks


class CacheShare(KVCache):
    """One rank's share of a cache.

    Args:
        ranks: this rank and the others.
        sizes: the arguments of `KVCache`.
    """

    def __init__(self, ranks: Ranks, *sizes: Any) -> None:
        super().__init__(*sizes)
        self.ranks = ranks

    def obey(self, command: Command) -> Any:
        """Do this rank's part of a command. All ranks run this, rank 0 too."""
        match command:
            case CopyBlocks(copies):
                KVCache.copy_blocks(self, [BlockCopy(*copy) for copy in copies])
            case CountFreeBytes():
                return self.ranks.gather(torch.tensor(KVCache.free_bytes(self)))
            case ShowBlocks(block_ids):
                shown = self.keys[:, block_ids], self.values[:, block_ids]
                return self.ranks.gather(torch.stack(shown).cpu())
            case Poison():
                self.keys.fill_(torch.nan)
                self.values.fill_(torch.nan)
        return None


class SharedCache(CacheShare):
    """Rank 0's share of a cache. What happens to its blocks happens on all ranks."""

    def __init__(self, ranks: Ranks, *sizes: Any) -> None:
        super().__init__(ranks, *sizes)
        num_blocks, block_size = self.keys.shape[1:3]
        ranks.hold({})  # the other ranks free their old cache, and the graphs that use it
        ranks.call(NewCache(num_blocks, block_size))

    def _on_all_ranks(self, command: Command) -> Any:
        return self.ranks.call(command, partial(self.obey, command))

    def free_bytes(self) -> int:
        """Return how many bytes are free where the rank with the least memory runs."""
        return int(min(self._on_all_ranks(CountFreeBytes())))

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        if copies:
            self._on_all_ranks(CopyBlocks(list(copies)))

    def of_each_rank(self, block_ids: Sequence[int]) -> list[torch.Tensor]:
        """Return every rank's keys and values of these blocks.

        Returns:
            A tensor a rank, [2, layers, n, block_size, the rank's KV heads, head_dim].
        """
        layers, _, *block = self.keys.shape
        parts = self._on_all_ranks(ShowBlocks(list(block_ids)))
        return [part.view(2, layers, -1, *block) for part in parts]

    def poison(self) -> None:
        """Fill every rank's slots with NaN, so that reading an unwritten slot shows."""
        self._on_all_ranks(Poison())


@dataclass
class SharedModel(Model):
    """Rank 0's share of a model. All shares run together.

    Args:
        ranks: rank 0 and the others.
    """

    ranks: Any = None

    def forward(self, batch: Batch, cache: KVCache, attend: PagedAttention) -> torch.Tensor:
        """Run a batch on all ranks, and return rank 0's logits."""
        assert isinstance(cache, SharedCache)
        return self.ranks.call(batch, partial(super().forward, batch, cache, attend))

    def close(self) -> None:
        """End the other ranks. A second call does nothing."""
        self.ranks.close()

    def batch_of_each_rank(self, batch: Batch) -> list[list[int]]:
        """Return each rank's latest batch, packed; rank 0's is given."""
        parts = self.ranks.call(ShowBatch(), partial(self.ranks.gather, pack(batch)))
        return [part.tolist() for part in parts]


def serve(ranks: Ranks, model: Model, attend: PagedAttention, follow: Callable[..., Any]) -> None:
    """Obey rank 0 on another rank, until it says stop.

    Args:
        ranks: this rank and the others.
        model: this rank's share.
        attend: the attention function.
        follow: makes the function that launches the steps of a `Play`.
    """
    model.new_cache = partial(CacheShare, ranks)
    cache: Any = None
    play: Any = None
    latest: Any = None
    while True:
        command = ranks.receive()
        match command:
            case Stop():
                ranks.shutdown()
                return
            case Batch():
                latest = command
                without_logits = replace(command, last_rows=command.last_rows[:0])
                model.forward(without_logits, cache, attend)
            case ShowBatch():
                ranks.gather(pack(latest))
            case NewCache(num_blocks, block_size):
                ranks.hold({})
                play = None
                cache = None  # its memory is free before the new one is made
                cache = model.kv_cache(num_blocks, block_size)
            case Follow(limits):
                play = follow(model, cache, attend, ranks, *limits)
            case Play(steps):
                play(*steps)
            case _:
                cache.obey(command)
