"""Notebook 15's picture: the parts of an engine, and what each gives to the next in a step.

`draw_parts(part)` draws them, and marks one.
"""

from math import atan2, degrees
from typing import NamedTuple

from pagedlab_lessons.drawing import (
    INK,
    Drawing,
    Drawn,
    Place,
    Space,
    grid_in,
    label,
    note,
    page,
    stations,
    wide,
)

COLUMNS = 6  # of a wide page: the step's way is the upper row


class Part(NamedTuple):
    """A part of an engine.

    Args:
        name: of the part, after the number of its exercise if the reader writes it.
        said: what it does in a step.
        cell: where it is on a wide page.
        gives: what flows out of it.
        taker: the cell of the part that takes this.
    """

    name: str
    said: str
    cell: int
    gives: str = ""
    taker: int = 0


PARTS = (  # in the order of a step
    Part(
        "5 scheduler",
        "First it chooses the tokens of the step, and asks the tables for slots.",
        1,
        "plan",
        2,
    ),
    Part(
        "3 prefix cache",
        "It finds the blocks of a prompt that begins like an earlier one.",
        8,
        "hits",
        7,
    ),
    Part(
        "2 table",
        "It lists a sequence's blocks, asks the pool for more, forks, and copies before a write.",
        7,
        "slots",
        1,
    ),
    Part(
        "1 pool",
        "It counts the references to each block, and hands out the free ones.",
        6,
        "blocks",
        7,
    ),
    Part("build_batch", "It puts the chosen tokens into one row, without padding.", 2, "batch", 3),
    Part("model", "The stock layers run. Each calls the hook with q, k and v.", 3, "logits", 4),
    Part(
        "4 attention",
        "It reads keys and values through the block tables, and returns to the model.",
        9,
        "output",
        3,
    ),
    Part("KVCache", "It holds the keys and values of all blocks.", 10, "k, v", 9),
    Part("6 sample", "It takes one token from each row of logits.", 4, "tokens", 5),
    Part("7 step", "It calls the others in turn. Last, `update` gives each sequence its token.", 5),
)
SAID = {part.name: part.said for part in PARTS}
NAMES = list(SAID)


def draw_parts(part: str) -> Drawing:
    """Draw all parts, and mark one.

    Args:
        part: one of `NAMES`.
    """
    now = NAMES.index(part)

    def boxes(space: Space) -> Drawn:
        grid = grid_in(
            space._replace(y=space.y + 8), (COLUMNS, 2), space.pick(44, 34), gap=(64, 44)
        )

        def place(cell: int) -> Place:
            row, column = divmod(cell, COLUMNS)
            return grid.cell(2 * column + row if space.is_narrow else cell)

        places = [place(one.cell) for one in PARTS]
        yours = [number for number, name in enumerate(NAMES) if name[0].isdigit()]
        parts = stations("part", SAID, places, now, yours, space.pick(14, 13))
        for one in PARTS:
            if one.gives:
                parts += _arrow(place(one.cell), place(one.taker), grid.gap, one.gives)
        return Drawn(parts, grid.bottom(2 * COLUMNS) - grid.gap / 2)

    return page(
        f"{part}.",
        boxes,
        note("An arrow: what a part gives. A number: its exercise. Dark: chosen."),
        more=SAID[part],
    )


def _arrow(start: Place, end: Place, gap: float, word: str) -> list[str]:
    """Draw an arrow over the gap between a box and a neighbour, and what it carries."""
    across = end.x - start.x
    down = end.y - start.y
    x = (start.x + end.x + start.width) / 2
    y = (start.y + end.y + start.height) / 2
    turn = f"translate({x:g} {y:g}) rotate({degrees(atan2(down, across)):g})"
    path = f"M{2 - gap / 2:g} 0H{gap / 2 - 2:g}l-7 -5m7 5l-7 5"
    place = (x - wide(word, 12) / 2, y - 9) if across else (x + 9, y + 4)
    line = f'<path d="{path}" transform="{turn}" stroke="{INK}" stroke-width="2" fill="none"/>'
    return [line, label(*place, word)]
