"""The drawing with controls: what moves it, and what it leaves in a stored notebook."""

import base64
import io
import random
import xml.etree.ElementTree as ET

import pytest
from pagedlab_lessons.drawing import Drawing, label, svg
from pagedlab_lessons.widgets import explore
from pagedlab_lessons.widgets.opening import MEDIA_TYPE, unpacked
from PIL import Image


def squares(size, text, dark):
    return f'<svg viewBox="0 0 90 20"><text fill="var(--ink)" x="{size}">{text}</text></svg>' + "<br>" * dark


def test_a_drawing_may_have_a_variant_for_a_narrow_page():
    wide = svg(100, 20, [label(0, 9, "wide")])
    narrow = svg(300, 20, [label(0, 9, "narrow")], "A headline.")
    narrow = narrow.replace("<svg ", '<svg class="px-narrow" color="red" ')
    shown = explore(lambda: Drawing(wide, narrow))
    assert shown.drawn["html"] == wide + narrow
    assert narrow.startswith('<svg class="px-narrow" color="red" viewBox="-2 0 304 20"')
    assert "narrow" not in shown.still()[0]["image/svg+xml"], "a notebook stores the wide one as its picture"
    assert repr(shown) == "wide."


def ask(shown, number, **at):
    """What the page does when a control is moved."""
    shown.set_state({"asked": {"number": number, "at": {**shown.asked["at"], **at}}})


def test_each_control_is_given_by_name_and_moves_the_drawing():
    drawn = []

    def draw(size, text, dark):
        drawn.append((size, text, dark))
        return squares(size, text, dark)

    shown = explore(draw, "Move it.", size=(range(1000, 4000, 1000), 2000), text="a", dark=False)
    assert [(control["kind"], control["options"]) for control in shown.controls] == [
        ("slider", [1000, 2000, 3000]),
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
    for wrong, message in [
        ({"size": 5}, "size must be one of its options 1000, 2000, 3000, got 5"),
        ({"sise": 1000}, "control must be one of 'size', 'text', 'dark', got 'sise'"),
        ({"text": True}, "text is a text, got True"),
    ]:
        with pytest.raises(ValueError, match=message):
            shown.set(**wrong)
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
        (([1, 2, 3], 9), "x must be one of its options 1, 2, 3, got 9"),
        (([], 9), "x needs an option at least"),
    ],
)
def test_a_control_that_makes_no_sense_is_refused(given, message):
    with pytest.raises(ValueError, match=message):
        explore(lambda x: "<p></p>", x=given)


@pytest.mark.parametrize("drawn", [None, 5])
def test_what_is_no_drawing_is_refused(drawn):
    with pytest.raises(
        TypeError, match=f"^draw must return a matplotlib figure, or SVG or HTML as a str, got {drawn}$"
    ):
        explore(lambda: drawn)


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


def test_a_figure_is_sharp_text_in_the_colours_of_the_theme_and_stored_at_twice_the_pixels():
    def draw(width):
        from pagedlab_lessons.plots import figure

        shown, ax = figure(width, 1)
        ax.set_title("a title")
        return shown

    shown = explore(draw, width=([1, 2], 2))
    assert shown.drawn["html"].startswith("<svg")
    assert "var(--soft)" in shown.drawn["html"]
    data, metadata = shown._repr_mimebundle_()
    stored = Image.open(io.BytesIO(base64.b64decode(data["image/png"])))
    assert stored.size == (384, 192)
    assert stored.convert("RGBA").getpixel((0, 0))[3] == 0, "the page's own ground is seen"
    assert metadata["image/png"] == {"width": 192, "height": 96, "alt": "Figure. a title. A drawing, for width = 2"}
    assert data["text/plain"].endswith("for width = 2")
    assert "application/vnd.jupyter.widget-view+json" in data


def test_an_svg_is_stored_with_its_own_colours_and_ground_and_html_in_a_card():
    data, _ = explore(squares, size=([1], 1), text="x", dark=False)._repr_mimebundle_()
    root = ET.fromstring(data["image/svg+xml"])  # noqa: S314
    assert [child.tag.split("}")[1] for child in root] == ["rect", "text"]
    assert "var(" not in data["image/svg+xml"]
    assert (root.get("width"), root.get("height"), root.get("viewBox")) == ("114.0", "44.0", "-12.0 -12.0 114.0 44.0")
    assert data["text/html"].startswith('<img alt="x. For size = 1')
    data, _ = explore(lambda: '<p style="color: var(--accent)">p</p>')._repr_mimebundle_()
    assert "image/svg+xml" not in data
    assert "#1976d2" in data["text/html"]


def test_a_drawing_is_called_by_what_it_says_first_and_by_its_caption():
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


def test_of_too_many_settings_the_shortest_controls_do_not_move():
    shown = explore(lambda a, b: f"<p>{a} of {b}</p>", a=(range(100), 7), b=([*range(4)], 2))
    values, drawings = frames_of(shown)
    assert drawings == [f"<p>{a} of 2</p>" for a in range(100)]
    assert [control["fixed"] for control in values["controls"]] == [False, True]
    shown = explore(lambda a, b, c: f"<p>{a} {b} {c}</p>", a=(range(7), 0), b=(range(4), 0), c=(range(13), 0))
    values, drawings = frames_of(shown)
    assert drawings == [f"<p>{a} 0 {c}</p>" for a in range(7) for c in range(13)]
    assert [control["fixed"] for control in values["controls"]] == [False, True, False]


def test_of_drawings_that_are_too_large_together_the_last_control_does_not_move():
    rng = random.Random(0)
    noise = {(a, b): f"<p>{rng.randbytes(10_000).hex()}</p>" for a in range(6) for b in (False, True)}
    asked = []

    def draw(a, b):
        asked.append((a, b))
        return noise[a, b]

    values, drawings = frames_of(explore(draw, a=(range(6), 0), b=True))
    assert drawings == [noise[a, True] for a in range(6)]
    assert [control["fixed"] for control in values["controls"]] == [False, True]
    assert sorted(asked) == sorted(noise), "no drawing is made twice"


def test_an_opening_says_where_a_drawing_fails():
    _, drawings = frames_of(explore(lambda n: f"<p>{6 // n}</p>", n=([0, 1], 1)))
    assert drawings == ['<p class="pl-alert">ZeroDivisionError: integer division or modulo by zero</p>', "<p>6</p>"]


def test_what_cannot_be_moved_or_pointed_at_has_no_opening():
    assert explore(lambda: "<p>a</p>").opening() is None
    assert explore(lambda: '<p data-say="b">a</p>').opening() is not None


def test_drawings_that_would_make_a_notebook_large_are_not_stored():
    assert explore(lambda n: f"<p>{'a' * 150_000}</p>", n=([1, 2], 1)).opening() is None
    rng = random.Random(0)
    noise = [f"<p>{rng.randbytes(10_000).hex()}</p>" for _ in range(30)]
    assert explore(lambda n: noise[n], n=(range(30), 1)).opening() is None


def test_openings_are_stored_where_notebooks_are_executed_to_be_stored(monkeypatch):
    shown = explore(lambda n: f"<p>{n}</p>", n=([0, 1], 1))
    assert MEDIA_TYPE not in shown._repr_mimebundle_()[0]
    monkeypatch.setenv("PAGEDLAB_OPENINGS", "1")
    data, _ = shown._repr_mimebundle_()
    assert data[MEDIA_TYPE] == shown.opening()
    assert shown.values == {"n": 1}


def test_the_same_figure_has_the_same_opening():
    def draw(n):
        from pagedlab_lessons.plots import figure

        shown, ax = figure(2, 1)
        ax.plot([0, n])
        return shown

    assert explore(draw, n=([1, 2], 1)).opening() == explore(draw, n=([1, 2], 1)).opening()
