"""How likely each token was that a step could sample."""

from __future__ import annotations

from torch import Tensor

from pagedlab.sampling import probabilities
from pagedlab.sampling_params import SamplingParams
from pagedlab.scheduler import Plan, Sequence

AS_THE_MODEL_SAYS = SamplingParams(temperature=1.0)


def distributions(plan: Plan, logits: Tensor) -> dict[Sequence, tuple[int, Tensor]]:
    """Return the position of each sequence's next token, and its distribution [V].

    The distribution is the one after temperature, top_k, top_p and min_p. At temperature 0 it is
    the model's own.

    Args:
        plan: the step's plan.
        logits: [R, V], the rows that its chunks need.
    """
    found = {}
    rows = logits.split([chunk.num_rows for chunk in plan.chunks])
    for chunk, own in zip(plan.chunks, rows, strict=True):
        if chunk.num_rows:
            params = chunk.sequence.params
            params = params if params.temperature else AS_THE_MODEL_SAYS
            distribution = probabilities(own[:1], [params])[0].cpu()
            found[chunk.sequence] = len(chunk.sequence.token_ids), distribution
    return found
