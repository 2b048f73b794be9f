"""The drawing with controls: what moves it, and what it leaves in a stored notebook."""

from __future__ import annotations

import base64
import io
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image

from pagedlab.widgets.explore import Explorer, explore


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
    with pytest.raises(ValueError, match="is not in"):
        shown.set(size=5)


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
    assert data["text/html"].startswith('<img alt="A drawing to move when the notebook runs')
    data, _ = explore(lambda: '<p style="color: var(--accent)">p</p>')._repr_mimebundle_()
    assert "image/svg+xml" not in data
    assert "#1976d2" in data["text/html"]


def test_what_has_no_controls_is_not_said_to_move() -> None:
    assert repr(explore(lambda: "<svg viewBox='0 0 9 9'></svg>")) == "A drawing to point at"
    assert repr(explore(lambda n: "<svg viewBox='0 0 9 9'></svg>", n=(range(3), 1))).endswith("here for n = 1")
