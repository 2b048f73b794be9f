"""Why each rung of notebook 07's ladder may be faster: a sketch of one program over time."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pagedlab_lessons.colors import Look, sequence_color
from pagedlab_lessons.drawing import BOLD, SOFT, Run, Strip, label, rows
from pagedlab_lessons.drawing.flow import Drawn, Item, Space, Text, note

LANE = 13  # pixels of a lane of loads
PRODUCTS = 25  # pixels of all warps' products
LENGTH = 18  # units of time that are drawn
HIGHEST = 110  # pixels of the highest sketch

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


def reason(rung: str) -> list[Item]:
    """Return what a rung changes, and a program's loads and multiplications over time.

    Args:
        rung: a key of `REASONS`.
    """
    change = REASONS[rung]
    return [
        Text(change.text, (12.5, 12), look=BOLD, lines=(1, 2)),
        note("over time, a sketch, not measured; colour: a tile; thin bars: warps"),
        partial(_draw_lanes, change),
    ]


def _draw_lanes(reason: Reason, space: Space) -> Drawn:
    """Draw loads and products over time, in the height of the highest sketch."""
    left = space.x + space.pick(118, 90)
    unit = min(25, (space.width - left) / LENGTH)
    parts = []
    y = space.y + 4
    for program in range(reason.programs):
        name = f" {program}" if reason.programs > 1 else ""
        parts.append(label(space.x, y + 10.5, f"loads{name}", 12, SOFT))
        for number, lane in enumerate(reason.loads):
            strip = Strip(left, y, unit, LANE - 2, gap=2)
            parts += _bars(lane, len(reason.loads), number, strip)
            y += LANE
        parts.append(label(space.x, y + 12, f"multiplies{name}", 12, SOFT))
        height = 18 / reason.warps
        for warp in range(reason.warps):
            strip = Strip(left, y + 2 + height * warp, unit, height - 1, gap=2)
            parts += _bars(reason.products, 1, 0, strip)
        y += PRODUCTS
    return Drawn(parts, space.y + HIGHEST)


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
