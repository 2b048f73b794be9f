"""Notebook 13's picture: a request's way through a server, from the socket to a token and back.

`draw_way(moment)` draws ten stations in three lanes, and marks the one of this moment.
"""

from itertools import pairwise

from pagedlab_lessons.drawing import (
    INK,
    LINE,
    SOFT,
    Drawing,
    Drawn,
    Place,
    Space,
    grid_in,
    label,
    note,
    page,
    stations,
)

WIDTH = 760  # pixels of all lanes, at most
LANES = ("client", "event loop", "engine's thread")


SAID = {
    "1 send": "The client opens a connection and sends POST /v1/completions.",
    "2 check": "A handler, a coroutine of its own for this request, reads the JSON. A wrong field "
    "ends the request here, with 400.",
    "3 tokenize": "The handler waits while a helper thread turns the prompt into token ids.",
    "4 inbox": "The handler makes a ticket, puts a function into the inbox, and waits at the "
    "ticket.",
    "5 add": "Between two steps, the owner empties the inbox. If the queue is full, the function "
    "answers 429. Else it calls llm.add: the request waits in the scheduler's queue.",
    "6 step": "The scheduler gives the request slots in blocks, the model computes its logits in "
    "one batch with all others, and a token is sampled.",
    "7 detokenize": "The token becomes text. Half a character or the start of a stop string is "
    "held back.",
    "8 ticket": "The owner wakes the event loop once a step, and the ticket has a new piece of "
    "text.",
    "9 event": "The handler writes one line to the socket: data: {...}",
    "10 read": "The client shows the piece. Stations 8 to 10 repeat for each piece, until data: "
    "[DONE].",
}
"""What happens at each station."""
LANE_OF = (0, 1, 1, 1, 2, 2, 2, 1, 1, 0)  # each station: who works there, by number
MOMENTS = list(SAID)


def draw_way(moment: str) -> Drawing:
    """Draw a column for each lane, the stations from top to bottom, and mark that of a moment.

    Args:
        moment: one of `MOMENTS`.
    """
    now = MOMENTS.index(moment)

    def way(space: Space) -> Drawn:
        lanes = space._replace(y=space.y + 24, width=min(space.width, WIDTH))
        grid = grid_in(lanes, len(LANES), 28, gap=(14, 9))
        parts = []
        for column, name in enumerate(LANES):
            left, _ = grid.corner(column)
            parts.append(label(left, space.y + 12, name, space.pick(13, 11), SOFT, grid.width))
        places = [grid.cell(len(LANES) * row + lane) for row, lane in enumerate(LANE_OF)]
        for number, (start, end) in enumerate(pairwise(places)):
            path = f'd="{_path(start, end)}" stroke="{INK if number < now else LINE}"'
            parts.append(f'<path {path} stroke-width="2" fill="none"/>')
        parts += stations("moment", SAID, places, now, range(now + 1))
        return Drawn(parts, grid.bottom(len(LANES) * len(SAID)))

    again = note("Stations 6 and 7 repeat for each token, 8 to 10 for each piece of text.")
    return page(f"{moment}:", way, again, more=SAID[moment])


def _path(start: Place, end: Place) -> str:
    """Return the way from a box to the next: down, or sideways and then down."""
    middle = end.x + end.width / 2
    if start.x == end.x:
        return f"M{middle:g} {start.y + start.height:g}V{end.y:g}"
    side = start.x + start.width if end.x > start.x else start.x
    return f"M{side:g} {start.y + start.height / 2:g}H{middle:g}V{end.y:g}"
