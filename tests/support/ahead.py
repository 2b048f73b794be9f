"""Engines that run windows of steps ahead of the host on the CPU, launch by launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pagedlab_fast.choose import make_run_ahead
from pagedlab_fast.runner import FastRunner
from pagedlab_fast.scheduler import FastScheduler


def running_ahead(fused_of: Callable[[Any], Any] = lambda llm: None, launches: bool = True) -> dict[str, Any]:
    """Options of a `pagedlab_fast.LLM`: a scheduler and a runner for windows.

    Args:
        fused_of: returns the layers in fewer kernels for an engine, or None for the stock layers.
        launches: as of `FastRunner`.
    """

    def runner(llm: Any) -> FastRunner:
        fused = fused_of(llm)
        if fused is not None and llm.model.num_ranks == 1:
            llm.forward = fused.forward
        run_ahead = make_run_ahead(llm.model, llm.cache, llm.attend, llm.scheduler, fused, graphs=False)
        assert bool(run_ahead.decoder.step.fused) == bool(fused and llm.model.num_ranks == 1)
        return FastRunner(llm, run_ahead, launches)

    return {"scheduler": FastScheduler, "runner": runner}
