"""One step on the device: the forward pass, sampling, and the inputs of the next step.

Nothing here waits for the device, so a step can be captured as a CUDA graph: one launch in place of
hundreds. The grids of the kernels depend on shapes alone, never on values, so one graph serves
every step of its shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pagedlab.attention import PagedAttention
from pagedlab.batch import Batch
from pagedlab.engine import Forward
from pagedlab.kv_cache import KVCache
from pagedlab.loading import no_collections
from pagedlab_fast.buffers import COUNTS_ROW, SEED, DeviceBuffers
from pagedlab_fast.decode_state import advance
from pagedlab_fast.fused import Fused
from pagedlab_fast.kernels.penalties import Penalties
from pagedlab_fast.kernels.sampling import triton_sample
from pagedlab_fast.shapes import StepShape
from pagedlab_fast.token_counts import TokenCounts


@dataclass
class DeviceStep:
    """Runs a step of a shape, on whatever the buffers hold.

    Args:
        forward: the forward pass of this rank: `Model.forward`, or one like it.
        cache: where keys and values are.
        attend: the attention function. It must not wait for the device; the Triton kernels do not.
        end_token_ids: [E] tokens that end a text, on the device; -1 if there are none.
        buffers: inputs and results.
        tokens: the tokens of sequences with penalties.
        fused: the layers of `forward`, if they can run without the logits; else None.
        ranks: this process among the ranks that share the model; None if it runs alone.
    """

    forward: Forward
    cache: KVCache
    attend: PagedAttention
    end_token_ids: Tensor
    buffers: DeviceBuffers
    tokens: TokenCounts
    fused: Fused | None
    ranks: Any

    @torch.inference_mode()
    def run(self, shape: StepShape) -> Tensor | None:
        """Run a step: sample into the buffers, or return hidden states [T, H] for the host."""
        inputs = self.buffers.inputs(shape)
        if self.ranks:
            # Rank 0 samples alone, and the others take its inputs: so ranks cannot diverge.
            self.ranks.share(inputs.packed)
        if self.fused and not shape.is_sampled:
            return self.fused.hidden_states(inputs.batch, self.cache, self.attend, all_rows=True)
        logits = self.forward(inputs.batch, self.cache, self.attend)
        if not self.ranks or self.ranks.rank == 0:
            self._sample(shape, inputs.batch, logits)
        return None

    def _sample(self, shape: StepShape, batch: Batch, logits: Tensor) -> None:
        """Sample a token for each row, and lay out the decode step after it."""
        buffers = self.buffers
        positions = batch.positions
        if shape.tokens is not None:
            positions = positions[batch.last_rows]
        counts = None
        penalties = None
        if shape.is_penalised:
            counts = self.tokens.counts
            assert counts is not None
            penalties = Penalties(counts, buffers.params[:, COUNTS_ROW], buffers.sampling[3:])
        temperature, top_k, top_p = buffers.sampling[:3]
        seeds = buffers.params[:, SEED]
        sampled = triton_sample(
            logits, temperature, top_k, top_p, None, penalties, seeds=seeds, positions=positions
        )
        advance(buffers, shape.rows, self.cache.block_size, self.end_token_ids, sampled, counts)


class GraphRunner:
    """Runs steps, and captures those whose shape occurs a second time.

    By then their kernels are compiled, and what is allocated only once is there.

    Args:
        step: runs a step launch by launch.
        max_tokens: steps with more tokens are never captured.
        enabled: whether any step is captured.
    """

    def __init__(self, step: DeviceStep, max_tokens: int, enabled: bool) -> None:
        self.step = step
        self.graphs = dict[StepShape, torch.cuda.CUDAGraph]()
        self.enabled = enabled
        self._max_tokens = max_tokens
        self.seen = set[StepShape]()
        self._hidden = torch.empty(0)  # of steps that the host samples for
        if step.fused:
            width = step.fused.module.config.hidden_size
            self._hidden = step.cache.keys.new_empty(max_tokens, width)

    def run(self, shape: StepShape) -> Tensor | None:
        """Run a step of this shape, as `DeviceStep.run` does."""
        if not self.can_capture(shape):
            return self.step.run(shape)
        if shape not in self.graphs:
            if shape not in self.seen:
                self.seen.add(shape)
                return self.step.run(shape)
            self.graphs[shape] = self._capture(shape)
        self.graphs[shape].replay()
        return None if shape.is_sampled else self._hidden[: shape.num_tokens]

    def can_capture(self, shape: StepShape) -> bool:
        """Whether steps of this shape are graphs."""
        return self.enabled and (shape.tokens or 0) <= self._max_tokens

    def captures_next(self, shape: StepShape) -> bool:
        """Whether the next step of this shape is captured."""
        return self.can_capture(shape) and shape in self.seen and shape not in self.graphs

    def _capture(self, shape: StepShape) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        pool = None  # of memory, which all graphs share
        if self.graphs:
            pool = next(iter(self.graphs.values())).pool()
        # Not "global": NCCL's own thread may look after an earlier sum meanwhile.
        # To end a graph of another engine meanwhile, as garbage, would spoil this one.
        one = torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local")
        with no_collections(), one:
            hidden = self.step.run(shape)
            if hidden is not None:
                # The next graph may write over the memory of this one, so its result is copied.
                self._hidden[: len(hidden)] = hidden
        return graph
