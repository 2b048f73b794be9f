"""What every picture of blocks is drawn with: SVG as text, which `widgets.explore` shows.

    pool(blocks, grid)              the blocks of a pool, each a square or a bar in a grid
    slots(blocks, grid, size)       blocks with the words in their slots
    rows(runs, strip)               tokens or steps side by side, as bars in rows

This is the only Python code that draws a block, a block table or a row of tokens::

    tables = [Table("r0", [4, 7], tokens=21, look=look_of(0))]
    blocks = blocks_of(tables, num_blocks=16, size=16, cached={2})
    picture = svg(620, 60, pool(blocks, Grid(0, 20, columns=16, width=34, height=34)))

`page(headline, *items)` makes a drawing for a wide page and one for a phone: flow.py has it and its
items. elements.py has what drawings are made of, `lessons.colors` the looks.
"""

# ruff: noqa: F403 - the names of the three files are the package's

from pagedlab_lessons.drawing.blocks import *
from pagedlab_lessons.drawing.elements import *
from pagedlab_lessons.drawing.flow import *
