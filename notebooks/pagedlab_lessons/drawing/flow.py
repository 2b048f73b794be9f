"""A page of items that flow down it: the wide and the narrow drawing come from one list.

    page("A pool", Text("In use:"), Blocks(used, columns=(8, 4)), Legend([(look, "free")]))

An item is called with the space that it has, and returns what it draws and where that ends. A value
may be a pair: the first is for the wide drawing, the second for the narrow one.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import NamedTuple, TypeVar, Union

from pagedlab_lessons.colors import SEQUENCE_COLORS, Look
from pagedlab_lessons.drawing.blocks import (
    HALO,
    Block,
    Grid,
    Place,
    Run,
    Strip,
    Word,
    pool,
    rows,
    slot,
    slots,
)
from pagedlab_lessons.drawing.elements import (
    BOLD,
    INK,
    LINE,
    NARROW,
    SOFT,
    WIDEST_NARROW,
    WRONG,
    Drawing,
    box,
    label,
    linked,
    shape,
    svg,
    wide,
)

T = TypeVar("T")
Both = Union[T, tuple[T, T]]  # noqa: UP007 - a value, or one for each drawing
Pixels = Both[float]

WIDTH = 1080  # pixels of a wide drawing
BELOW = 4  # pixels below an item
BETWEEN = 24  # pixels between two columns
LEGEND_GAP = 20  # pixels between two entries
LEGEND_LINE = 20  # pixels from line to line


class Space(NamedTuple):
    """Where an item is drawn: its left, its top and its width, in pixels.

    Args:
        x: the left edge.
        y: the top.
        width: that the item has.
        is_narrow: whether the drawing is for a narrow page.
    """

    x: float
    y: float
    width: float
    is_narrow: bool

    def pick(self, wide: T, narrow: T) -> T:
        """Return the value that is for this drawing."""
        return narrow if self.is_narrow else wide

    def of(self, value: Both[T]) -> T:
        """Return the one of a pair that is for this drawing; another value is for both."""
        return value[self.is_narrow] if isinstance(value, tuple) else value


class Drawn(NamedTuple):
    """Elements, and where they end."""

    parts: list[str]
    bottom: float


Item = Callable[[Space], Drawn]


def stack(items: Sequence[Item], space: Space) -> Drawn:
    """Draw items below one another."""
    parts = []
    for item in items:
        drawn = item(space)
        parts += drawn.parts
        space = space._replace(y=drawn.bottom)
    return Drawn(parts, space.y)


def page(
    headline: str,
    *items: Item,
    more: str | None = None,
    name: str = "",
    width: float = WIDTH,
    shown_width: float = WIDTH,
) -> Drawing:
    """Draw items for a wide page, below a headline, and for a narrow one, which has it already.

    Args:
        headline: says what is seen.
        items: from top to bottom.
        more: a second line; with "" its room stays empty.
        name: of the wide drawing; by default, and for the narrow one, headline and second line.
        width: of the wide drawing, in pixels.
        shown_width: its width on a page, in pixels.
    """
    parts = [label(0, 16, headline, 15, INK, width, BOLD)]
    if more:
        parts.append(label(0, 37, more, 14, within=width))
    drawn = stack(items, Space(0, 26 if more is None else 48, width, is_narrow=False))
    seen = f"{headline} {more or ''}".strip()
    large = svg(width, drawn.bottom, [*parts, *drawn.parts], name or seen, shown_width)
    narrow = stack(items, Space(0, 0, NARROW, is_narrow=True))
    small = svg(NARROW, narrow.bottom, narrow.parts, seen, WIDEST_NARROW)
    drawing = Drawing(large)
    # explore.js looks for this class, and shows the name above the drawing
    drawing.narrow = small.replace("<svg ", '<svg class="px-narrow" ', 1)
    return drawing


@dataclass
class Text:
    """A text, in as many lines as it needs.

    Args:
        text: any; "" draws nothing.
        size: of the font, in pixels.
        color: of the text.
        look: more style.
        above: pixels above it.
        tail: a remark, after the text in the same line.
    """

    text: Both[str]
    size: Pixels = (12.5, 11)
    color: str = INK
    look: str = ""
    above: float = 0
    tail: str = ""

    def __call__(self, space: Space) -> Drawn:
        text = space.of(self.text)
        size = space.of(self.size)
        if not text:
            return Drawn([], space.y)
        base = space.y + self.above - 0.35 * size
        parts = []
        for line in wrap(text, int(space.width / wide("x", size))):
            base += 1.35 * size
            parts.append(label(space.x, base, line, size, self.color, look=self.look))
        if self.tail:
            left = wide(text, size) + 14
            small = 12 - space.is_narrow
            within = space.width - left
            parts.append(label(space.x + left, base, self.tail, small, SOFT, within))
        return Drawn(parts, base + 0.35 * size + BELOW)


def title(text: Both[str], tail: str = "", above: float = 6) -> Text:
    """Return the title of what is below it."""
    return Text(text, (14, 13), look=BOLD, above=above, tail=tail)


def note(text: Both[str]) -> Text:
    """Return an explanation."""
    return Text(text, (12, 11), SOFT)


# A sample and its meaning. A sample is a look, a word in its slot, or a sign.
Entry = tuple[Look | Word | str, str]


@dataclass
class Legend:
    """What samples mean, side by side, in as many lines as they need.

    Args:
        entries: samples and their meanings.
    """

    entries: Sequence[Entry]

    def __call__(self, space: Space) -> Drawn:
        parts = []
        x, y = space.x, space.y
        right = x + space.width
        for sample, meaning in self.entries:
            room = 46 if isinstance(sample, Word) else 26
            width = room + wide(meaning, 12)
            if x > space.x and x + width > right:
                x = space.x
                y += LEGEND_LINE
            parts += self._sample(sample, x, y)
            left = x + room
            parts.append(label(left, y + 12.5, meaning, 12, SOFT, right - left))
            x += width + LEGEND_GAP
        return Drawn(parts, y + LEGEND_LINE + BELOW)

    def _sample(self, sample: Look | Word | str, x: float, y: float) -> list[str]:
        if isinstance(sample, Look):
            return [shape(x, y + 1, 20, 14, sample, LINE)]
        if isinstance(sample, Word):
            return slot(sample, Place(x, y - 1, 40, 18), SEQUENCE_COLORS[0])
        return [label(x + 5, y + 12.5, sample, 13, WRONG, look=BOLD)]


@dataclass
class Blocks:
    """Blocks with their words, as `slots` draws them.

    Args:
        blocks: in the order of the table.
        columns: blocks in a row.
        size: slots in a block; 0 if words follow one another.
        height: of a block, in pixels.
        gap: pixels between blocks.
        head: pixels above each row, for the numbers of blocks.
        font: of the words, in pixels.
    """

    blocks: Both[list[Block]]
    columns: Both[int]
    size: int = 0
    height: Pixels = (30, 26)
    gap: Pixels = (6, 4)
    head: Pixels = 0
    font: Pixels = (12.5, 12)

    def __call__(self, space: Space) -> Drawn:
        blocks = space.of(self.blocks)
        grid = grid_in(space, self.columns, self.height, self.gap, self.head)
        parts = slots(blocks, grid, self.size, space.of(self.font))
        return Drawn(parts, grid.bottom(max(1, len(blocks))) + BELOW)


@dataclass
class Pool:
    """The blocks of a pool, as `pool` draws them.

    Args:
        blocks: of the pool.
        columns: blocks in a row.
        height: of a block, in pixels.
        gap: pixels between blocks.
    """

    blocks: list[Block]
    columns: Both[int]
    height: Pixels = 19
    gap: Pixels = 3

    def __call__(self, space: Space) -> Drawn:
        grid = grid_in(space, self.columns, self.height, self.gap)
        return Drawn(pool(self.blocks, grid), grid.bottom(len(self.blocks)) + BELOW)


@dataclass
class Named:
    """An item with a name left of it.

    Args:
        name: of the item.
        item: the item.
        left: pixels that the name has.
    """

    name: str
    item: Item
    left: Pixels

    def __call__(self, space: Space) -> Drawn:
        left = space.of(self.left)
        name = label(space.x, space.y + 15, self.name, 11.5, SOFT, left - 4)
        drawn = self.item(space._replace(x=space.x + left, width=space.width - left))
        return Drawn([name, *drawn.parts], drawn.bottom)


class Bar(NamedTuple):
    """Neighbouring runs of a lane that are pointed at together.

    Args:
        runs: in steps or milliseconds.
        links: what it lights up with.
        say: what is said when it is pointed at.
        text: in the first run, if there is room.
    """

    runs: Sequence[Run]
    links: Sequence[str]
    say: str
    text: str = ""


class Lane(NamedTuple):
    """What one of them does over the time: a name and bars. Words are in a wide page's right half.

    The first bar is pointed at with the name and the words. A colour is a square beside the name.
    """

    name: str
    bars: list[Bar]
    words: str | None = None
    color: str = "none"


@dataclass
class Lanes:
    """Lanes over one scale of time, with a dashed line.

    Args:
        lanes: from top to bottom.
        stop: where the scale ends.
        now: where the line is.
        unit: of the scale.
        names: pixels left of the lanes.
        height: of a lane, in pixels.
        every: units between two numbers of the scale.
    """

    lanes: Sequence[Lane]
    stop: float
    now: float
    unit: str
    names: float
    height: float = 11
    every: int = 10

    def __call__(self, space: Space) -> Drawn:
        has_words = any(lane.words is not None for lane in self.lanes) and not space.is_narrow
        width = space.width / (2 if has_words else 1)
        unit = (width - self.names - 8) / self.stop
        first = Strip(space.x + self.names, space.y, unit, self.height, gap=1)
        pitch = space.pick(2.25, 2) + self.height
        bottom = space.y + pitch * len(self.lanes)
        path = f"M{first.corner(self.now)[0]:.1f} {space.y - 2:.0f}V{bottom:.0f}"
        parts = [f'<path d="{path}" stroke="{INK}" stroke-dasharray="3 3"/>']
        for row, lane in enumerate(self.lanes):
            parts += self._lane(lane, first._replace(y=space.y + pitch * row), space)
        parts.append(label(space.x, bottom + 12, self.unit, 11, SOFT))
        for number in range(0, int(self.stop) + 1, self.every):
            x, _ = first.corner(number)
            parts += [
                box(x, bottom - 1, 1, 4, SOFT),
                label(x - 3 * len(str(number)), bottom + 12, str(number), 11, SOFT),
            ]
        return Drawn(parts, bottom + 20)

    def _lane(self, lane: Lane, strip: Strip, space: Space) -> list[str]:
        """Draw a lane: its name, its words and its bars."""
        base = strip.y + strip.height / 2 + 4.5
        around = [
            label(space.x, base, lane.name, 11, SOFT),
            box(strip.x - 14, strip.y, 10, strip.height, lane.color),
        ]
        if lane.words and not space.is_narrow:
            left = (space.width + BETWEEN) / 2
            within = space.width - left
            around.append(label(space.x + left, base, lane.words, 11.5, within=within))
        parts = []
        for bar in lane.bars:
            drawn = rows(bar.runs, strip)
            first = bar.runs[0]
            if wide(bar.text, 11) + 3 < strip.unit * (first.stop - first.start):
                x, _ = strip.corner(first.start)
                drawn.append(label(x + 2, base - 0.5, bar.text, 11, look=HALO))
            parts.append(linked(bar.links, bar.say, *drawn, *around))
            around = []
        return parts


def stations(
    control: str,
    said: Mapping[str, str],
    places: Sequence[Place],
    now: int,
    filled: Collection[int],
    size: float = 12.5,
) -> list[str]:
    """Return boxes with words; a click on one sets a control.

    Args:
        control: its name.
        said: the words in each box, and what is said when it is pointed at.
        places: of the boxes.
        now: the number of the box that is marked.
        filled: the numbers of those that have a colour.
        size: of the font, in pixels.
    """
    parts = []
    for number, (place, (words, say)) in enumerate(zip(places, said.items(), strict=True)):
        share, style = (0.55, BOLD) if number == now else (0.15, "")
        ground = box(*place, SEQUENCE_COLORS[0], share * (number in filled), INK)
        base = place.y + place.height / 2 + 5
        text = label(place.x + 8, base, words, size, INK, place.width - 16, style)
        links = [f"{control}={words}".replace(" ", "-")]
        parts.append(linked(links, say, ground, text, goes=f"{control}={words}"))
    return parts


def grid_in(
    space: Space,
    columns: Both[int],
    height: Pixels,
    gap: Pixels,
    head: Pixels = 0,
) -> Grid:
    """Return the cells that fill a space from side to side."""
    across = max(1, space.of(columns))
    between = space.of(gap)
    width = (space.width + between) / across - between
    return Grid(space.x, space.y, across, width, space.of(height), between, space.of(head))


@dataclass
class Beside:
    """Lists of items: side by side on a wide page, below one another on a narrow one."""

    columns: Sequence[Sequence[Item]]

    def __call__(self, space: Space) -> Drawn:
        if space.is_narrow:
            return stack([item for column in self.columns for item in column], space)
        width = (space.width + BETWEEN) / len(self.columns) - BETWEEN
        parts = []
        bottom = 0.0
        room = space._replace(width=width)
        for column in self.columns:
            drawn = stack(column, room)
            parts += drawn.parts
            bottom = max(bottom, drawn.bottom)
            room = room._replace(x=room.x + width + BETWEEN)
        return Drawn(parts, bottom)
