"""A model and a cache that several ranks share: what rank 0 does to its part, the others do to
theirs.

Each rank's cache holds its KV heads of every block. Which block belongs to whom is the same on all:
scheduler, pool and tables exist on rank 0 alone, which tells the others, as flat integers, what to
run, copy and swap.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import count
from typing import Any

import torch

from pagedlab.attention import PagedAttention
from pagedlab.batch import Batch
from pagedlab.blocks import BlockCopy
from pagedlab.distributed.ranks import Ranks, Verb
from pagedlab.kv_cache import HostBlocks, KVCache
from pagedlab.model import Model


class SharedCache(KVCache):
    """Rank 0's part of a cache that all ranks hold: whatever is done to its blocks is done to
    all.
    """

    def __init__(
        self, ranks: Ranks, num_layers: int, num_blocks: int, block_size: int, *shape: Any
    ) -> None:
        super().__init__(num_layers, num_blocks, block_size, *shape)
        self._ranks = ranks
        self._tickets = count()
        self._dropped: list[int] = []
        ranks.hold({})  # the others will have no other cache
        ranks.call(Verb.NEW_CACHE, [num_blocks, block_size])

    def blocks_that_fit(self) -> int:
        """How many blocks the rank with the least memory should hold."""
        own = super().blocks_that_fit()
        return self._ranks.call(
            Verb.FIT, work=lambda: int(min(self._ranks.collect(torch.tensor(own))))
        )

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        if copies:
            self._ranks.call(Verb.COPY, [block_id for copy in copies for block_id in copy])
            super().copy_blocks(copies)

    def swap_out(self, block_ids: Sequence[int]) -> Any:
        """Rank 0's blocks in host memory, and the ticket under which the others keep theirs until
        these are dropped.
        """
        self.forget_dropped()
        ticket = next(self._tickets)
        self._ranks.call(Verb.SWAP_OUT, [ticket, *block_ids])
        blocks = super().swap_out(block_ids)
        # Not at once: they may be dropped while rank 0 is in the middle of telling something else.
        weakref.finalize(blocks.keys, self._dropped.append, ticket)
        return blocks, ticket

    def swap_in(self, parked: Any, block_ids: Sequence[int]) -> None:
        blocks, ticket = parked
        super().swap_in(blocks, block_ids)
        self._ranks.call(Verb.SWAP_IN, [ticket, *block_ids])

    def forget_dropped(self) -> None:
        """Let the others free what they parked and nobody will bring back."""
        if self._dropped:
            self._ranks.call(Verb.FORGET, [self._dropped.pop() for _ in range(len(self._dropped))])

    def of_each_rank(self, block_ids: Sequence[int]) -> list[torch.Tensor]:
        """Every rank's keys and values of these blocks, each [2, layers, n, block_size, its KV
        heads, head_dim].
        """
        own = torch.stack(super().swap_out(block_ids))
        parts = self._ranks.call(Verb.SHOW_BLOCKS, block_ids, lambda: self._ranks.collect(own))
        return [part.view(own.shape) for part in parts]

    def poison(self) -> None:
        """Fill every rank's slots with NaN, so that reading one before it is written shows."""
        self._ranks.call(Verb.POISON)
        self.keys.fill_(torch.nan)
        self.values.fill_(torch.nan)


@dataclass
class SharedModel(Model):
    """Rank 0's part of a model. It runs when all the other parts run."""

    ranks: Any = None

    def forward(self, batch: Batch, cache: KVCache, attend: PagedAttention) -> torch.Tensor:
        """As `Model.forward`, on all ranks at once; the logits are rank 0's."""
        assert isinstance(cache, SharedCache)
        cache.forget_dropped()
        own_part = partial(super().forward, batch, cache, attend)
        return self.ranks.call(Verb.RUN, pack(batch), own_part)

    def close(self) -> None:
        """End the other ranks; again is harmless."""
        self.ranks.stop(Verb.STOP)

    def batch_of_each_rank(self, batch: Batch) -> list[list[int]]:
        """The latest batch as each rank ran it, packed, rank 0's as given: to see that all have run
        the same.
        """
        parts = self.ranks.call(Verb.SHOW_BATCH, work=lambda: self.ranks.collect(pack(batch)))
        return [part.tolist() for part in parts]


def pack(batch: Batch) -> torch.Tensor:
    """A batch as one flat int64 tensor on the CPU: field by field: dimensions, whether int32,
    shape, numbers.
    """
    parts = []
    for tensor in vars(batch).values():
        head = [tensor.dim(), int(tensor.dtype == torch.int32), *tensor.shape]
        parts += [torch.tensor(head, device=tensor.device), tensor.flatten().long()]
    return torch.cat(parts).cpu()


def unpack(numbers: torch.Tensor, device: torch.device) -> Batch:
    """The batch that `pack` made these numbers of, on `device`."""
    tensors = []
    for _ in fields(Batch):
        num_dims, is_int32 = numbers[:2].tolist()
        shape = torch.Size(numbers[2 : 2 + num_dims].tolist())
        flat, numbers = numbers[2 + num_dims :].tensor_split([shape.numel()])
        tensors.append(flat.view(shape).to(device, torch.int32 if is_int32 else torch.int64))
    return Batch(*tensors)


def serve(ranks: Ranks, model: Model, attend: PagedAttention) -> None:
    """On every rank but 0: do what rank 0 says, until it says stop."""
    cache = model.kv_cache(1, 1)
    play: Any = None  # this rank's part of a window
    parked: dict[int, HostBlocks] = {}
    batch: Any = None  # the latest
    verbs: dict[int, Callable[..., Any]] = {
        Verb.FIT: lambda: ranks.collect(torch.tensor(cache.blocks_that_fit())),
        Verb.COPY: lambda *ids: cache.copy_blocks(list(map(BlockCopy, ids[::2], ids[1::2]))),
        Verb.SWAP_OUT: lambda ticket, *ids: parked.update({ticket: cache.swap_out(ids)}),
        Verb.SWAP_IN: lambda ticket, *ids: cache.swap_in(parked[ticket], ids),
        Verb.FORGET: lambda *tickets: [parked.pop(ticket, None) for ticket in tickets],
        Verb.SHOW_BATCH: lambda: ranks.collect(pack(batch)),
        Verb.SHOW_BLOCKS: lambda *ids: ranks.collect(torch.stack(cache.swap_out(ids))),
        Verb.POISON: lambda: (cache.keys.fill_(torch.nan), cache.values.fill_(torch.nan)),
        Verb.PLAY: lambda *steps: play(*steps),
    }
    while True:
        verb, numbers = ranks.listen()
        if verb == Verb.STOP:
            return ranks.end()
        if verb == Verb.RUN:
            batch = unpack(numbers, model.device)
            # rank 0 alone needs logits
            model.forward(replace(batch, last_rows=batch.last_rows[:0]), cache, attend)
        elif verb == Verb.NEW_CACHE:
            ranks.hold({})
            play = None
            del cache  # before there is another one
            cache = model.kv_cache(*numbers.tolist())
        elif verb == Verb.FOLLOW:
            from pagedlab.accelerate import follow  # not before: the rest runs without that folder

            play = follow(model, cache, attend, ranks, *numbers.tolist())
        else:
            verbs[verb](*numbers.tolist())
