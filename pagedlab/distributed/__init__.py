"""Tensor parallelism: several ranks run one model, each a share of every layer, in step.

`open_model` is the way in.

shards    which part of which layer each rank has
ranks     the processes: how they start, talk, and notice that one is gone
shared    one model and one cache over all of them, one schedule

llm = LLM("Qwen/Qwen2.5-0.5B-Instruct", tensor_parallel=2)      starts the other rank, and stops it with the engine
python -m pagedlab --ranks 2 "Once upon a time"                 the same from a shell
torchrun --standalone --nproc-per-node 2 -m pagedlab.distributed "Once upon a time"   the ranks started by torchrun
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
import weakref
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from pagedlab.attention import PagedAttention, get_backend
from pagedlab.distributed.ranks import SECONDS, Children, RankLost, Ranks
from pagedlab.distributed.shards import check_split, split_layers
from pagedlab.distributed.shared import SharedCache, SharedModel, Verb, serve
from pagedlab.loading import choose_model, read_config
from pagedlab.model import Model, load_model

__all__ = ["RankLost", "open_model"]


def open_model(
    name: Any,
    device: str,
    dtype: str | torch.dtype,
    verbose: bool,
    size: int,
    attention: str | PagedAttention,
) -> Model:
    """Rank 0's part of a model, the `size` - 1 other ranks running.

    `ValueError`, with no process started, for what cannot be split over so many ranks.
    """
    if isinstance(name, Model):
        raise ValueError(
            "with tensor_parallel every rank loads its own part: give the model's hub id or folder"
        )
    if not isinstance(attention, str):
        raise ValueError(
            "with tensor_parallel every rank attends, and a function cannot be sent: name a backend"
        )
    source, _ = choose_model(name)
    check_split(read_config(source), size)
    kind, kept_as = kind_of_device(device, size), str(dtype).removeprefix("torch.")
    words = {
        "model": source,
        "dtype": kept_as,
        "device": kind,
        "attention": attention,
        "seconds": SECONDS,
    }
    children = None if dist.is_torchelastic_launched() else Children(size)
    try:
        store = children.store if children else torchrun_store(size)
        store.set("words", json.dumps(words))
        ranks, part = _join(0, size, store, words | {"model": name}, children, verbose)
    except BaseException:
        if children:
            children.stop(patience=0)
        raise
    model = SharedModel(**vars(part), ranks=ranks)
    model.new_cache = partial(SharedCache, ranks)
    weakref.finalize(model, ranks.stop, Verb.STOP)  # also when Python ends
    if verbose:
        config = model.module.config
        heads, kv_heads = config.num_attention_heads // size, config.num_key_value_heads // size
        print(
            f"{size} ranks on {kind}, each with query heads: {heads}, KV heads: {kv_heads} of "
            "every layer"
        )
    return model


def serve_child() -> None:
    """What a child process of rank 0 does.

    It ends when rank 0 closes the pipe, whatever it is at then.
    """
    rank, size, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

    def end_with_rank_0() -> None:
        os.read(0, 1)  # not through sys.stdin, whose lock a thread must not hold when Python ends
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)
        os._exit(0)  # the main thread may be inside a collective that nobody will finish

    threading.Thread(target=end_with_rank_0, daemon=True).start()
    try:
        serve_rank(rank, size, dist.FileStore(path, size))
    except RuntimeError:
        # if it is rank 0 that has ended, so has the pipe, and this process ends in order
        time.sleep(1)
        raise


def serve_rank(rank: int, size: int, store: Any) -> None:
    """Join the others in the store, where rank 0 says which model it is, and serve rank 0."""
    words = json.loads(store.get("words"))
    serve(*_join(rank, size, store, words), get_backend(words["attention"]))


def _join(
    rank: int,
    size: int,
    store: Any,
    words: dict[str, Any],
    children: Children | None = None,
    verbose: bool = False,
) -> tuple[Ranks, Model]:
    """This rank and its part of the model, cut out before it is moved: no device ever holds the
    whole model.
    """
    ranks = Ranks(rank, size, words["device"], children)
    cut = partial(split_layers, rank=rank, size=size, all_reduce=ranks.all_reduce)
    model = load_model(words["model"], str(ranks.device), words["dtype"], verbose, prepare=cut)
    model.num_ranks = size
    ranks.connect(store, words["seconds"])
    return ranks, model


def kind_of_device(device: str, size: int) -> str:
    """Which it is, "cpu" or "cuda"; `ValueError` where ranks cannot take the GPUs in order."""
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(
            f"ranks take the GPUs in order: device is 'auto', 'cpu' or 'cuda', got {device!r}"
        )
    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return "cpu"
    if torch.cuda.device_count() < size:
        raise ValueError(
            f"{size} ranks take {size} GPUs and torch sees {torch.cuda.device_count()}: use "
            "device='cpu'"
        )
    return "cuda"


def torchrun_store(size: int) -> Any:
    """The store of the processes that torchrun started, which are as many as the ranks asked
    for.
    """
    store, _, world = next(dist.rendezvous("env://"))
    if world != size:
        raise ValueError(f"torchrun started {world} processes and tensor_parallel is {size}")
    return store
