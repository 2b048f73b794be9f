"""Chooses what makes a step fast on its device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch

from pagedlab.attention import PagedAttention, get_backend
from pagedlab.blocks import blocks_for
from pagedlab.engine import Forward
from pagedlab.kernels import compiles_for
from pagedlab.kv_cache import KVCache
from pagedlab.model import Model
from pagedlab_fast.cpu_linear import is_faster, use_cpu_linear, use_stock_linear
from pagedlab_fast.scheduler import FastScheduler

# Files that need Triton are imported where they are used: it is not there on every system.
if TYPE_CHECKING:
    from pagedlab_fast.decoder import Decoder
    from pagedlab_fast.fused import Fused
    from pagedlab_fast.run_ahead import RunAhead
    from pagedlab_fast.shapes import Limits

MAX_STEPS = 16  # of a window
Wanted = bool | Literal["auto"]


@dataclass(frozen=True)
class Acceleration:
    """What suits a model and its device.

    Args:
        forward: the forward pass of a step.
        run_ahead: launches windows of steps; None where every step waits for the one before.
    """

    forward: Forward
    run_ahead: RunAhead | None = None


def choose(
    model: Model,
    cache: KVCache,
    attend: PagedAttention,
    scheduler: Any,
    *,
    fused: Wanted,
    cuda_graphs: Wanted,
) -> Acceleration:
    """Choose what suits the model and its device.

    Graphs are captured on torch's current GPU, see `torch.cuda.set_device`: an engine on another
    GPU runs without.

    Args:
        model: whose steps run.
        cache: where keys and values are.
        attend: the attention function.
        scheduler: plans the steps.
        fused: run the layers in fewer kernels: on the CPU, faster products.
        cuda_graphs: run steps as CUDA graphs, ahead of the host.

    Raises:
        ValueError: If something is asked for that the model or the device does not support.
    """
    on_gpu = is_on_gpu(model, attend)
    can_plan = isinstance(scheduler, FastScheduler)
    graphs = (
        bool(cuda_graphs)
        and on_gpu
        and can_plan
        and model.device.index == torch.cuda.current_device()
    )
    if cuda_graphs is True and not graphs:
        needs = "one NVIDIA GPU a rank, torch's current one, Triton's attention and a FastScheduler"
        raise ValueError(f"cuda_graphs=True takes {needs}: leave it at 'auto'")
    layers = choose_fused(model, fused, on_gpu)
    forward = model.forward
    if layers is not None and _ranks_of(model) is None:
        forward = layers.forward
    elif layers is None and is_faster(model):
        # An engine without it may have the model of one with it.
        use = use_cpu_linear if fused else use_stock_linear
        use(model.module)
    if not graphs:
        return Acceleration(forward)
    return Acceleration(forward, make_run_ahead(model, cache, attend, scheduler, layers))


def is_on_gpu(model: Model, attend: PagedAttention) -> bool:
    """Whether the model runs on a GPU, or its parts on several, and attention is the Triton
    kernels', which never wait for the GPU.
    """
    return compiles_for(model.device) and attend is get_backend("triton")


def choose_fused(model: Model, fused: Wanted, on_gpu: bool) -> Fused | None:
    """The layers in fewer kernels, of this rank's part of the model; None for the stock layers."""
    if not fused or (fused == "auto" and not on_gpu):
        return None
    from pagedlab_fast.fused import Fused, why_not

    # fp16 has little room for products of what is not normed yet
    is_doubtful = model.module.dtype == torch.float16 or why_not(model.module) is not None
    if fused == "auto" and is_doubtful:
        return None
    return Fused(model.module, _ranks_of(model))


def make_run_ahead(
    model: Model,
    cache: KVCache,
    attend: PagedAttention,
    scheduler: Any,
    fused: Fused | None = None,
    graphs: bool = True,
) -> RunAhead:
    """Run ahead for all sequences that the scheduler may run at once.

    Args:
        model, cache, attend, scheduler: as of `choose`.
        fused: the layers in fewer kernels; None for the stock layers.
        graphs: whether steps are CUDA graphs; else kernels are launched one by one.
    """
    from pagedlab_fast.run_ahead import RunAhead
    from pagedlab_fast.shapes import Limits

    pool = scheduler.pool
    limits = Limits(
        max_rows=scheduler.max_sequences,
        max_blocks=min(pool.num_blocks, blocks_for(model.max_length, pool.block_size)),
        max_steps=MAX_STEPS,
        max_tokens=scheduler.max_batch_tokens,
    )
    ranks = _ranks_of(model)
    if ranks:
        ranks.follow(*limits, graphs, fused is not None)
    decoder = _make_decoder(model, cache, attend, limits, fused, graphs, ranks)
    return RunAhead(decoder, scheduler, limits.max_steps)


def follow(
    model: Model, cache: KVCache, attend: PagedAttention, ranks: Any, *numbers: int
) -> Callable[..., None]:
    """On every rank but 0: return what launches this rank's part of a window.

    Args:
        model: this rank's part.
        cache: this rank's part.
        attend: the attention function.
        ranks: this rank among the others.
        numbers: what `make_run_ahead` tells: `Limits`, whether steps are graphs, and whether
            layers are fused.
    """
    from pagedlab_fast.fused import Fused
    from pagedlab_fast.shapes import Limits, unpack_shapes

    *limits, graphs, is_fused = numbers
    fused = Fused(model.module, ranks) if is_fused else None
    decoder = _make_decoder(model, cache, attend, Limits(*limits), fused, bool(graphs), ranks)

    def play(*shapes: int) -> None:
        decoder.play(unpack_shapes(shapes))

    return play


def _make_decoder(
    model: Model,
    cache: KVCache,
    attend: PagedAttention,
    limits: Limits,
    fused: Fused | None,
    graphs: bool,
    ranks: Any,
) -> Decoder:
    """This rank's decoder."""
    from pagedlab_fast.decoder import Decoder

    forward: Forward
    if fused is None:
        # of one rank's part: the `forward` of a shared model runs the parts of all ranks
        forward = partial(Model.forward, model) if ranks else model.forward
    elif ranks and ranks.rank > 0:
        forward = fused.hidden_states  # rank 0 alone needs logits
    else:
        forward = fused.forward
    splits = None if ranks else fused  # ranks have no steps that the host samples for
    ends = model.eos_token_ids
    return Decoder(forward, cache, attend, ends, model.vocab_size, limits, splits, graphs, ranks)


def _ranks_of(model: Model) -> Any:
    """The ranks that share the model; None if it runs on one device."""
    return getattr(model, "ranks", None)
