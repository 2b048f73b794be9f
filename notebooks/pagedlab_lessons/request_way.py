"""A request's way through a server, from the client's socket to a token and back, for notebook 13.

`draw_way(moment)` draws ten stations in three lanes, and marks the one of this moment.
"""

from itertools import pairwise
from typing import NamedTuple

from pagedlab_lessons.colors import sequence_color
from pagedlab_lessons.drawing import (
    BOLD,
    INK,
    LINE,
    NARROW,
    SOFT,
    Drawing,
    Grid,
    box,
    label,
    linked,
    narrow_svg,
    svg,
)

WIDTH = 1080
BOX_WIDTH = 122.0
BOX_HEIGHT = 44.0
LANES = {  # the top of each lane's boxes, in pixels
    "client": 40.0,
    "event loop": 130.0,
    "engine's thread": 220.0,
}
LOWEST_LANE = "engine's thread"
HEIGHT = 312


class Station(NamedTuple):
    """A station of the way.

    Args:
        name: of the station.
        lane: who works there, one of `LANES`.
        x: the left edge of its box, in pixels.
        said: what happens there.
    """

    name: str
    lane: str
    x: float
    said: str


STATIONS = (
    Station("send", "client", 140, "The client opens a connection and sends POST /v1/completions."),
    Station(
        "check",
        "event loop",
        140,
        "A handler, a coroutine of its own for this request, reads the JSON. A wrong request ends "
        "here with 400, a full queue with 429.",
    ),
    Station("tokenize", "event loop", 290, "The prompt becomes token ids."),
    Station(
        "inbox",
        "event loop",
        440,
        "The handler makes a ticket, puts a function into the inbox, and waits at the ticket.",
    ),
    Station(
        "add",
        "engine's thread",
        440,
        "Between two steps, the owner empties the inbox. The function calls llm.add: the request "
        "waits in the scheduler's queue.",
    ),
    Station(
        "step",
        "engine's thread",
        590,
        "The scheduler gives the request slots in blocks, the model computes its logits in one "
        "batch with all others, and a token is sampled.",
    ),
    Station(
        "detokenize",
        "engine's thread",
        740,
        "The token becomes text. Half a character or the start of a stop string is held back.",
    ),
    Station(
        "ticket",
        "event loop",
        740,
        "The owner wakes the event loop once a step, and the ticket has a new piece of text.",
    ),
    Station("event", "event loop", 890, "The handler writes one line to the socket: data: {...}"),
    Station(
        "read",
        "client",
        890,
        "The client shows the piece. Stations 6 to 10 repeat for each piece, until data: [DONE].",
    ),
)
MOMENTS = [f"{number} {station.name}" for number, station in enumerate(STATIONS, 1)]


def draw_way(moment: str) -> Drawing:
    """Draw the stations, and mark that of a moment.

    Args:
        moment: one of `MOMENTS`.
    """
    now = MOMENTS.index(moment)
    parts = [label(20, 22, _said_at(now), 13, INK, 1040)]
    for name, top in LANES.items():
        parts.append(label(20, top + BOX_HEIGHT / 2 + 4, name, 13, SOFT))
        if name != LOWEST_LANE:
            y = top + BOX_HEIGHT + 23
            line = f'<path d="M20 {y:g}H{WIDTH - 20}" stroke="{LINE}" stroke-dasharray="3 5"/>'
            parts.append(line)
    pairs = enumerate(pairwise(STATIONS))
    parts += [_arrow(start, end, number < now) for number, (start, end) in pairs]
    for number, station in enumerate(STATIONS):
        place = Grid(station.x, LANES[station.lane], 1, BOX_WIDTH, BOX_HEIGHT)
        parts.append(_station(number, now, place, 14))
    parts.append(_repeats())
    wide = svg(WIDTH, HEIGHT, parts, f"A request's way: {moment}")
    return Drawing(wide, _narrow_way(now))


def _narrow_way(now: int) -> str:
    """Draw the lanes side by side, and the stations from top to bottom."""
    grid = Grid.within(0, 24, NARROW, len(LANES), 28, 9)
    lanes = list(LANES)
    parts = [
        label(grid.corner(i)[0], 12, name, 11, SOFT, grid.width) for i, name in enumerate(lanes)
    ]
    places = []
    for number, station in enumerate(STATIONS):
        x, y = grid.corner(len(lanes) * number + lanes.index(station.lane))
        places.append(Grid(x, y, 1, grid.width, grid.height))
    for number, (start, end) in enumerate(pairwise(places)):
        color = INK if number < now else LINE
        path = _narrow_path(start, end)
        parts.append(f'<path d="{path}" stroke="{color}" stroke-width="2" fill="none"/>')
    parts += [_station(number, now, place, 12) for number, place in enumerate(places)]
    return narrow_svg(grid.bottom(len(lanes) * len(STATIONS)), parts, _said_at(now))


def _narrow_path(start: Grid, end: Grid) -> str:
    """The way from a box to one below it, in the same lane or in another one."""
    to_x = end.x + end.width / 2
    if start.x == end.x:
        return f"M{to_x:g} {start.y + start.height:g}V{end.y:g}"
    side = start.x + start.width if end.x > start.x else start.x
    return f"M{side:g} {start.y + start.height / 2:g}H{to_x:g}V{end.y:g}"


def _said_at(now: int) -> str:
    return f"{MOMENTS[now]}: {STATIONS[now].said}"


def _station(number: int, now: int, place: Grid, font: int) -> str:
    """Draw a station in its place; a click sets the slider to it."""
    station = STATIONS[number]
    is_now = number == now
    is_past = number < now
    share = 0.55 if is_now else 0.15 if is_past else 0
    look = box(place.x, place.y, place.width, place.height, sequence_color(0), share, INK)
    text = f"{number + 1} {station.name}"
    base = place.y + place.height / 2 + 5
    style = BOLD if is_now else ""
    words = label(place.x + 8, base, text, font, INK, place.width - 16, style)
    return linked(
        [f"s-{station.name}"], station.said, look, words, goes=f"moment={MOMENTS[number]}"
    )


def _arrow(start: Station, end: Station, is_past: bool) -> str:
    """Draw the line from one station to the next, sideways or to another lane."""
    color = INK if is_past else LINE
    y = LANES[start.lane] + BOX_HEIGHT / 2
    if start.lane == end.lane:
        path = f"M{start.x + BOX_WIDTH:g} {y:g}H{end.x:g}"
    else:
        x = start.x + BOX_WIDTH / 2
        from_y = LANES[start.lane]
        to_y = LANES[end.lane]
        if from_y < to_y:
            path = f"M{x:g} {from_y + BOX_HEIGHT:g}V{to_y:g}"
        else:
            path = f"M{x:g} {from_y:g}V{to_y + BOX_HEIGHT:g}"
    return f'<path d="{path}" stroke="{color}" stroke-width="2" fill="none"/>'


def _repeats() -> str:
    """Draw the line from detokenize back to step, which is passed once for each token."""
    top = LANES["engine's thread"] + BOX_HEIGHT
    right = 740 + BOX_WIDTH / 2
    left = 590 + BOX_WIDTH / 2
    path = f"M{right:g} {top:g}V{top + 26:g}H{left:g}V{top:g}"
    line = f'<path d="{path}" stroke="{INK}" fill="none" stroke-dasharray="6 4"/>'
    return line + label(left + 18, top + 42, "once for each token", 12, SOFT)
