"""The drawing with controls: what moves it, and what it leaves in a stored notebook."""

import base64
import html
import io
import random
import xml.etree.ElementTree as ET

import pytest
from pagedlab_lessons.drawing import label, svg
from pagedlab_lessons.plots import figure
from pagedlab_lessons.widgets import explore
from pagedlab_lessons.widgets.opening import MEDIA_TYPE
from PIL import Image

from support.explorers import unpacked


def squares(size, text, dark):
    return f'<svg viewBox="0 0 90 20"><text fill="var(--ink)" x="{size}">{text}</text></svg>' + "<br>" * dark


def ask(shown, number, **at):
    """What the page does when a control is moved."""
    shown.set_state({"asked": {"number": number, "at": {**shown.asked["at"], **at}}})


def test_each_control_is_given_by_name_and_moves_the_drawing():
    drawn = []

    def draw(size, text, dark):
        drawn.append((size, text, dark))
        return squares(size, text, dark)

    shown = explore(draw, "Move it.", size=(range(1000, 4000, 1000), 2000), text="a", dark=False)
    assert [control["kind"] for control in shown.controls] == ["slider", "text", "switch"]
    assert shown.controls[0]["options"] == [1000, 2000, 3000]
    ask(shown, 1, size=2)
    ask(shown, 2, text="a b")
    shown.set(size=1000, dark=True)
    assert drawn == [(2000, "a", False), (3000, "a", False), (3000, "a b", False), (1000, "a b", True)]
    assert shown.values == {"size": 1000, "text": "a b", "dark": True}
    assert shown.drawn["number"] == shown.asked["number"] == 3
    assert ">a b<" in shown.drawn["html"]
    for wrong in ({"size": 5}, {"sise": 1000}, {"dark": "no"}):
        with pytest.raises(ValueError, match="must be one of"):
            shown.set(**wrong)
    assert shown.asked["number"] == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1, 2, 3], r"x must be \(options, first\) for a slider"),
        ((1, 2), r"x must be \(options, first\)"),
        (([1, 2, 3], 9), "x must be one of 1, 2, 3, got 9"),
    ],
)
def test_a_control_that_makes_no_sense_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        explore(lambda x: "<p></p>", x=given)


def test_what_is_no_drawing_is_refused():
    with pytest.raises(TypeError, match=r"^draw must return a matplotlib figure, or SVG or HTML as a str, got 5$"):
        explore(lambda: 5)


def test_controls_get_new_options():
    shown = explore(lambda x: f"<p>{x}</p>", x=([1, 2], 1))
    shown.offer(x=([3, 4], 4))
    assert (shown.values, shown.drawn["html"]) == ({"x": 4}, "<p>4</p>")


def test_a_drawing_that_fails_says_so_and_the_page_gets_its_answer():
    shown = explore(lambda text: f"<b>{int(text)}</b>", text="1")
    ask(shown, 1, text="<i>")
    assert shown.drawn == {
        "number": 1,
        "html": '<p class="pl-alert">ValueError: invalid literal for int() with base 10: &#x27;&lt;i&gt;&#x27;</p>',
    }


def plot(width):
    shown, ax = figure(width, 1)
    ax.set_title("a title")
    return shown


def test_a_figure_is_sharp_text_in_the_colours_of_the_theme_and_stored_at_twice_the_pixels():
    shown = explore(plot, width=([1, 2], 2))
    assert shown.drawn["html"].startswith("<svg")
    assert "var(--soft)" in shown.drawn["html"]
    data, metadata = shown._repr_mimebundle_()
    stored = Image.open(io.BytesIO(base64.b64decode(data["image/png"])))
    assert stored.size == (384, 192)
    assert stored.convert("RGBA").getpixel((0, 0))[3] == 0, "the page's own ground is seen"
    assert metadata["image/png"] == {"width": 192, "height": 96, "alt": "Figure. a title. For width = 2"}
    assert shown.opening() == explore(plot, width=([1, 2], 2)).opening()


def test_an_svg_is_stored_with_its_own_colours_and_ground_and_html_in_a_card():
    data, _ = explore(squares, size=([1], 1), text="x", dark=False)._repr_mimebundle_()
    root = ET.fromstring(data["image/svg+xml"])  # noqa: S314
    assert [child.tag.split("}")[1] for child in root] == ["rect", "text"]
    assert root.get("viewBox") == "-12.0 -12.0 114.0 44.0"
    data |= explore(lambda: '<p style="color: var(--accent)">p</p>')._repr_mimebundle_()[0]
    assert "#1976d2" in data["text/html"]
    assert "var(" not in data["image/svg+xml"] + data["text/html"]


@pytest.mark.parametrize(
    ("words", "caption", "said"),
    [
        ([], "", "For n = 1"),
        ([], "Words.", "Words. For n = 1"),
        ([label(0, 9, "2 blocks < 3")], "Blocks.", "2 blocks < 3. Blocks. For n = 1"),
    ],
)
def test_a_drawing_is_called_by_what_it_says_first_and_by_its_caption(words, caption, said):
    shown = explore(lambda n: svg(9, 9, words), caption, n=(range(3), 1))
    assert repr(shown) == said
    assert f'alt="{html.escape(said)}"' in shown.still()[0]["text/html"]


# Openings: what a page without a kernel plays ------------------------------------------------------------------


def frames_of(shown):
    """The values of an opening, and its drawings in the order of the settings."""
    values = unpacked(shown.opening() or {})
    drawings = []
    for runs in values["frames"]:
        drawing = ""
        for first, length in zip(runs[::2], runs[1::2], strict=True):
            drawing += "".join(values["parts"][first : first + length])
        drawings.append(drawing)
    return values, [drawings[frame] for frame in values["order"]]


def test_an_opening_has_a_drawing_for_each_setting_that_is_no_text():
    shown = explore(squares, "Move it.", size=([1, 2, 3], 2), text="a", dark=False)
    values, drawings = frames_of(shown)
    assert drawings == [squares(size, "a", dark) for size in (1, 2, 3) for dark in (False, True)]
    assert values["at"] == {"size": 1, "text": "a", "dark": False}
    assert [control["fixed"] for control in values["controls"]] == [False, True, False]
    assert len(values["parts"]) == len(set(values["parts"])), "no part is written twice"


RANDOM = random.Random(0)
NOISE = [f"<p>{RANDOM.randbytes(10_000).hex()}</p>" for _ in range(30)]


@pytest.mark.parametrize(
    ("draw", "controls", "has_one"),
    [
        (lambda: "<p>a</p>", {}, False),  # nothing moves, and nothing can be pointed at
        (lambda: '<p data-say="b">a</p>', {}, True),
        (lambda n: NOISE[n], {"n": (range(30), 1)}, False),  # it would make a notebook large
    ],
)
def test_which_drawing_has_an_opening(draw, controls, has_one):
    assert (explore(draw, **controls).opening() is not None) == has_one


def test_of_too_many_drawings_the_last_control_does_not_move():
    _, drawings = frames_of(explore(lambda a, b: f"<p>{a} {b}</p>", a=(range(100), 0), b=(range(4), 1)))
    assert drawings == [f"<p>{a} 1</p>" for a in range(100)]


def test_of_a_large_drawing_no_other_setting_is_drawn():
    """Notebook 09 has a chart with a hundred settings, a second each."""
    drawn = []

    def draw(width):
        drawn.append(width)
        return "x" * 150_001

    assert explore(draw, width=(range(9), 0)).opening() is None
    assert drawn == [0]


def test_an_opening_says_where_a_drawing_fails():
    _, (failed, right) = frames_of(explore(lambda n: f"<p>{6 // n}</p>", n=([0, 1], 1)))
    assert failed.startswith('<p class="pl-alert">ZeroDivisionError')
    assert right == "<p>6</p>"


def test_openings_are_stored_where_notebooks_are_executed_to_be_stored(monkeypatch):
    shown = explore(lambda n: f"<p>{n}</p>", n=([0, 1], 1))
    assert MEDIA_TYPE not in shown._repr_mimebundle_()[0]
    monkeypatch.setenv("PAGEDLAB_OPENINGS", "1")
    data, _ = shown._repr_mimebundle_()
    assert data[MEDIA_TYPE] == shown.opening()
    assert shown.values == {"n": 1}
