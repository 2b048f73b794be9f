"""Random tensors for the checks, and the shapes of an answer's tensors.

The only file of the checks' tools that imports torch.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from pagedlab_lessons.checks.protocol import Wrong, agree, shape


def normal(seed: int = 0) -> Callable[..., torch.Tensor]:
    """Return `torch.randn` in fp64, which gives the same numbers each time it is made.

    Args:
        seed: another one gives other numbers.
    """
    return partial(torch.randn, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def check_shapes(expected: Any, got: Any, message: str) -> None:
    """Raise `Wrong` unless an answer returns tensors of these shapes.

    Args:
        expected: the shape of a tensor, or a list with the shape of each tensor.
        got: the answer's tensor, or its tensors.
        message: what to say of other shapes.
    """
    for part in got if isinstance(got, (list, tuple)) else [got]:
        if not isinstance(part, torch.Tensor):
            kind = type(part).__name__
            raise Wrong(f"It returns a value of type {kind}. Return tensors.", "a tensor", kind)
    agree(expected, shape(got), message, str)
