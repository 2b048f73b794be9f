"""The figure style, and the pictures of memory: what is drawn is what the simulation saw."""

from __future__ import annotations

import io

import matplotlib
import numpy as np
from matplotlib.colors import to_rgba
from matplotlib_inline.backend_inline import _fetch_figure_metadata
from PIL import Image

from pagedlab.lessons.colors import INK
from pagedlab.lessons.plots import draw_rates, draw_shares, draw_step_times, figure

matplotlib.use("Agg")


def test_text_is_dark_on_a_ground_that_the_figure_brings() -> None:
    fig, ax = figure(2, 1)
    file = io.BytesIO()
    fig.savefig(file, format="png")
    assert np.asarray(Image.open(file))[0, 0].tolist() == [255] * 4
    assert _fetch_figure_metadata(fig) is None, "Jupyter puts nothing behind it"

    def light(color: str) -> float:
        parts = np.array(to_rgba(color)[:3])
        return float(
            np.where(parts > 0.04045, ((parts + 0.055) / 1.055) ** 2.4, parts / 12.92) @ [0.2126, 0.7152, 0.0722]
        )

    assert 1.05 / (light(ax.xaxis.label.get_color()) + 0.05) > 4.5


def test_a_readers_own_figures_keep_their_style() -> None:
    before = dict(matplotlib.rcParams)
    fig, ax = figure(2, 1)
    assert dict(matplotlib.rcParams) == before
    # ... and what is added to ours later is in our style.
    ax.plot([1, 2], label="line")
    ax.set(title="title")
    assert ax.title.get_fontsize() == 10
    assert not ax.legend().get_frame_on()
    assert not fig.legend().get_frame_on()
    assert ax.text(0, 0, "text").get_color() == ax.xaxis.label.get_color() == INK
    assert ax.bar(0, 1, hatch="//")[0].get_hatch_linewidth() == 1
    assert matplotlib.figure.Figure().subplots().text(0, 0, "theirs").get_color() != INK
    assert dict(matplotlib.rcParams) == before


def test_shares_are_stacked_and_named() -> None:
    _, ax = figure()
    rows = {"max": {"used": 0.2, "reserved": 0.1, "internal": 0.6, "external": 0.1}, "paged": {"used": 0.96}}
    draw_shares(ax, rows)
    bars = {container.get_label(): [bar.get_width() for bar in container] for container in ax.containers}
    assert bars == {"used": [20, 96], "reserved": [10, 0], "internal": [60, 0], "external": [10, 0]}
    assert [label.get_text() for label in ax.get_yticklabels()] == ["max  20.0 %", "paged  96.0 %"]


def test_rates_are_bars_to_the_best_run() -> None:
    _, ax = figure()
    draw_rates(ax, {"ours": [2500], "others": [1656, 1200]}, theirs=["others"], roof=9000)
    ours, others, roof = ax.patches
    assert [round(bar.get_x() + bar.get_width()) for bar in ax.patches] == [2500, 1656, 9000]
    assert ours.get_x() == others.get_x() == roof.get_x() == 0, "lengths can be compared"
    assert [bool(bar.get_hatch()) for bar in (ours, others)] == [False, True]
    assert [text.get_text().strip() for text in ax.texts] == ["2,500", "1,200\N{EN DASH}1,656", "9,000"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["ours", "others", "roof"]


def test_what_kernels_leave_of_a_step_is_idle() -> None:
    _, ax = figure()
    steps = {
        "eager": {"wall ms": 10.0, "ms by group": {"attention": 1.5, "other": 0.5}},
        "graphs": {"wall ms": 2.5, "ms by group": {"other": 0.5, "attention": 1.5, "sampling": 0.25}},
    }
    draw_step_times(ax, steps, 1.0)
    rows = [[bar.get_width() for bar in ax.patches if round(bar.get_y() + 0.3) == y] for y in (0, 1)]
    assert rows == [[1.5, 0.5, 0.0, 8.0], [1.5, 0.5, 0.25, 0.25]]
    assert [text.get_text() for text in ax.texts] == [" 10.0 ms, busy 20%", " 2.5 ms, busy 90%"]
