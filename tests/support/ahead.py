"""Engines that run windows of steps ahead of the host on the CPU, launch by launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pagedlab_fast.choose import make_runner
from pagedlab_fast.runner import FastRunner


def running_ahead(fused_of: Callable[[Any], Any] = lambda llm: None) -> dict[str, Any]:
    """Options of a `pagedlab_fast.LLM`: a runner for windows.

    Args:
        fused_of: returns the layers in fewer kernels for an engine, or None for the stock layers.
    """

    def runner(llm) -> FastRunner:
        fused = fused_of(llm)
        if fused is not None and llm.model.num_ranks == 1:
            llm.forward = fused.forward
        made = make_runner(llm, fused, graphs=False)
        assert bool(made.decoder.step.fused) == bool(fused and llm.model.num_ranks == 1)
        return made

    return {"runner": runner}
