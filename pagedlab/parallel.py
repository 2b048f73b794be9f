"""Tensor parallelism: several ranks run one model, each a share of every layer (shards.py), in step.

Each rank's cache holds its KV heads of every block. Which block belongs to whom is the same on all: scheduler, pool
and tables exist on rank 0 alone, which tells the others, as flat integers, what to run, copy and swap.

    llm = LLM("Qwen/Qwen2.5-0.5B-Instruct", tensor_parallel=2)      starts the other rank, and stops it with the engine
    python -m pagedlab.parallel --ranks 2 "Once upon a time"        the same from a shell
    torchrun --standalone --nproc-per-node 2 -m pagedlab.parallel "Once upon a time"     the ranks started by torchrun
"""

from __future__ import annotations

import math
import os
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from pagedlab.attention import PagedAttention, get_backend
from pagedlab.batch import Batch
from pagedlab.blocks import BlockCopy
from pagedlab.kv_cache import HostBlocks, KVCache
from pagedlab.model import Model, choose_model, load_model, read_config
from pagedlab.ranks import Children, RankLost, Ranks, child_options, wait_until_ready
from pagedlab.shards import check_split, split_layers

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Closing", "RankLost", "SharedCache", "SharedModel", "open_model"]


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


# Starting and stopping ----------------------------------------------------------------------------------------------


def open_model(
    name: Any, device: str, dtype: str | torch.dtype, verbose: bool, size: int, attention: str | PagedAttention
) -> Model:
    """An engine's model: a `Model` as it is, one loaded, or with size > 1 rank 0's part, the other ranks running.

    `ValueError`, with no process started, for what cannot be split over so many ranks.
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"tensor_parallel is a number of ranks, 1 or more, got {size!r}")
    if size == 1:
        return name if isinstance(name, Model) else load_model(name, device, dtype, verbose)
    if isinstance(name, Model):
        raise ValueError("with tensor_parallel every rank loads its own part: give the model's hub id or folder")
    if not isinstance(attention, str):
        raise ValueError("with tensor_parallel every rank attends, and a function cannot be sent: name a backend")
    source, _ = choose_model(name)
    check_split(read_config(source), size)
    kind = _kind_of_device(device, size)
    joined = dist.is_torchelastic_launched()
    words = {"model": source, "dtype": str(dtype).removeprefix("torch."), "device": kind, "attention": attention}
    children = None if joined else Children("pagedlab.parallel:serve_child", size, words)
    ranks = Ranks(0, size, _device_of(0, kind), children)
    try:
        model = SharedModel(**vars(_load_part(name, ranks, dtype, verbose)), ranks=ranks)
        store = children.store if children else _torchrun_store(size)
        wait_until_ready(store, size, children)
        ranks.connect(store)
    except BaseException:
        if children:
            children.stop(patience=0)
        raise
    model.new_cache = partial(SharedCache, ranks)
    weakref.finalize(model, ranks.stop, Verb.STOP)  # also when Python ends
    if verbose:
        config = model.module.config
        heads, kv_heads = config.num_attention_heads // size, config.num_key_value_heads // size
        print(f"{size} ranks on {kind}, each with query heads: {heads}, KV heads: {kv_heads} of every layer")
    return model


class Closing:
    """An engine that ends the other ranks, if it has any, when `with` does, when it is dropped, or on `close`."""

    model: Any

    def close(self) -> None:
        """End the other ranks. Nothing to do for an engine without; again is harmless."""
        if isinstance(self.model, SharedModel):
            self.model.ranks.stop(Verb.STOP)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve_child() -> None:
    """What a child process of rank 0 does."""
    words = child_options()
    try:
        serve_rank(words["rank"], words["size"], words["store"], words)
    except RuntimeError:
        time.sleep(1)  # if it is rank 0 that has ended, so has the pipe, and this process ends in order
        raise


def serve_rank(rank: int, size: int, store: Any, words: Mapping[str, Any]) -> None:
    """Load this rank's part of the model, join the others, and serve rank 0. `store`: a store, or its file's path."""
    torch.set_grad_enabled(False)
    ranks = Ranks(rank, size, _device_of(rank, words["device"]))
    attend = get_backend(words["attention"])
    model = _load_part(words["model"], ranks, words["dtype"], verbose=False)
    store = dist.FileStore(store, size) if isinstance(store, str) else store
    store.set(f"ready{rank}", "1")
    ranks.connect(store)
    serve(ranks, model, attend)


def _load_part(name: Any, ranks: Ranks, dtype: str | torch.dtype, verbose: bool) -> Model:
    """This rank's part, moved to its device once it is cut out: no device ever holds the whole model."""

    def cut(module: Any) -> None:
        split_layers(module, ranks.rank, ranks.size, ranks.all_reduce)

    model = load_model(name, str(ranks.device), dtype, verbose, prepare=cut)
    model.num_ranks = ranks.size
    return model


def _kind_of_device(device: str, size: int) -> str:
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"ranks take the GPUs in order: device is 'auto', 'cpu' or 'cuda', got {device!r}")
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if torch.cuda.device_count() < size:
        raise ValueError(f"{size} ranks take {size} GPUs and torch sees {torch.cuda.device_count()}: use device='cpu'")
    return "cuda"


def _device_of(rank: int, kind: str) -> torch.device:
    return torch.device("cuda", rank) if kind == "cuda" else torch.device("cpu")


def _torchrun_store(size: int) -> Any:
    """The store of the processes that torchrun started, which are as many as the ranks asked for."""
    store, _, world = next(dist.rendezvous("env://"))
    if world != size:
        raise ValueError(f"torchrun started {world} processes and tensor_parallel is {size}")
    return store


def main(arguments: list[str] | None = None) -> int:
    """As `python -m pagedlab`, on two ranks or as many as --ranks says; under torchrun, on those that it started."""
    from pagedlab import __main__ as command

    arguments = sys.argv[1:] if arguments is None else arguments
    if not dist.is_torchelastic_launched():
        return command.main(["--ranks", "2", *arguments])
    size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    if rank == 0:
        return command.main([*arguments, "--ranks", str(size)])
    options = command.parse(arguments)
    try:
        source, kind = choose_model(options.model)[0], _kind_of_device(options.device, size)
        check_split(read_config(source), size)
        words = {"model": source, "dtype": options.dtype, "device": kind, "attention": options.attention}
        serve_rank(rank, size, _torchrun_store(size), words)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    from pagedlab import parallel  # the module that the engine imports, not this one, which is called __main__

    sys.exit(parallel.main())
