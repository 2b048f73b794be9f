"""What a request asks for, as the kernels that sample on the device see it."""

from __future__ import annotations

from pagedlab.recipes.penalties import Penalties
from pagedlab.sampling_params import SamplingParams
from pagedlab.scheduler import Sequence

# The kernels read top_k as fp32, where this and all smaller whole numbers are exact. No vocabulary
# has as many tokens.
MAX_TOP_K = 2**24


def penalties_of(params: SamplingParams) -> Penalties | None:
    """The penalties that the device applies; None if there are none, or if the host must."""
    adjust = params.adjust
    if isinstance(adjust, Penalties) and not adjust.bias:
        return adjust
    return None


def can_run_ahead(sequence: Sequence) -> bool:
    """Whether the device can compute and sample for a sequence without the host."""
    return not sequence.forks and not wants_host(sequence.params)


def wants_host(params: SamplingParams) -> bool:
    """Whether the host must take part in sampling."""
    is_adjusted = params.adjust is not None and penalties_of(params) is None
    return is_adjusted or params.min_p > 0 or params.logprobs is not None
