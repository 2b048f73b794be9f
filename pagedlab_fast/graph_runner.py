"""Steps as CUDA graphs: one launch in place of hundreds.

The grids of the kernels depend on shapes alone, never on values, so one graph serves every step of
its shape.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pagedlab.loading import no_collections
from pagedlab_fast.device_step import DeviceStep
from pagedlab_fast.shapes import StepShape


class GraphRunner:
    """Runs steps, and captures those whose shape occurs a second time.

    Args:
        step: runs a step launch by launch.
        max_tokens: steps with more tokens are never captured.
        enabled: whether any step is captured.
    """

    def __init__(self, step: DeviceStep, max_tokens: int, enabled: bool) -> None:
        self.step = step
        self.graphs: dict[StepShape, torch.cuda.CUDAGraph] = {}
        self.enabled = enabled
        self._max_tokens = max_tokens
        self._seen: set[StepShape] = set()
        self._hidden: Tensor | None = None  # of steps that the host samples for
        if step.fused:
            width = step.fused.module.config.hidden_size
            self._hidden = step.cache.keys.new_empty(max_tokens, width)

    def run(self, shape: StepShape) -> Tensor | None:
        """Run a step of this shape, as `DeviceStep.run` does."""
        if not self.can_capture(shape):
            return self.step.run(shape)
        if shape not in self.graphs:
            if shape not in self._seen:
                self.mark_seen(shape)
                return self.step.run(shape)
            self.graphs[shape] = self._capture(shape)
        self.graphs[shape].replay()
        if shape.is_sampled:
            return None
        assert self._hidden is not None
        return self._hidden[: shape.num_tokens]

    def can_capture(self, shape: StepShape) -> bool:
        """Whether steps of this shape are graphs."""
        return self.enabled and (shape.tokens or 0) <= self._max_tokens

    def captures_next(self, shape: StepShape) -> bool:
        """Whether the next step of this shape is captured."""
        return self.can_capture(shape) and shape in self._seen and shape not in self.graphs

    def mark_seen(self, shape: StepShape) -> None:
        """Capture this shape when it is run next.

        By then its kernels must be compiled, and what is allocated only once must be there.
        """
        self._seen.add(shape)

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
                assert self._hidden is not None
                # The next graph may write over the memory of this one, so its result is copied.
                self._hidden[: len(hidden)] = hidden
        return graph
