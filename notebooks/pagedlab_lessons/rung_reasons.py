"""Why each rung of notebook 07's ladder may be faster: a sketch of one program over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap

from pagedlab_lessons.colors import Look, sequence_color
from pagedlab_lessons.drawing import BOLD, INK, NARROW, SOFT, Run, Strip, label, rows

LANE = 13  # pixels of a lane of loads
PRODUCTS = 25  # pixels of all warps' products
LEFT = 118.0  # where time begins
UNIT = 25.0  # pixels of a unit of time
LENGTH = 18  # units of time that are drawn
NARROW_LANES = 96  # pixels of the highest sketch on a narrow page, without its text
NARROW_REASON = 148  # pixels of the highest sketch on a narrow page
EXPLAINED = "a sketch, not measured; colour: a tile; thin bars: warps"

Span = tuple[float, float]  # of time


@dataclass(frozen=True)
class Reason:
    """The change of a rung.

    Args:
        text: the change, and what it does.
        loads: when tiles are loaded, a tuple for each lane of loads.
        products: when tiles are multiplied with the queries.
        warps: of a program; they multiply side by side.
        programs: that share a sequence.
    """

    text: str
    loads: tuple[tuple[Span, ...], ...]
    products: tuple[Span, ...]
    warps: int = 4
    programs: int = 1

    @property
    def height(self) -> int:
        """Pixels of its lanes."""
        return self.programs * (len(self.loads) * LANE + PRODUCTS)


def _every(pitch: float, length: float, start: float) -> tuple[Span, ...]:
    """Spans of one length that begin every `pitch` units, from `start` on."""
    spans = []
    while start + length <= LENGTH:
        spans.append((start, start + length))
        start += pitch
    return tuple(spans)


ONE_AHEAD = (_every(4, 4, 0),)
TWO_AHEAD = (_every(4, 4, 0), _every(4, 4, 2))
REASONS = {
    "1 one page at a time": Reason(
        "A tile is one page: much waiting for few keys.", (_every(4.5, 4, 0),), _every(4.5, 0.5, 4)
    ),
    "2 a tile of several pages": Reason(
        "A tile is two pages: twice the keys in one wait.", (_every(5, 4, 0),), _every(5, 1, 4)
    ),
    "3 heads share a load": Reason(
        "Each key is loaded once for all heads, by a quarter of the programs.",
        (_every(9, 4, 0),),
        _every(9, 5, 4),
    ),
    "4 tensor cores": Reason(
        "Two things: tensor cores multiply faster, and tiles are loaded ahead.",
        ONE_AHEAD,
        _every(4, 0.7, 4),
    ),
    "5 more in flight": Reason(
        "Two tiles are loaded ahead instead of one.", TWO_AHEAD, _every(2, 0.7, 4)
    ),
    "6 fewer warps": Reason(
        "Two warps instead of four: fewer threads wait for each other.",
        TWO_AHEAD,
        _every(2, 0.7, 4),
        warps=2,
    ),
    "7 splits and their merge": Reason(
        "Several programs share a sequence; a merge follows. Tiles of 64 (above: 32).",
        TWO_AHEAD,
        _every(2, 0.9, 4),
        warps=2,
        programs=2,
    ),
}


def draw_reason(rung: str, top: float) -> list[str]:
    """Draw one program's loads and multiplications over time.

    Args:
        rung: a key of `REASONS`.
        top: in pixels.
    """
    reason = REASONS[rung]
    return [
        label(0, top, reason.text, 12.5, INK, 590, BOLD),
        label(0, top + 17, f"over time, {EXPLAINED}", 12, SOFT),
        *_draw_lanes(reason, top + 28, LEFT, UNIT, 12),
    ]


def draw_narrow_reason(rung: str, top: float) -> list[str]:
    """Draw the same for a narrow page.

    Args:
        rung: a key of `REASONS`.
        top: in pixels.
    """
    reason = REASONS[rung]
    lines = wrap(reason.text, 40)
    parts = [label(0, top + 15 * i, line, 12, look=BOLD) for i, line in enumerate(lines)]
    y = top + 15 * len(lines)
    for line in wrap(EXPLAINED, 44):
        parts.append(label(0, y, line, 11, SOFT))
        y += 14
    left = 90
    scale = min(2, NARROW_LANES / reason.height)  # a low sketch leaves little room empty
    return parts + _draw_lanes(reason, y - 8, left, (NARROW - left) / LENGTH, 11, scale)


def _draw_lanes(
    reason: Reason, top: float, left: float, unit: float, font: int, scale: float = 1
) -> list[str]:
    """Draw loads and products over time.

    Args:
        reason: of a rung.
        top: in pixels.
        left: where time begins, in pixels.
        unit: of time, in pixels.
        font: size of the names, in pixels.
        scale: of the height.
    """
    parts = []
    y = top
    for program in range(reason.programs):
        name = f" {program}" if reason.programs > 1 else ""
        parts.append(label(0, y + 5.5 * scale + 5, f"loads{name}", font, SOFT))
        for number, lane in enumerate(reason.loads):
            strip = Strip(left, y, unit, scale * (LANE - 2), gap=2)
            parts += _bars(lane, len(reason.loads), number, strip)
            y += scale * LANE
        parts.append(label(0, y + 12 * scale, f"multiplies{name}", font, SOFT))
        height = scale * 18 / reason.warps
        for warp in range(reason.warps):
            strip = Strip(left, y + 2 + height * warp, unit, height - 1, gap=2)
            parts += _bars(reason.products, 1, 0, strip)
        y += scale * PRODUCTS
    return parts


def _bars(spans: Sequence[Span], lanes: int, lane: int, strip: Strip) -> list[str]:
    """Draw spans of time; a tile has the same colour in all lanes.

    Args:
        spans: of neighbouring tiles of this lane.
        lanes: over which tiles alternate.
        lane: the number of this one.
        strip: where they are.
    """
    runs = []
    for i, (start, stop) in enumerate(spans):
        tile = i * lanes + lane
        runs.append(Run(start, stop, Look(sequence_color(tile % 3))))
    return rows(runs, strip)
