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
    (Word("word", "marked"), "underlined: a word of the other story"),
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
    (first, first_places), (second, places) = stories
    tables = [
        list(dict.fromkeys(slot // block_size for slot in slots))
        for slots in (first_places, places)
    ]
    shared = {*tables[0]} & {*tables[1]}
    # From here on each story has a past of its own: the same word has another key and value.
    pairs = enumerate(zip(first, second, strict=False))
    apart = next((at for at, (one, other) in pairs if one != other), 0)
    # what story 1 wrote, and whether it did so into slots of story 0
    last = dict(zip(places[apart:], second[apart:], strict=True))
    is_overwritten = not last.keys().isdisjoint(first_places[apart:])

    def word_of(me: int, at: int) -> Word:
        """Return a word of a story: as it is in memory, or overwritten, or taken."""
        tokens, slots = stories[me]
        text = plain(tokens[at])
        number = slots[at] // block_size
        word = Word(text, links=(f"b{number}",), say=f"{text!r} is in block {number}")
        if me == 0 and at >= apart and slots[at] in last:
            now = plain(last[slots[at]])
            say = f"story 0 wrote {text!r}; memory holds {now!r}, of story 1"
            if now == text:
                say += ": its key and value depend on other words"
            return word._replace(kind="rejected", below=now, say=say)
        if _is_taken(tokens[at], stories[1 - me][0][: at + 1], right[me][0]):
            say = f"{text!r} is a word of story {1 - me}; with copy-on-write it is not here"
            return word._replace(kind="marked", say=say)
        return word

    def story(me: int) -> list[Item]:
        """Return a story in its blocks, and what it writes with copy-on-write if that differs."""
        tokens, _ = stories[me]
        blocks = []
        for entry, number in enumerate(tables[me]):
            positions = range(len(tokens))[entry * block_size : (entry + 1) * block_size]
            words = tuple(word_of(me, at) for at in positions)
            color = STORY_COLORS[number % len(STORY_COLORS)]
            where = ", in both tables" if number in shared else ""
            blocks.append(Block(number, owned(color), words=words, note=where))
        items: list[Item] = [
            title(f"Story {me}", f"its block table: {' '.join(map(str, tables[me]))}"),
            Blocks(blocks, 1, block_size, height=(30, 36), gap=4, head=15),
        ]
        written, _ = right[me]
        if tokens != written:
            text = "".join(written[apart:]).strip()  # from where the two differ
            items += [note((f"With copy-on-write, story {me} writes:", "")), Text((text, ""), 14)]
        return items

    headline = "Story 0 wrote first: it found its last block in two tables, and took a copy."
    more = "Shared blocks are only read."
    if is_overwritten:
        headline = "Both stories wrote into one block."
        more = "Story 1 wrote last, and story 0 reads those words as its past."
    return page(
        headline,
        *([Legend(LEGEND)] if is_overwritten else []),
        Beside([story(0), story(1)]),
        more=more,
        width=880,  # narrow, so that the words stay large where there is little room
        shown_width=980,  # so that text, controls and picture fit on one screen
    )


def _is_taken(token: str, others: Sequence[str], right: Sequence[str]) -> bool:
    """Return whether a word comes from the other story.

    Words of up to three letters are left out, unless they are names: any story has them.

    Args:
        token: the word.
        others: the words of the other story up to its position.
        right: the words of the right story.
    """
    is_telling = len(plain(token)) > 3 or plain(token)[0].isupper()
    return is_telling and token in others and token not in right
