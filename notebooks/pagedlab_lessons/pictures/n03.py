"""Notebook 03's opening: two stories that share blocks, with and without copy-on-write."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from pagedlab_lessons.colors import NEUTRAL, SEQUENCE_COLORS, Look
from pagedlab_lessons.drawing import (
    BOLD,
    INK,
    STRUCK,
    WRONG,
    Block,
    Drawing,
    Owner,
    Word,
    box,
    label,
    linked,
    plain,
    shape,
    wide,
)
from pagedlab_lessons.drawing.flow import (
    Beside,
    Blocks,
    Drawn,
    Entry,
    Item,
    Legend,
    Space,
    Text,
    note,
    page,
    title,
)

Story = tuple[list[str], list[int]]  # its tokens, and the slot of each

WIDTH = 880  # narrow, so that the words stay large where there is little room
# two more than SEQUENCE_COLORS: the stories of notebook 03 fill up to nine blocks
STORY_COLORS = (*SEQUENCE_COLORS, NEUTRAL, "#8C5A2B")
FRAMED = 'stroke-width="2"'
LEGEND: list[Entry] = [
    (Word("word", "rejected"), "overwritten in memory"),
    (Word("word", "marked"), "what memory holds now"),
    ("□", "framed: also in the other story"),
]


def two_stories(stories: Sequence[Story], right: Sequence[Story], block_size: int) -> Drawing:
    """Draw two forks of one beginning: their words in the colour of their block, and the blocks.

    Two kinds of words are marked: those in slots that the other story overwrote, and words that a
    story takes from the other one. A word is taken if the other story has it, at the same position
    or before, and the right story does not.

    Args:
        stories: what the two forks wrote; the second one writes last in each step.
        right: what they write with copy-on-write.
        block_size: slots in a block.
    """
    return _TwoStories(stories, right, block_size).draw()


def _words(tokens: Sequence[str]) -> Iterator[tuple[str, range]]:
    """Yield the words that these tokens spell, without punctuation, and the tokens of each."""
    starts = [i for i, token in enumerate(tokens) if i == 0 or token.startswith((" ", "\n"))]
    for start, end in pairwise([*starts, len(tokens)]):
        yield re.sub(r"\W", "", "".join(tokens[start:end])), range(start, end)


class _TwoStories:
    """The parts of the picture that `two_stories` draws."""

    def __init__(self, stories: Sequence[Story], right: Sequence[Story], block_size: int) -> None:
        self.stories = stories
        self.right = right
        self.block_size = block_size
        self.held: dict[int, str] = {}  # the token in each slot after both have written
        for writes in zip(*(zip(*story[::-1], strict=True) for story in stories), strict=False):
            self.held.update(writes)
        self.tables = [
            list(dict.fromkeys(slot // block_size for slot in places)) for _, places in stories
        ]
        self.shared = [number for number in self.tables[0] if number in self.tables[1]]
        # From here on each story has a past of its own: the same word has another key and value.
        pairs = zip(stories[0][0], stories[1][0], strict=False)
        self.apart = next((at for at, (one, other) in enumerate(pairs) if one != other), 0)
        written = [set(places[self.apart :]) for _, places in stories]
        self.overwritten = written[0] & written[1]

    def draw(self) -> Drawing:
        headline, more = self._headline()
        return page(
            headline,
            *([Legend(LEGEND)] if self.overwritten else []),
            Beside([self._story(me) for me in (0, 1)]),
            title("Blocks in both tables"),
            self._blocks(self.shared, "in both tables", columns=2),
            Beside([[*self._own(me), *self._right_story(me)] for me in (0, 1)]),
            more=more,
            width=WIDTH,
            shown_width=750,  # so that text, controls and picture fit on one screen
        )

    def _headline(self) -> tuple[str, str]:
        """Return what the picture shows, in two sentences."""
        if self.overwritten:
            return (
                "Both stories wrote into one block.",
                "Story 1 wrote last, and story 0 reads those words as its past.",
            )
        copied, kept = (
            next((number for number in table if number not in self.shared), 0)
            for table in self.tables
        )
        return (
            f"Story 0 wrote first: it found block {kept} in two tables, and took a copy.",
            f"The copy is block {copied}. Shared blocks are only read.",
        )

    def _story(self, me: int) -> list[Item]:
        """Return a story: its table, and its words in the colours of their blocks."""
        table = f"its block table: {' '.join(map(str, self.tables[me]))}"

        def words(space: Space) -> Drawn:
            font, line = space.pick((15, 28), (13, 25))
            taken = self._taken_tokens(me)
            parts = []
            x, y = space.x, space.y + font + 3
            for i, (token, slot) in enumerate(zip(*self.stories[me], strict=True)):
                width = wide(plain(token), font) + 3
                if token.startswith((" ", "\n")):
                    x += 5
                if x + width > space.x + space.width:
                    x = space.x
                    y += line
                ground = (x - 2, y - font - 1, width, font + 8)
                parts.append(self._token(token, slot, me, i in taken, ground))
                x += width
            return Drawn(parts, y + 14)

        return [title(f"Story {me}", table), words]

    def _token(
        self, token: str, slot: int, me: int, taken: bool, ground: tuple[float, float, float, float]
    ) -> str:
        """Draw a token in the colour of its block.

        Tokens of one word touch, and do not overlap: their colours are translucent.
        """
        x, y, width, height = ground
        font = height - 8
        text = plain(token)
        number = slot // self.block_size
        drawn = [shape(*ground, _look(number))]
        look = ""
        if me == 0 and slot in self.overwritten:
            look = STRUCK
            now = plain(self.held[slot])
            say = f"story 0 wrote {text!r}; memory holds {now!r}, of story 1"
            if now == text:
                say += ": its key and value depend on other words"
        elif taken:
            look = BOLD
            drawn.append(box(*ground, edge=WRONG, look=FRAMED))
            say = f"{text!r} is a word of story {1 - me}; with copy-on-write it is not here"
        else:
            say = f"{text!r} is in block {number}"
        drawn.append(label(x + 1, y + font + 1, text, font, INK, width, look))
        return linked([f"b{number}"], say, *drawn)

    def _blocks(self, numbers: Sequence[int], whose: str, columns: int) -> Blocks:
        """Return blocks with the words in their slots; overwritten ones are marked."""
        blocks = []
        for number in numbers:
            places = range(number * self.block_size, (number + 1) * self.block_size)
            words = tuple(self._word(slot) for slot in places)
            say = f"block {number}, {whose}: {' '.join(word.text for word in words)}"
            blocks.append(Block(number, (Owner("", _look(number)),), words=words, say=say))
        gap = 24 if columns > 1 else 6
        return Blocks(blocks, (columns, 1), height=(30, 24), gap=(gap, 6), font=(14, 12))

    def _word(self, slot: int) -> Word:
        """Return what a slot holds."""
        if slot not in self.held:
            return Word("·")
        return Word(plain(self.held[slot]), "marked" if slot in self.overwritten else "stored")

    def _own(self, me: int) -> list[Item]:
        """Return the blocks that only one story has."""
        own = [number for number in self.tables[me] if number not in self.shared]
        blocks = self._blocks(own, f"story {me}'s own", columns=1)
        return [title(f"Story {me}'s own blocks"), blocks]

    def _right_story(self, me: int) -> list[Item]:
        """Return what this story writes with copy-on-write, from where the two differ."""
        if self.stories[me][0] == self.right[me][0]:
            return []
        text = "".join(self.right[me][0][self.apart :]).strip()
        return [note((f"With copy-on-write, story {me} writes:", "")), Text((text, ""), 14)]

    def _taken_tokens(self, me: int) -> set[int]:
        """Return the positions of tokens whose word comes from the other story.

        Words of up to three letters are left out, unless they are names: any story has them.
        """
        own = {word for word, _ in _words(self.right[me][0])}
        others = dict(reversed([*_words(self.stories[1 - me][0])]))  # where each is said first
        taken = set[int]()
        for word, span in _words(self.stories[me][0]):
            is_telling = len(word) > 3 or word[:1].isupper()
            if is_telling and word in others.keys() - own and others[word][0] <= span[0]:
                taken.update(span)
        return taken


def _look(number: int) -> Look:
    """Return the look of a block: a tint, without a hatch, so that no word looks struck out.

    It depends on the block's number alone, so a block keeps it with copy-on-write.
    """
    return Look(STORY_COLORS[number % len(STORY_COLORS)], is_pale=True)
