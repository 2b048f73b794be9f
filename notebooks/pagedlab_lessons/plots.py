"""The style of all figures, and the figures that more than one notebook draws.

To import this module sets matplotlib's style, also for a reader's own figures.

A notebook stores a figure without a ground, and text in a grey that is legible on a light page and
on a dark one. `savefig` gives it a white ground. Colour is never the only sign: every kind of slot
has a hatch too.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pagedlab.extras import require

try:
    import matplotlib.pyplot as plt
except ModuleNotFoundError:
    require("notebooks", "matplotlib")
    raise
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from pagedlab_lessons.colors import (
    INK,
    MEMORY_LOOKS,
    NEUTRAL,
    SEQUENCE_COLORS,
    Look,
    ink_on,
    sequence_color,
    sequence_hatch,
)
from pagedlab_lessons.figure_words import described

if TYPE_CHECKING:
    from pagedlab_lessons.kernels07.puzzles import Loads

STYLE: dict[Any, Any] = {
    "axes.facecolor": "none",
    "figure.facecolor": "white",
    "axes.prop_cycle": plt.cycler(color=SEQUENCE_COLORS),
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    ),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "axes.titlesize": "medium",
    "figure.constrained_layout.use": True,
    **dict.fromkeys(("figure.constrained_layout.h_pad", "figure.constrained_layout.w_pad"), 0.1),
    "hatch.linewidth": 1.0,
}
plt.rcParams.update(STYLE)
DPI = 96  # of a figure on a page
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

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what a notebook stores: a PNG without a ground, and words for what is seen."""
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=2 * DPI, facecolor=self.ground, bbox_inches="tight")
        height, width = plt.imread(io.BytesIO(file.getvalue())).shape[:2]
        seen = described(self)
        picture = {"image/png": base64.b64encode(file.getvalue()).decode(), "text/plain": seen}
        return picture, {"image/png": {"width": width // 2, "height": height // 2, "alt": seen}}

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
            ax.barh(
                range(len(rows)),
                widths,
                0.6,
                left=left,
                label=part,
                linewidth=linewidth * (widths > 0),
                **look,
            )
        left += widths
    ax.set_yticks(range(len(rows)), list(rows))
    ax.invert_yaxis()


def draw_shares(ax: Axes, rows: Mapping[str, Mapping[str, float]]) -> None:
    """One stacked bar a row: the share of memory by kind (`Run.shares()`), the used share written
    beside its name.
    """
    shares = {
        name: {kind: 100 * share for kind, share in row.items()} for name, row in rows.items()
    }
    percent = {f"{name}  {row['used']:.1f} %": row for name, row in shares.items()}
    stack(ax, percent, KIND_LOOKS, linewidth=1)
    ax.set(xlim=(0, 100), xlabel="share of the KV memory (%)")
    ax.legend(ncols=len(KIND_LOOKS), loc="lower left", bbox_to_anchor=(0, 1))


def draw_tiles(ax: Axes, loads: Loads) -> None:
    """New tokens (down) over key positions: a colour a program, solid what its queries see, pale
    what is masked.
    """
    q, k_cache, _, tables, seq_lens, starts = (x.numpy() for x in loads.given.values())
    size, kv_heads, _ = k_cache[0].shape
    position = np.zeros(len(k_cache) * size, int)  # of the token in each slot
    for table, length in zip(tables, seq_lens, strict=True):
        at = np.arange(length)
        position[table[at // size] * size + at % size] = at
    pairs = [*zip(seq_lens, np.diff(starts), strict=True)]
    last = np.concatenate([np.arange(length - new, length) for length, new in pairs])
    picture = np.zeros((len(last), max(seq_lens), 4))
    queries = {load.program: np.unique(load.elements // q[0].size) for load in loads.of["q"]}
    programs = sorted(queries, reverse=True)
    for load in loads.of["k_cache"]:
        if load.program[0] % kv_heads:
            continue
        rows, keys = queries[load.program], position[np.unique(load.elements // k_cache[0, 0].size)]
        cells = np.ix_(rows, keys)
        picture[cells] = to_rgba(sequence_color(programs.index(load.program) // kv_heads))
        picture[..., 3][cells] = np.where(keys <= last[rows, None], 1, 0.3)
    ax.imshow(picture, aspect="auto", interpolation="nearest")
    width = picture.shape[1]
    ax.hlines(starts[1:-1] - 0.5, -0.5, width - 0.5, color=NEUTRAL, linewidth=0.8)
    for b, (_, new) in enumerate(pairs):
        ax.text(width, starts[b] + (new - 1) / 2, f"sequence {b}", fontsize=7, va="center")
    ax.set(xlabel="position of the key", ylabel="new token in the batch")


def draw_rates(
    ax: Axes,
    rates: Mapping[str, Sequence[float]],
    theirs: Collection[str] = (),
    roof: float | None = None,
    dots: bool = False,
) -> None:
    """Tokens per second: a bar to the best of each row's runs, the range beside it; `theirs` are
    hatched. With `dots` they are dots, for a logarithmic axis.

    The roof is a dotted bar below: as a line it would cross the numbers.
    """
    rows = {**rates, "roof": [roof]} if roof else rates
    looks = {
        **dict.fromkeys(theirs, outlined(SEQUENCE_COLORS[1], "//")),
        "roof": outlined(NEUTRAL, linestyle=":"),
    }
    for y, (name, runs) in enumerate(rows.items()):
        if dots:
            color = SEQUENCE_COLORS[1] if name in theirs else SEQUENCE_COLORS[0]
            marker = "s" if name in theirs else "o"
            if name == "roof":
                color, marker = NEUTRAL, "D"
            ax.plot(max(runs), y, marker, color=color)
        else:
            ax.barh(y, max(runs), 0.7, **looks.get(name, {"facecolor": SEQUENCE_COLORS[0]}))
        said = "\N{EN DASH}".join(f"{rate:,.0f}" for rate in sorted({min(runs), max(runs)}))
        ax.text(max(runs), y, f"   {said}" if dots else f" {said}", va="center", fontsize="small")
    ax.set_yticks(range(len(rows)), list(rows))
    ax.invert_yaxis()
    ax.set(xlabel="output tokens/s", xlim=(0, 1.3 * max(map(max, rows.values()))))


def _looks_of(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """A look for each different name: a colour and a hatch, with an edge."""
    return {
        name: outlined(NEUTRAL, sequence_hatch(i), facecolor=sequence_color(i))
        for i, name in enumerate(dict.fromkeys(names))
    }


def draw_step_times(ax: Axes, steps: Mapping[str, Mapping[str, Any]], floor_ms: float) -> None:
    """A bar a rung: its kernels' milliseconds by group ("ms by group"), then hatched what is left
    of "wall ms".
    """
    groups = [group for step in steps.values() for group in step["ms by group"]]
    looks = _looks_of(groups)
    rows = {}
    for y, (name, step) in enumerate(steps.items()):
        wall, busy = step["wall ms"], sum(step["ms by group"].values())
        rows[name] = step["ms by group"] | {"the GPU waits": max(0.0, wall - busy)}
        ax.text(wall, y, f" {wall:.1f} ms, busy {busy / wall:.0%}", va="center")
    stack(ax, rows, looks | {"the GPU waits": outlined(NEUTRAL, "...")}, linewidth=0.5)
    ax.axvline(floor_ms, linestyle=":", color=LATE, label=f"floor, {floor_ms:.2f} ms")
    ax.set(
        xlabel="milliseconds of a step",
        xlim=(0, 1.25 * max(step["wall ms"] for step in steps.values())),
    )
    ax.figure.legend(loc="outside lower center", ncols=4)


@dataclass(frozen=True)
class Span:
    """One piece of a worker's time.

    Args:
        start: when it begins.
        end: when it ends.
        kind: what the worker does; one entry of the legend.
        label: words in the span, if it is wide enough.
    """

    start: float
    end: float
    kind: str
    label: str = ""


def draw_lanes(ax: Axes, lanes: Mapping[str, Sequence[Span]], xlabel: str = "time (ms)") -> None:
    """Draw one lane for each worker's spans, the first lane on top, and a legend below.

    Args:
        ax: empty axes.
        lanes: of each worker, what it does.
        xlabel: the name and unit of the time.
    """
    kinds = [span.kind for spans in lanes.values() for span in spans]
    end = max(span.end for spans in lanes.values() for span in spans)
    looks = _looks_of(kinds)
    for y, spans in enumerate(lanes.values()):
        for span in spans:
            width = span.end - span.start
            ax.barh(y, width, 0.7, left=span.start, linewidth=0.5, **looks[span.kind])
            if span.label and width > 0.02 * end * len(span.label):
                place = ((span.start + span.end) / 2, y)
                text = ax.text(*place, span.label, ha="center", va="center", fontsize="small")
                color = looks[span.kind]["facecolor"]
                text.set_color(ink_on(color))
                text.set_bbox({"facecolor": color, "edgecolor": "none", "pad": 1.5})
    for kind, look in looks.items():
        ax.bar(0, 0, label=kind, **look)
    ax.set_yticks(range(len(lanes)), list(lanes))
    ax.set(xlabel=xlabel, xlim=(0, end), ylim=(len(lanes) - 0.5, -0.5))
    ax.figure.legend(loc="outside lower center", ncols=len(looks))


def draw_predictions(ax: Axes, rows: Mapping[str, tuple[float, float | None]]) -> None:
    """Draw what was predicted (hollow) and what was measured (filled), with both numbers.

    Args:
        ax: empty axes.
        rows: of each change, predicted and measured milliseconds; None if it was not measured.
    """
    names = []
    for y, (name, (predicted, measured)) in enumerate(rows.items()):
        said = f"{name}\n{predicted:.1f} ms predicted"
        if measured is not None:
            said += f", {measured:.1f} measured"
            ax.plot([predicted, measured], [y, y], color=NEUTRAL, linewidth=1)
            ax.plot(measured, y, "o", color=SEQUENCE_COLORS[0])
        ax.plot(predicted, y, "D", markerfacecolor="none", color=SEQUENCE_COLORS[1])
        names.append(said)
    ax.plot([], [], "D", markerfacecolor="none", color=SEQUENCE_COLORS[1], label="predicted")
    ax.plot([], [], "o", color=SEQUENCE_COLORS[0], label="measured")
    ax.set_yticks(range(len(names)), names)
    ax.invert_yaxis()
    ax.set(xlabel="milliseconds of a step", xlim=(0, None))
    ax.legend(loc="lower right")
