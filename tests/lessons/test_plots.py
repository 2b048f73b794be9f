"""The figure style, and the figures that several cells draw: bars begin and end where their numbers do."""

import base64
import io
from functools import partial

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgba
from matplotlib_inline.backend_inline import _fetch_figure_metadata
from pagedlab_lessons.colors import INK, SEQUENCE_COLORS
from pagedlab_lessons.plots import draw_shares, draw_step_times, figure
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
    assert ink / (light("#212121") + 0.05) > 3, "on the dark grounds of GitHub and JupyterLab"
    assert to_hex(ax.xaxis.label.get_color()) == INK.lower()
    colors = matplotlib.rcParams["axes.prop_cycle"].by_key()["color"]
    assert tuple(map(to_hex, colors)) == tuple(map(str.lower, SEQUENCE_COLORS))


def test_a_notebook_stores_a_figure_without_a_ground_and_with_words_for_what_is_seen():
    fig, ax = figure(2, 1)
    ax.barh(["max", "paged"], [1, 2], label="used")
    ax.set(title="Shares", xlabel="percent")
    ax.legend()
    data, metadata = fig._repr_mimebundle_()
    with Image.open(io.BytesIO(base64.b64decode(data["image/png"]))) as picture:
        assert np.asarray(picture)[0, 0, 3] == 0
        assert metadata["image/png"]["width"] == picture.size[0] // 2
    assert metadata["image/png"]["alt"] == "Figure. Shares; max, paged, over percent; legend: used"


SHARES = {"max": {"used": 0.2, "reserved": 0.1, "internal": 0.6, "external": 0.1}, "paged": {"used": 0.96}}
STEPS = {
    "eager": {"wall ms": 10.0, "ms by group": {"attention": 1.5, "other": 0.5}},
    "graphs": {"wall ms": 2.5, "ms by group": {"other": 0.5, "attention": 1.5, "sampling": 0.25}},
}
CHARTS = {  # what draws it; the names of its rows; left edge and width of each bar; what is written
    "shares": (
        partial(draw_shares, rows=SHARES),
        ["max  20.0 %", "paged  96.0 %"],
        [(0, 20), (0, 96), (20, 10), (96, 0), (30, 60), (96, 0), (90, 10), (96, 0)],
        [],
    ),
    "steps": (
        partial(draw_step_times, steps=STEPS, floor_ms=1.0),
        ["eager", "graphs"],
        [(0, 1.5), (0, 1.5), (1.5, 0.5), (1.5, 0.5), (2, 0), (2, 0.25), (2, 8), (2.25, 0.25)],
        ["10.0 ms, busy 20%", "2.5 ms, busy 90%"],
    ),
}


@pytest.mark.parametrize(("draw", "names", "bars", "said"), CHARTS.values(), ids=CHARTS)
def test_bars_begin_and_end_where_their_numbers_do(draw, names, bars, said):
    _, ax = figure()
    draw(ax)
    drawn = [(round(bar.get_x(), 6), round(bar.get_width(), 6)) for bar in ax.patches if bar.get_height()]
    assert drawn == bars
    assert [label.get_text() for label in ax.get_yticklabels()] == names
    assert [text.get_text().strip() for text in ax.texts] == said
