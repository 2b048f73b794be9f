"""The elements of every picture: boxes, text, links between parts.

Elements that share a word of `data-link` light up together. `data-say` is what the line below the
picture says of an element.
"""

import html
import re
from collections.abc import Iterable
from itertools import groupby

from pagedlab_lessons.colors import HATCH_LINES, HATCHES, VERMILION, Look

INK = "var(--ink)"  # text
SOFT = "var(--soft)"  # secondary text
LINE = "var(--line)"
CARD = "var(--card)"  # the ground of a part
BAD = "var(--bad)"
WRONG = VERMILION
BOLD = "font-weight:700"
STRUCK = f"text-decoration:line-through 2px {WRONG}"
TINT = 0.22  # the share of a pale colour
TEXT = re.compile(r"<text[^>]*>([^<]*)</text>")  # what a part shows in words


def svg(
    width: float,
    height: float,
    parts: Iterable[str],
    name: str = "",
    shown_width: float = 0,
) -> str:
    """Return a drawing, as wide as there is room and never wider than `shown_width` pixels.

    Args:
        width: in pixels.
        height: in pixels.
        parts: SVG elements.
        name: says what is seen, for those who do not see it.
        shown_width: in pixels; 0 for `width`.
    """
    drawn = "".join(parts)
    look = f'width="100%" style="max-width:{shown_width or width:g}px"'
    # A group, not an image: a screen reader does not go into the parts of an image.
    group = f'role="group" aria-label="{html.escape(name)}"'
    size = f"-2 0 {width + 4:g} {height:.0f}"
    return f'<svg viewBox="{size}" {look} {group}>{_patterns(drawn)}{drawn}</svg>'


NARROW = 300  # pixels: the width of a variant for a phone, whose letters have at least 11 pixels
WIDEST_NARROW = 480  # pixels, as it is shown


class Drawing(str):
    """A drawing that has a variant for a narrow page. As a str it is the wide one.

    `pagedlab_lessons.widgets.explore` shows the variant that fits.
    """

    narrow = ""  # as `svg` returns it; its class is "px-narrow"


# Looks --------------------------------------------------------------------------------------------


def fill(look: Look) -> str:
    """Return the paint of a look: a colour, or a pattern that `svg` adds to the drawing.

    The name of a pattern says how it looks, so two drawings on a page never disagree about it.
    """
    if not look.hatch:
        return look.color
    tone = "p" if look.is_pale else "s"
    return f"url(#look-{HATCHES.index(look.hatch)}{tone}-{look.color.removeprefix('#')})"


def _patterns(drawn: str) -> str:
    """Return the patterns that these elements are filled with."""
    used = dict.fromkeys(re.findall(r"url\(#look-(\d)([ps])-(\w+)\)", drawn))
    patterns = "".join(_pattern(*name) for name in used)
    return f"<defs>{patterns}</defs>" if used else ""


def _pattern(hatch: str, tone: str, color: str) -> str:
    """Return a pattern: lines on a ground that is the colour, or a tint of it."""
    turn, path = HATCH_LINES[HATCHES[int(hatch)]]
    kind = f'width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate({turn})"'
    share, stroke = 1.0, 'stroke="#000" stroke-opacity="0.38"'
    if tone == "p":
        share, stroke = TINT, f'stroke="#{color}"'
    # a `box` has round corners
    ground = f'<rect width="7" height="7" fill="#{color}" fill-opacity="{share:g}"/>'
    # A style: the one of a matplotlib chart elsewhere on the page would win over an attribute.
    look = f'{stroke} stroke-width="2.5" style="stroke-linecap:round"'
    name = f"look-{hatch}{tone}-{color}"
    return f'<pattern id="{name}" {kind}>{ground}<path d="{path}" {look}/></pattern>'


def shape(x: float, y: float, w: float, h: float, look: Look, edge: str = "none") -> str:
    """Draw a rectangle that is filled with a look."""
    share = TINT if look.is_pale and not look.hatch else 1
    return box(x, y, w, h, fill(look), share, edge)


# Elements -----------------------------------------------------------------------------------------


def box(
    x: float,
    y: float,
    w: float,
    h: float,
    color: str = "none",
    share: float = 1,
    edge: str = "none",
    look: str = "",
) -> str:
    """Draw a rectangle.

    Args:
        x: in pixels.
        y: in pixels.
        w: width in pixels.
        h: height in pixels.
        color: of the inside.
        share: of the colour, 0 to 1.
        edge: colour of the edge. It is an attribute: the style changes it for what is pointed at.
        look: more attributes.
    """
    kind = f'rx="3" fill="{color}"'
    if share != 1:
        kind += f' fill-opacity="{share:g}"'
    if edge != "none" or not share:
        kind += f' stroke="{edge}"'
    place = f'x="{_short(x)}" y="{_short(y)}" width="{_short(w)}" height="{_short(h)}"'
    return f"<rect {place} {' '.join((kind, look)).strip()}/>"


def _short(pixels: float) -> str:
    """Return a length with one digit after the point, if there is one."""
    return f"{pixels:.1f}".removesuffix(".0")


def label(
    x: float,
    y: float,
    text: str,
    size: float = 12,
    color: str = INK,
    within: float = 0,
    look: str = "",
) -> str:
    """Draw a text.

    Args:
        x: in pixels.
        y: of its base line, in pixels.
        text: any.
        size: of the font, in pixels.
        color: of the text.
        within: a longer text is squeezed into these pixels; 0 for no limit.
        look: more style.
    """
    squeeze = ""
    if 0 < within < wide(text, size):
        squeeze = f' textLength="{within:.0f}" lengthAdjust="spacingAndGlyphs"'
    kind = f'fill="{color}" font-size="{size}" style="font-family:monospace;{look}"{squeeze}'
    place = f'x="{_short(x)}" y="{_short(y)}" xml:space="preserve"'
    return f"<text {place} {kind}>{html.escape(text)}</text>"


def linked(link: Iterable[object], say: str, *parts: str, goes: str = "") -> str:
    """Return parts as one that lights up together with all that share a word of `link`.

    Args:
        link: words.
        say: what the line below the picture says, and a screen reader.
        parts: SVG elements.
        goes: "name=value", the control that a click sets. The name of such a button begins with
            the words that are seen on it, so that speech control finds it (WCAG 2.5.3).
    """
    said = html.escape(say)
    name = said
    shared = html.escape(" ".join(map(str, link)))
    kind = 'role="img"'
    drawn = " ".join(parts) if goes else "".join(parts)  # a space also between the texts
    if goes:
        kind = f'role="button" data-set="{html.escape(goes)}"'
        if seen := " ".join(TEXT.findall(drawn)):
            name = f"{seen}. {said}"
        drawn = f'<g aria-hidden="true">{drawn}</g>'  # its name says the same, in one sentence
    return f'<g {kind} aria-label="{name}" data-link="{shared}" data-say="{said}">{drawn}</g>'


def wide(text: str, size: float) -> float:
    """Return the pixels of a text in a font of this size."""
    return 0.602 * size * len(text)


def shortened(text: str, size: float, within: float) -> str:
    """Return a text that can be squeezed into `within` pixels and read: a long one is cut."""
    letters = int(1.3 * within / wide("x", size))
    return text if len(text) <= letters else f"{text[: max(1, letters - 1)]}…"


def runs(block_ids: Iterable[int | None]) -> str:
    """Return block ids as a person would list them: [4, 5, 6, 9] is "4-6, 9". The order is kept."""
    found = []
    numbers = [number for number in block_ids if number is not None]
    for _, pairs in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [str(number) for _, number in pairs]
        found += [f"{run[0]}-{run[-1]}"] if len(run) > 2 else run
    return ", ".join(found)


def plain(token: str) -> str:
    """A token as it can be printed, without the blank that most begin with."""
    return token.replace("\n", "↵").strip() or "␣"
