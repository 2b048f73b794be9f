"""An axis with a logarithmic scale, as notebooks 10 and 14 have it."""

from collections.abc import Sequence
from typing import Any


def log_axis(axis: Any, ticks: Sequence[float]) -> None:
    """Put plain numbers on an axis with a logarithmic scale."""
    axis.set_ticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.set_ticks([], minor=True)
