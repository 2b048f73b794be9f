"""What makes an engine faster on its device, where it can be had: other layers, and decode steps without the host."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch

from pagedlab.attention import PagedAttention, get_backend, runs_triton
from pagedlab.batch import Batch
from pagedlab.blocks import blocks_for
from pagedlab.few_tokens import FewTokens, pays
from pagedlab.kv_cache import KVCache
from pagedlab.model import Model
from pagedlab.sampling import SamplingParams

if TYPE_CHECKING:
    from pagedlab.ahead import Ahead

STEPS_AHEAD = 8  # decode steps in one window
Wanted = bool | Literal["auto"]
Forward = Callable[[Batch, KVCache, PagedAttention], torch.Tensor]


def is_on_one_gpu(model: Model, attend: PagedAttention) -> bool:
    """Whether the model runs on one GPU with the Triton kernels, which never wait for it."""
    return model.num_ranks == 1 and runs_triton(model.device) and attend is get_backend("triton")


def choose_fused(model: Model, attend: PagedAttention, fused: Wanted) -> Forward | None:
    """The model's forward pass from fewer kernels, or None for its own. `ValueError` if it is asked for in vain."""
    if fused is True or (fused and is_on_one_gpu(model, attend)):
        from pagedlab.fused import Fused, why_not  # not before: it takes Triton

        if fused is True or not why_not(model.module):
            return Fused(model.module).forward
    return FewTokens(model).forward if fused and pays(model) else None


def choose_ahead(llm: Any, wanted: Wanted) -> Ahead | None:
    """Windows of decode steps as CUDA graphs, or None where they cannot be had; `ValueError` if asked for in vain.

    Not with drafts unless it is insisted on: those are checked by the host.
    """
    possible = is_on_one_gpu(llm.model, llm._attend)
    if wanted is True and not possible:
        raise ValueError("cuda_graphs=True takes one NVIDIA GPU and the Triton attention backend: leave it at 'auto'")
    wanted = llm.speculation.drafter is None if wanted == "auto" else wanted
    return run_ahead(llm, graphs=True) if wanted and possible else None


def warm_up(llm: Any) -> None:
    """Compile what an engine runs, and capture its graphs. `ValueError` while it has requests.

    On a CPU there is nothing to compile: a few tokens are enough to have everything loaded.
    """
    if llm._jobs:
        raise ValueError(f"warm_up takes an idle engine, and {len(llm._jobs)} requests are queued: call it before them")
    room = llm.pool.num_blocks * llm.pool.block_size
    long = min(llm.scheduler.max_batch_tokens, llm.model.max_length, room // 2) - 1
    if llm.model.device.type == "cpu":
        beside, lengths = [1], [16]
    else:  # with so many decodes beside it, a prompt takes another plan of the kernels
        beside, lengths = [1, 8, 64], [16, 1024]
    for texts in beside:
        texts = min(texts, llm.scheduler.max_sequences, room // 64)
        for _ in range(texts):
            llm.add([0], SamplingParams(max_tokens=4, ignore_eos=True))
        llm.step()
        for length in lengths:
            llm.add([texts] * max(1, min(length, long)), SamplingParams(max_tokens=1))
        while llm.scheduler.running or llm.scheduler.waiting:
            llm.step()
    if llm._ahead:
        llm._ahead.decoder.capture()
    gc.collect()
    gc.freeze()  # what is there now stays: the collector need not look through it again between steps


def run_ahead(llm: Any, *, graphs: bool) -> Ahead:
    """Windows for all texts that the engine's scheduler may run at once."""
    from pagedlab.ahead import Ahead  # not before: it takes Triton
    from pagedlab.decode import Decoder

    scheduler, forward = llm.scheduler, llm._fused or llm.model.forward
    blocks = min(scheduler.pool.num_blocks, blocks_for(llm.model.max_length, scheduler.pool.block_size))
    shape = scheduler.max_sequences, blocks, STEPS_AHEAD
    ends = llm.model.eos_token_ids
    return Ahead(Decoder(forward, llm.cache, llm._attend, ends, *shape, graphs=graphs), scheduler, STEPS_AHEAD)
