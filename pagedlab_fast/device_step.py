"""One step on the device: the forward pass, sampling, and the inputs of the next step.

Nothing here waits for the device, so a step can be captured as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pagedlab.attention import PagedAttention
from pagedlab.batch import Batch
from pagedlab.engine import Forward
from pagedlab.kv_cache import KVCache
from pagedlab_fast.buffers import DeviceBuffers
from pagedlab_fast.decode_state import advance
from pagedlab_fast.fused import Fused
from pagedlab_fast.kernels.penalties import Penalties
from pagedlab_fast.kernels.sampling import triton_sample, triton_uniform
from pagedlab_fast.shapes import StepShape
from pagedlab_fast.token_counts import TokenCounts


@dataclass
class DeviceStep:
    """Runs a step of a shape, on whatever the buffers hold.

    Args:
        forward: the forward pass of this rank: `Model.forward`, or one like it.
        cache: where keys and values are.
        attend: the attention function. It must not wait for the device; the Triton kernels do not.
        end_token_ids: [E] tokens that end a text, on the device.
        buffers: inputs and results.
        tokens: the tokens of sequences with penalties.
        fused: the layers of `forward`, if they can run without the logits; else None.
        ranks: distributed's, if several share the model.
    """

    forward: Forward
    cache: KVCache
    attend: PagedAttention
    end_token_ids: Tensor
    buffers: DeviceBuffers
    tokens: TokenCounts
    fused: Fused | None = None
    ranks: Any = None

    def batch(self, shape: StepShape) -> Batch:
        """The forward pass of a step of this shape."""
        return self.buffers.inputs(shape).batch(self.buffers.block_tables[: shape.rows])

    @torch.inference_mode()
    def run(self, shape: StepShape) -> Tensor | None:
        """Run a step: sample into the buffers, or return hidden states [T, H] for the host."""
        if self.ranks:
            # Rank 0 samples alone, and the others take its inputs: so ranks cannot diverge.
            self.ranks.share(self.buffers.inputs(shape).packed)
        batch = self.batch(shape)
        if self.fused and not shape.is_sampled:
            return self.fused.hidden_states(batch, self.cache, self.attend, all_rows=True)
        logits = self.forward(batch, self.cache, self.attend)
        if not self.ranks or self.ranks.rank == 0:
            self._sample(shape, batch, logits)
        return None

    def _sample(self, shape: StepShape, batch: Batch, logits: Tensor) -> None:
        """Sample a token for each row, and lay out the decode step after it."""
        buffers = self.buffers
        positions = batch.positions
        if shape.tokens is not None:
            positions = positions[batch.last_rows]
        u = triton_uniform(buffers.params.seed[: shape.rows], positions, ahead=1)
        sampling = buffers.sampling
        limits = sampling.temperature, sampling.top_k, sampling.top_p
        counts = None
        penalties = None
        if shape.is_penalised:
            counts = self.tokens.counts
            assert counts is not None
            penalties = Penalties(counts, buffers.params.counts_row, sampling.penalties)
        sampled = triton_sample(logits, *limits, u, penalties)
        advance(buffers, shape.rows, self.cache.block_size, self.end_token_ids, sampled, counts)

    def with_last_layers(self, num_layers: int) -> DeviceStep:
        """The same step on the last layers of the model alone. It needs `fused`."""
        assert self.fused is not None
        step = copy(self)
        step.fused = self.fused.last_layers(num_layers)
        step.forward = step.fused.forward
        return step


def end_token_tensor(token_ids: Iterable[int], device: torch.device) -> Tensor:
    """The tokens that end a text, [E]; -1, which no token is, if there are none."""
    return torch.tensor(sorted(token_ids) or [-1], device=device)
