"""A model and a cache that several ranks share: what rank 0 does to its part, the others do to theirs.

Each rank's cache holds its KV heads of every block. Which block belongs to whom is the same on all: scheduler, pool
and tables exist on rank 0 alone, which tells the others, as flat integers, what to run, copy and swap.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from functools import partial
from typing import Any

import torch

from pagedlab.attention import PagedAttention
from pagedlab.batch import Batch
from pagedlab.blocks import BlockCopy
from pagedlab.distributed.ranks import Ranks
from pagedlab.kv_cache import HostBlocks, KVCache
from pagedlab.model import Model


class Verb(IntEnum):
    """What rank 0 asks of the others. The numbers that follow are in the method that sends it."""

    STOP = 0
    NEW_CACHE = 1  # num_blocks, block_size
    FIT = 2
    RUN = 3  # a batch, see `pack`
    COPY = 4  # source, destination, source, ...
    SWAP_OUT = 5  # ticket, block ids
    SWAP_IN = 6  # ticket, block ids
    FORGET = 7  # tickets
    SHOW_BATCH = 8
    SHOW_BLOCKS = 9  # block ids
    POISON = 10


# Rank 0: a model and a cache that tell the others -----------------------------------------------------------------


class SharedCache(KVCache):
    """Rank 0's part of a cache that all ranks hold: whatever is done to its blocks is done to all."""

    def __init__(self, ranks: Ranks, num_layers: int, num_blocks: int, block_size: int, *shape: Any) -> None:
        super().__init__(num_layers, num_blocks, block_size, *shape)
        self._ranks = ranks
        self._next_ticket = 0
        self._dropped: list[int] = []
        ranks.call(Verb.NEW_CACHE, [num_blocks, block_size])

    def blocks_that_fit(self) -> int:
        """How many blocks the rank with the least memory should hold."""
        own = super().blocks_that_fit()
        return self._ranks.call(Verb.FIT, work=lambda: self._ranks.smallest(own))

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        if copies:
            self._ranks.call(Verb.COPY, [block_id for copy in copies for block_id in copy])
            super().copy_blocks(copies)

    def swap_out(self, block_ids: Sequence[int]) -> Any:
        """Each rank parks its part under a ticket, and forgets it once the value returned here is dropped."""
        ticket = self._next_ticket
        self._next_ticket += 1
        self._ranks.call(Verb.SWAP_OUT, [ticket, *block_ids])
        parked = Parked(ticket, super().swap_out(block_ids))
        # Not at once: it may be dropped while rank 0 is in the middle of telling something else.
        weakref.finalize(parked, self._dropped.append, ticket)
        return parked

    def swap_in(self, parked: Any, block_ids: Sequence[int]) -> None:
        super().swap_in(parked.blocks, block_ids)
        self._ranks.call(Verb.SWAP_IN, [parked.ticket, *block_ids])

    def forget_dropped(self) -> None:
        """Let the others free what they parked and nobody will bring back."""
        if self._dropped:
            self._ranks.call(Verb.FORGET, [self._dropped.pop() for _ in range(len(self._dropped))])

    def of_each_rank(self, block_ids: Sequence[int]) -> list[torch.Tensor]:
        """Every rank's keys and values of these blocks, each [2, layers, n, block_size, its KV heads, head_dim]."""
        own = _contents(self, block_ids)
        parts = self._ranks.call(Verb.SHOW_BLOCKS, block_ids, lambda: self._ranks.collect(own))
        return [part.view(own.shape) for part in parts]

    def poison(self) -> None:
        """Fill every rank's slots with NaN, so that reading one before it is written shows."""
        self._ranks.call(Verb.POISON)
        _fill_with_nan(self)


@dataclass(eq=False)
class Parked:
    """Blocks of all ranks in host memory: rank 0's own, and the ticket under which the others keep theirs."""

    ticket: int
    blocks: HostBlocks


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
        """The latest batch as each rank ran it, packed, rank 0's as given: to see that all have run the same."""
        parts = self.ranks.call(Verb.SHOW_BATCH, work=lambda: self.ranks.collect(pack(batch)))
        return [part.tolist() for part in parts]


def pack(batch: Batch) -> torch.Tensor:
    """A batch as one flat int64 tensor on the CPU: field by field: dimensions, whether int32, shape, numbers."""
    parts = []
    for field in fields(batch):
        tensor = getattr(batch, field.name)
        head = [tensor.dim(), int(tensor.dtype == torch.int32), *tensor.shape]
        parts += [torch.tensor(head, device=tensor.device), tensor.flatten().long()]
    return torch.cat(parts).cpu()


def unpack(numbers: torch.Tensor, device: torch.device) -> Batch:
    """The batch that `pack` made these numbers of, on `device`."""
    tensors = {}
    for field in fields(Batch):
        num_dims, is_int32 = numbers[:2].tolist()
        shape = numbers[2 : 2 + num_dims].tolist()
        flat, numbers = numbers[2 + num_dims :].tensor_split([math.prod(shape)])
        dtype = torch.int32 if is_int32 else torch.int64
        tensors[field.name] = flat.view(shape).to(device, dtype)
    return Batch(**tensors)


def _contents(cache: KVCache, block_ids: Sequence[int]) -> torch.Tensor:
    return torch.stack(KVCache.swap_out(cache, block_ids))


def _fill_with_nan(cache: KVCache) -> None:
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)


# The other ranks ---------------------------------------------------------------------------------------------------


def serve(ranks: Ranks, model: Model, attend: PagedAttention) -> None:
    """On every rank but 0: do what rank 0 says, until it says stop."""
    cache = model.kv_cache(1, 1)
    parked: dict[int, HostBlocks] = {}
    packed = torch.empty(0, dtype=torch.int64)
    while True:
        verb, numbers = ranks.listen()
        first, *ids = numbers.tolist() if verb != Verb.RUN and len(numbers) else [0]
        if verb == Verb.STOP:
            ranks.disconnect()
            return
        elif verb == Verb.RUN:
            batch = unpack(numbers, model.device)
            packed = pack(batch)
            model.forward(replace(batch, last_rows=batch.last_rows[:0]), cache, attend)  # rank 0 alone needs logits
        elif verb == Verb.NEW_CACHE:
            del cache  # before there is another one
            cache = model.kv_cache(first, *ids)
        elif verb == Verb.FIT:
            ranks.smallest(cache.blocks_that_fit())
        elif verb == Verb.COPY:
            cache.copy_blocks([BlockCopy(*pair) for pair in numbers.view(-1, 2).tolist()])
        elif verb == Verb.SWAP_OUT:
            parked[first] = cache.swap_out(ids)
        elif verb == Verb.SWAP_IN:
            cache.swap_in(parked[first], ids)
        elif verb == Verb.FORGET:
            for ticket in (first, *ids):
                parked.pop(ticket, None)
        elif verb == Verb.SHOW_BATCH:
            ranks.collect(packed)
        elif verb == Verb.SHOW_BLOCKS:
            ranks.collect(_contents(cache, numbers.tolist()))
        elif verb == Verb.POISON:
            _fill_with_nan(cache)
