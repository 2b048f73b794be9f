"""A request's way through a server, from the client's socket to a token and back, for notebook 13.

`draw_way(moment)` draws ten stations in three lanes, and marks the one of this moment.
"""

from itertools import pairwise
from typing import NamedTuple

from pagedlab.lessons.colors import sequence_color
from pagedlab.lessons.drawing import BOLD, INK, LINE, SOFT, box, label, linked, svg

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


def draw_way(moment: str) -> str:
    """Draw the stations, and mark that of a moment.

    Args:
        moment: one of `MOMENTS`.
    """
    now = MOMENTS.index(moment)
    parts = [label(20, 22, f"{moment}: {STATIONS[now].said}", 13, INK, 1040)]
    for name, top in LANES.items():
        parts.append(label(20, top + BOX_HEIGHT / 2 + 4, name, 13, SOFT))
        if name != LOWEST_LANE:
            y = top + BOX_HEIGHT + 23
            line = f'<path d="M20 {y:g}H{WIDTH - 20}" stroke="{LINE}" stroke-dasharray="3 5"/>'
            parts.append(line)
    pairs = enumerate(pairwise(STATIONS))
    parts += [_arrow(start, end, number < now) for number, (start, end) in pairs]
    parts += [_station(number, number == now, number < now) for number in range(len(STATIONS))]
    parts.append(_repeats())
    return svg(WIDTH, HEIGHT, parts, f"A request's way: {moment}")


def _station(number: int, is_now: bool, is_past: bool) -> str:
    """Draw a station; a click sets the slider to it."""
    station = STATIONS[number]
    top = LANES[station.lane]
    share = 0.55 if is_now else 0.15 if is_past else 0
    look = box(station.x, top, BOX_WIDTH, BOX_HEIGHT, sequence_color(0), share, INK)
    text = f"{number + 1} {station.name}"
    words = label(
        station.x + 8,
        top + BOX_HEIGHT / 2 + 5,
        text,
        14,
        INK,
        BOX_WIDTH - 16,
        BOLD if is_now else "",
    )
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
