"""What the notebooks' pictures are drawn with: SVG as text, which `widgets.explore` shows and draws
again.

Elements that share a word of `data-link` light together; `data-say` is what the line below says of
one.
"""

import html
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from pagedlab.lessons.colors import sequence_color

INK, SOFT, LINE, CARD = (f"var(--{name})" for name in ("ink", "soft", "line", "card"))
WRONG, BAD, BOLD = sequence_color(5), "var(--bad)", "font-weight:700"


def svg(width: int, height: float, parts: Iterable[str], name: str = "") -> str:
    """Return a drawing, as wide as there is room and never wider than `width` pixels.

    Args:
        width: in pixels.
        height: in pixels.
        parts: SVG elements.
        name: says what is seen, for those who do not see it; by default the first text of `parts`.
    """
    drawn = "".join(parts)
    first_text = re.search(r"<text[^>]*>([^<]+)</text>", drawn)
    if name:
        name = html.escape(name)
    elif first_text:
        name = first_text[1]
    size = f'viewBox="-2 0 {width + 4} {height:.0f}" width="100%" style="max-width:{width}px"'
    # A group, not an image: a screen reader does not go into the parts of an image.
    return f'<svg {size} role="group" aria-label="{name}">{drawn}</svg>'


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
    """A rectangle in a share of a colour.

    Attributes rather than a style: what is pointed at gets another edge.
    """
    kind = f'rx="3" fill="{color}" fill-opacity="{share}" stroke="{edge}" {look}'
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" {kind}/>'


def label(
    x: float,
    y: float,
    text: str,
    size: float = 12,
    color: str = INK,
    within: float = 0,
    look: str = "",
) -> str:
    """Text on the line `y`; if it would be wider than `within` it is squeezed into that."""
    squeeze = (
        f' textLength="{within:.0f}" lengthAdjust="spacingAndGlyphs"'
        if 0 < within < wide(text, size)
        else ""
    )
    kind = f'fill="{color}" font-size="{size}" style="font-family:monospace;{look}"{squeeze}'
    return f'<text x="{x:.1f}" y="{y:.1f}" xml:space="preserve" {kind}>{html.escape(text)}</text>'


def words(
    x: float, y: float, texts: Sequence[str], within: float, marked: Collection[int] = ()
) -> list[str]:
    """Words in a row, squeezed into `within`; those with these numbers are marked."""
    scale, drawn = min(1.0, within / (sum(wide(text, 12) + 6 for text in texts) or 1)), []
    for i, text in enumerate(texts):
        look = f"{BOLD};text-decoration:underline 2px {WRONG}" if i in marked else ""
        drawn.append(label(x, y, text, 12, INK, scale * wide(text, 12), look))
        x += scale * (wide(text, 12) + 6)
    return drawn


def linked(link: Iterable[object], say: str, *parts: str, goes: str = "") -> str:
    """Parts that light together with all that share a word of `link`. goes: "name=value", what a
    click sets.
    """
    goes = f'data-set="{html.escape(goes)}" ' if goes else ""
    shared = html.escape(" ".join(map(str, link)))
    return f'<g {goes}data-link="{shared}" data-say="{html.escape(say)}">{"".join(parts)}</g>'


def legend(x: float, y: float, looks: Mapping[str, tuple[Any, ...]]) -> list[str]:
    """What each look of a box stands for, side by side."""
    parts = []
    for text, look in looks.items():
        parts += [box(x, y, 20, 14, *look), label(x + 26, y + 11.5, text, 12, SOFT)]
        x += 50 + wide(text, 12)
    return parts


def stripes(
    name: str, color: str, turn: int = 45, share: float = 0, lines: str = "", path: str = "M0 0V7"
) -> str:
    """A pattern to fill with as url(#name): stripes in the colour, or that of `lines`, on a share
    of the colour.
    """
    kind = f'width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate({turn})"'
    # a `box` has round corners
    ground = f'<rect width="7" height="7" fill="{color}" fill-opacity="{share:g}"/>'
    drawn = f'<path d="{path}" stroke="{lines or color}" stroke-width="3" stroke-linecap="round"/>'
    return f'<defs><pattern id="{name}" {kind}>{ground}{drawn}</pattern></defs>'


def block_of_words(
    x: float,
    y: float,
    w: float,
    h: float,
    number: int,
    texts: Sequence[str],
    color: str,
    say: str,
    *marked: int,
) -> str:
    """A block of a table, with its id and the words in it; those with the numbers `marked` are
    marked.
    """
    middle = y + h / 2 + 5
    drawn = [box(x, y, w, h, color, 0.22, color), label(x + 7, middle, str(number), 12, look=BOLD)]
    return linked([f"b{number}"], say, *drawn, *words(x + 29, middle, texts, w - 37, marked))


# of a block: what it is linked with and says, its colour, how full it is
Owner = tuple[str, str, str, float]


def memory(
    x: float, y: float, width: float, many: int, owners: Mapping[int, Owner], row: int = 32
) -> list[str]:
    """A pool's blocks, `row` beside each other, 22 pixels a row: in the colour of who has one, as
    full as it is.
    """
    parts, each = list[str](), width / min(many, row)
    for block in range(many):
        link, say, color, full = owners.get(block, (f"b{block}", f"block {block}: free", "none", 0))
        left, top = x + each * (block % row), y + 22 * (block // row)
        drawn = [box(left, top, each - 3, 19, "var(--well)", 1, LINE)]
        drawn.append(box(left, top, (each - 3) * full, 19, color, 0.7))
        drawn.append(
            label(
                left + 4, top + 13.5, str(block), 11, INK if full else SOFT, look=BOLD * bool(full)
            )
        )
        parts.append(linked([link], say, *drawn))
    return parts


def wide(text: str, size: float) -> float:
    return 0.602 * size * len(text)


def runs(block_ids: Iterable[int | None]) -> str:
    """Block ids as a person would list them: [4, 5, 6, 9] is "4-6, 9". The order is kept."""
    ids = (block_id for block_id in block_ids if block_id is not None)
    parts = [
        [b for _, b in run] for _, run in groupby(enumerate(ids), lambda place: place[1] - place[0])
    ]
    return ", ".join(
        f"{part[0]}-{part[-1]}" if part[2:] else ", ".join(map(str, part)) for part in parts
    )


def plain(token: str) -> str:
    """A token as it can be printed, without the blank that most begin with."""
    return token.replace("\n", "↵").strip() or "␣"
