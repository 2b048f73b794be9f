"""Random tensors for the checks. The only file of the checks' tools that imports torch."""

from collections.abc import Callable
from functools import partial

import torch


def normal(seed: int = 0) -> Callable[..., torch.Tensor]:
    """Return `torch.randn` in fp64, which gives the same numbers each time it is made.

    Args:
        seed: another one gives other numbers.
    """
    return partial(torch.randn, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
