"""The style of all figures, and the figures that more than one notebook draws.

To import this module sets matplotlib's style, also for a reader's own figures.

A notebook stores a figure without a ground, and text in a grey that is legible on a light page and
on a dark one. `savefig` gives it a white ground. Colour is never the only sign: every kind of slot
has a hatch too.
"""

# ruff: noqa: E402 - what needs matplotlib is imported after the check

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pagedlab.extras import require

require("notebooks", "matplotlib")

import matplotlib.pyplot as plt
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pagedlab_lessons.colors import (
    MEMORY_LOOKS,
    NEUTRAL,
    SEQUENCE_COLORS,
    Look,
    sequence_color,
    sequence_hatch,
)
from pagedlab_lessons.figure_words import as_png

if TYPE_CHECKING:
    from pagedlab_lessons.kernels07.puzzles import Loads

plt.style.use(Path(__file__).with_name("lessons.mplstyle"))
LATE = SEQUENCE_COLORS[5]  # emphasis: a maximum, a floor, a draft that was wrong


def outlined(color: str, hatch: str = "", **look: Any) -> dict[str, Any]:
    """The look of a shape that is hollow, unless a facecolor is given."""
    return {"facecolor": "none", "edgecolor": color, "hatch": hatch, **look}


def in_matplotlib(look: Look) -> dict[str, Any]:
    """Return how matplotlib draws a look; what is empty is hollow."""
    if look.color.startswith("var("):
        return outlined(NEUTRAL)
    if look.is_pale:
        return outlined(look.color, look.hatch * 2)
    return {"facecolor": look.color, "hatch": look.hatch}


KIND_LOOKS = {kind: in_matplotlib(look) for kind, look in MEMORY_LOOKS.items()}


def figure(width: float = 8, height: float = 3, **subplots: Any) -> tuple[Figure, Any]:
    """Return a figure and its axes. A notebook stores it with words for what is seen.

    Args:
        width: in inches.
        height: in inches.
        subplots: for `plt.subplots`.
    """
    return plt.subplots(figsize=(width, height), FigureClass=_DescribedFigure, **subplots)


class _DescribedFigure(Figure):
    """A figure that a notebook stores without a ground, and with an alt text."""

    ground = "none"  # in a notebook; `savefig` gives it a white one

    def _repr_mimebundle_(self, **_: Any) -> Any:
        """Return what a notebook stores: a PNG without a ground, and words for what is seen."""
        png, size = as_png(self, bbox_inches="tight")
        return {"image/png": png, "text/plain": size["alt"]}, {"image/png": size}

    def _ipython_display_(self) -> None:
        """Show this bundle: IPython prefers its own PNG of a figure, which has a white ground."""
        picture, metadata = self._repr_mimebundle_()
        display(picture, metadata=metadata, raw=True)


def stack(
    ax: Axes, rows: Mapping[str, Mapping[str, float]], looks: Mapping[str, Any], linewidth: float
) -> None:
    """Draw a bar a row, the first on top, of parts in the order of `looks`.

    What no row has is not in the legend.
    """
    left = np.zeros(len(rows))
    for part, look in looks.items():
        widths = np.array([row.get(part, 0.0) for row in rows.values()])
        if widths.any():
            edges = linewidth * (widths > 0)
            ax.barh(range(len(rows)), widths, 0.6, left=left, label=part, linewidth=edges, **look)
        left += widths
    ax.set_yticks(range(len(rows)), list(rows))
    ax.invert_yaxis()


def draw_shares(ax: Axes, rows: Mapping[str, Mapping[str, float]]) -> None:
    """One stacked bar a row: the share of memory by kind (`Run.shares()`), the used share written
    beside its name.
    """
    percent = {
        f"{name}  {100 * row['used']:.1f} %": {kind: 100 * share for kind, share in row.items()}
        for name, row in rows.items()
    }
    stack(ax, percent, KIND_LOOKS, linewidth=1)
    ax.set(xlim=(0, 100), xlabel="share of the KV memory (%)")
    ax.legend(ncols=len(KIND_LOOKS), loc="lower left", bbox_to_anchor=(0, 1))


def draw_tiles(ax: Axes, loads: Loads) -> None:
    """New tokens (down) over key positions: a colour a program, solid what its queries see, pale
    what is loaded and masked.
    """
    q, k_cache, _, _, lengths, starts = (x.numpy() for x in loads.given.values())
    last = np.repeat(lengths - starts[1:], np.diff(starts)) + np.arange(len(q))
    tiles = [load for load in loads.of["q"] if load.program[0] % k_cache.shape[2] == 0]
    for number, tile in enumerate(sorted(tiles, key=lambda load: -load.program[0])):
        rows = np.unique(tile.elements // q[0].size)
        loaded = {
            element
            for load in loads.of["k_cache"]
            if load.program == tile.program
            for element in load.elements
        }
        color = sequence_color(number)
        ax.barh(rows, len(loaded) / q.shape[2], 1, color=color, alpha=0.3, linewidth=0)
        ax.barh(rows, last[rows] + 1, 1, color=color, linewidth=0)
    ax.hlines(starts[1:-1] - 0.5, 0, max(lengths), color=NEUTRAL, linewidth=0.8)
    for b, y in enumerate((starts[1:] + starts[:-1] - 1) / 2):
        ax.text(max(lengths) + 0.5, y, f"sequence {b}", fontsize=9, va="center")
    ax.set(xlim=(0, max(lengths)), ylim=(len(q) - 0.5, -0.5))
    ax.set(xlabel="position of the key", ylabel="new token in the batch")


def draw_step_times(ax: Axes, steps: Mapping[str, Mapping[str, Any]], floor_ms: float) -> None:
    """A bar a rung: its kernels' milliseconds by group ("ms by group"), then hatched what is left
    of "wall ms".
    """
    groups = sorted({group for step in steps.values() for group in step["ms by group"]})
    looks = {
        group: outlined(NEUTRAL, sequence_hatch(i), facecolor=sequence_color(i))
        for i, group in enumerate(groups)
    }
    rows = {}
    for y, (name, step) in enumerate(steps.items()):
        wall, busy = step["wall ms"], sum(step["ms by group"].values())
        rows[name] = step["ms by group"] | {"the GPU waits": max(0.0, wall - busy)}
        ax.text(wall, y, f" {wall:.1f} ms, busy {busy / wall:.0%}", va="center")
    stack(ax, rows, looks | {"the GPU waits": outlined(NEUTRAL, "...")}, linewidth=0.5)
    ax.axvline(floor_ms, linestyle=":", color=LATE, label=f"floor, {floor_ms:.2f} ms")
    longest = max(step["wall ms"] for step in steps.values())
    ax.set(xlabel="milliseconds of a step", xlim=(0, 1.25 * longest))
    ax.figure.legend(loc="outside lower center", ncols=4)
