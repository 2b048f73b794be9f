"""Tensor parallelism: several ranks run one model, each a share of every layer, in step. `open_model` is the way in.

shards    which part of which layer each rank has
ranks     the processes: how they start, talk, and notice that one is gone
shared    one model and one cache over all of them, one schedule

llm = LLM("Qwen/Qwen2.5-0.5B-Instruct", tensor_parallel=2)      starts the other rank, and stops it with the engine
python -m pagedlab --ranks 2 "Once upon a time"                 the same from a shell
torchrun --standalone --nproc-per-node 2 -m pagedlab.distributed "Once upon a time"   the ranks started by torchrun
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from pagedlab.attention import PagedAttention, get_backend
from pagedlab.distributed.ranks import Children, RankLost, Ranks, child_options, wait_until_ready
from pagedlab.distributed.shards import check_split, split_layers
from pagedlab.distributed.shared import SharedCache, SharedModel, Verb, serve
from pagedlab.model import Model, choose_model, load_model, read_config

__all__ = ["RankLost", "open_model"]


def open_model(
    name: Any, device: str, dtype: str | torch.dtype, verbose: bool, size: int, attention: str | PagedAttention
) -> Model:
    """Rank 0's part of a model, the `size` - 1 other ranks running.

    `ValueError`, with no process started, for what cannot be split over so many ranks.
    """
    if isinstance(name, Model):
        raise ValueError("with tensor_parallel every rank loads its own part: give the model's hub id or folder")
    if not isinstance(attention, str):
        raise ValueError("with tensor_parallel every rank attends, and a function cannot be sent: name a backend")
    source, _ = choose_model(name)
    check_split(read_config(source), size)
    kind = kind_of_device(device, size)
    joined = dist.is_torchelastic_launched()
    words = {"model": source, "dtype": str(dtype).removeprefix("torch."), "device": kind, "attention": attention}
    children = None if joined else Children("pagedlab.distributed:serve_child", size, words)
    ranks = Ranks(0, size, _device_of(0, kind), children)
    try:
        model = SharedModel(**vars(_load_part(name, ranks, dtype, verbose)), ranks=ranks)
        store = children.store if children else torchrun_store(size)
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


def kind_of_device(device: str, size: int) -> str:
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"ranks take the GPUs in order: device is 'auto', 'cpu' or 'cuda', got {device!r}")
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if torch.cuda.device_count() < size:
        raise ValueError(f"{size} ranks take {size} GPUs and torch sees {torch.cuda.device_count()}: use device='cpu'")
    return "cuda"


def _device_of(rank: int, kind: str) -> torch.device:
    return torch.device("cuda", rank) if kind == "cuda" else torch.device("cpu")


def torchrun_store(size: int) -> Any:
    """The store of the processes that torchrun started, which are as many as the ranks asked for."""
    store, _, world = next(dist.rendezvous("env://"))
    if world != size:
        raise ValueError(f"torchrun started {world} processes and tensor_parallel is {size}")
    return store
