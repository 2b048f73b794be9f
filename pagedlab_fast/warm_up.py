"""Compile kernels and capture CUDA graphs before the first request."""

from __future__ import annotations

import atexit
import gc
from typing import TYPE_CHECKING

from pagedlab.recipes.penalties import Penalties
from pagedlab.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pagedlab_fast.engine import LLM


def warm_up(llm: LLM) -> None:
    """Have an idle engine capture its graphs, and run a few requests.

    The requests compile what is no part of a graph: sampling by the host, and copies of blocks.
    """
    if llm.run_ahead is not None:
        # with drafts, the host samples for every step, to check them
        llm.run_ahead.decoder.capture(is_sampled=llm.drafter is None)
    for num_tokens in [16] if llm.model.device.type == "cpu" else [16, 1024]:
        _run_requests(llm, num_tokens)
    gc.collect()
    atexit.register(gc.unfreeze)  # else nanobind, Triton's binding, reports what is frozen as leaks
    gc.freeze()  # what is there stays: the collector need not look through it between steps


def _run_requests(llm: LLM, num_tokens: int) -> None:
    """Run a few requests with prompts of this many tokens, or as many as fit."""
    longest = llm.scheduler.max_batch_tokens
    longest = min(longest, llm.model.max_length, llm.pool.num_blocks * llm.pool.block_size // 4) - 4
    is_roomy = longest > 4
    max_tokens = 4 if is_roomy else 1
    requests = [
        SamplingParams(max_tokens=max_tokens),
        SamplingParams(max_tokens=max_tokens, logprobs=0),
    ]
    penalised = []
    if llm.run_ahead is not None and llm.drafter is None:  # else the host applies penalties
        penalties = Penalties(repetition=1.1)
        penalised.append(SamplingParams(max_tokens=max_tokens, adjust=penalties))
    if is_roomy and llm.pool.num_blocks >= 8 and llm.scheduler.max_sequences > 1:
        requests.append(SamplingParams(max_tokens=4, n=2, temperature=1.0))  # copies a block
    # One request that needs the host brings the others to the host, too.
    for batch in requests, penalised:
        for i, params in enumerate(batch):
            llm.add([i] * max(1, min(num_tokens - 1, longest)), params)
        while llm.num_unfinished:
            llm.step()
