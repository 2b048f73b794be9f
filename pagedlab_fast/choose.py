"""Chooses what makes a step fast on its device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch

from pagedlab.attention import PagedAttention, get_backend
from pagedlab.blocks import blocks_for
from pagedlab.engine import Forward
from pagedlab.kernels import compiles_for
from pagedlab.model import Model
from pagedlab.recipes.ranks.group import Ranks
from pagedlab_fast.runner import FastRunner
from pagedlab_fast.scheduler import FastScheduler

# Files that need Triton are imported where they are used: it is not there on every system.
if TYPE_CHECKING:
    from pagedlab_fast.engine import LLM
    from pagedlab_fast.fused import Fused

MAX_STEPS = 16  # of a window
Wanted = bool | Literal["auto"]


def is_on_gpu(model: Model, attend: PagedAttention) -> bool:
    """Whether the model runs on a GPU, or its parts on several, and attention is the Triton
    kernels', which never wait for the GPU.
    """
    return compiles_for(model.device) and attend is get_backend("triton")


def takes_graphs(wanted: Wanted, model: Model, attend: PagedAttention, scheduler: Any) -> bool:
    """Whether steps run as CUDA graphs, ahead of the host.

    Graphs are captured on torch's current GPU, see `torch.cuda.set_device`: an engine on another
    GPU runs without.

    Raises:
        ValueError: If they are asked for and the model or the device does not support them.
    """
    is_able = isinstance(scheduler, FastScheduler) and is_on_gpu(model, attend)
    is_able = is_able and model.device.index == torch.cuda.current_device()
    if wanted is True and not is_able:
        raise ValueError(
            "cuda_graphs=True takes one NVIDIA GPU a rank, torch's current one, Triton's attention "
            "and a FastScheduler: leave it at 'auto'"
        )
    return bool(wanted) and is_able


def choose_fused(
    model: Model, wanted: Wanted, on_gpu: bool, ranks: Ranks | None = None
) -> Fused | None:
    """The layers in fewer kernels, of this rank's part of the model; None for the stock layers.

    Raises:
        ValueError: If they are asked for and the model's layers are others.
    """
    if not wanted or (wanted == "auto" and not on_gpu):
        return None
    from pagedlab_fast.fused import Fused, can_fuse

    # fp16 has little room for products of what is not normed yet
    is_doubtful = model.module.dtype == torch.float16 or not can_fuse(model.module)
    if wanted == "auto" and is_doubtful:
        return None
    return Fused(model.module, ranks)


def make_runner(llm: LLM, fused: Fused | None = None, graphs: bool = True) -> FastRunner:
    """Make a runner for all sequences that the scheduler may run at once.

    Args:
        llm: the engine.
        fused: the layers in fewer kernels; None for the stock layers.
        graphs: whether steps are CUDA graphs; else kernels are launched one by one.
    """
    from pagedlab_fast.buffers import DeviceBuffers
    from pagedlab_fast.decoder import Decoder
    from pagedlab_fast.device_step import DeviceStep
    from pagedlab_fast.shapes import Limits
    from pagedlab_fast.token_counts import TokenCounts

    model = llm.model
    limits = Limits(
        max_rows=llm.max_sequences,
        max_blocks=min(llm.num_blocks, blocks_for(model.max_length, llm.block_size)),
        max_steps=MAX_STEPS,
        max_tokens=llm.max_batch_tokens,
    )
    forward: Forward = model.forward
    if fused is not None:
        needs_logits = llm.ranks.rank == 0
        forward = fused.forward if needs_logits else fused.hidden_states
    device = llm.cache.keys.device
    ranks = ranks_of(llm)
    step = DeviceStep(
        forward,
        llm.cache,
        llm.attend,
        end_token_ids=torch.tensor(sorted(model.eos_token_ids) or [-1], device=device),
        buffers=DeviceBuffers(limits, device),
        tokens=TokenCounts(limits.max_rows, model.vocab_size, device),
        fused=None if ranks else fused,  # ranks have no steps that the host samples for
        ranks=ranks,
    )
    return FastRunner(llm, Decoder(step, limits, graphs), limits.max_steps)


def ranks_of(llm: LLM) -> Ranks | None:
    """The ranks that share the engine's model; None if one runs it alone."""
    return llm.ranks if llm.ranks.size > 1 else None
