"""Parts of the notebooks' pictures: SVG as text, which `widgets.explore` shows.

Elements that share a word of `data-link` light up together. `data-say` is what the line below the
picture says of an element.
"""

import html
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pagedlab.lessons.colors import sequence_color

INK = "var(--ink)"  # text
SOFT = "var(--soft)"  # secondary text
LINE = "var(--line)"
CARD = "var(--card)"  # the ground of a part
BAD = "var(--bad)"
WRONG = sequence_color(5)
BOLD = "font-weight:700"


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
    """Draw words in a row.

    Args:
        x: in pixels.
        y: of the base line, in pixels.
        texts: the words.
        within: pixels into which they are squeezed.
        marked: numbers of the words to mark.
    """
    length = sum(wide(text, 12) + 6 for text in texts)
    scale = min(1.0, within / (length or 1))
    drawn = []
    for i, text in enumerate(texts):
        look = f"{BOLD};text-decoration:underline 2px {WRONG}" if i in marked else ""
        drawn.append(label(x, y, text, 12, INK, scale * wide(text, 12), look))
        x += scale * (wide(text, 12) + 6)
    return drawn


def linked(link: Iterable[object], say: str, *parts: str, goes: str = "") -> str:
    """Return parts as one that lights up together with all that share a word of `link`.

    Args:
        link: words.
        say: what the line below the picture says.
        parts: SVG elements.
        goes: "name=value", the control that a click sets.
    """
    goes = f'data-set="{html.escape(goes)}" ' if goes else ""
    shared = html.escape(" ".join(map(str, link)))
    return f'<g {goes}data-link="{shared}" data-say="{html.escape(say)}">{"".join(parts)}</g>'


def legend(x: float, y: float, looks: Mapping[str, tuple[Any, ...]]) -> list[str]:
    """Draw what each look of a box means, side by side.

    Args:
        x: in pixels.
        y: in pixels.
        looks: by their meaning: colour, share and edge of a box.
    """
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
    x: float,
    y: float,
    width: float,
    num_blocks: int,
    owners: Mapping[int, Owner],
    row: int = 32,
) -> list[str]:
    """Draw a pool's blocks, each in its owner's colour and filled as far as it holds tokens.

    Args:
        x: in pixels.
        y: in pixels.
        width: in pixels.
        num_blocks: of the pool.
        owners: of blocks that are not free.
        row: blocks in a row; a row has 22 pixels.
    """
    pitch = width / min(num_blocks, row)
    parts = []
    for block in range(num_blocks):
        free = (f"b{block}", f"block {block}: free", "none", 0)
        link, say, color, full = owners.get(block, free)
        left = x + pitch * (block % row)
        top = y + 22 * (block // row)
        number = label(
            left + 4, top + 13.5, str(block), 11, INK if full else SOFT, look=BOLD if full else ""
        )
        well = box(left, top, pitch - 3, 19, "var(--well)", 1, LINE)
        filled = box(left, top, (pitch - 3) * full, 19, color, 0.7)
        parts.append(linked([link], say, well, filled, number))
    return parts


def wide(text: str, size: float) -> float:
    """Return the pixels of a text in a font of this size."""
    return 0.602 * size * len(text)


def runs(block_ids: Iterable[int | None]) -> str:
    """Return block ids as a person would list them: [4, 5, 6, 9] is "4-6, 9". The order is kept."""
    found: list[list[int]] = []
    for block_id in block_ids:
        if block_id is None:
            continue
        if found and block_id == found[-1][-1] + 1:
            found[-1].append(block_id)
        else:
            found.append([block_id])
    return ", ".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in found
    )


def plain(token: str) -> str:
    """A token as it can be printed, without the blank that most begin with."""
    return token.replace("\n", "↵").strip() or "␣"
