"""Notebook 15's picture: the parts of an engine, and what each does in a step.

`draw_parts(part)` draws them, and marks one.
"""

from itertools import pairwise
from typing import NamedTuple

from pagedlab_lessons.drawing import INK, Drawing
from pagedlab_lessons.drawing.flow import Drawn, Space, grid_in, note, page, stations

COLUMNS = 6  # of a wide page: the step's way is the upper row


class Part(NamedTuple):
    """A part of an engine.

    Args:
        name: of the part.
        said: what it does in a step.
        is_given: whether the reader does not write it.
    """

    name: str
    said: str
    is_given: bool = False


PARTS = (
    Part("scheduler", "It chooses the tokens of the step, and asks the tables for slots."),
    Part("build_batch", "It puts the chosen tokens into one row, without padding.", is_given=True),
    Part("model", "The stock layers run. Each calls the hook with q, k and v.", is_given=True),
    Part("attention", "It reads keys and values through the block tables."),
    Part("sample", "It takes one token from each row of logits."),
    Part("step", "It calls the others in turn, and gives each sequence its new token."),
    Part("prefix cache", "It finds the blocks of a prompt that begins like an earlier one."),
    Part("table", "It lists the blocks of one sequence, forks, and copies before a write."),
    Part("pool", "It counts the references to each block, and hands out the free ones."),
    Part("KVCache", "It holds the keys and values of all blocks.", is_given=True),
)
NAMES = [part.name for part in PARTS]


def draw_parts(part: str) -> Drawing:
    """Draw all parts, and mark one.

    Args:
        part: one of `NAMES`.
    """
    now = NAMES.index(part)

    def boxes(space: Space) -> Drawn:
        grid = grid_in(space.down(8), (COLUMNS, 2), 44, gap=(30, 9))
        places = [grid.cell(number) for number in range(len(PARTS))]
        parts = []
        for start, end in pairwise([] if space.is_narrow else places[:COLUMNS]):
            line = f"M{start.x + start.width:g} {start.y + 22:g}H{end.x:g}"
            parts.append(f'<path d="{line}" stroke="{INK}" stroke-width="2"/>')
        yours = [number for number, one in enumerate(PARTS) if not one.is_given]
        said = {one.name: one.said for one in PARTS}
        parts += stations("part", said, places, now, yours, 14)
        return Drawn(parts, grid.bottom(len(PARTS)))

    return page(
        f"{part}:",
        boxes,
        note("Filled: you write it. Empty: it is given. The first six are a step, in order."),
        more=PARTS[now].said,
    )
