"""The figures of notebook 14: requests in time, latency against load, engines compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

from pagedlab_lessons.colors import INK, NEUTRAL, SEQUENCE_COLORS
from pagedlab_lessons.measuring import OURS, TIE, Compared, Run, Served
from pagedlab_lessons.plots import LATE, figure, outlined

WAITING, FIRST, WRITING = SEQUENCE_COLORS[1], SEQUENCE_COLORS[2], SEQUENCE_COLORS[0]
PLAIN = FuncFormatter(lambda value, _: f"{value:,.10g}")


def log_axis(axis: Any, ticks: Sequence[float]) -> None:
    """Put plain numbers on an axis with a logarithmic scale."""
    axis.set_major_locator(NullLocator())
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    axis.set_ticks(ticks)
    axis.set_major_formatter(PLAIN)


def draw_stamps() -> Figure:
    """Draw one request's way in time: what the client stamps, and what the engine does."""
    fig, ax = figure(10, 3.4)
    sent, admitted, received = 0.6, 3.6, (5.8, 6.6, 7.4, 9.2)
    hop = 0.25  # of the network, one way
    begun = sent + hop
    first, *_, last = computed = [at - hop for at in received]
    bars = [(begun, admitted, outlined(WAITING, "///")), (admitted, first, {"facecolor": FIRST})]
    for start, end in pairwise(computed):
        bars.append((start, end, {"facecolor": WRITING, "edgecolor": "white"}))
    for start, end, look in bars:
        ax.barh(0, end - start, 0.6, left=start, linewidth=1, **look)
    below = partial(ax.text, ha="center", va="top")
    below((begun + admitted) / 2, -0.5, "queue")
    below((admitted + first) / 2, -0.5, "prefill")
    below((first + last) / 2, -0.5, "decode steps, one token each")
    why = "the last one also computes\nanother request's prompt"
    below(sum(computed[-2:]) / 2, -1.2, why, fontsize="small", color=LATE)
    ax.plot([sent, received[-1] + 0.6], [2, 2], color=NEUTRAL, linewidth=1)
    _arrow(ax, (sent, 2), (begun, 0.3))
    above = partial(ax.text, ha="center", va="bottom")
    above(sent, 2.15, "sent")
    for number, at in enumerate(received, 1):
        _arrow(ax, (at - hop, 0.3), (at, 2))
        above(at, 2.15, f"token {number}", fontsize="small")
    spans = [
        (sent, received[0], 3.0, "time to first token (TTFT)", INK),
        *((start, end, 3.0, "ITL", INK) for start, end in pairwise(received[:-1])),
        (*received[-2:], 3.0, "longest gap", LATE),
        (admitted, first, -1.6, "from admission: without the queue", LATE),
    ]
    for start, end, y, words, color in spans:
        _arrow(ax, (start, y), (end, y), "<->", color)
        above((start + end) / 2, y + 0.1, words, fontsize="small", color=color)
    ax.set_yticks([0, 2], ["engine", "client"])
    ax.set(xlim=(0, 10), ylim=(-2.4, 3.9), xlabel="time, not to scale", xticks=[])
    ax.set_title("The client's clock sees the queue; a clock that starts at admission does not")
    return fig


def _arrow(
    ax: Axes, start: tuple[float, ...], end: tuple[float, ...], style: str = "->", color: str = INK
) -> None:
    """Draw an arrow between two points."""
    look = {"arrowstyle": style, "color": color, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", end, start, arrowprops=look)


def draw_requests(ax: Axes, served: Sequence[Served]) -> None:
    """A row a request: its wait in the queue, then its prompt and its answer."""
    # One shape for all rows: bars thinner than a pixel would look striped.
    edges = [number + side for number in range(len(served)) for side in (-0.5, 0.5)]
    arrived = np.repeat([one.arrived for one in served], 2)
    admitted = np.repeat([one.admitted for one in served], 2)
    ended = np.repeat([one.times[-1] for one in served], 2)
    looks = [outlined(WAITING, "///"), {"facecolor": WRITING}]
    draw = partial(ax.fill_betweenx, edges, linewidth=0)
    draw(arrived, admitted, label="in the queue", **looks[0])
    draw(admitted, ended, label="prompt and answer", **looks[1])
    ax.set(xlabel="time (s)", ylabel="request", ylim=(len(served), -1), xlim=(0, None))
    ax.legend(loc="lower left", fontsize="small")


def draw_curve(
    ax: Axes, rates: Sequence[float], curves: Mapping[str, Sequence[float]], here: float
) -> None:
    """Milliseconds to the first token against requests a second, and a mark at one rate."""
    for (name, seconds), look in zip(curves.items(), ("o-", "o--"), strict=True):
        ax.plot(rates, [1000 * second for second in seconds], look, label=name)
    ax.axvline(here, color=LATE, linestyle=":", label="this rate")
    ax.set(xlabel="requests/s", ylabel="time to first token (ms)", yscale="log", ylim=(1, 20_000))
    log_axis(ax.yaxis, [1, 10, 100, 1000, 10_000])
    ax.set_xticks(rates)
    ax.legend(loc="upper left", fontsize="small")


PEERS = {  # an engine's marker, its colour, whether the marker is filled, and its name
    "sglang": ("s", SEQUENCE_COLORS[1], True, "SGLang"),
    "vllm": ("^", SEQUENCE_COLORS[0], True, "vLLM, its default"),
    "vllm in one process": (
        "^",
        SEQUENCE_COLORS[0],
        False,
        "vLLM in one process (not its default)",
    ),
}


def draw_peers(runs: Sequence[Run], ratios: Mapping[Compared, float], caption: str = "") -> Figure:
    """Draw our tokens per second over those of each other engine, a panel a model.

    The numbers at the right are `ratios`. They are in a column, since a row has several markers.

    Args:
        runs: of all engines.
        ratios: ours over the best other one, by host, model and workload.
        caption: under the figure.
    """
    models = sorted({row.model for row in ratios})
    panels = [_panel(model, ratios) for model in models]
    longest = max(map(len, panels))
    fig, axes = figure(11, 0.9 + 0.29 * longest, ncols=len(models), sharex=True, squeeze=False)
    for ax, model, rows in zip(axes[0], models, panels, strict=True):
        for y, row in enumerate(rows):
            if isinstance(row, Compared):
                _draw_row(ax, y, [run for run in runs if run.compared == row], ratios[row])
            else:
                words = f"{row}, {_rounds(run for run in runs if run.compared[:2] == (row, model))}"
                ax.text(1.08, y, words, va="center", fontsize="small", weight="bold")
        ax.axvline(1, color=INK, linewidth=1)
        ax.axvspan(0.42, 1, color=LATE, alpha=0.1, linewidth=0)
        names = [row.workload if isinstance(row, Compared) else "" for row in rows]
        ax.set_yticks(range(len(rows)), names)
        ax.tick_params(axis="y", length=0)
        ax.set(xscale="log", xlim=(0.42, 14), ylim=(longest - 0.4, -0.8))
        log_axis(ax.xaxis, [0.5, 1, 2, 4, 8])
        ax.set_xlabel(
            "pagedlab's tokens/s over the other engine's\n"
            "(number at the right: the leftmost marker)"
        )
        found = [ratios[row] for row in rows if isinstance(row, Compared)]
        tied = sum(map(is_tie, found))
        ahead = sum(ratio > 1 and not is_tie(ratio) for ratio in found)
        behind = len(found) - ahead - tied
        ax.set_title(f"{model}:\nahead in {ahead}, tied in {tied}, behind in {behind}")
    _draw_legend(axes[0, -1])
    fig.supxlabel(caption, fontsize="small", color=INK)
    return fig


def is_tie(ratio: float) -> bool:
    """Return whether two engines are as fast, within the spread of their rounds."""
    return abs(ratio - 1) <= TIE


def _draw_legend(ax: Axes) -> None:
    """Say what markers, strokes and the tint mean."""
    for mark, color, is_filled, name in PEERS.values():
        face = color if is_filled else "white"
        ax.scatter([], [], marker=mark, edgecolor=color, facecolor=face, label=name)
    ax.scatter([], [], marker="|", color=INK, label="one round")
    ax.fill_between([], [], color=LATE, alpha=0.1, label="the other engine is faster")
    ax.legend(loc="lower right", fontsize="small", title="pagedlab beside")


def _panel(model: str, ratios: Mapping[Compared, float]) -> list[Compared | str]:
    """Return what the lines of a panel show: a host's name, then its rows, and so on."""
    lines: list[Compared | str] = []
    for host in sorted({row.host for row in ratios if row.model == model}):
        lines += [host, *(row for row in ratios if row[:2] == (host, model))]
    return lines


def _rounds(runs: Iterable[Run]) -> str:
    """Return in words how many rounds the rows of these runs have."""
    counts = sorted({len(run.seeds) for run in runs})
    if counts == [1]:
        return "1 round"
    return f"{counts[0]} to {counts[-1]} rounds" if len(counts) > 1 else f"{counts[0]} rounds"


def _draw_row(ax: Axes, y: int, runs: Sequence[Run], ratio: float) -> None:
    """Draw a row: for each other engine a marker, and a thin stroke for each round; the ratio."""
    [ours] = [run for run in runs if run.engine == OURS]
    for run in runs:
        if run is ours:
            continue
        mark, color, is_filled, _ = PEERS[run.engine]
        rounds = [mine / theirs for mine, theirs in zip(ours.seeds, run.seeds, strict=True)]
        at = ours.tokens_per_s / run.tokens_per_s
        ax.scatter(rounds, [y] * len(rounds), marker="|", s=70, color=color, linewidth=0.8)
        face = color if is_filled else "white"
        ax.scatter(at, y, marker=mark, s=34, edgecolor=color, facecolor=face, zorder=3)
    color = LATE if ratio < 1 else INK
    if is_tie(ratio):
        color = NEUTRAL
    said = f"{ratio:.2f}" if abs(ratio - 1) > 0.005 else f"{ratio:.3f}"
    at_edge = ax.get_yaxis_transform()
    right = {"transform": at_edge, "ha": "right", "va": "center"}
    ax.text(1.1, y, said, fontsize="small", color=color, **right)
