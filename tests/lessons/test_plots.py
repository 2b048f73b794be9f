"""The figure style, and the pictures of memory: what is drawn is what the simulation saw."""

import base64
import io

import matplotlib
import numpy as np
from matplotlib.colors import to_rgba
from matplotlib_inline.backend_inline import _fetch_figure_metadata
from pagedlab_lessons.plots import (
    Span,
    draw_lanes,
    draw_predictions,
    draw_rates,
    draw_shares,
    draw_step_times,
    figure,
)
from PIL import Image

matplotlib.use("Agg")


def light(color):
    parts = np.array(to_rgba(color)[:3])
    return float(np.where(parts > 0.04045, ((parts + 0.055) / 1.055) ** 2.4, parts / 12.92) @ [0.2126, 0.7152, 0.0722])


def test_a_figure_is_legible_on_every_ground():
    fig, ax = figure(2, 1)
    file = io.BytesIO()
    fig.savefig(file, format="png")
    assert np.asarray(Image.open(file))[0, 0].tolist() == [255] * 4
    assert _fetch_figure_metadata(fig) is None, "Jupyter puts nothing behind it"

    ink = light(ax.xaxis.label.get_color()) + 0.05
    assert 1.05 / ink > 4.5, "on white"
    for ground in ("#0d1117", "#111111", "#212121"):
        assert ink / (light(ground) + 0.05) > 3, "on the dark grounds of GitHub and JupyterLab"


def test_a_notebook_stores_a_figure_without_a_ground_and_with_words_for_what_is_seen():
    fig, ax = figure(2, 1)
    ax.barh(["max", "paged"], [1, 2], label="used")
    ax.set(title="Shares", xlabel="percent")
    ax.legend()
    data, metadata = fig._repr_mimebundle_()
    with Image.open(io.BytesIO(base64.b64decode(data["image/png"]))) as picture:
        pixels = np.asarray(picture)
        assert pixels.shape[2] == 4
        assert pixels[0, 0, 3] == 0
        assert metadata["image/png"]["width"] == picture.size[0] // 2
    assert metadata["image/png"]["alt"] == "Figure. Shares; max, paged, over percent; legend: used"


def test_shares_are_stacked_and_named():
    _, ax = figure()
    rows = {"max": {"used": 0.2, "reserved": 0.1, "internal": 0.6, "external": 0.1}, "paged": {"used": 0.96}}
    draw_shares(ax, rows)
    bars = {container.get_label(): [bar.get_width() for bar in container] for container in ax.containers}
    assert bars == {"used": [20, 96], "reserved": [10, 0], "internal": [60, 0], "external": [10, 0]}
    assert [label.get_text() for label in ax.get_yticklabels()] == ["max  20.0 %", "paged  96.0 %"]


def test_rates_are_bars_to_the_best_run():
    _, ax = figure()
    draw_rates(ax, {"ours": [2500], "others": [1656, 1200]}, theirs=["others"], roof=9000)
    ours, others, roof = ax.patches
    assert [round(bar.get_x() + bar.get_width()) for bar in ax.patches] == [2500, 1656, 9000]
    assert ours.get_x() == others.get_x() == roof.get_x() == 0, "lengths can be compared"
    assert [bool(bar.get_hatch()) for bar in (ours, others)] == [False, True]
    assert [text.get_text().strip() for text in ax.texts] == ["2,500", "1,200\N{EN DASH}1,656", "9,000"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["ours", "others", "roof"]


def test_what_kernels_leave_of_a_step_is_idle():
    _, ax = figure()
    steps = {
        "eager": {"wall ms": 10.0, "ms by group": {"attention": 1.5, "other": 0.5}},
        "graphs": {"wall ms": 2.5, "ms by group": {"other": 0.5, "attention": 1.5, "sampling": 0.25}},
    }
    draw_step_times(ax, steps, 1.0)
    rows = [[bar.get_width() for bar in ax.patches if round(bar.get_y() + 0.3) == y] for y in (0, 1)]
    assert rows == [[1.5, 0.5, 0.0, 8.0], [1.5, 0.5, 0.25, 0.25]]
    assert [text.get_text() for text in ax.texts] == [" 10.0 ms, busy 20%", " 2.5 ms, busy 90%"]


def test_lanes_begin_and_end_when_their_workers_do():
    fig, ax = figure()
    lanes = {"host": [Span(0, 2, "plans", "1"), Span(4, 6, "collects", "1")], "GPU": [Span(2, 4, "computes", "1")]}
    draw_lanes(ax, lanes)
    bars = [(round(bar.get_y() + 0.35), bar.get_x(), bar.get_width()) for bar in ax.patches if bar.get_width() == 2]
    assert bars == [(0, 0, 2), (0, 4, 2), (1, 2, 2)]
    assert [text.get_text() for text in fig.legends[0].get_texts()] == ["plans", "collects", "computes"]
    assert [text.get_text() for text in ax.texts] == ["1", "1", "1"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["host", "GPU"]


def test_predictions_are_beside_what_was_measured():
    _, ax = figure()
    draw_predictions(ax, {"untested": (20.0, None), "tested": (4.0, 14.5)})
    said = [label.get_text() for label in ax.get_yticklabels()]
    assert said == ["untested\n20.0 ms predicted", "tested\n4.0 ms predicted, 14.5 measured"]
    assert [list(line.get_xdata()) for line in ax.lines if len(line.get_xdata()) == 2] == [[4.0, 14.5]]
