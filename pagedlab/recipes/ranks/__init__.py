"""Tensor parallelism: several ranks run one model in step, each with a share of every layer.

    with TensorParallelLLM("Qwen/Qwen2.5-0.5B-Instruct", ranks=2) as llm:
        llm.generate("Once upon a time")

Rank 0 has the scheduler, the block pool and the tables. The KV cache of each rank holds its own KV
heads of every block, so one table serves all ranks. For each step rank 0 sends one message: the
block copies, and the batch with its tables. The others run the same forward pass. The files:

- shards.py: which share of each layer a rank has
- group.py: how ranks start, talk, meet in sums, and end
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pagedlab.arguments import integer, one_of
from pagedlab.attention import PagedAttention
from pagedlab.batch import Batch
from pagedlab.blocks import BlockCopy
from pagedlab.engine import LLM
from pagedlab.kv_cache import KVCache
from pagedlab.loading import choose_model, read_config
from pagedlab.model import Model, load_model
from pagedlab.recipes.ranks.group import RankLost, Ranks
from pagedlab.recipes.ranks.shards import check_split, split_layers

__all__ = ["RankLost", "TensorParallelLLM"]

# Options that all ranks need. The others are about planning, which rank 0 does alone.
SHARED = (
    "attention_backend",
    "block_size",
    "dtype",
    "max_batch_tokens",
    "max_sequences",
    "num_blocks",
)


class TensorParallelLLM(LLM, AbstractContextManager["TensorParallelLLM"]):
    """An `LLM` whose model several processes share.

    A step that fails ends the other ranks, and the next call starts new ones. A script makes one
    under `if __name__ == "__main__":`, because the other ranks import the script.

    Args:
        model: a hub id or a folder; None as for `LLM`.
        ranks: processes, this one included.
        options: those of `LLM`. The device is "auto", "cpu" or "cuda"; ranks take the GPUs in
            order. The attention backend has a name.

    Attributes:
        ranks: this process among the others.

    Raises:
        ValueError: If the model cannot be split over that many ranks, or an option is bad.
        RankLost: If a rank cannot load its share.
    """

    def __init__(self, model: Any = None, *, ranks: Any = 2, **options: Any) -> None:
        if not isinstance(ranks, Ranks):  # a rank other than 0 gets one
            ranks = Ranks(0, integer("ranks", ranks, 1))
        self.ranks: Ranks = ranks
        self._shared = {name: options[name] for name in SHARED if name in options}
        with ranks.together():
            super().__init__(model, **options)
        if ranks.engine:
            self.forward = partial(forward_on_all_ranks, ranks, self.model)
            ranks.engine = partial(ranks.engine, num_blocks=self.num_blocks)  # of later ranks

    def shared_options(self) -> dict[str, Any]:
        """Options that the other ranks' engines get, too."""
        return self._shared

    def open_model(self, model: Any, device: str, dtype: str | torch.dtype, verbose: bool) -> Model:
        """Load this rank's share of the model. Rank 0 starts the other ranks first."""
        ranks = self.ranks
        if ranks.size == 1:
            return super().open_model(model, device, dtype, verbose)
        if ranks.rank == 0:
            self._start_others(model, device)
        # It is split before it is moved to the device.
        split = partial(split_layers, rank=ranks.rank, size=ranks.size, all_reduce=ranks.all_reduce)
        share = load_model(model, str(ranks.device), dtype, verbose, prepare=split)
        share.num_ranks = ranks.size
        if ranks.rank == 0:
            share.new_cache = partial(FirstCache, ranks)
        ranks.connect()
        return share

    def _start_others(self, model: Any, device: str) -> None:
        """Check what all ranks need to agree on, and start the others."""
        ranks = self.ranks
        attention = self._shared.get("attention_backend", "auto")
        if isinstance(model, Model) or not isinstance(attention, str):
            raise ValueError(
                "each rank loads its own share and attends: give the model's hub id or folder, and "
                "the name of an attention backend"
            )
        source, _ = choose_model(model)
        check_split(read_config(source), ranks.size)
        ranks.device = device_of_ranks(device, ranks.size)
        ranks.engine = partial(type(self), source, verbose=False, **self.shared_options())
        weakref.finalize(self, ranks.end)  # runs when Python ends, too
        ranks.start()

    def make_scheduler(self) -> Any:
        """Make a scheduler over the pool. `ValueError` if it moves KV between devices."""
        scheduler = super().make_scheduler()
        if self.ranks.size > 1 and "swapped" in scheduler.queues():
            name = type(scheduler).__name__
            raise ValueError(f"{name} moves KV, and several ranks have it: take another scheduler")
        return scheduler

    def blocks_that_fit(self) -> int:
        """How many blocks the memory of every rank holds."""
        fit = super().blocks_that_fit()
        return fit if self.ranks.size == 1 else self.ranks.least("blocks", fit)

    def follow(self, copies: list[BlockCopy], inputs: Any) -> None:
        """On a rank other than 0: do this rank's part of a step.

        Args:
            copies: of blocks, before the step.
            inputs: the arrays of the step's `Batch`.
        """
        self.cache.copy_blocks(copies)
        batch = Batch(*(torch.from_numpy(array).to(self.model.device) for array in inputs))
        self.forward(batch, self.cache, self.attend)

    def close(self) -> None:
        """End the other ranks, and drop all requests and cached blocks."""
        self.ranks.end()
        self.reset()

    def __exit__(self, *_: object) -> None:
        self.close()


def forward_on_all_ranks(
    ranks: Ranks, model: Model, batch: Batch, cache: KVCache, attend: PagedAttention
) -> Tensor:
    """Rank 0: run a batch on all ranks, and return the logits.

    Args:
        ranks: this process among the others.
        model: this rank's share.
        batch, cache, attend: as of `Model.forward`.
    """
    others = replace(batch, last_rows=batch.last_rows[:0])  # rank 0 alone needs logits
    with ranks.step([tensor.cpu().numpy() for tensor in vars(others).values()]):
        logits = model.forward(batch, cache, attend)
        ranks.wait()  # a sum that was aborted must not pass for a result
    return logits


class FirstCache(KVCache):
    """Rank 0's share of a KV cache. The others get its block copies with the next message.

    Args:
        ranks: this process among the others.
        sizes: the arguments of `KVCache`.
    """

    def __init__(self, ranks: Ranks, *sizes: Any) -> None:
        super().__init__(*sizes)
        self._ranks = ranks

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        super().copy_blocks(copies)
        self._ranks.copies += copies


def device_of_ranks(device: str, size: int) -> torch.device:
    """Return the device of rank 0. `ValueError` if there are fewer GPUs than ranks."""
    one_of("device", device, ("auto", "cpu", "cuda"))
    num_gpus = torch.cuda.device_count()
    if device == "cpu" or (device == "auto" and num_gpus < size):
        return torch.device("cpu")
    if num_gpus < size:
        raise ValueError(f"{size} ranks take {size} GPUs, and torch sees {num_gpus}")
    return torch.device("cuda:0")
