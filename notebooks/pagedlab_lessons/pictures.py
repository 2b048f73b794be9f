"""The pictures that open notebooks 01 to 05. Those of 08 and 09 are in races.py.

Each function returns an SVG, drawn with drawing.py; some have a variant for a narrow page.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from textwrap import wrap

from pagedlab.blocks import BlockTable, OutOfBlocks, blocks_for
from pagedlab_lessons.colors import (
    BLUE,
    FREE,
    GREEN,
    NEUTRAL,
    ORANGE,
    PINK,
    SEQUENCE_COLORS,
    SKY,
    VERMILION,
    YELLOW,
    Look,
    sequence_color,
)
from pagedlab_lessons.drawing import (
    BAD,
    BOLD,
    CARD,
    INK,
    LINE,
    NARROW,
    SOFT,
    STRUCK,
    WRONG,
    Block,
    Drawing,
    Grid,
    Owner,
    Run,
    Strip,
    Word,
    box,
    label,
    legend,
    linked,
    narrow_svg,
    plain,
    rows,
    shape,
    slots,
    svg,
    wide,
)
from pagedlab_lessons.memory import Contiguous, OutOfMemory, Paged, Region, Request

# The notebooks import these from here.
from pagedlab_lessons.races import race, rectangle, steps_of  # noqa: F401

WIDTH = 1080  # of a picture, in pixels

# 03: two stories ----------------------------------------------------------------------------------

Story = tuple[list[str], list[int]]  # its tokens, and the slot of each

STORIES_WIDTH = 880  # narrow, so that the words stay large where there is little room
# two more than SEQUENCE_COLORS: the stories of notebook 03 fill up to nine blocks
STORY_COLORS = (*SEQUENCE_COLORS, NEUTRAL, "#8C5A2B")
FRAMED = 'stroke-width="2"'
UNDERLINED = f"{BOLD};text-decoration:underline 2px {WRONG}"


def two_stories(stories: Sequence[Story], right: Sequence[Story], block_size: int) -> str:
    """Draw two forks of one beginning: their words in the colour of their block, and the blocks.

    Two kinds of words are marked: words that are overwritten in memory, and words that a story
    takes from the other one. A word is taken if the other story has written it into a block of
    this story's table, at the same position or before, and the right story does not have it.

    Args:
        stories: what the two forks wrote; the second one writes last in each step.
        right: what they write with copy-on-write.
        block_size: slots in a block.
    """
    return _TwoStories(stories, right, block_size).draw()


@dataclass(frozen=True)
class _Word:
    """A word without punctuation, and the numbers of its tokens."""

    text: str
    tokens: range


def _words(tokens: Sequence[str]) -> list[_Word]:
    """Return the words that these tokens spell."""
    starts = [i for i, token in enumerate(tokens) if i == 0 or token.startswith((" ", "\n"))]
    spans = [range(start, end) for start, end in pairwise([*starts, len(tokens)])]
    return [_Word(re.sub(r"\W", "", "".join(tokens[i] for i in span)), span) for span in spans]


@dataclass(frozen=True)
class _Column:
    """Where a story is drawn.

    Args:
        left: in pixels.
        width: in pixels.
        font: size of its words, in pixels.
        line: pixels from line to line.
        table_font: size of its block table, in pixels.
        block_font: size of the words in blocks, in pixels.
        block_height: in pixels.
    """

    left: int
    width: int
    font: float = 15
    line: int = 28
    table_font: float = 13
    block_font: float = 14
    block_height: int = 30

    def grid(self, y: float) -> Grid:
        """The story's blocks, below one another."""
        return Grid(self.left, y, 1, self.width, self.block_height, 6)


STORY_COLUMNS = (_Column(0, 428), _Column(452, 428))
NARROW_COLUMN = _Column(0, NARROW, font=13, line=25, table_font=12, block_font=12, block_height=24)


@dataclass(frozen=True)
class _Drawn:
    """Elements, and where they end."""

    parts: list[str]
    bottom: float


@dataclass(frozen=True)
class _Placed:
    """A token of a story, its slot, and where it is drawn, in pixels."""

    token: str
    slot: int
    x: float
    y: float
    width: float
    font: float


class _TwoStories:
    """The parts of the picture that `two_stories` draws."""

    def __init__(self, stories: Sequence[Story], right: Sequence[Story], block_size: int) -> None:
        self.stories = stories
        self.right = right
        self.block_size = block_size
        self.length = min(len(places) for _, places in stories)
        self.held = self._memory()
        self.tables = [self._table_of(places) for _, places in stories]
        self.shared = [number for number in self.tables[0] if number in self.tables[1]]
        self.overwritten = {
            slot
            for tokens, places in stories
            for token, slot in zip(tokens, places, strict=True)
            if self.held[slot] != token
        }

    def _memory(self) -> dict[int, str]:
        """Return the token in each slot after both stories have written."""
        held = {}
        for position in range(self.length):
            for tokens, places in self.stories:
                held[places[position]] = tokens[position]
        return held

    def _table_of(self, places: Sequence[int]) -> list[int]:
        """Return the block table that these places come from."""
        return list(dict.fromkeys(slot // self.block_size for slot in places))

    def _look(self, number: int) -> Look:
        """Return the look of a block: a tint, without a hatch, so that no word looks struck out.

        It depends on the block's number alone, so a block keeps it with copy-on-write.
        """
        return Look(STORY_COLORS[number % len(STORY_COLORS)], is_pale=True)

    def draw(self) -> Drawing:
        headline = " ".join(self._headline())
        return Drawing(self._draw_wide(headline), self._draw_narrow(headline))

    def _draw_wide(self, name: str) -> str:
        """Draw the stories side by side, and what each writes with copy-on-write."""
        headline, more = self._headline()
        parts = [label(0, 18, headline, 15, look=BOLD), label(0, 40, more, 14)]
        y = 52.0
        if self.overwritten:
            parts += self._draw_legend(y)
            y += 26
        words = [self._draw_story(me, y + 26, STORY_COLUMNS[me]) for me in (0, 1)]
        y = max(story.bottom for story in words) + 42
        for story in words:
            parts += story.parts
        parts.append(label(0, y, "Blocks in both tables", 14, look=BOLD))
        first, second = STORY_COLUMNS
        grid = Grid(0, y + 10, 2, first.width, 30, second.left - first.width)
        parts += self._draw_blocks(self.shared, grid, "in both tables", first.block_font)
        y += 26 + 54 * -(-len(self.shared) // 2)
        below = [self._draw_own_and_right(me, y) for me in (0, 1)]
        for own in below:
            parts += own.parts
        bottom = max(own.bottom for own in below)
        # smaller than drawn, so that text, controls and picture fit on one screen
        return svg(STORIES_WIDTH, bottom, parts, name, shown_width=750)

    def _draw_narrow(self, name: str) -> str:
        """Draw one story below the other, then the blocks."""
        column = NARROW_COLUMN
        parts = []
        y = 0.0
        if self.overwritten:
            parts += self._draw_narrow_legend()
            y += 48
        for me in (0, 1):
            story = self._draw_story(me, y + 12, column)
            parts += story.parts
            y = story.bottom + 20
        parts.append(label(0, y + 12, "Blocks in both tables", 13, look=BOLD))
        grid = column.grid(y + 19)
        parts += self._draw_blocks(self.shared, grid, "in both tables", column.block_font)
        y = grid.bottom(len(self.shared)) + 8
        for me in (0, 1):
            own = self._draw_own(me, y + 12, column)
            parts += own.parts
            y = own.bottom + 8
        return narrow_svg(y, parts, name)

    def _headline(self) -> tuple[str, str]:
        """Return what the picture shows, in two sentences."""
        if self.overwritten:
            return (
                "Both stories wrote into one block.",
                "Story 1 wrote last, and story 0 reads those words as its past.",
            )
        copied, kept = (self._first_own_block(table) for table in self.tables)
        return (
            f"Story 0 wrote first: it found block {kept} in two tables, and took a copy.",
            f"The copy is block {copied}. Shared blocks are only read.",
        )

    def _first_own_block(self, table: Sequence[int]) -> int:
        """Return the first block that the other story's table does not list."""
        return next((number for number in table if number not in self.shared), 0)

    def _draw_legend(self, y: float) -> list[str]:
        second = STORY_COLUMNS[1].left
        return [
            label(0, y + 13, "word", 14, look=STRUCK),
            label(42, y + 13, "overwritten in memory", 13, SOFT),
            label(222, y + 13, "word", 14, look=UNDERLINED),
            label(264, y + 13, "what memory holds now", 13, SOFT),
            box(second, y, 42, 18, edge=WRONG, look=FRAMED),
            label(second + 3, y + 13, "word", 14, look=BOLD),
            label(second + 50, y + 13, "also in the other story", 13, SOFT),
        ]

    def _draw_narrow_legend(self) -> list[str]:
        """Draw the legend in two lines."""
        return [
            label(0, 13, "word", 12, look=STRUCK),
            label(33, 13, "overwritten", 12, SOFT),
            label(134, 13, "word", 12, look=UNDERLINED),
            label(167, 13, "in memory now", 12, SOFT),
            box(0, 22, 34, 18, edge=WRONG, look=FRAMED),
            label(3, 35, "word", 12, look=BOLD),
            label(41, 35, "also in the other story", 12, SOFT),
        ]

    def _draw_blocks(
        self, numbers: Sequence[int], grid: Grid, whose: str, font: float
    ) -> list[str]:
        """Draw blocks with the words in their slots; overwritten ones are marked."""
        blocks = []
        for number in numbers:
            places = range(number * self.block_size, (number + 1) * self.block_size)
            words = tuple(self._word(slot) for slot in places)
            say = f"block {number}, {whose}: {' '.join(word.text for word in words)}"
            owner = Owner("", self._look(number))
            dashed = _repeats_a_tint(number)
            blocks.append(Block(number, (owner,), words=words, has_dashed_edge=dashed, say=say))
        return slots(blocks, grid, font=font)

    def _word(self, slot: int) -> Word:
        """Return what a slot holds."""
        if slot not in self.held:
            return Word("·")
        return Word(plain(self.held[slot]), "marked" if slot in self.overwritten else "stored")

    def _draw_own_and_right(self, me: int, y: float) -> "_Drawn":
        """Draw the blocks that only one story has, and what it writes with copy-on-write."""
        column = STORY_COLUMNS[me]
        own = self._draw_own(me, y, column)
        if self.stories[me][0] == self.right[me][0]:
            return own
        lines = self._lines_of_the_right_story(me)
        parts = own.parts + _lines(column.left, own.bottom + 20, lines)
        return _Drawn(parts, own.bottom + 20 + 18 * len(lines))

    def _draw_own(self, me: int, y: float, column: _Column) -> "_Drawn":
        """Draw the blocks that only one story has."""
        own = [number for number in self.tables[me] if number not in self.shared]
        title = label(column.left, y, f"Story {me}'s own blocks", column.block_font, look=BOLD)
        grid = column.grid(y + 10)
        blocks = self._draw_blocks(own, grid, f"story {me}'s own", column.block_font)
        return _Drawn([title, *blocks], grid.bottom(len(own)))

    def _draw_story(self, me: int, y: float, column: _Column) -> "_Drawn":
        """Draw the words of a story, line by line."""
        left = column.left
        tokens, places = self.stories[me]
        table = f"its block table: {' '.join(map(str, self.tables[me]))}"
        parts = [
            label(left, y, f"Story {me}", column.font, look=BOLD),
            label(left + 5.6 * column.font, y, table, column.table_font, SOFT),
        ]
        taken = self._taken_tokens(me)
        x: float = left
        y += column.line
        for i, (token, slot) in enumerate(zip(tokens, places, strict=True)):
            width = wide(plain(token), column.font) + 3
            if token.startswith((" ", "\n")):
                x += 5
            if x + width > left + column.width:
                x = left
                y += column.line
            drawn = _Placed(token, slot, x, y, width, column.font)
            parts.append(self._draw_token(drawn, me, i in taken))
            x += width
        return _Drawn(parts, y)

    def _taken_tokens(self, me: int) -> set[int]:
        """Return the positions of tokens whose word comes from the other story."""
        own = {word.text for word in _words(self.right[me][0])}
        others = self._readable_words(1 - me)
        taken = set[int]()
        for word in _words(self.stories[me][0]):
            written_at = others.get(word.text, self.length)
            if word.text not in own and written_at <= word.tokens[0]:
                taken.update(word.tokens)
        return taken

    def _readable_words(self, me: int) -> dict[str, int]:
        """Return the words of a story that memory holds in shared blocks, and where each begins.

        Words of up to three letters are left out, unless they are names: any story has them.
        """
        tokens, _ = self.stories[me]
        found: dict[str, int] = {}
        for word in _words(tokens):
            telling = len(word.text) > 3 or word.text[:1].isupper()
            letters = [i for i in word.tokens if re.search(r"\w", tokens[i])]
            if telling and all(self._is_readable(me, i) for i in letters):
                found.setdefault(word.text, word.tokens[0])
        return found

    def _is_readable(self, me: int, at: int) -> bool:
        """Return whether memory holds this token of a story in a shared block."""
        tokens, places = self.stories[me]
        slot = places[at]
        return slot // self.block_size in self.shared and self.held[slot] == tokens[at]

    def _draw_token(self, placed: "_Placed", me: int, taken: bool) -> str:
        """Draw a token in the colour of its block.

        Tokens of one word touch, and do not overlap: their colours are translucent.
        """
        token, slot = placed.token, placed.slot
        x, y, width, font = placed.x, placed.y, placed.width, placed.font
        text = plain(token)
        number = slot // self.block_size
        drawn = [shape(x - 2, y - font - 1, width, font + 8, self._look(number))]
        if _repeats_a_tint(number):
            color = STORY_COLORS[number % len(STORY_COLORS)]
            drawn.append(box(x - 2, y + 7, width, 0.1, edge=color, look='stroke-dasharray="4 3"'))
        look = ""
        if self.held[slot] != token:
            look = STRUCK
            now = plain(self.held[slot])
            say = f"story {me} wrote {text!r}; memory holds {now!r}, of story {1 - me}"
        elif taken:
            look = BOLD
            drawn.append(box(x - 2, y - font - 1, width, font + 8, edge=WRONG, look=FRAMED))
            say = f"{text!r} is a word of story {1 - me}; with copy-on-write it is not here"
        else:
            say = f"{text!r} is in block {number}"
        drawn.append(label(x - 1, y, text, font, INK, width, look))
        return linked([f"b{number}"], say, *drawn)

    def _lines_of_the_right_story(self, me: int) -> list[str]:
        """Return what this story writes with copy-on-write, from where the two differ."""
        both = zip(self.right[0][0], self.right[1][0], strict=False)
        apart = next(at for at, (one, other) in enumerate(both) if one != other)
        text = "".join(self.right[me][0][apart:]).strip()
        return [f"With copy-on-write, story {me} writes:", *wrap(text, 48)]


def _repeats_a_tint(number: int) -> bool:
    """Return whether a block has the tint of one with a lower number: it gets a dashed line."""
    return number >= len(STORY_COLORS)


def _lines(x: float, y: float, lines: Iterable[str]) -> list[str]:
    """Draw lines of text; the first one is soft."""
    return [label(x, y + 18 * i, line, 14, INK if i else SOFT) for i, line in enumerate(lines)]


# 04: a tree of beams ------------------------------------------------------------------------------

# The beams of one step, best first: new token ids and block ids of each.
Beams = list[tuple[list[int], list[int]]]

TREE_TOP = 50  # of the first row of beams
TREE_ROW = 31
CHIP_HEIGHT = 24  # of a box with a token
TABLE_ROW = 44


def parents_of(run: Sequence[Beams]) -> list[list[int]]:
    """Return the parents of each step but the first.

    Args:
        run: the beams of each step.

    Returns:
        For each beam of a step, the beam of the step before that it continues.
    """
    parents = []
    for old, new in pairwise(run):
        before = [ids for ids, _ in old]
        parents.append([before.index(ids[:-1]) for ids, _ in new])
    return parents


def lines_of_descent(parents: Sequence[Sequence[int]], width: int) -> list[list[int]]:
    """Return the line of descent of each beam of each step: its number and colour in the picture.

    A beam's best child continues its line. Further children restart the lines that are dropped.

    Args:
        parents: for each step but the first, the beam of the step before that each beam continues.
        width: number of beams.
    """
    lines = [list(range(width))]
    for step_parents in parents:
        line_of_beam: dict[int, int] = {}
        for beam, parent in enumerate(step_parents):
            line = lines[-1][parent]
            if line not in line_of_beam.values():
                line_of_beam[beam] = line
        dropped = (line for line in range(width) if line not in line_of_beam.values())
        restarted = [beam for beam in range(width) if beam not in line_of_beam]
        line_of_beam |= dict(zip(restarted, list(dropped), strict=True))
        lines.append([line_of_beam[beam] for beam in range(width)])
    return lines


def beam_tree(
    run: Sequence[Beams],
    step: int,
    prompt: Sequence[int],
    block_size: int,
    decode: Callable[[list[int]], str],
) -> Drawing:
    """Draw the beams up to a step as a tree, and below it the blocks that its beams hold.

    A column of the tree is a step; the first one is step 1. A box is a beam and shows its newest
    token. A row below the tree is a beam, with its tokens in its blocks. A block that several beams
    share is drawn across their rows. A beam's number and colour are those of its line of descent.

    Args:
        run: the beams of each step.
        step: the index in `run` of the step to show.
        prompt: token ids.
        block_size: slots in a block.
        decode: from token ids to text.
    """
    tree = _BeamTree(run, step, prompt, block_size, decode, WIDE_TREE)
    headline = f"{tree.headline()} {tree.changes()}".strip()
    below = tree.tables_top + TABLE_ROW * tree.width
    explained = (
        "Bold: a block's id. No block holds a beam's newest token yet. A line is as thick as the "
        "number of beams that it leads to."
    )
    parts = [
        *tree.draw_lines(),
        *tree.draw_tokens(),
        *tree.draw_tables(),
        label(0, 14, tree.headline(), 12.5, INK, WIDTH, "font-weight:600"),
        label(0, 31, tree.changes(), 12, SOFT, WIDTH),
        label(0, below + 8, explained, 11.5, SOFT),
    ]
    wide = svg(WIDTH, below + 16, parts, headline)
    return Drawing(wide, _narrow_tree(replace(tree, page=NARROW_TREE), headline, explained))


def _narrow_tree(tree: "_BeamTree", headline: str, explained: str) -> str:
    """Draw the last steps of the tree, and the blocks without their words."""
    steps = f"steps {tree.first + 1} to {tree.first + tree.page.steps} of {len(tree.run)}"
    parts = [
        label(0, 12, f"Each token of {steps}:", 11, SOFT),
        *tree.draw_lines(),
        *tree.draw_tokens(),
        label(0, tree.tables_top - 8, "The blocks of each beam:", 11, SOFT),
        *tree.draw_tables(),
    ]
    y = tree.tables_top + tree.page.table_row * tree.width + 12
    for line in wrap(explained, 44):
        parts.append(label(0, y, line, 11, SOFT))
        y += 15
    return narrow_svg(y - 8, parts, headline)


@dataclass(frozen=True)
class _TreePage:
    """Where a tree and its tables are, in pixels.

    Args:
        width: of the drawing.
        steps: that the drawing shows; 0 for all.
        top: of the middle of the first row of tokens.
        tables: from the tokens down to the tables.
        table_row: from beam to beam in the tables.
        prompt: where the blocks of the prompt begin.
        blocks: where the other blocks begin.
        gap: between two blocks.
        has_words: whether blocks show their words.
    """

    width: int
    steps: int
    top: int
    tables: int
    table_row: int
    prompt: int
    blocks: int
    gap: int
    has_words: bool


WIDE_TREE = _TreePage(WIDTH, 0, TREE_TOP, 16, TABLE_ROW, 84, 164, 6, True)
NARROW_TREE = _TreePage(NARROW, 4, 36, 22, 30, 74, 124, 3, False)


@dataclass(frozen=True)
class _BeamTree:
    """The parts of the picture that `beam_tree` draws."""

    run: Sequence[Beams]
    step: int
    prompt: Sequence[int]
    block_size: int
    decode: Callable[[list[int]], str]
    page: _TreePage

    @property
    def width(self) -> int:
        return len(self.run[0])

    @property
    def tables_top(self) -> int:
        return self.page.top + self.page.tables + TREE_ROW * self.width

    @property
    def first(self) -> int:
        """The first step that is drawn."""
        return max(0, self.step + 1 - self.page.steps) if self.page.steps else 0

    @property
    def pitch(self) -> float:
        """Pixels from one step to the next."""
        return self.page.width / (self.page.steps or len(self.run))

    @property
    def chip(self) -> float:
        """Pixels of a box with a token."""
        return self.pitch - 14

    @cached_property
    def parents(self) -> list[list[int]]:
        return parents_of(self.run)[: self.step]

    @cached_property
    def lines(self) -> list[list[int]]:
        """The line of descent of each beam of each step."""
        return lines_of_descent(self.parents, self.width)

    def _line(self, beam: int) -> int:
        """Return the line of descent of a beam of the shown step."""
        return self.lines[self.step][beam]

    def _color(self, beam: int) -> str:
        """Return the colour of a beam of the shown step."""
        return sequence_color(self._line(beam))

    @cached_property
    def ranked(self) -> list[list[int]]:
        """The beams of each step from top to bottom.

        Children are in the order of their parents, so no line crosses another.
        """
        ranked = [list(range(self.width))]
        for parents in self.parents:
            row_of_parent = [ranked[-1].index(parent) for parent in parents]
            ranked.append(sorted(range(self.width), key=row_of_parent.__getitem__))
        return ranked

    @cached_property
    def heirs(self) -> list[dict[int, list[int]]]:
        """For each step and beam, the beams of the shown step that descend from it."""
        heirs = [{beam: [beam] for beam in range(self.width)}]
        for parents in reversed(self.parents):
            of_parents: dict[int, list[int]] = {}
            for beam, parent in enumerate(parents):
                of_parents.setdefault(parent, []).extend(heirs[0].get(beam, ()))
            heirs.insert(0, {parent: sorted(found) for parent, found in of_parents.items()})
        return heirs

    def _heirs(self, step: int, beam: int) -> list[int]:
        return self.heirs[step].get(beam, [])

    def _place(self, step: int, beam: int) -> tuple[float, int]:
        """Return where a token's box begins, and the middle of its height."""
        row = self.ranked[step].index(beam)
        return self.pitch * (step - self.first) + 7, self.page.top + TREE_ROW * row

    def draw_lines(self) -> list[str]:
        """Draw a line from each beam to its parent, as wide as many beams descend from it."""
        lines = []
        for step in range(self.first + 1, self.step + 1):
            for beam in range(self.width):
                x, y = self._place(step, beam)
                _, before = self._place(step - 1, self.parents[step - 1][beam])
                heirs = self._heirs(step, beam)
                color = self._color(heirs[0]) if heirs else LINE
                curve = f"M{x - 14:.1f} {before}C{x:.1f} {before} {x - 14:.1f} {y} {x:.1f} {y}"
                look = f'stroke="{color}" stroke-width="{1 + len(heirs)}"'
                lines.append(f'<path fill="none" d="{curve}" {look}/>')
        return lines

    def draw_tokens(self) -> list[str]:
        """Draw the newest token of each beam of each step."""
        return [
            self._draw_token(step, beam)
            for step in range(self.first, self.step + 1)
            for beam in range(self.width)
        ]

    def _draw_token(self, step: int, beam: int) -> str:
        x, y = self._place(step, beam)
        heirs = self._heirs(step, beam)
        text = plain(self.decode(self.run[step][beam][0][-1:]))
        blocks = self._blocks_of_token(step, heirs)
        say = f"{text!r}, chosen at step {step + 1}"
        if not heirs:
            say += ": this branch is dropped"
        if blocks:
            say += f", in block {_listed(blocks)}"
        top = y - CHIP_HEIGHT / 2
        drawn = [box(x, top, self.chip, CHIP_HEIGHT, CARD, 1, LINE)]
        drawn += self._bands(heirs, x, top, self.chip, CHIP_HEIGHT, 0.34)
        left = x + max(2, (self.chip - wide(text, 12)) / 2)
        ink = INK if heirs else SOFT
        look = "" if heirs else "text-decoration:line-through"
        drawn.append(label(left, y + 4, text, 12, ink, self.chip - 4, look))
        links = [f"b{block}" for block in blocks] or [f"t{step}-{beam}"]
        if step == self.step:
            line = self._line(beam)
            drawn.append(label(x + self.chip + 1, y + 4, f"{line}", 12, look=BOLD))
            say = f"beam {line}: {say}"
            links = [f"last{line}"]
        return linked(links, say, *drawn)

    def _blocks_of_token(self, step: int, heirs: Iterable[int]) -> list[int]:
        """Return the blocks that hold the token chosen at a step; the newest is not stored yet."""
        if step == self.step:
            return []
        at = (len(self.prompt) + step) // self.block_size
        return list(dict.fromkeys(self.run[self.step][heir][1][at] for heir in heirs))

    def _bands(
        self, beams: Sequence[int], x: float, y: float, width: float, height: float, share: float
    ) -> list[str]:
        """Draw a box in the colours of several beams, side by side."""
        band = width / max(1, len(beams))
        return [
            box(x + band * i, y, band, height, self._color(beam), share)
            for i, beam in enumerate(beams)
        ]

    def headline(self) -> str:
        """Return what the picture shows, in words."""
        copies = sum(len(blocks) for _, blocks in self.run[self.step])
        return (
            f"Step {self.step + 1} of {len(self.run)}: {len(self._used(self.step))} blocks in use; "
            f"a copy for each beam would take {copies}."
        )

    def _used(self, step: int) -> set[int]:
        return {block for _, blocks in self.run[step] for block in blocks}

    def changes(self) -> str:
        """Return what the shown step changed: beams that restarted, and blocks that are free."""
        if not self.step:
            return ""
        restarts = []
        for beam, parent in enumerate(self.parents[-1]):
            old = self.lines[self.step - 1][parent]
            new = self._line(beam)
            if old != new:
                restarts.append(f"beam {new} is dropped and restarts as a fork of beam {old}")
        text = "; ".join(restarts) if restarts else "each beam continues"
        text = f"{text[0].upper()}{text[1:]}."
        freed = sorted(self._used(self.step - 1) - self._used(self.step))
        if freed:
            text += f" Free again: block {_listed(freed)}."
        return text

    # The blocks of the beams of the shown step

    @property
    def full_prompt_blocks(self) -> int:
        return len(self.prompt) // self.block_size

    @cached_property
    def rows(self) -> list[int]:
        """The beams of the shown step, a row each: beams that share a block are neighbours.

        If two beams share a block they share all blocks before it.
        """
        beams = self.ranked[self.step]
        order: dict[tuple[int, int], int] = {}
        for i, beam in enumerate(beams):
            for place in enumerate(self._table(beam)):
                order.setdefault(place, i)
        return sorted(
            beams, key=lambda beam: [order[place] for place in enumerate(self._table(beam))]
        )

    def _table(self, beam: int) -> list[int]:
        return self.run[self.step][beam][1]

    def draw_tables(self) -> list[str]:
        """Draw the names of the beams, the prompt's full blocks as one, and every other block."""
        parts = [self._draw_name(row, beam) for row, beam in enumerate(self.rows)]
        parts.append(self._draw_prompt())
        for at in range(self.full_prompt_blocks, len(self._table(0))):
            first_row = 0
            # Beams that share a block are neighbours.
            for block, num_rows in Counter(self._table(beam)[at] for beam in self.rows).items():
                beams = self.rows[first_row : first_row + num_rows]
                parts.append(self._draw_block(at, block, beams, first_row))
                first_row += num_rows
        return parts

    def _draw_name(self, row: int, beam: int) -> str:
        y = self.tables_top + self.page.table_row * row
        middle = y + self.page.table_row / 2 - 3
        blocks = self._table(beam)
        line = self._line(beam)
        name = label(0, middle + 6, f"beam {line}", 12.5, look=BOLD)
        color = box(self.page.prompt - 26, middle - 7, 14, 18, self._color(beam), 0.6)
        say = f"beam {line}: blocks {', '.join(map(str, blocks))}"
        # All beams have the prompt's blocks: linked with them, all would light up.
        own = blocks[self.full_prompt_blocks :]
        return linked([f"last{line}", *(f"b{block}" for block in own)], say, name, color)

    def _draw_prompt(self) -> str:
        """Draw the prompt's full blocks, which all beams share."""
        blocks = self._table(0)[: self.full_prompt_blocks]
        top = self.tables_top
        tokens = self.full_prompt_blocks * self.block_size
        numbers = ", ".join(map(str, blocks))
        say = f"blocks {numbers}: the first {tokens} tokens of the prompt, for all beams"
        page = self.page
        width = page.blocks - page.prompt - 8 if page.has_words else page.blocks - page.prompt - 3
        height = page.table_row * self.width - page.gap
        left = page.prompt + (6 if page.has_words else 2)
        drawn = [
            box(page.prompt, top, width, height, NEUTRAL, 0.16, LINE),
            label(left, top + 20, "prompt", within=width - 4),
            label(left, top + 38, f"{len(blocks)} blocks", 11.5, within=width - 4),
        ]
        if page.has_words:
            drawn.append(label(left, top + 56, f"{self.width} beams", 11.5, look=BOLD))
        return linked([f"b{block}" for block in blocks], say, *drawn)

    def _draw_block(self, at: int, block: int, beams: list[int], row: int) -> str:
        """Draw a block across the rows of the beams that share it."""
        page = self.page
        longest = len(self.prompt) + len(self.run)
        columns = blocks_for(longest, self.block_size) - self.full_prompt_blocks
        column = (page.width - page.blocks) / columns
        x = page.blocks + column * (at - self.full_prompt_blocks)
        y = self.tables_top + page.table_row * row
        height = page.table_row * len(beams) - page.gap
        words = self._stored(beams[0])[at * self.block_size : (at + 1) * self.block_size]
        lines = sorted(self._line(beam) for beam in beams)
        drawn = Block(
            block,
            tuple(Owner(f"beam {self._line(beam)}", Look(self._color(beam))) for beam in beams),
            words=tuple(map(Word, words)) if page.has_words else (),
            note=f"{len(beams)} beams" if len(beams) > 1 and page.has_words else "",
            say=f"block {block}, held by beam {_listed(lines)}: {' '.join(words)}",
        )
        return "".join(slots([drawn], Grid(x, y, 1, column - page.gap, height)))

    def _stored(self, beam: int) -> list[str]:
        """Return the tokens in a beam's blocks, as text."""
        token_ids = [*self.prompt, *self.run[self.step][beam][0][:-1]]
        return [plain(self.decode([token])) for token in token_ids]


def _listed(numbers: Iterable[int]) -> str:
    """Return "1 and 2" for [1, 2]."""
    return " and ".join(map(str, numbers))


# 05: two prompts ----------------------------------------------------------------------------------

Prompt = tuple[list[str], list[int], list[str]]  # its tokens, its blocks, the hashes of full blocks

PROMPT_ROW = 128  # pixels of two rows of blocks, one for each prompt
MOST_BLOCKS = 24  # that are drawn of a prompt


def two_prompts(
    prompts: Sequence[Prompt],
    block_size: int,
    second: str = "The second prompt",
    other_past: str = "another past",
) -> Drawing:
    """Draw two prompts block by block; a block that both hold is drawn once, across both.

    Args:
        prompts: the two; the second one was matched with the prefix cache.
        block_size: slots in a block.
        second: what the headline calls the second prompt.
        other_past: what the headline calls the past of a block that is found after another past.
    """
    shared = _shared_blocks(prompts)
    stale = _stale_blocks(prompts, shared, block_size)
    if stale:
        found = prompts[1][1][stale[0]]
        headline = (
            f"{second} finds block {found}, which was computed after {other_past}. "
            "Its keys and values are wrong here."
        )
    else:
        headline = _headline_of_prompts(prompts, len(shared) * block_size, second)

    def draw_in(grid: Grid) -> list[str]:
        parts = []
        for me in (0, 1):
            for at in range(min(len(prompts[me][1]), MOST_BLOCKS)):
                if me and at in shared:
                    continue  # shared blocks are drawn once
                block = _block_of_prompt(prompts, me, at, block_size, shared, stale)
                x, y = grid.corner(at)
                height = 108 if at in shared else 50
                parts += slots([block], Grid(x, y + 58 * me, 1, grid.width, height))
        if most > MOST_BLOCKS:
            more = f"and {most - MOST_BLOCKS} more blocks"
            parts.append(label(0, grid.bottom(MOST_BLOCKS) + 4, more, 12, SOFT))
        return parts

    most = max(len(prompt[1]) for prompt in prompts)
    drawn = max(1, min(MOST_BLOCKS, most))
    grid = Grid(0, 54, 6, 172, PROMPT_ROW - 8, 8)
    parts = [
        label(0, 16, headline, 14, INK, WIDTH, "font-weight:600"),
        *_legend_of_prompts(bool(stale)),
        *draw_in(grid),
    ]
    wide = svg(WIDTH, grid.bottom(drawn) + 10, parts, headline)
    narrow = Grid(0, 84, 2, 146, PROMPT_ROW - 8, 8)
    parts = [*_narrow_legend_of_prompts(bool(stale)), *draw_in(narrow)]
    return Drawing(wide, narrow_svg(narrow.bottom(drawn) + 10, parts, headline))


def _shared_blocks(prompts: Sequence[Prompt]) -> list[int]:
    """Return the entries of the tables at which both prompts have the same block."""
    (_, first, _), (_, second, _) = prompts
    pairs = enumerate(zip(first, second, strict=False))
    return [at for at, (one, other) in pairs if one == other]


def _stale_blocks(prompts: Sequence[Prompt], shared: Iterable[int], block_size: int) -> list[int]:
    """Return the shared blocks before which the prompts differ."""
    stale = []
    for at in shared:
        past, other = (tokens[: at * block_size] for tokens, _, _ in prompts)
        if past != other:
            stale.append(at)
    return stale


def _headline_of_prompts(prompts: Sequence[Prompt], hits: int, second: str) -> str:
    """Return what the picture shows if every block that was found has the right past.

    Args:
        prompts: the two.
        hits: tokens of the second one that were found.
        second: what the headline calls the second one.
    """
    tokens, _, _ = prompts[1]
    return (
        f"{second} has {len(tokens)} tokens. {hits} of them are found in the first "
        f"one's blocks; {len(tokens) - hits} must be computed."
    )


def _legend_of_prompts(is_wrong: bool) -> list[str]:
    return [
        *legend(0, 27, _looks_of_prompts()),
        label(600, 39, "≠", 13, WRONG, look=BOLD),
        label(616, 39, _different_past(is_wrong), 12, SOFT),
    ]


def _narrow_legend_of_prompts(is_wrong: bool) -> list[str]:
    """Draw the same in lines that a narrow page has room for."""
    return [
        *legend(0, 0, _looks_of_prompts(), within=170),
        label(5, 72, "≠", 13, WRONG, look=BOLD),
        label(26, 72, _different_past(is_wrong), 11, SOFT, NARROW - 26),
    ]


def _looks_of_prompts() -> dict[str, Look]:
    owners = ("in both, stored once", "only the first prompt", "only the second prompt")
    return {text: Look(sequence_color(row), is_pale=True) for row, text in enumerate(owners)}


def _different_past(is_wrong: bool) -> str:
    if is_wrong:
        return "same words, different past, and yet found"
    return "same words, different past: different hash"


def _block_of_prompt(
    prompts: Sequence[Prompt],
    me: int,
    at: int,
    block_size: int,
    shared: Collection[int],
    stale: Collection[int],
) -> Block:
    """Return block number `at` of a prompt; tokens that differ from the other's are marked."""
    _, blocks, hashes = prompts[me]
    mine, other = (
        tokens[at * block_size : (at + 1) * block_size] for tokens, _, _ in _pair(prompts, me)
    )
    full = at < len(hashes)
    differ = {i for i, token in enumerate(mine) if other[i : i + 1] != [token]}
    note = hashes[at] if full else "not full: no hash"
    say = f"block {blocks[at]}, {note}"
    mark = ""
    if at in stale:
        mark = "≠"
        say += ", in both tables, though the words before it differ"
    elif at in shared:
        say += ", in both tables"
    elif full and not differ and hashes[at] == prompts[1 - me][2][at]:
        say += "; the hash is known, but the prompt's last token must be computed"
    elif full and not differ:
        mark = "≠"
        say += (
            "; the other prompt has the same words after a different past, so they have a "
            "different hash"
        )
    words = [Word(plain(t), "marked" if i in differ else "stored") for i, t in enumerate(mine)]
    return Block(
        blocks[at],
        (Owner("", Look(sequence_color(0 if at in shared else 1 + me))),),
        words=tuple(words),
        note=note,
        mark=mark,
        has_dashed_edge=not full,
        links=(f"w{at}",),
        say=say,
    )


def _pair(prompts: Sequence[Prompt], me: int) -> tuple[Prompt, Prompt]:
    """Return this prompt and the other one."""
    return prompts[me], prompts[1 - me]


# 01: which user holds which slots -----------------------------------------------------------------

MEMORY_LEFT = 76
MEMORY_WIDTH = WIDTH - MEMORY_LEFT
MEMORY_TOP = 62
MEMORY_ROW = 29
PHONE_LEFT = 54  # the same on a narrow page
PHONE_ROW = 25


@dataclass(frozen=True)
class _Refused:
    """The request that does not fit.

    Args:
        key: its number.
        start: the first slot that is not reserved.
        needed: the slots that it needs.
        free: the slots that are free.
    """

    key: int
    start: int
    needed: int
    free: int

    @property
    def reason(self) -> str:
        """Why it does not fit."""
        return f"{self.needed:,} needed, {self.free:,} free"


def taken_places(
    requests: Sequence[tuple[int, int]], allocator: Contiguous | Paged, row: int
) -> str:
    """Draw which requests an allocator admits to an empty memory, and the slots that each holds.

    A solid slot holds a token, a striped one is reserved and empty, a plain one is free.

    Args:
        requests: prompt and output tokens of each request.
        allocator: of an empty memory.
        row: slots in a row of the picture.
    """
    admitted = _admit(requests, allocator)
    num_slots = allocator.num_slots
    taken = sum(allocator.held(key)[1] for key in range(admitted))
    headline = (
        f"{admitted} of {len(requests)} users fit; {taken:,} of {num_slots:,} slots are reserved."
    )
    color = INK
    refused = None
    if admitted < len(requests):
        headline = f"No memory for user {admitted + 1}. {headline}"
        color = BAD
        needed = allocator.needs(Request(*requests[admitted]))
        refused = _Refused(admitted, taken, needed, num_slots - taken)

    def draw_in(strip: Strip) -> list[str]:
        parts = rows([Run(0, num_slots, FREE, LINE)], strip)
        for key, (prompt, _) in enumerate(requests[:admitted]):
            parts.append(_draw_request(key, _joined(allocator.regions(key)), prompt, strip))
        return [*parts, _draw_refused_slots(refused, strip)] if refused else parts

    stored = Look(sequence_color(0))
    looks = {"holds a token": stored, "reserved, empty": _reserved(stored), "free": FREE}
    head = label(MEMORY_LEFT, 18, headline, 15, color, MEMORY_WIDTH, BOLD)
    strip = Strip(MEMORY_LEFT, MEMORY_TOP, MEMORY_WIDTH / row, 23, row, MEMORY_ROW)
    parts = [head, *draw_in(strip)]
    if refused:
        parts += _draw_reason(refused, strip)
    parts += legend(MEMORY_LEFT, 30, looks)
    num_rows = -(-num_slots // row)
    picture = svg(WIDTH, 66 + MEMORY_ROW * num_rows, parts, headline)
    strip = Strip(PHONE_LEFT, 46, (NARROW - PHONE_LEFT) / row, 20, row, PHONE_ROW)
    parts = [*draw_in(strip), *legend(0, 0, looks, NARROW)]
    bottom = 46 + PHONE_ROW * num_rows
    if refused:
        parts += _draw_reason_below(refused, strip, bottom + 10)
    return Drawing(picture, narrow_svg(bottom + 16, parts, headline, color))


def _admit(requests: Sequence[tuple[int, int]], allocator: Contiguous | Paged) -> int:
    """Admit requests until one is refused; return how many were admitted."""
    for key, request in enumerate(requests):
        try:
            allocator.admit(key, Request(*request))
        except (OutOfMemory, OutOfBlocks):
            return key
    return len(requests)


def _reserved(look: Look) -> Look:
    """Return the look of slots that are reserved, and hold no token."""
    return Look(look.color, "//", is_pale=True)


def _joined(regions: Sequence[Region]) -> list[Region]:
    """Return the same slots; regions that follow one another are one."""
    joined: list[Region] = []
    for start, size in regions:
        if joined and joined[-1].start + joined[-1].size == start:
            joined[-1] = Region(joined[-1].start, joined[-1].size + size)
        else:
            joined.append(Region(start, size))
    return joined


def _draw_request(key: int, regions: Sequence[Region], prompt: int, strip: Strip) -> str:
    """Draw the slots of an admitted request."""
    look = Look(sequence_color(key))
    drawn = []
    left = prompt  # tokens that the regions so far do not hold
    for start, size in regions:
        used = start + min(left, size)
        drawn += rows([Run(start, used, look), Run(used, start + size, _reserved(look))], strip)
        left = max(0, left - size)
    length = sum(region.size for region in regions)
    if length == strip.row:
        _, y = strip.corner(regions[0].start)
        drawn.append(label(0, y + strip.height / 2 + 4.5, f"user {key + 1}", 11, SOFT))
    say = (
        f"User {key + 1}: a prompt of {prompt:,} tokens, {length:,} slots reserved, "
        f"{length - prompt:,} of them empty"
    )
    if len(regions) > 1:
        say += f", in {len(regions)} pieces"
    return linked([f"u{key}"], say, *drawn)


def _draw_refused_slots(refused: _Refused, strip: Strip) -> str:
    """Draw the slots that the refused request needs, after the last reserved slot."""
    x, y = strip.corner(refused.start)
    dashed = 'stroke-width="2" stroke-dasharray="6 4"'
    return box(x, y, refused.needed * strip.unit, strip.height, "none", 1, WRONG, dashed)


def _draw_reason(refused: _Refused, strip: Strip) -> list[str]:
    """Draw in the refused request's slots, or after them, why it does not fit."""
    x, y = strip.corner(refused.start)
    width = refused.needed * strip.unit
    room = wide(refused.reason, 12) + 8
    text_x = x + width - room if width > room else x + width + 8
    base = y + strip.height / 2 + 4.5
    reason = label(text_x, base, refused.reason, 12, INK, look=BOLD)
    return [reason, *_draw_name_of_refused(refused, strip)]


def _draw_reason_below(refused: _Refused, strip: Strip, base: float) -> list[str]:
    """Draw why the request does not fit below memory: a narrow row has no room for it.

    Args:
        refused: the request.
        strip: where memory is.
        base: of the text, in pixels.
    """
    x, _ = strip.corner(refused.start)
    rightmost = NARROW - wide(refused.reason, 12)
    reason = label(min(x, rightmost), base, refused.reason, 12, INK, look=BOLD)
    return [reason, *_draw_name_of_refused(refused, strip)]


def _draw_name_of_refused(refused: _Refused, strip: Strip) -> list[str]:
    """Draw whose row it would be, if the request needs a whole one."""
    if refused.needed != strip.row:
        return []
    _, y = strip.corner(refused.start)
    return [label(0, y + strip.height / 2 + 4.5, f"user {refused.key + 1}", 11, SOFT)]


# 02: position, table, slot ------------------------------------------------------------------------

CELLS = 16  # slots in a row
CELL_HEIGHT = 44
HEAD = 15  # pixels of a block's id above it
NARROW_CELLS = 8  # the same on a narrow page
NARROW_CELL_HEIGHT = 36
NARROW_FONTS = (11, 11)  # of words and numbers, in pixels


def position_to_slot(texts: Sequence[str], table: BlockTable, left_out: int = 0) -> Drawing:
    """Draw a text, its block table and the memory; each part is linked with its counterparts.

    Args:
        texts: a word for each token.
        table: of the text.
        left_out: number of further words, which found no free block.
    """
    return _PositionToSlot(texts, table, left_out).draw()


# The colours of the entries of a block table. The tints of blue and sky are alike, as are those of
# orange and vermilion: they are far apart.
ENTRY_COLORS = (BLUE, ORANGE, GREEN, PINK, YELLOW, VERMILION, SKY)


class _PositionToSlot:
    """The parts of the picture that `position_to_slot` draws."""

    def __init__(self, texts: Sequence[str], table: BlockTable, left_out: int) -> None:
        self.texts = texts
        self.left_out = left_out
        self.blocks = table.block_ids
        self.pool = table.pool
        self.block_size = table.pool.block_size

    def draw(self) -> Drawing:
        return Drawing(self._draw_wide(), self._draw_narrow())

    def _draw_narrow(self) -> str:
        """Draw half as many slots in a row, and four entries of the table."""
        size, height = self.block_size, NARROW_CELL_HEIGHT
        columns = max(1, NARROW_CELLS // size)
        text_grid = Grid.within(0, 0, NARROW, columns, height, 4)
        table_top = text_grid.bottom(max(1, len(self.blocks))) + 8
        table_grid = Grid.within(0, table_top + 19, NARROW, 4, height, 4)
        memory_top = table_grid.bottom(max(1, len(self.blocks))) + 8
        memory = Grid.within(0, memory_top + 41, NARROW, columns, height, 4).with_head(HEAD)
        blocks = [self._block(number) for number in range(self.pool.num_blocks)]
        parts = [
            *slots(self._logical_blocks(), text_grid, size, *NARROW_FONTS),
            label(0, table_top + 12, "Its block table: entry, block", 13, look=BOLD),
            *slots(self._entries(), table_grid, 1, *NARROW_FONTS),
            label(0, memory_top + 12, self._title_of_memory(), 13, look=BOLD),
            *self._legend(0, 180, memory_top + 21),
            *slots(blocks, memory, size, *NARROW_FONTS),
        ]
        return narrow_svg(memory.bottom(len(blocks)), parts, self._title())

    def _draw_wide(self) -> str:
        columns = max(1, CELLS // self.block_size)
        text_grid = Grid.within(0, 22, WIDTH, columns, CELL_HEIGHT, 6)
        table_top = text_grid.bottom(max(1, len(self.blocks))) + 12
        table_grid = Grid.within(0, table_top + 20, WIDTH, 12, CELL_HEIGHT, 6)
        memory_top = table_grid.bottom(max(1, len(self.blocks))) + 12
        memory = Grid.within(0, memory_top + 20, WIDTH, columns, CELL_HEIGHT, 6).with_head(HEAD)
        title = self._title()
        parts = [
            label(0, 14, title, 13, INK, look=BOLD),
            *slots(self._logical_blocks(), text_grid, self.block_size),
            *self._draw_table(table_top, table_grid),
            *self._draw_memory(memory_top, memory),
        ]
        return svg(WIDTH, memory.bottom(self.pool.num_blocks) + 4, parts, title)

    def _title(self) -> str:
        title = f"The text, {len(self.texts)} words by position"
        if self.left_out:
            title += f"; {self.left_out} more find no free block"
        return title

    def _owner(self, entry: int) -> tuple[Owner]:
        """Return the owner of the block of this entry, in the entry's colour."""
        return (Owner("", Look(ENTRY_COLORS[entry % len(ENTRY_COLORS)])),)

    def _words(self, entry: int, numbers: Iterable[int]) -> tuple[Word, ...]:
        """Return what the slots of an entry's block hold.

        Args:
            entry: of the block table.
            numbers: shown in the slots.
        """
        words = []
        for position, number in enumerate(numbers, entry * self.block_size):
            if position < len(self.texts):
                links = (f"t{position}",)
                say = self._say(position)
                words.append(Word(self.texts[position], number=number, links=links, say=say))
            else:
                words.append(Word("", "empty", number=number))
        return tuple(words)

    def _logical_blocks(self) -> list[Block]:
        """Return the text, cut into blocks."""
        blocks = []
        for entry in range(len(self.blocks)):
            first = entry * self.block_size
            words = self._words(entry, range(first, first + self.block_size))
            blocks.append(Block(None, self._owner(entry), words=words))
        return blocks

    def _draw_table(self, top: float, grid: Grid) -> list[str]:
        title = "Its block table: the number of each entry, and the block that it names"
        entries = self._entries()
        return [label(0, top + 12, title, 13, INK, look=BOLD), *slots(entries, grid, 1)]

    def _entries(self) -> list[Block]:
        """Return the entries of the block table."""
        entries = []
        for entry, block in enumerate(self.blocks):
            first = entry * self.block_size
            positions = range(first, min(len(self.texts), first + self.block_size))
            say = (
                f"entry {entry}: words {positions[0]} to {positions[-1]} are in block {block}, "
                f"from slot {block * self.block_size} on"
            )
            links = (f"e{entry}", *(f"t{position}" for position in positions))
            word = Word(f"block {block}", number=entry, links=links, say=say)
            entries.append(Block(None, self._owner(entry), words=(word,)))
        return entries

    def _draw_memory(self, top: float, grid: Grid) -> list[str]:
        blocks = [self._block(number) for number in range(self.pool.num_blocks)]
        return [
            label(0, top + 12, self._title_of_memory(), 13, INK, look=BOLD),
            *self._legend(420, 620, top + 1),
            *slots(blocks, grid, self.block_size),
        ]

    def _title_of_memory(self) -> str:
        size = self.block_size
        return f"Memory, {self.pool.num_blocks * size} slots in blocks of {size}"

    def _legend(self, left: float, left_of_free: float, y: float) -> list[str]:
        """Draw the looks of slots that are not this text's."""
        return [
            *legend(left, y, {"another sequence's": Look(NEUTRAL, is_pale=True)}),
            box(left_of_free, y, 20, 14, edge=SOFT, look='stroke-dasharray="4 3"'),
            label(left_of_free + 26, y + 11.5, "free", 12, SOFT),
        ]

    def _block(self, number: int) -> Block:
        """Return a block of the pool: this text's, another sequence's, or a free one."""
        places = range(number * self.block_size, (number + 1) * self.block_size)
        if number in self.blocks:
            entry = self.blocks.index(number)
            return Block(number, self._owner(entry), words=self._words(entry, places))
        empty = tuple(Word("", "empty", number=slot) for slot in places)
        if self.pool.refcount(number):
            return Block(number, (Owner("another sequence", Look(NEUTRAL)),), words=empty)
        return Block(number, words=empty)

    def _say(self, position: int) -> str:
        """Return how a position becomes a slot."""
        size = self.block_size
        entry, offset = divmod(position, size)
        block = self.blocks[entry]
        slot = f"slot {block} × {size} + {offset} = {block * size + offset}"
        return (
            f"position {position} = {entry} × {size} + {offset}: entry {entry} says block {block}; "
            f"so {slot}"
        )
