"""The drawing with controls: what moves it, and what it leaves in a stored notebook."""

from __future__ import annotations

import base64
import io
import pydoc
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image

from pagedlab.lessons.drawing import label, svg
from pagedlab.widgets import explore
from pagedlab.widgets.explore import Explorer


def squares(size: int, text: str, dark: bool) -> str:
    return f'<svg viewBox="0 0 90 20"><text fill="var(--ink)" x="{size}">{text}</text></svg>' + "<br>" * dark


def ask(shown: Explorer, number: int, **at: Any) -> None:
    """What the page does when a control is moved."""
    shown.set_state({"asked": {"number": number, "at": {**shown.asked["at"], **at}}})


def test_each_control_is_given_by_name_and_moves_the_drawing() -> None:
    drawn: list[tuple[int, str, bool]] = []

    def draw(size: int, text: str, dark: bool) -> str:
        drawn.append((size, text, dark))
        return squares(size, text, dark)

    shown = explore(draw, "Move it.", size=(range(1000, 4000, 1000), 2000), text="a", dark=False)
    assert [(control["kind"], control["options"]) for control in shown.controls] == [
        ("slider", ["1,000", "2,000", "3,000"]),
        ("text", []),
        ("switch", []),
    ]
    ask(shown, 1, size=2)
    ask(shown, 2, text="a b")
    shown.set(size=1000, dark=True)
    assert drawn == [(2000, "a", False), (3000, "a", False), (3000, "a b", False), (1000, "a b", True)]
    assert shown.values == {"size": 1000, "text": "a b", "dark": True}
    assert shown.drawn["number"] == shown.asked["number"] == 3
    assert ">a b<" in shown.drawn["html"]
    with pytest.raises(ValueError, match="size must be one of 1,000, 2,000, 3,000, got 5"):
        shown.set(size=5)
    with pytest.raises(ValueError, match="there is no control 'sise'; there are size, text, dark"):
        shown.set(sise=1000)
    with pytest.raises(ValueError, match="text must be a str, got 5"):
        shown.set(text=5)
    assert shown.asked["number"] == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            [1, 2, 3],
            r"x must be \(options, first\) for a slider, a str for a text box or a bool for a switch, got \[1, 2, 3\]",
        ),
        (5, r"x must be \(options, first\) .*, got 5"),
        ((1, 2), r"x must be \(options, first\) .*, got \(1, 2\)"),
        (([1, 2, 3], 9), "x must begin at one of its options 1, 2, 3, got 9"),
        (([], 9), "x needs an option at least"),
    ],
)
def test_a_control_that_makes_no_sense_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        explore(lambda x: "<p></p>", x=given)


@pytest.mark.parametrize("drawn", [None, 5])
def test_what_is_no_drawing_is_refused(drawn: Any) -> None:
    with pytest.raises(
        TypeError, match=f"^draw must return a matplotlib figure, or SVG or HTML as a str, got {drawn}$"
    ):
        explore(lambda: drawn)


def test_a_caption_is_text() -> None:
    with pytest.raises(TypeError, match=r"caption must be a str, the line below the drawing; .* another name"):
        explore(lambda caption: "<p></p>", caption=([1, 2], 1))


def test_controls_get_new_options_but_no_other_kind() -> None:
    shown = explore(lambda x: f"<p>{x}</p>", x=([1, 2], 1))
    shown.offer(x=([3, 4], 4))
    assert (shown.values, shown.drawn["html"]) == ({"x": 4}, "<p>4</p>")
    with pytest.raises(ValueError, match=r"x is a slider and stays one: give .* got 'a'"):
        shown.offer(x="a")
    with pytest.raises(ValueError, match="the controls are x; got y"):
        shown.offer(y=([1], 1))
    assert shown.values == {"x": 4}


def test_a_drawing_that_fails_says_so_and_the_page_gets_its_answer() -> None:
    shown = explore(lambda text: f"<b>{int(text)}</b>", text="1")
    ask(shown, 1, text="<i>")
    assert shown.drawn == {
        "number": 1,
        "html": '<p class="pl-alert">ValueError: invalid literal for int() with base 10: &#x27;&lt;i&gt;&#x27;</p>',
    }


def test_a_figure_is_sharp_text_in_the_colours_of_the_theme_and_stored_at_twice_the_pixels() -> None:
    def draw(width: int) -> Figure:
        from pagedlab.lessons.plots import figure

        shown, ax = figure(width, 1)
        ax.set_title("a title")
        return shown

    shown = explore(draw, width=([1, 2], 2))
    assert shown.drawn["html"].startswith("<svg")
    assert "var(--soft)" in shown.drawn["html"]
    data, metadata = shown._repr_mimebundle_()
    assert Image.open(io.BytesIO(base64.b64decode(data["image/png"]))).size == (384, 192)
    assert metadata["image/png"] == {"width": 192, "height": 96}
    assert data["text/plain"].endswith("for width = 2")
    assert "application/vnd.jupyter.widget-view+json" in data


def test_an_svg_is_stored_with_its_own_colours_and_ground_and_html_in_a_card() -> None:
    data, _ = explore(squares, size=([1], 1), text="x", dark=False)._repr_mimebundle_()
    root = ET.fromstring(data["image/svg+xml"])  # noqa: S314
    assert [child.tag.split("}")[1] for child in root] == ["rect", "text"]
    assert "var(" not in data["image/svg+xml"]
    assert (root.get("width"), root.get("height"), root.get("viewBox")) == ("114.0", "44.0", "-12.0 -12.0 114.0 44.0")
    assert data["text/html"].startswith('<img alt="x. For size = 1')
    data, _ = explore(lambda: '<p style="color: var(--accent)">p</p>')._repr_mimebundle_()
    assert "image/svg+xml" not in data
    assert "#1976d2" in data["text/html"]


def test_a_drawing_is_called_by_what_it_says_first_and_by_its_caption() -> None:
    empty = "<svg viewBox='0 0 9 9'></svg>"
    assert repr(explore(lambda: empty)) == "A drawing"
    assert repr(explore(lambda n: empty, n=(range(3), 1))) == "A drawing, for n = 1"
    assert repr(explore(lambda: empty, "Words of two prompts.")) == "Words of two prompts."
    named = svg(9, 9, [label(0, 9, "2 blocks < 3")])
    assert repr(explore(lambda n: named, "Blocks.", n=(range(3), 1))) == "2 blocks < 3. Blocks. For n = 1"
    assert (
        'alt="2 blocks &lt; 3. Blocks. For n = 1"'
        in explore(lambda n: named, "Blocks.", n=(range(3), 1)).still()[0]["text/html"]
    )


def test_help_says_what_a_control_is() -> None:
    said = pydoc.render_doc(explore, renderer=pydoc.plaintext)
    assert "(options, first)" in said
    assert len(said.splitlines()) < 50
