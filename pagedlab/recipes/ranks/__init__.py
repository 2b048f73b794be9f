"""Tensor parallelism: several ranks run one model in step, each with a share of every layer.

Two ways to use them:

    llm = TensorParallelLLM("Qwen/Qwen2.5-0.5B-Instruct", ranks=2)
    pagedlab generate --ranks 2 "Once upon a time"

Rank 0 starts the other ranks, and stops them with the engine. The files:

- shards.py: which share of each layer a rank has
- workers.py: the processes that rank 0 starts
- ranks.py: how ranks talk, and notice that one is gone
- shared.py: one model and one cache over all ranks, with one schedule
"""

from __future__ import annotations

import json
import os
import pkgutil
import shutil
import threading
import time
import weakref
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from pagedlab.arguments import integer
from pagedlab.attention import PagedAttention, get_backend
from pagedlab.engine import LLM
from pagedlab.loading import choose_model, read_config
from pagedlab.model import Model, load_model
from pagedlab.recipes.ranks.ranks import TIMEOUT, RankLost, Ranks
from pagedlab.recipes.ranks.shards import check_split, split_layers
from pagedlab.recipes.ranks.shared import SharedCache, SharedModel, serve
from pagedlab.recipes.ranks.workers import Workers
from pagedlab.scheduler import Plan

__all__ = ["RankLost", "Ranked", "TensorParallelLLM"]


class Ranked(LLM, AbstractContextManager["Ranked"]):
    """What an engine does with several ranks. Another class of engines may have them, too.

    Args:
        model: a hub id, a folder or a .gguf file, as for `LLM`.
        ranks: processes that share the model.
        options: those of the engine. Of `attention_backend`, only names.

    Raises:
        ValueError: If the model cannot be split over that many ranks.
        RankLost: If a rank cannot load its share.
    """

    follow = ""  # "module:function", see `open_model`

    def __init__(self, model: Any = None, *, ranks: int, **options: Any) -> None:
        self._num_ranks = integer("ranks", ranks, 1)
        self._attention = options.get("attention_backend", "auto")
        super().__init__(model, **options)

    def open_model(self, model: Any, device: str, dtype: str | torch.dtype, verbose: bool) -> Model:
        """Load the model, and share it among the ranks."""
        if self._num_ranks == 1:
            return super().open_model(model, device, dtype, verbose)
        size = self._num_ranks
        return open_model(model, device, dtype, verbose, size, self._attention, self.follow)

    def make_plan(self) -> Plan:
        """Plan the next step. `ValueError` if it moves KV that other ranks have a part of."""
        plan = super().make_plan()
        if plan.operations and self.model.num_ranks > 1:
            name = type(self.scheduler).__name__
            raise ValueError(f"{name} moves KV, and several ranks have it: take another scheduler")
        return plan

    def close(self) -> None:
        """End the other ranks, if there are any. A second call does nothing."""
        self.model.close()

    def __exit__(self, *_: object) -> None:
        """End the other ranks at the end of a `with` block, as `close` does."""
        self.close()


class TensorParallelLLM(Ranked):
    """An `LLM` whose model several processes share.

    Args:
        model: as for `Ranked`.
        ranks: processes.
        options: those of `LLM`.
    """

    def __init__(self, model: Any = None, *, ranks: int = 2, **options: Any) -> None:
        super().__init__(model, ranks=ranks, **options)


@dataclass(frozen=True)
class Config:
    """Settings that the other ranks read before they load their shares.

    Args:
        model: hub id or folder.
        device: "cpu" or "cuda".
        dtype: name of a torch dtype, or "auto".
        attention: name of the attention backend.
        follow: "module:function", see `open_model`.
        timeout: seconds that a rank may let the others wait.
    """

    model: str
    device: str
    dtype: str
    attention: str
    follow: str
    timeout: float


def open_model(
    name: Any,
    device: str,
    dtype: str | torch.dtype,
    verbose: bool,
    size: int,
    attention: str | PagedAttention,
    follow: str = "",
) -> Model:
    """Start the other ranks, and return rank 0's share of a model.

    Args:
        name: hub id or folder; None for the default model.
        device: "auto", "cpu" or "cuda".
        dtype: of the weights, or "auto".
        verbose: print what was loaded.
        size: number of ranks.
        attention: name of the attention backend.
        follow: "module:function", which the other ranks call if rank 0 runs ahead. It returns
            what launches their steps, see `shared.serve`.

    Raises:
        ValueError: If the model cannot be split over that many ranks. No process has been started.
        RankLost: If a rank cannot load its share.
    """
    if isinstance(name, Model):
        raise ValueError(
            "with several ranks, each loads its own part: give the model's hub id or folder"
        )
    if not isinstance(attention, str):
        raise ValueError(
            "with several ranks, each attends, and a function cannot be sent: name a backend"
        )
    source, _ = choose_model(name)
    check_split(read_config(source), size)
    config = Config(
        model=source,
        device=kind_of_device(device, size),
        dtype=str(dtype).removeprefix("torch."),
        attention=attention,
        follow=follow,
        timeout=TIMEOUT,
    )
    workers = Workers(size)
    try:
        store = workers.store
        store.set("config", json.dumps(asdict(config)))
        ranks = Ranks(0, size, config.device, workers)
        share = load_share(ranks, name, config.dtype, verbose)
        ranks.connect(store, config.timeout)
    except BaseException:
        workers.stop(patience=0)
        workers.remove_folder()
        raise
    model = SharedModel(**vars(share), ranks=ranks)
    model.new_cache = partial(SharedCache, ranks)
    weakref.finalize(model, ranks.close)  # runs when Python ends, too
    if verbose:
        shape = model.module.config
        print(
            f"{size} ranks on {config.device}, each with query heads: "
            f"{shape.num_attention_heads // size}, KV heads: {shape.num_key_value_heads // size} "
            "of every layer"
        )
    return model


def load_share(ranks: Ranks, name: Any, dtype: str, verbose: bool = False) -> Model:
    """Load this rank's share of a model. It is split before it is moved to the device."""
    split = partial(split_layers, rank=ranks.rank, size=ranks.size, all_reduce=ranks.all_reduce)
    model = load_model(name, str(ranks.device), dtype, verbose, prepare=split)
    model.num_ranks = ranks.size
    return model


def serve_rank(rank: int, size: int, store: Any) -> None:
    """Load the share of a rank other than 0, and serve rank 0 until it says stop."""
    config = Config(**json.loads(store.get("config")))
    ranks = Ranks(rank, size, config.device)
    model = load_share(ranks, config.model, config.dtype)
    ranks.connect(store, config.timeout)

    def follow(*arguments: Any) -> Any:
        make = pkgutil.resolve_name(config.follow)  # imported only if it is needed
        return make(*arguments)

    serve(ranks, model, get_backend(config.attention), follow)


def serve_worker(rank: int, size: int, path: str) -> None:
    """Serve rank 0 in a process that it started, and end with it.

    Args:
        rank: number of this process.
        size: number of ranks.
        path: file of the store. Its folder is removed here only if rank 0 no longer can.
    """

    def end_with_rank_0() -> None:
        # sys.stdin has a lock, which no thread may hold while Python ends.
        told = os.read(0, 1)  # nothing: the pipe closed because rank 0 has died
        if not told:
            shutil.rmtree(os.path.dirname(path), ignore_errors=True)
        os._exit(0)  # the main thread may be in a collective that will not be complete

    threading.Thread(target=end_with_rank_0, daemon=True).start()
    try:
        serve_rank(rank, size, dist.FileStore(path, size))
    except RankLost:
        time.sleep(1)  # if rank 0 has ended, the thread above ends this process meanwhile
        raise


def kind_of_device(device: str, size: int) -> str:
    """Return "cpu" or "cuda". `ValueError` if there are fewer GPUs than ranks."""
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(
            f"ranks take the GPUs in order: device is 'auto', 'cpu' or 'cuda', got {device!r}"
        )
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return "cpu"
    num_gpus = torch.cuda.device_count()
    if num_gpus < size:
        raise ValueError(
            f"{size} ranks take {size} GPUs and torch sees {num_gpus}: name the device 'cpu'"
        )
    return "cuda"
