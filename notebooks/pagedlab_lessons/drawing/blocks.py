"""Blocks, words in their slots, and rows of tokens."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pagedlab_lessons.colors import CACHED, FREE, LOST, Look
from pagedlab_lessons.drawing.elements import (
    BAD,
    BOLD,
    CARD,
    INK,
    LINE,
    SOFT,
    STRUCK,
    TINT,
    WRONG,
    box,
    label,
    linked,
    plain,
    shape,
    shortened,
    wide,
)

# so that a number can be read on a pattern
HALO = "paint-order:stroke;stroke:var(--card);stroke-width:4px"
DASHES = 'stroke-dasharray="4 3"'
MOST_BANDS = 4  # owners whose colours a block shows
GAP = 3.0  # pixels between the slots of a block
SLOT_PADDING = 6  # pixels beside a word in its slot
LINE_PITCH = 17  # pixels from line to line in a block

Parts = list[str]  # SVG elements


# What is drawn ------------------------------------------------------------------------------------


class Word(NamedTuple):
    """The contents of a slot.

    Args:
        text: the word.
        kind: one of `WORD_KINDS`.
        number: its position or its slot, drawn above it; None for no number.
        below: a second word, which replaces it and is not stored yet.
        links: what it lights up with, beside its block.
        say: what is said when it is pointed at; by default what is said of its block.
    """

    text: str
    kind: str = "stored"
    number: int | None = None
    below: str = ""
    links: tuple[str, ...] = ()
    say: str = ""


class WordKind(NamedTuple):
    """How a word is drawn.

    Args:
        style: of the text, as CSS.
        ink: the colour of the text.
        has_ground: whether its slot is filled with the block's colour.
        has_edge: whether its slot has an edge in the block's colour.
        dashes: of the edge, as attributes.
    """

    style: str = ""
    ink: str = INK
    has_ground: bool = True
    has_edge: bool = False
    dashes: str = ""


WORD_KINDS = {
    "stored": WordKind(),
    "new": WordKind(BOLD, has_edge=True),
    "drafted": WordKind("font-style:italic", SOFT, False, has_edge=True, dashes=DASHES),
    "rejected": WordKind(STRUCK, SOFT, has_ground=False),
    "not stored": WordKind(BOLD, has_ground=False),
    "marked": WordKind(f"{BOLD};text-decoration:underline 2px {WRONG}"),
    "empty": WordKind(has_ground=False),
}


class Owner(NamedTuple):
    """A sequence whose table lists a block.

    Args:
        name: of the sequence.
        look: of the sequence.
        filled: the share of the block's slots that hold its tokens, 0 to 1.
    """

    name: str
    look: Look
    filled: float = 1.0


def owned(*colors: str) -> tuple[Owner, ...]:
    """Return nameless owners with these colours."""
    return tuple(Owner("", Look(color)) for color in colors)


@dataclass
class Block:
    """A block of a pool.

    Args:
        number: its id; None for a block that is not allocated.
        owners: the sequences that have it; the first one had it first.
        count: its reference count, which may differ from the number of owners.
        is_cached: whether its contents are kept though no table lists it.
        words: what its slots hold.
        note: more about it, drawn by `slots` beside its number.
        mark: a sign that is drawn by `slots` in the upper right corner.
        lines: more about it, drawn by `pool` below its number on a tint.
        links: what it lights up with; by default blocks of this number.
        say: what is said when it is pointed at; by default `described(block)`.
    """

    number: int | None
    owners: tuple[Owner, ...] = ()
    count: int = 0
    is_cached: bool = False
    words: tuple[Word, ...] = ()
    note: str = ""
    mark: str = ""
    lines: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    say: str = ""

    @property
    def is_used(self) -> bool:
        """Whether it has a reference."""
        return bool(self.count or self.owners)

    @property
    def bands(self) -> tuple[Owner, ...]:
        """What its ground shows: its owners, or that it is cached, lost or free."""
        if self.owners:
            return self.owners[:MOST_BANDS]
        if self.count:
            return (Owner("", LOST),)
        return (Owner("", CACHED),) if self.is_cached else ()


class Table(NamedTuple):
    """A sequence's block table.

    Args:
        name: of the sequence.
        blocks: block ids in order; None where the table lists no such block.
        tokens: how many tokens it holds.
        look: of the sequence.
        words: the text of each token, if known.
    """

    name: str
    blocks: Sequence[int | None]
    tokens: int
    look: Look
    words: Sequence[str] = ()

    def filled(self, entry: int, size: int) -> float:
        """The share of the slots of this entry's block that hold tokens."""
        return max(0, min(size, self.tokens - entry * size)) / size


def blocks_of(
    tables: Iterable[Table],
    num_blocks: int,
    size: int,
    *,
    cached: Collection[int] = (),
    counts: Sequence[int] | None = None,
) -> list[Block]:
    """Return the blocks of a pool.

    Args:
        tables: of all sequences, the oldest first.
        num_blocks: of the pool.
        size: slots in a block.
        cached: blocks whose contents are kept.
        counts: the reference count of each block; by default the number of tables that list it.
    """
    blocks = [Block(number, is_cached=number in cached) for number in range(num_blocks)]
    for table in tables:
        for entry, number in enumerate(table.blocks):
            if number is not None and number < num_blocks:
                block = blocks[number]
                owner = Owner(table.name, table.look, table.filled(entry, size))
                block.owners = (*block.owners, owner)
                said = table.words[entry * size : min(table.tokens, (entry + 1) * size)]
                words = tuple(Word(plain(word)) for word in said if word)
                block.words = max(block.words, words, key=len)  # of who has most of the block's
    for block, count in zip(blocks, counts or [len(block.owners) for block in blocks], strict=True):
        block.count = count
    return blocks


def described(block: Block) -> str:
    """Return what a drawing says of a block: its owners, or why it has none, and its words."""
    names = [owner.name for owner in block.owners if owner.name]
    said = ": free; its contents stay cached" if block.is_cached else ": free"
    if len(names) > 1:
        said = f", shared: first {names[0]}, then {', '.join(names[1:])}"
    elif block.owners:
        said = f", {''.join(names) or 'in use'}"
    elif block.count:
        said = f": {block.count} references, and no table lists it"
    words = " ".join(word.text for word in block.words)
    return f"block {block.number}{said}" + (f": {words}" if words else "")


def _linked(block: Block, drawn: Sequence[str]) -> str:
    """Return a block as a part that can be pointed at."""
    links = block.links or (f"b{block.number}",)
    return linked(links, block.say or described(block), *drawn)


# Where it is drawn --------------------------------------------------------------------------------


class Place(NamedTuple):
    """A rectangle: its left, its top, its width and its height, in pixels."""

    x: float
    y: float
    width: float
    height: float


class Grid(NamedTuple):
    """Cells in rows.

    Args:
        x: the left edge, in pixels.
        y: the top, in pixels.
        columns: cells in a row.
        width: of a cell, in pixels.
        height: of a cell, in pixels.
        gap: pixels between cells.
        head: pixels above each row, for what names a cell.
    """

    x: float
    y: float
    columns: int
    width: float
    height: float
    gap: float = 4
    head: float = 0

    def corner(self, number: int) -> tuple[float, float]:
        """The left and the top of a cell."""
        row, column = divmod(number, self.columns)
        left = self.x + column * (self.width + self.gap)
        top = self.y + row * (self.head + self.height + self.gap) + self.head
        return left, top

    def cell(self, number: int) -> "Place":
        """The place of a cell."""
        return Place(*self.corner(number), self.width, self.height)

    def bottom(self, number: int) -> float:
        """Where this many cells end, with the gap below them."""
        num_rows = -(-number // self.columns)
        return self.y + num_rows * (self.head + self.height + self.gap)


# The blocks of a pool -----------------------------------------------------------------------------


def pool(blocks: Sequence[Block], grid: Grid) -> Parts:
    """Draw the blocks of a pool.

    A band for each owner is filled as far as the block holds its tokens: from below, or from the
    left in a block that is a bar. A cached block is pale and striped, a free one is empty, a shared
    one has its reference count.

    Args:
        blocks: as `blocks_of` returns them.
        grid: where they are.
    """
    size = 11 if grid.width >= 28 else 8
    parts = [_block(block, grid.cell(at), size) for at, block in enumerate(blocks)]
    return [f'<g style="font-family:monospace;font-size:{size}px">', *parts, "</g>"]


def _block(block: Block, place: Place, size: int) -> str:
    """Draw a block of a pool: its ground, its number, and its count if it is shared.

    Args:
        size: of the font, in pixels.
    """
    x, y, width, height = place
    drawn = [shape(*place, FREE, LINE)]
    bands = block.bands
    is_bar = height < 28
    for i, owner in enumerate(bands):
        if is_bar:
            high = height / len(bands)
            band = Place(x, y + i * high, width, high)
            filled = band._replace(width=width * owner.filled)
        else:
            part = width / len(bands)
            band = Place(x + i * part, y, part, height)
            high = height * owner.filled
            filled = band._replace(y=y + height - high, height=high)
        # A tint needs a ground, or a full block is paler than the filled part of another.
        if owner.filled < 1 or block.lines:
            drawn.append(shape(*band, owner.look.tint))
        drawn.append(shape(*filled, owner.look.tint if block.lines else owner.look))
    if block.count and not block.owners:
        drawn.append(box(*place, edge=BAD, look=DASHES))
    base = y + height / 2 + 0.36 * size if is_bar else y + size + 2
    ink = f"fill:{INK};font-weight:600" if block.is_used else f"fill:{SOFT}"
    if bands:
        ink += f";{HALO}"
    drawn.append(f'<text x="{x + 4:g}" y="{base:g}" style="{ink}">{block.number}</text>')
    room = width - wide(f"{block.number}{block.count}", size) - 16
    if block.count > 1 and (room > 0 or not is_bar):
        drawn.append(_badge(str(block.count), x + width, y + height, size))
    for i, line in enumerate(block.lines, 1):
        drawn.append(label(x + 4, base + LINE_PITCH * i, line, 12, within=width - 7))
    return _linked(block, drawn)


def _badge(text: str, right: float, bottom: float, size: int) -> str:
    """Draw a number in a dark box in the lower right corner."""
    width = wide(text, size)
    ground = box(right - width - 7, bottom - size - 4, width + 5, size + 2, INK)
    place = f'x="{right - width - 4.5:.1f}" y="{bottom - 0.3 * size - 2:.1f}"'
    return f'{ground}<text {place} style="fill:{CARD};font-weight:700">{text}</text>'


# Words in their slots -----------------------------------------------------------------------------


def slots(blocks: Sequence[Block], grid: Grid, size: int = 0, font: float = 12.5) -> Parts:
    """Draw blocks with the words in them, on a tint of their owners' colours.

    With a number of slots each word has its slot, and empty slots are seen. Otherwise the
    words follow one another, after the block's number.

    Args:
        blocks: in the order of the table.
        grid: where they are; a high cell has a line for the number and one for the words.
        size: slots in a block, or 0.
        font: size of the words, in pixels.
    """
    parts = []
    for at, block in enumerate(blocks):
        place = grid.cell(at)
        drawn = _ground_of_words(block, place)
        drawn += _slots(block, place, size, font) if size else _line_of_words(block, place, font)
        if grid.head and block.number is not None:
            name = f"block {block.number}{block.note}"
            drawn.append(label(place.x + 1, place.y - 4, name, 11, SOFT))
        speaks = size and any(word.say for word in block.words)  # and its block does not
        parts += drawn if speaks else [_linked(block, drawn)]
    return parts


def _ground_of_words(block: Block, place: Place) -> Parts:
    """Draw a tint for each owner, and an edge in the first one's colour."""
    bands = block.bands
    width = place.width / max(1, len(bands))
    drawn = []
    for i, owner in enumerate(bands):
        band = place._replace(x=place.x + i * width, width=width)
        drawn.append(shape(*band, owner.look.tint))
    edge = bands[0].look.color if len(bands) == 1 else SOFT
    return [*drawn, box(*place, edge=edge, look="" if bands else DASHES)]


def _line_of_words(block: Block, place: Place, font: float) -> Parts:
    """Draw a block's number and its words, in one line or in two."""
    x, y, width, height = place
    number = str(block.number)
    left = x + 16 + wide(number, 12)
    room = x + width - 6 - left
    has_one_line = height < 38
    base = y + (height / 2 + 5 if has_one_line else 15)
    head = label(x + 7, base, number, 12, look=BOLD)
    if has_one_line:
        return [head, *_words(block.words, left, base, room, font)]
    note = label(left, base, block.note, 11, SOFT, room)
    mark = label(x + width - 16, base, block.mark, 13, WRONG, look=BOLD)
    base = y + min(36, 19 + (height - 15) / 2)
    return [head, note, mark, *_words(block.words, x + 7, base, width - 13, font)]


def _words(words: Sequence[Word], x: float, y: float, within: float, size: float) -> Parts:
    """Draw words that follow one another, squeezed into `within` pixels."""
    length = sum(wide(word.text, size) + 6 for word in words)
    scale = min(1.0, within / (length or 1))
    drawn = []
    for word in words:
        kind = WORD_KINDS[word.kind]
        width = scale * wide(word.text, size)
        drawn.append(label(x, y, word.text, size, kind.ink, width, kind.style))
        x += width + scale * 6
    return drawn


def _widths_of_slots(words: Sequence[Word], within: float, font: float) -> list[float]:
    """Return the width of each slot of a block, with the gap after it.

    They are equal if all words fit then. Otherwise they are in proportion to the words.

    Args:
        words: in the slots.
        within: pixels of all slots.
        font: size of the words, in pixels.
    """
    rooms = []
    for word in words:
        number = "" if word.number is None else str(word.number)
        longest = max(word.text, word.below, number, key=len)
        rooms.append(GAP + SLOT_PADDING + wide(longest, font))
    if max(rooms) * len(rooms) <= within:
        rooms = len(rooms) * [1.0]
    return [within / sum(rooms) * room for room in rooms]


def _slots(block: Block, place: Place, size: int, font: float) -> Parts:
    """Draw the slots of a block side by side, with words in this font."""
    words = [*block.words, *size * [Word("", "empty")]][:size]
    color = block.bands[0].look.color if block.bands else SOFT
    inside = place._replace(x=place.x + GAP, y=place.y + GAP, height=place.height - 2 * GAP)
    drawn = []
    for word, pitch in zip(words, _widths_of_slots(words, place.width - GAP, font), strict=True):
        parts = slot(word, inside._replace(width=pitch - GAP), color, font)
        drawn += [linked(word.links, word.say, *parts)] if word.say else parts
        inside = inside._replace(x=inside.x + pitch)
    return drawn


def slot(word: Word, place: Place, color: str, font: float = 12.5) -> Parts:
    """Draw a slot with its word and its number."""
    kind = WORD_KINDS[word.kind]
    ground, share = (color, TINT) if kind.has_ground else ("none", 1)
    edge = color if kind.has_edge else LINE
    drawn = [box(*place, ground, share, edge, kind.dashes)]
    left = place.x + 3
    within = place.width - SLOT_PADDING
    base = place.y + place.height / 2 + 4.5
    if word.number is not None:
        drawn.append(label(left, place.y + 11, str(word.number), 11, SOFT))
        base = place.y + place.height - 7
    if word.below:
        pitch = min(14, place.height / 2)
        base = place.y + pitch - 2
        text = shortened(word.below, 12, within)
        small = min(12, font)
        drawn.append(label(left, base + pitch, text, small, within=within, look=BOLD))
    if word.text:
        text = shortened(word.text, font, within)
        drawn.append(label(left, base, text, font, kind.ink, within, kind.style))
    return drawn


# Rows of tokens -----------------------------------------------------------------------------------


class Run(NamedTuple):
    """Neighbouring tokens, slots or steps that look alike.

    Args:
        start: the first one.
        stop: the one after the last.
        look: of all of them.
        edge: the colour of the edge.
    """

    start: float
    stop: float
    look: Look
    edge: str = "none"


class Strip(NamedTuple):
    """Where a row of tokens is; a long one goes on in the next line.

    Args:
        x: the left edge, in pixels.
        y: the top of the first line, in pixels.
        unit: the width of a token, in pixels.
        height: of a line, in pixels.
        row: tokens in a line; 0 for one line.
        pitch: pixels from line to line.
        gap: pixels left out after each run.
    """

    x: float
    y: float
    unit: float
    height: float
    row: int = 0
    pitch: float = 0
    gap: float = 0

    def corner(self, token: float) -> tuple[float, float]:
        """The left and the top of a token."""
        line, at = divmod(token, self.row) if self.row else (0, token)
        return self.x + at * self.unit, self.y + line * self.pitch


def rows(runs: Iterable[Run], strip: Strip) -> Parts:
    """Draw each run as a bar, or as one in each line that it is in.

    Args:
        runs: the tokens; later ones are drawn over earlier ones.
        strip: where they are.
    """
    drawn = []
    for run in runs:
        start = run.start
        while start < run.stop:
            stop = run.stop
            if strip.row:
                stop = min(stop, (start // strip.row + 1) * strip.row)
            width = max(0.5, (stop - start) * strip.unit - strip.gap)
            drawn.append(shape(*strip.corner(start), width, strip.height, run.look, run.edge))
            start = stop
    return drawn
