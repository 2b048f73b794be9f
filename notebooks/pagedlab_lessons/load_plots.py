"""An axis with a logarithmic scale, as notebooks 10 and 14 have it."""

from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator


def log_axis(axis: Any, ticks: Sequence[float]) -> None:
    """Put plain numbers on an axis with a logarithmic scale."""
    axis.set_major_locator(NullLocator())
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    axis.set_ticks(ticks)
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
