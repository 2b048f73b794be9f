"""What makes a step fast on its device, where it can be had.

The engine comes in through `choose`, and runs without it.

fused         a layer's weights in fewer kernels                             GPU
windows       decode steps planned ahead, so that the device never waits     GPU
graphs        those steps on the device, each one CUDA graph                 GPU
together      their kernels compiled side by side                            GPU
few_rows      matrix products of a few rows, and what stands around them     GPU
gate          gate and up of many rows, and what stands around them          GPU
few_tokens    matrix products of a few tokens                                CPU
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from pagedlab.accelerate.few_tokens import FewTokens, pays
from pagedlab.attention import PagedAttention, get_backend
from pagedlab.batch import Batch
from pagedlab.blocks import blocks_for
from pagedlab.kernels import compiles_for
from pagedlab.kv_cache import KVCache
from pagedlab.model import Model
from pagedlab.sampling_params import SamplingParams
from pagedlab.validation import one_of

if TYPE_CHECKING:
    from pagedlab.accelerate.windows import Windows
    from pagedlab.llm import LLM

STEPS_AHEAD = 16  # decode steps in one window, at most
Wanted = bool | Literal["auto"]
Forward = Callable[[Batch, KVCache, PagedAttention], torch.Tensor]


class Fast(NamedTuple):
    """What was chosen for an engine: its forward pass, and who runs windows of decode steps, if
    anybody does.
    """

    forward: Forward
    windows: Windows | None

    def warm_up(self, llm: LLM) -> None:
        """Have an idle engine compile what it runs, and capture its graphs.

        Behind those come a few texts: some that the host draws for, and one of which blocks are
        copied.
        """
        if self.windows:
            self.windows.decoder.capture(drawn=not llm.speculation)  # the host checks drafts
        scheduler, room = llm.scheduler, llm.pool.num_blocks * llm.pool.block_size
        long = min(scheduler.max_batch_tokens, llm.model.max_length, room // 4) - 4
        few = [SamplingParams(max_tokens=4 if long > 4 else 1, logprobs=said) for said in (None, 0)]
        if long > 4 and llm.pool.num_blocks >= 8 and scheduler.max_sequences > 1:
            few.append(SamplingParams(max_tokens=4, n=2, temperature=1.0))
        for length in [16] if llm.model.device.type == "cpu" else [16, 1024]:
            for i, params in enumerate(few):
                llm.add([i] * max(1, min(length - 1, long)), params)
            while llm.num_unfinished:
                llm.step()
        gc.collect()
        atexit.register(gc.unfreeze)  # else nanobind, Triton's binding, calls what is frozen leaked
        # what is there now stays: the collector need not look through it again between steps
        gc.freeze()


def choose(llm: LLM, *, fused: Wanted, cuda_graphs: Wanted) -> Fast:
    """What suits the engine's model and device. `ValueError` if something is asked for in vain.

    Graphs are captured on torch's current GPU, see `torch.cuda.set_device`: an engine on another
    runs without.
    """
    one_of("fused", fused, (True, False, "auto"))
    one_of("cuda_graphs", cuda_graphs, (True, False, "auto"))
    on_gpu, ranks = is_on_gpu(llm.model, llm.attend), getattr(llm.model, "ranks", None)
    ahead = on_gpu and cuda_graphs and llm.model.device.index == torch.cuda.current_device()
    if cuda_graphs is True and not ahead:
        needs = "one NVIDIA GPU a rank, torch's current one, and Triton's attention"
        raise ValueError(f"cuda_graphs=True takes {needs}: leave it at 'auto'")
    forward = _choose_forward(llm.model, fused, on_gpu, ranks)
    windows = windows_for(llm, forward, graphs=True) if ahead else None
    return Fast(llm.model.forward if ranks else forward, windows)


def is_on_gpu(model: Model, attend: PagedAttention) -> bool:
    """Whether the model runs on a GPU, or its parts on some, with the Triton kernels, which never
    wait for it.
    """
    return compiles_for(model.device) and attend is get_backend("triton")


def _choose_forward(model: Model, fused: Wanted, on_gpu: bool, ranks: Any) -> Forward:
    """The forward pass; among ranks, that of this one's part, which ends in logits on rank 0 at
    least.
    """
    if fused is True or (fused and on_gpu):
        from pagedlab.accelerate.fused import Fused, why_not  # not before: it takes Triton

        # fp16 has little room for products of what is not normed yet.
        if fused is True or not (why_not(model.module) or model.module.dtype == torch.float16):
            whole = Fused(model.module, ranks)
            return whole.layered if ranks and ranks.rank else whole.forward
    if ranks:
        return partial(Model.forward, model)
    return FewTokens(model).forward if fused and pays(model) else model.forward


def windows_for(llm: LLM, forward: Forward, *, graphs: bool) -> Windows:
    """Windows for all texts that the engine's scheduler may run at once; without `graphs`, launch
    by launch.
    """
    from pagedlab.accelerate.fused import Fused  # not before: it takes Triton
    from pagedlab.accelerate.graphs import Decoder
    from pagedlab.accelerate.windows import Windows

    scheduler, ranks = llm.scheduler, getattr(llm.model, "ranks", None)
    blocks = min(
        scheduler.pool.num_blocks, blocks_for(llm.model.max_length, scheduler.pool.block_size)
    )
    shape = scheduler.max_sequences, blocks, STEPS_AHEAD, scheduler.max_batch_tokens
    if ranks:
        ranks.follow(*shape, graphs, isinstance(getattr(forward, "__self__", None), Fused))
    decoder = Decoder(
        forward, llm.cache, llm.attend, llm.model.eos_token_ids, *shape, graphs=graphs, ranks=ranks
    )
    return Windows(decoder, scheduler, STEPS_AHEAD)


def follow(
    model: Model, cache: KVCache, attend: PagedAttention, ranks: Any,
    rows: int, blocks: int, steps: int, tokens: int, graphs: int, fused: int,
) -> Callable[..., None]:  # fmt: skip
    """On every rank but 0: what takes the steps of a window, two numbers each as `Decoder` tells
    them.

    The limits are `Decoder`'s, as `windows_for` tells them, then whether there are graphs and
    layers are fused.
    """
    from pagedlab.accelerate.graphs import Decoder, Shape

    forward = _choose_forward(model, bool(fused), True, ranks)
    decoder = Decoder(forward, cache, attend, (), rows, blocks, steps, tokens, bool(graphs), ranks)
    return lambda *n: decoder.play(
        [Shape(rows, tokens or None) for rows, tokens in zip(n[::2], n[1::2], strict=True)]
    )
