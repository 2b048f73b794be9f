"""Notebook 03's opening: two stories that share blocks, with and without copy-on-write."""

from collections.abc import Sequence
from dataclasses import dataclass

from pagedlab_lessons.colors import NEUTRAL, SEQUENCE_COLORS
from pagedlab_lessons.drawing import (
    Beside,
    Block,
    Blocks,
    Drawing,
    Item,
    Legend,
    Text,
    Word,
    note,
    owned,
    page,
    plain,
    title,
)

Story = tuple[list[str], list[int]]  # its tokens, and the slot of each

# two more than SEQUENCE_COLORS: the stories of notebook 03 fill up to nine blocks
STORY_COLORS = (*SEQUENCE_COLORS, NEUTRAL, "#8C5A2B")
LEGEND = [
    (Word("word", "rejected"), "overwritten in memory"),
    (Word("word", "not stored"), "what memory holds now"),
    (Word("word", "marked"), "underlined: from the other story"),
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
    both = _TwoStories(stories, right, block_size)
    headline, more = both.headline()
    return page(
        headline,
        *([Legend(LEGEND)] if both.is_overwritten else []),
        Beside([both.story(me) for me in (0, 1)]),
        more=more,
        width=880,  # narrow, so that the words stay large where there is little room
        shown_width=980,  # so that text, controls and picture fit on one screen
    )


@dataclass
class _TwoStories:
    """The parts of the picture that `two_stories` draws, with the arguments of `two_stories`."""

    stories: Sequence[Story]
    right: Sequence[Story]
    block_size: int

    def __post_init__(self) -> None:
        (first, first_places), (second, places) = self.stories
        self.tables = [
            list(dict.fromkeys(slot // self.block_size for slot in slots))
            for slots in (first_places, places)
        ]
        self.shared = {*self.tables[0]} & {*self.tables[1]}
        # From here on each story has a past of its own: the same word has another key and value.
        pairs = zip(first, second, strict=False)
        self.apart = next((at for at, (one, other) in enumerate(pairs) if one != other), 0)
        # what story 1 wrote, and whether it did so into slots of story 0
        self.last = dict(zip(places[self.apart :], second[self.apart :], strict=True))
        self.is_overwritten = not self.last.keys().isdisjoint(first_places[self.apart :])

    def headline(self) -> tuple[str, str]:
        """Return what the picture shows, in two sentences."""
        if self.is_overwritten:
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

    def story(self, me: int) -> list[Item]:
        """Return a story in its blocks, and what it writes with copy-on-write if that differs."""
        tokens, _ = self.stories[me]
        size = self.block_size
        blocks = []
        for entry, number in enumerate(self.tables[me]):
            positions = range(len(tokens))[entry * size : (entry + 1) * size]
            words = tuple(self._word(me, at) for at in positions)
            owner = owned(STORY_COLORS[number % len(STORY_COLORS)])
            where = ": one block, in both tables" if number in self.shared else ""
            blocks.append(Block(number, owner, words=words, note=where))
        numbers = " ".join(map(str, self.tables[me]))
        items: list[Item] = [
            title(f"Story {me}", f"its block table: {numbers}"),
            Blocks(blocks, 1, size, height=(30, 36), gap=4, head=15),
        ]
        right, _ = self.right[me]
        if tokens != right:
            text = "".join(right[self.apart :]).strip()  # from where the two differ
            items += [note((f"With copy-on-write, story {me} writes:", "")), Text((text, ""), 14)]
        return items

    def _word(self, me: int, at: int) -> Word:
        """Return a word of a story: as it is in memory, or overwritten, or taken."""
        tokens, places = self.stories[me]
        text = plain(tokens[at])
        number = places[at] // self.block_size
        word = Word(text, links=(f"b{number}",), say=f"{text!r} is in block {number}")
        if me == 0 and at >= self.apart and places[at] in self.last:
            now = plain(self.last[places[at]])
            say = f"story 0 wrote {text!r}; memory holds {now!r}, of story 1"
            if now == text:
                say += ": its key and value depend on other words"
            return word._replace(kind="rejected", below=now, say=say)
        if self._is_taken(me, at):
            say = f"{text!r} is a word of story {1 - me}; with copy-on-write it is not here"
            return word._replace(kind="marked", say=say)
        return word

    def _is_taken(self, me: int, at: int) -> bool:
        """Return whether a word comes from the other story.

        Words of up to three letters are left out, unless they are names: any story has them.
        """
        token = self.stories[me][0][at]
        others = self.stories[1 - me][0][: at + 1]
        is_telling = len(plain(token)) > 3 or plain(token)[0].isupper()
        return is_telling and token in others and token not in self.right[me][0]
