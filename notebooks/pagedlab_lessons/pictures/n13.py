"""Notebook 13's picture: a request's way through a server, from the socket to a token and back.

`draw_way(moment)` draws ten stations in three lanes, and marks the one of this moment.
"""

from itertools import pairwise
from typing import NamedTuple

from pagedlab_lessons.colors import sequence_color
from pagedlab_lessons.drawing import BOLD, INK, LINE, SOFT, Drawing, Grid, Place, box, label, linked
from pagedlab_lessons.drawing.flow import Drawn, Space, grid_in, page

LANES = ("client", "event loop", "engine's thread")
PITCH = 90  # pixels from lane to lane on a wide page
LEFT = 120  # pixels of the names of lanes


class Station(NamedTuple):
    """A station of the way.

    Args:
        name: of the station.
        lane: who works there, one of `LANES`.
        column: of its box on a wide page, where lanes are rows.
        said: what happens there.
    """

    name: str
    lane: str
    column: int
    said: str


STATIONS = (
    Station("send", "client", 0, "The client opens a connection and sends POST /v1/completions."),
    Station(
        "check",
        "event loop",
        0,
        "A handler, a coroutine of its own for this request, reads the JSON. A wrong request ends "
        "here with 400, a full queue with 429.",
    ),
    Station("tokenize", "event loop", 1, "The prompt becomes token ids."),
    Station(
        "inbox",
        "event loop",
        2,
        "The handler makes a ticket, puts a function into the inbox, and waits at the ticket.",
    ),
    Station(
        "add",
        "engine's thread",
        2,
        "Between two steps, the owner empties the inbox. The function calls llm.add: the request "
        "waits in the scheduler's queue.",
    ),
    Station(
        "step",
        "engine's thread",
        3,
        "The scheduler gives the request slots in blocks, the model computes its logits in one "
        "batch with all others, and a token is sampled.",
    ),
    Station(
        "detokenize",
        "engine's thread",
        4,
        "The token becomes text. Half a character or the start of a stop string is held back.",
    ),
    Station(
        "ticket",
        "event loop",
        4,
        "The owner wakes the event loop once a step, and the ticket has a new piece of text.",
    ),
    Station("event", "event loop", 5, "The handler writes one line to the socket: data: {...}"),
    Station(
        "read",
        "client",
        5,
        "The client shows the piece. Stations 6 to 10 repeat for each piece, until data: [DONE].",
    ),
)
MOMENTS = [f"{number} {station.name}" for number, station in enumerate(STATIONS, 1)]


def draw_way(moment: str) -> Drawing:
    """Draw the stations, and mark that of a moment.

    Lanes are rows on a wide page, and columns on a narrow one.

    Args:
        moment: one of `MOMENTS`.
    """
    now = MOMENTS.index(moment)

    def way(space: Space) -> Drawn:
        return _columns(now, space) if space.is_narrow else _rows(now, space)

    return page(f"{moment}:", way, more=STATIONS[now].said)


def _rows(now: int, space: Space) -> Drawn:
    """Draw a row for each lane."""
    grid = Grid.within(space.x + LEFT, space.y + 14, space.width - LEFT, 6, 44, 28)
    parts = []
    for row, name in enumerate(LANES):
        y = grid.y + PITCH * row
        parts.append(label(space.x, y + 26, name, 13, SOFT))
        if row:
            line = f"M{space.x} {y - 23}h{space.width}"
            parts.append(f'<path d="{line}" stroke="{LINE}" stroke-dasharray="3 5"/>')
    places = []
    for station in STATIONS:
        lane = grid.moved(0, PITCH * LANES.index(station.lane))
        places.append(lane.cell(station.column))
    parts += _stations(now, places, 14)
    step, detokenize = (places[i].x + grid.width / 2 for i in (5, 6))
    y = places[5].y + 44
    # from detokenize back to step, once for each token
    path = f"M{detokenize:g} {y:g}v26H{step:g}v-26"
    parts.append(f'<path d="{path}" stroke="{INK}" fill="none" stroke-dasharray="6 4"/>')
    parts.append(label(step + 18, y + 42, "once for each token", 12, SOFT))
    return Drawn(parts, y + 50)


def _columns(now: int, space: Space) -> Drawn:
    """Draw a column for each lane, and the stations from top to bottom."""
    grid = grid_in(space.down(24), len(LANES), 28, gap=9)
    names = [
        label(grid.corner(i)[0], space.y + 12, name, 11, SOFT, grid.width)
        for i, name in enumerate(LANES)
    ]
    places = []
    for number, station in enumerate(STATIONS):
        places.append(grid.cell(len(LANES) * number + LANES.index(station.lane)))
    bottom = grid.bottom(len(LANES) * len(STATIONS))
    return Drawn([*names, *_stations(now, places, 12)], bottom)


def _stations(now: int, places: list[Place], font: int) -> list[str]:
    """Draw the stations in their places, and the lines between them."""
    parts = []
    for number, (start, end) in enumerate(pairwise(places)):
        color = INK if number < now else LINE
        path = _path(start, end)
        parts.append(f'<path d="{path}" stroke="{color}" stroke-width="2" fill="none"/>')
    return parts + [_station(number, now, place, font) for number, place in enumerate(places)]


def _path(start: Place, end: Place) -> str:
    """Return the way from a box to the next: sideways, then up or down."""
    middle = start.y + start.height / 2
    side = start.x + start.width if end.x > start.x else start.x
    if start.y == end.y:
        return f"M{side:g} {middle:g}H{end.x:g}"
    to_x = end.x + end.width / 2
    to_y = end.y if end.y > start.y else end.y + end.height
    if start.x == end.x:
        from_y = start.y + start.height if end.y > start.y else start.y
        return f"M{to_x:g} {from_y:g}V{to_y:g}"
    return f"M{side:g} {middle:g}H{to_x:g}V{to_y:g}"


def _station(number: int, now: int, place: Place, font: int) -> str:
    """Draw a station in its place; a click sets the slider to it."""
    station = STATIONS[number]
    share = 0.55 if number == now else 0.15 if number < now else 0
    look = box(*place, sequence_color(0), share, INK)
    base = place.y + place.height / 2 + 5
    style = BOLD if number == now else ""
    words = label(place.x + 8, base, MOMENTS[number], font, INK, place.width - 16, style)
    goes = f"moment={MOMENTS[number]}"
    return linked([f"s-{station.name}"], station.said, look, words, goes=goes)
