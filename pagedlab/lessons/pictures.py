"""The pictures that open notebooks 01 to 05. Those of 08 and 09 are in races.py.

Each function returns an SVG, drawn with drawing.py.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from textwrap import wrap

from pagedlab.blocks import BlockTable, OutOfBlocks, blocks_for
from pagedlab.lessons.colors import NEUTRAL, sequence_color
from pagedlab.lessons.drawing import (
    BAD,
    BOLD,
    CARD,
    INK,
    LINE,
    SOFT,
    WRONG,
    block_of_words,
    box,
    label,
    legend,
    linked,
    plain,
    stripes,
    svg,
    wide,
    words,
)
from pagedlab.lessons.memory import Contiguous, OutOfMemory, Paged, Region, Request

# The notebooks import these from here.
from pagedlab.lessons.races import race, rectangle, steps_of  # noqa: F401

WIDTH = 1080  # of a picture, in pixels
WELL = "var(--well)"  # the colour of empty memory

# 03: two stories ----------------------------------------------------------------------------------

Story = tuple[list[str], list[int]]  # its tokens, and the slot of each

STORY_WIDTH = 344  # of each of the three columns
STORY_LEFT = (0, 736)  # of the column of each story
SHARED_LEFT = 368  # of the column in the middle
BLOCKS_TOP = 182
BLOCK_PITCH = 48
STRUCK = f"text-decoration:line-through 2px {WRONG}"
FRAMED = 'stroke-width="2"'


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


class _TwoStories:
    """The parts of the picture that `two_stories` draws."""

    def __init__(self, stories: Sequence[Story], right: Sequence[Story], block_size: int) -> None:
        self.stories = stories
        self.right = right
        self.block_size = block_size
        self.length = min(len(slots) for _, slots in stories)
        self.held = self._memory()
        self.tables = [self._table_of(slots) for _, slots in stories]
        self.shared = [number for number in self.tables[0] if number in self.tables[1]]
        self.numbers = sorted(set(self.tables[0] + self.tables[1]))
        self.overwritten = {
            slot
            for tokens, slots in stories
            for token, slot in zip(tokens, slots, strict=True)
            if self.held[slot] != token
        }

    def _memory(self) -> dict[int, str]:
        """Return the token in each slot after both stories have written."""
        held = {}
        for position in range(self.length):
            for tokens, slots in self.stories:
                held[slots[position]] = tokens[position]
        return held

    def _table_of(self, slots: Sequence[int]) -> list[int]:
        """Return the block table that these slots come from."""
        return list(dict.fromkeys(slot // self.block_size for slot in slots))

    def _color(self, number: int) -> str:
        """Return the fill of a block: a colour, or stripes from block 7 on.

        It depends on the block's number alone, so a block keeps it with copy-on-write.
        """
        return sequence_color(number) if number < 7 else f"url(#ps-{number})"

    def draw(self) -> str:
        parts = self._draw_middle()
        most = len(self.shared)
        below = BLOCKS_TOP + BLOCK_PITCH * 5
        for me in (0, 1):
            parts += self._draw_story(me)
            own = [number for number in self.tables[me] if number not in self.shared]
            bottom = BLOCKS_TOP + BLOCK_PITCH * len(own)
            for i, number in enumerate(own):
                top = BLOCKS_TOP + BLOCK_PITCH * i
                parts.append(self._draw_block(STORY_LEFT[me], top, number, f"story {me}'s own"))
            if self.stories[me][0] != self.right[me][0]:
                lines = self._lines_of_the_right_story(me)
                parts += _lines(STORY_LEFT[me], bottom + 16, lines)
                bottom += 16 + 17 * len(lines)
            most = max(most, len(own))
            below = max(below, bottom)
        below = max(below, BLOCKS_TOP + BLOCK_PITCH * most)
        for number in self.numbers:
            if number >= 7:
                parts.append(stripes(f"ps-{number}", sequence_color(number), share=0.3))
        return svg(WIDTH, below, parts)

    def _draw_middle(self) -> list[str]:
        """Draw the blocks in both tables, and what the picture shows."""
        parts = [label(SHARED_LEFT, 16, "In both tables", 15, look=BOLD)]
        if self.overwritten:
            explained = (
                "Both wrote into one block. Story 1 wrote last, and story 0 reads those words as "
                "its past."
            )
            parts += self._draw_legend()
        else:
            copied, kept = (self._first_own_block(table) for table in self.tables)
            explained = (
                f"Story 0 wrote first: it found block {kept} in two tables, and took a copy, block "
                f"{copied}. Shared blocks are only read."
            )
        for i, line in enumerate(wrap(explained, 44)):
            parts.append(label(SHARED_LEFT, 52 + 20 * i, line, 12.5))
        for i, number in enumerate(self.shared):
            top = BLOCKS_TOP + BLOCK_PITCH * i
            parts.append(self._draw_block(SHARED_LEFT, top, number, "in both tables"))
        return parts

    def _first_own_block(self, table: Sequence[int]) -> int:
        """Return the first block that the other story's table does not list."""
        return next((number for number in table if number not in self.shared), 0)

    def _draw_legend(self) -> list[str]:
        return [
            label(SHARED_LEFT, 142, "word", 12, look=STRUCK),
            label(SHARED_LEFT + 50, 142, "written, then overwritten in memory", 12, SOFT),
            box(SHARED_LEFT, 150, 42, 17, edge=WRONG, look=FRAMED),
            label(SHARED_LEFT + 50, 163, "taken from the other story", 12, SOFT),
        ]

    def _draw_block(self, x: float, y: float, number: int, whose: str) -> str:
        """Draw a block with the words in its slots; overwritten ones are marked."""
        slots = range(number * self.block_size, (number + 1) * self.block_size)
        texts = [plain(self.held[slot]) if slot in self.held else "·" for slot in slots]
        marked = [i for i, slot in enumerate(slots) if slot in self.overwritten]
        say = f"block {number}, {whose}: {' '.join(texts)}"
        color = self._color(number)
        return block_of_words(x, y, STORY_WIDTH, 40, number, texts, color, say, *marked)

    def _draw_story(self, me: int) -> list[str]:
        """Draw the words of a story, line by line."""
        left = STORY_LEFT[me]
        tokens, slots = self.stories[me]
        table = f"table: {' '.join(map(str, self.tables[me]))}"
        parts = [
            label(left, 16, f"Story {me}", 15, look=BOLD),
            label(left + 84, 16, table, 12, SOFT),
        ]
        taken = self._taken_tokens(me)
        x: float = left
        y = 52.0
        for i, (token, slot) in enumerate(zip(tokens, slots, strict=True)):
            width = wide(plain(token), 12.5) + 2
            if token.startswith((" ", "\n")):
                x += 5
            if x + width > left + STORY_WIDTH:
                x = left
                y += 25
            parts.append(self._draw_token(x, y, width, token, slot, me, i in taken))
            x += width
        return parts

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
        tokens, slots = self.stories[me]
        slot = slots[at]
        return slot // self.block_size in self.shared and self.held[slot] == tokens[at]

    def _draw_token(
        self, x: float, y: float, width: float, token: str, slot: int, me: int, taken: bool
    ) -> str:
        """Draw a token in the colour of its block.

        Tokens of one word touch, and do not overlap: their colours are translucent.
        """
        text = plain(token)
        number = slot // self.block_size
        drawn = [box(x - 2, y - 14, width, 20, self._color(number), 0.28)]
        look = ""
        if self.held[slot] != token:
            look = STRUCK
            now = plain(self.held[slot])
            say = f"story {me} wrote {text!r}; memory holds {now!r}, of story {1 - me}"
        elif taken:
            look = BOLD
            drawn.append(box(x - 2, y - 14, width, 20, edge=WRONG, look=FRAMED))
            say = f"{text!r} is a word of story {1 - me}; with copy-on-write it is not here"
        else:
            say = f"{text!r} is in block {number}"
        drawn.append(label(x, y, text, 12.5, INK, width, look))
        return linked([f"b{number}"], say, *drawn)

    def _lines_of_the_right_story(self, me: int) -> list[str]:
        """Return what this story writes with copy-on-write, from where the two differ."""
        both = zip(self.right[0][0], self.right[1][0], strict=False)
        apart = next(at for at, (one, other) in enumerate(both) if one != other)
        text = "".join(self.right[me][0][apart:]).strip()
        return ["With a copy it writes:", *wrap(text, 46)]


def _lines(x: float, y: float, lines: Iterable[str]) -> list[str]:
    """Draw lines of text; the first one is soft."""
    return [label(x, y + 17 * i, line, 12, INK if i else SOFT) for i, line in enumerate(lines)]


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
) -> str:
    """Draw the beams up to a step as a tree, and below it the blocks that its beams hold.

    A column of the tree is a step, a box is a beam and shows its newest token. A row below the tree
    is a beam, with its tokens in its blocks. A block that several beams share is drawn across their
    rows. A beam's number and colour are those of its line of descent.

    Args:
        run: the beams of each step.
        step: the step to show.
        prompt: token ids.
        block_size: slots in a block.
        decode: from token ids to text.
    """
    tree = _BeamTree(run, step, prompt, block_size, decode)
    below = tree.tables_top + TABLE_ROW * tree.width
    explained = (
        "The word chosen last is not stored yet: no block holds it. A line is as thick as the "
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
    return svg(WIDTH, below + 16, parts, f"{tree.headline()} {tree.changes()}".strip())


@dataclass(frozen=True)
class _BeamTree:
    """The parts of the picture that `beam_tree` draws."""

    run: Sequence[Beams]
    step: int
    prompt: Sequence[int]
    block_size: int
    decode: Callable[[list[int]], str]

    @property
    def width(self) -> int:
        return len(self.run[0])

    @property
    def tables_top(self) -> int:
        return TREE_TOP + 16 + TREE_ROW * self.width

    @property
    def pitch(self) -> float:
        """Pixels from one step to the next."""
        return WIDTH / len(self.run)

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
        return self.pitch * step + 7, TREE_TOP + TREE_ROW * self.ranked[step].index(beam)

    def draw_lines(self) -> list[str]:
        """Draw a line from each beam to its parent, as wide as many beams descend from it."""
        lines = []
        for step in range(1, self.step + 1):
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
            for step in range(self.step + 1)
            for beam in range(self.width)
        ]

    def _draw_token(self, step: int, beam: int) -> str:
        x, y = self._place(step, beam)
        heirs = self._heirs(step, beam)
        text = plain(self.decode(self.run[step][beam][0][-1:]))
        blocks = self._blocks_of_token(step, heirs)
        say = f"{text!r}, chosen at step {step}"
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
            drawn.append(label(x + 1, y - 13, f"{line}", 9, look=BOLD))
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
            f"Step {self.step}: {len(self._used(self.step))} blocks in use; a copy for each beam "
            f"would take {copies}."
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
        y = self.tables_top + TABLE_ROW * row
        blocks = self._table(beam)
        line = self._line(beam)
        name = label(0, y + 25, f"beam {line}", 12.5, look=BOLD)
        color = box(58, y + 12, 14, 18, self._color(beam), 0.6)
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
        return linked(
            [f"b{block}" for block in blocks],
            say,
            box(84, top, 72, TABLE_ROW * self.width - 6, sequence_color(0), 0.16, LINE),
            label(90, top + 20, "prompt"),
            label(90, top + 38, f"{len(blocks)} blocks", 11.5),
            label(90, top + 56, f"{self.width} beams", 11.5, look=BOLD),
        )

    def _draw_block(self, at: int, block: int, beams: list[int], row: int) -> str:
        """Draw a block across the rows of the beams that share it."""
        longest = len(self.prompt) + len(self.run)
        column = 916 / (blocks_for(longest, self.block_size) - self.full_prompt_blocks)
        x = 164 + column * (at - self.full_prompt_blocks)
        y = self.tables_top + TABLE_ROW * row
        height = TABLE_ROW * len(beams) - 6
        text = " ".join(self._stored(beams[0])[at * self.block_size : (at + 1) * self.block_size])
        name = f"block {block}" + (f", {len(beams)} beams" if len(beams) > 1 else "")
        lines = sorted(self._line(beam) for beam in beams)
        return linked(
            [f"b{block}"],
            f"block {block}, held by beam {_listed(lines)}: {text}",
            *self._bands(beams, x, y, column - 6, height, 0.3),
            box(x, y, column - 6, height, edge=LINE),
            label(x + 6, y + 30, text, 12, INK, column - 18),
            label(x + 6, y + 13, name, 10.5, INK, column - 18, BOLD),
        )

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


def two_prompts(prompts: Sequence[Prompt], block_size: int) -> str:
    """Draw two prompts block by block; a block that both hold is drawn once, across both.

    Args:
        prompts: the two; the second one was matched with the prefix cache.
        block_size: slots in a block.
    """
    tokens, blocks, _ = prompts[1]
    shared = sum(one == other for one, other in zip(prompts[0][1], blocks, strict=False))
    hits = shared * block_size
    headline = (
        f"The second prompt has {len(tokens)} tokens. {hits} of them are found in the first "
        f"one's blocks; {len(tokens) - hits} must be computed."
    )
    parts = [label(0, 16, headline, 14, INK, WIDTH, "font-weight:600"), *_legend_of_prompts()]
    for me in (0, 1):
        first = shared if me else 0  # shared blocks are drawn once
        for at in range(first, min(len(prompts[me][1]), MOST_BLOCKS)):
            parts.append(_draw_prompt_block(prompts, me, at, block_size, at < shared))
    most = max(len(prompt[1]) for prompt in prompts)
    if most > MOST_BLOCKS:
        more = f"and {most - MOST_BLOCKS} more blocks"
        parts.append(label(0, 54 + 4 * PROMPT_ROW + 4, more, 12, SOFT))
    rows = max(1, min(4, -(-most // 6)))
    return svg(WIDTH, 64 + PROMPT_ROW * rows, parts, headline)


def _legend_of_prompts() -> list[str]:
    owners = ("in both, stored once", "the first's own", "the second's own")
    looks = {text: (sequence_color(row), 0.6) for row, text in enumerate(owners)}
    return [
        *legend(0, 27, looks),
        label(524, 39, "≠", 13, WRONG, look=BOLD),
        label(540, 39, "same words, different past: different hash", 12, SOFT),
    ]


def _draw_prompt_block(
    prompts: Sequence[Prompt], me: int, at: int, block_size: int, shared: bool
) -> str:
    """Draw block number `at` of a prompt; tokens that differ from the other prompt's are marked."""
    _, blocks, hashes = prompts[me]
    mine, other = (
        tokens[at * block_size : (at + 1) * block_size] for tokens, _, _ in _pair(prompts, me)
    )
    full = at < len(hashes)
    x = at % 6 * 180
    y = 54 + at // 6 * PROMPT_ROW + 58 * me
    height = 108 if shared else 50
    middle = y + height / 2 - 4
    color = sequence_color(0 if shared else 1 + me)
    name = f"block {blocks[at]} · {hashes[at]}" if full else "not full: no hash"
    edge = f'stroke-width="2" stroke-dasharray="{"none" if full else 4}"'
    differ = [i for i, token in enumerate(mine) if other[i : i + 1] != [token]]
    drawn = [
        box(x, y, 172, height, color, 0.24 if full else 0, color, edge),
        *words(x + 8, middle, [plain(token) for token in mine], 158, differ),
        label(x + 8, middle + 19, name, 11, INK if full else SOFT),
    ]
    say = name
    if shared:
        say += ", in both tables"
    elif full and not differ and hashes[at] == prompts[1 - me][2][at]:
        say += "; the hash is known, but the prompt's last token must be computed"
    elif full and not differ:
        drawn.append(label(x + 152, middle + 19, "≠", 13, WRONG, look=BOLD))
        say += (
            "; the other prompt has the same words after a different past, so they have a "
            "different hash"
        )
    return linked([f"w{at}"], say, *drawn)


def _pair(prompts: Sequence[Prompt], me: int) -> tuple[Prompt, Prompt]:
    """Return this prompt and the other one."""
    return prompts[me], prompts[1 - me]


# 01: which user holds which slots -----------------------------------------------------------------

MEMORY_LEFT = 76
MEMORY_WIDTH = WIDTH - MEMORY_LEFT
MEMORY_TOP = 62
MEMORY_ROW = 29


def taken_places(
    requests: Sequence[tuple[int, int]], allocator: Contiguous | Paged, row: int
) -> str:
    """Draw which requests an allocator admits to an empty memory, and the slots that each holds.

    A solid slot holds a token, a striped one is reserved and empty, an empty one is free.

    Args:
        requests: prompt and output tokens of each request.
        allocator: of an empty memory.
        row: slots in a row of the picture.
    """
    admitted = _admit(requests, allocator)
    num_slots = allocator.num_slots
    parts = _strip(0, num_slots, row, WELL, LINE)
    taken = 0
    for key, (prompt, _) in enumerate(requests[:admitted]):
        parts.append(_draw_request(key, _joined(allocator.regions(key)), prompt, row))
        _, given = allocator.held(key)
        taken += given
    headline = (
        f"{admitted} of {len(requests)} users are in; {taken:,} of {num_slots:,} slots are taken."
    )
    if admitted < len(requests):
        headline = f"User {admitted + 1} is out of memory. {headline}"
        needed = allocator.needs(Request(*requests[admitted]))
        parts += _draw_refused(taken, needed, num_slots - taken, row)
    parts += [stripes(f"pl-{i}", sequence_color(i)) for i in range(7)]
    looks = {
        "holds a token": (sequence_color(0), 1, LINE),
        "reserved and empty": ("url(#pl-0)", 1, LINE),
        "free": (WELL, 1, LINE),
    }
    parts += legend(MEMORY_LEFT, 30, looks)
    color = BAD if admitted < len(requests) else INK
    head = label(MEMORY_LEFT, 18, headline, 15, color, MEMORY_WIDTH, BOLD)
    return svg(WIDTH, 66 + MEMORY_ROW * -(-num_slots // row), [head, *parts], headline)


def _admit(requests: Sequence[tuple[int, int]], allocator: Contiguous | Paged) -> int:
    """Admit requests until one is refused; return how many were admitted."""
    for key, request in enumerate(requests):
        try:
            allocator.admit(key, Request(*request))
        except (OutOfMemory, OutOfBlocks):
            return key
    return len(requests)


def _strip(start: int, length: int, row: int, color: str, edge: str = "none") -> list[str]:
    """Draw slots, a box for each row that they are in."""
    drawn = []
    end = start + length
    for at in range(start // row, -(-end // row)):
        left = max(start, at * row)
        width = min(end, (at + 1) * row) - left
        x = MEMORY_LEFT + (left - at * row) * MEMORY_WIDTH / row
        y = MEMORY_TOP + MEMORY_ROW * at
        drawn.append(box(x, y, width * MEMORY_WIDTH / row, 23, color, 1, edge))
    return drawn


def _joined(regions: Sequence[Region]) -> list[Region]:
    """Return the same slots; regions that follow one another are one."""
    joined: list[Region] = []
    for start, size in regions:
        if joined and joined[-1].start + joined[-1].size == start:
            joined[-1] = Region(joined[-1].start, joined[-1].size + size)
        else:
            joined.append(Region(start, size))
    return joined


def _draw_request(key: int, regions: Sequence[Region], prompt: int, row: int) -> str:
    """Draw the slots of an admitted request."""
    drawn = []
    left = prompt  # tokens that the regions so far do not hold
    for start, size in regions:
        drawn += _strip(start, size, row, f"url(#pl-{key % 7})")
        drawn += _strip(start, min(left, size), row, sequence_color(key))
        left = max(0, left - size)
    length = sum(region.size for region in regions)
    if length == row:
        y = MEMORY_TOP + 16 + MEMORY_ROW * (regions[0].start // row)
        drawn.append(label(0, y, f"user {key + 1}", 11, SOFT))
    say = (
        f"User {key + 1}: a prompt of {prompt:,} tokens, {length:,} slots taken, "
        f"{length - prompt:,} of them empty"
    )
    if len(regions) > 1:
        say += f", in {len(regions)} pieces"
    return linked([f"u{key}"], say, *drawn)


def _draw_refused(end: int, needed: int, left: int, row: int) -> list[str]:
    """Draw the slots that the refused request needs, after the last one taken."""
    question = f"{needed:,} more? {left:,} are left"
    x = MEMORY_LEFT + end % row * MEMORY_WIDTH / row
    y = MEMORY_TOP + MEMORY_ROW * (end // row)
    width = needed * MEMORY_WIDTH / row
    dashed = 'stroke-width="2" stroke-dasharray="6 4"'
    room = wide(question, 12) + 8
    text_x = x + width - room if width > room else x + width + 8
    return [
        box(x, y, width, 23, "none", 1, WRONG, dashed),
        label(text_x, y + 16, question, 12, INK, look=BOLD),
    ]


# 02: position, table, slot ------------------------------------------------------------------------

CELLS = 16  # in a row
CELL_PITCH = WIDTH / CELLS


def position_to_slot(texts: Sequence[str], table: BlockTable, left_out: int = 0) -> str:
    """Draw a text, its block table and the memory; each part is linked with its counterparts.

    Args:
        texts: a word for each token.
        table: of the text.
        left_out: number of further words, which found no free block.
    """
    return _PositionToSlot(texts, table, left_out).draw()


class _PositionToSlot:
    """The parts of the picture that `position_to_slot` draws."""

    def __init__(self, texts: Sequence[str], table: BlockTable, left_out: int) -> None:
        self.texts = texts
        self.left_out = left_out
        self.blocks = table.block_ids
        self.pool = table.pool
        self.block_size = table.pool.block_size

    def draw(self) -> str:
        rows = max(1, -(-len(self.texts) // CELLS))
        table_top = 40 + 46 * rows
        memory_top = table_top + 84
        num_slots = self.pool.num_blocks * self.block_size
        height = memory_top + 24 + 60 * -(-num_slots // CELLS)
        parts = [
            *self._draw_text(),
            *self._draw_table(table_top),
            *self._draw_memory(memory_top, num_slots),
        ]
        return svg(WIDTH + 20, height, parts)

    def _draw_text(self) -> list[str]:
        title = f"The text, {len(self.texts)} words by position"
        if self.left_out:
            title += f"; {self.left_out} more find no free block"
        parts = [label(0, 14, title, 13, INK, look=BOLD)]
        for position, text in enumerate(self.texts):
            color = sequence_color(position // self.block_size)
            drawn = self._cell(position, 22, position, text, color, 0.3)
            parts.append(linked([f"t{position}"], self._say(position), *drawn))
        return parts

    def _draw_table(self, top: float) -> list[str]:
        title = "Its block table: the number of each entry, and the block that it names"
        parts = [label(0, top + 12, title, 13, INK, look=BOLD)]
        for entry, block in enumerate(self.blocks):
            first = entry * self.block_size
            positions = range(first, min(len(self.texts), first + self.block_size))
            drawn = self._cell(entry, top + 20, entry, f"block {block}", sequence_color(entry), 0.3)
            say = (
                f"entry {entry}: words {positions[0]} to {positions[-1]} are in block {block}, "
                f"from slot {block * self.block_size} on"
            )
            links = [f"e{entry}", *(f"t{position}" for position in positions)]
            parts.append(linked(links, say, *drawn))
        return parts

    def _draw_memory(self, top: float, num_slots: int) -> list[str]:
        parts = []
        for slot in range(0, num_slots, self.block_size):
            y = top + 32 + slot // CELLS * 60
            name = f"block {slot // self.block_size}"
            parts.append(label(self._left(slot) + 1, y, name, 11, SOFT))
        title = f"Memory, {num_slots} slots in blocks of {self.block_size}"
        parts.append(label(0, top + 12, title, 13, INK, look=BOLD))
        for slot in range(num_slots):
            parts.append(self._draw_slot(slot, top + 37))
        looks = {"another sequence's": (NEUTRAL, 0.25, LINE), "free": (CARD, 0.25, LINE)}
        return parts + legend(420, top + 1, looks)

    def _draw_slot(self, slot: int, y: float) -> str:
        block, offset = divmod(slot, self.block_size)
        if block in self.blocks:
            position = self.blocks.index(block) * self.block_size + offset
            if position < len(self.texts):
                color = sequence_color(position // self.block_size)
                drawn = self._cell(slot, y, slot, self.texts[position], color, 0.3, 60)
                return linked([f"t{position}"], self._say(position), *drawn)
            color = CARD
        else:
            color = NEUTRAL if self.pool.refcount(block) else CARD
        return "".join(self._cell(slot, y, slot, "", color, 0.25, 60))

    def _left(self, at: int) -> float:
        """Return where a cell begins; there is a gap between blocks."""
        return at % CELLS * CELL_PITCH + at % CELLS // self.block_size * 3

    def _cell(
        self, at: int, top: float, number: int, text: str, color: str, share: float, row: int = 46
    ) -> list[str]:
        """Draw a cell with its number and a word.

        Args:
            at: place of the cell, in rows of `CELLS`.
            top: of the first row, in pixels.
            number: shown in the cell.
            text: shown in the cell.
            color: of the cell.
            share: of the colour.
            row: pixels from one row to the next.
        """
        x = self._left(at)
        y = top + at // CELLS * row
        if len(text) > 11:
            text = f"{text[:10]}…"
        return [
            box(x, y, CELL_PITCH - 6, 40, color, share, LINE),
            label(x + 4, y + 12, str(number), 10),
            label(x + 4, y + 30, text, 12, INK, CELL_PITCH - 12),
        ]

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
