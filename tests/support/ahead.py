"""Engines that run windows of steps ahead of the host on the CPU, launch by launch."""

from pagedlab import SamplingParams
from pagedlab.recipes.penalties import Penalties
from pagedlab_fast.choose import MAX_STEPS, make_runner
from support.engines import exactly

MIXED = [
    exactly(30),
    SamplingParams(max_tokens=MAX_STEPS + 1),
    SamplingParams(max_tokens=1),
    SamplingParams(max_tokens=25, temperature=0.9, seed=3, n=3),
    SamplingParams(max_tokens=17, temperature=0.7, seed=4, stop=("e",)),
    SamplingParams(max_tokens=2 * MAX_STEPS, temperature=0.7, seed=5),
    SamplingParams(max_tokens=12, temperature=0.7, seed=6, top_k=5),
    SamplingParams(max_tokens=11, temperature=1.2, seed=7, top_p=0.8),
    SamplingParams(max_tokens=10, temperature=0.7, seed=8, min_p=0.1),
    SamplingParams(max_tokens=20, adjust=Penalties(1.4)),
    exactly(30, temperature=0.8, seed=9, adjust=Penalties(presence=1.0, frequency=0.4)),  # goes on after its end
    SamplingParams(max_tokens=9, temperature=0.9, seed=10, n=2, adjust=Penalties(1.2), top_k=9, top_p=0.9),
]
MIXED_LENGTHS = [16, 5, 30, 12, 1, 33, 8, 7, 9, 18, 3, 6]


def running_ahead(fused_of=lambda llm: None):
    """Options of a `pagedlab_fast.LLM`: a runner for windows.

    Args:
        fused_of: returns the layers in fewer kernels for an engine, or None for the stock layers.
    """

    def runner(llm):
        fused = fused_of(llm)
        if fused is not None and llm.model.num_ranks == 1:
            llm.forward = fused.forward
        made = make_runner(llm, fused, graphs=False)
        assert bool(made.decoder.step.fused) == bool(fused and llm.model.num_ranks == 1)
        return made

    return {"runner": runner}
