"""Notebook 03's opening: two stories that share blocks, with and without copy-on-write."""

from collections.abc import Sequence

from pagedlab_lessons.colors import NEUTRAL, SEQUENCE_COLORS
from pagedlab_lessons.drawing import Block, Drawing, Word, owned, plain
from pagedlab_lessons.drawing.flow import (
    Beside,
    Blocks,
    Entry,
    Item,
    Legend,
    Text,
    note,
    page,
    title,
)

Story = tuple[list[str], list[int]]  # its tokens, and the slot of each

# two more than SEQUENCE_COLORS: the stories of notebook 03 fill up to nine blocks
STORY_COLORS = (*SEQUENCE_COLORS, NEUTRAL, "#8C5A2B")
LEGEND: list[Entry] = [
    (Word("word", "rejected"), "overwritten in memory"),
    (Word("word", "not stored"), "what memory holds now"),
    (Word("word", "marked"), "a word of the other story"),
]


def two_stories(stories: Sequence[Story], right: Sequence[Story], block_size: int) -> Drawing:
    """Draw two forks of one beginning, each in the blocks of its table.

    Two kinds of words are marked: those in slots that the other story overwrote, and words that a
    story takes from the other one. A word is taken if the other story has it, at the same position
    or before, and the right story does not.

    Args:
        stories: what the two forks wrote; the second one writes last in each step.
        right: what they write with copy-on-write.
        block_size: slots in a block.
    """
    return _TwoStories(stories, right, block_size).draw()


class _TwoStories:
    """The parts of the picture that `two_stories` draws."""

    def __init__(self, stories: Sequence[Story], right: Sequence[Story], block_size: int) -> None:
        self.stories = stories
        self.right = right
        self.block_size = block_size
        self.tables = [
            list(dict.fromkeys(slot // block_size for slot in places)) for _, places in stories
        ]
        self.shared = [number for number in self.tables[0] if number in self.tables[1]]
        # From here on each story has a past of its own: the same word has another key and value.
        pairs = zip(stories[0][0], stories[1][0], strict=False)
        self.apart = next((at for at, (one, other) in enumerate(pairs) if one != other), 0)
        tokens, places = stories[1]
        self.last = dict(zip(places[self.apart :], tokens[self.apart :], strict=True))

    def draw(self) -> Drawing:
        headline, more = self._headline()
        return page(
            headline,
            *([Legend(LEGEND)] if self._is_overwritten() else []),
            Beside([self._story(me) for me in (0, 1)]),
            more=more,
            width=880,  # narrow, so that the words stay large where there is little room
            shown_width=980,  # so that text, controls and picture fit on one screen
        )

    def _is_overwritten(self) -> bool:
        """Return whether story 1 wrote into slots of story 0."""
        return not self.last.keys().isdisjoint(self.stories[0][1][self.apart :])

    def _headline(self) -> tuple[str, str]:
        """Return what the picture shows, in two sentences."""
        if self._is_overwritten():
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
        """Return a story in its blocks, and what it writes with copy-on-write if that differs."""
        tokens, _ = self.stories[me]
        size = self.block_size
        blocks = []
        for entry, number in enumerate(self.tables[me]):
            positions = range(len(tokens))[entry * size : (entry + 1) * size]
            words = tuple(self._word(me, at) for at in positions)
            owner = owned(STORY_COLORS[number % len(STORY_COLORS)])
            note = ", in both tables" if number in self.shared else ""
            blocks.append(Block(number, owner, words=words, note=note))
        numbers = " ".join(map(str, self.tables[me]))
        return [
            title(f"Story {me}", f"its block table: {numbers}"),
            Blocks(blocks, 1, size, height=(30, 36), gap=4, head=15),
            *self._right_story(me),
        ]

    def _word(self, me: int, at: int) -> Word:
        """Return a word of a story: as it is in memory, or overwritten, or taken."""
        tokens, places = self.stories[me]
        text = plain(tokens[at])
        number = places[at] // self.block_size
        links = (f"b{number}",)
        if me == 0 and at >= self.apart and places[at] in self.last:
            now = plain(self.last[places[at]])
            say = f"story 0 wrote {text!r}; memory holds {now!r}, of story 1"
            if now == text:
                say += ": its key and value depend on other words"
            return Word(text, "rejected", below=now, links=links, say=say)
        if self._is_taken(me, at):
            say = f"{text!r} is a word of story {1 - me}; with copy-on-write it is not here"
            return Word(text, "marked", links=links, say=say)
        return Word(text, links=links, say=f"{text!r} is in block {number}")

    def _is_taken(self, me: int, at: int) -> bool:
        """Return whether a word comes from the other story.

        Words of up to three letters are left out, unless they are names: any story has them.
        """
        token = self.stories[me][0][at]
        others = self.stories[1 - me][0][: at + 1]
        is_telling = len(plain(token)) > 3 or plain(token)[0].isupper()
        return is_telling and token in others and token not in self.right[me][0]

    def _right_story(self, me: int) -> list[Item]:
        """Return what this story writes with copy-on-write, from where the two differ."""
        if self.stories[me][0] == self.right[me][0]:
            return []
        text = "".join(self.right[me][0][self.apart :]).strip()
        return [note((f"With copy-on-write, story {me} writes:", "")), Text((text, ""), 14)]
