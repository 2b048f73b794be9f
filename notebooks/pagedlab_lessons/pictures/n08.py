"""Notebook 08's opening: chats as the rows of a conventional cache, and in blocks."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from pagedlab.recipes.trace import SequenceState
from pagedlab_lessons.colors import NEUTRAL, Look, sequence_color
from pagedlab_lessons.drawing import (
    CARD,
    INK,
    LINE,
    SOFT,
    Beside,
    Block,
    Drawing,
    Drawn,
    Grid,
    Legend,
    Owner,
    Run,
    Space,
    Strip,
    Table,
    Text,
    box,
    label,
    linked,
    page,
    pool,
    rows,
    shortened,
    title,
)
from pagedlab_lessons.pictures.n09 import Moment, steps_of, tail

ROW = 40.0  # pixels a chat
PADDING = Look(NEUTRAL, "//", is_pale=True)
STORED = Look(sequence_color(0))
LOOKS_OF_ROWS = [
    (STORED, "holds a token"),
    (PADDING, "padding"),
    (STORED._replace(hatch="xx"), "of a chat that has ended"),
]
LOOKS_OF_BLOCKS = [(STORED, "holds a token"), (STORED.tint, "empty slot")]


class Chat(NamedTuple):
    """A chat after a step.

    Args:
        name: of its sequence.
        sequence: its sequence.
        asked: its question, without the middle of a long one.
        end: the step in which it ends.
        look: of its tokens.
    """

    name: str
    sequence: SequenceState
    asked: str
    end: int
    look: Look


def rectangle(
    run: Sequence[Moment], step: int, questions: Sequence[str], size: int, token_bytes: float
) -> Drawing:
    """Chats after `step`, on one scale: as the rows of a conventional cache, padded on the
    left, and in their blocks.

    Args:
        run: the moments of a recording.
        step: the step.
        questions: one a chat.
        size: slots in a block.
        token_bytes: bytes of a token's keys and values.
    """
    ends = {name: span.end for name, span in steps_of(run).items()}
    chats = []
    for row, (name, sequence) in enumerate(run[step].items()):
        look = Look(sequence_color(row))
        chats.append(Chat(name, sequence, _short(questions[row]), ends[name], look))
    longest = max(chat.sequence.prompt for chat in chats)
    columns = longest + step - 1
    widest = longest + max(ends.values()) - 1
    places = columns * len(chats)
    stored = sum(chat.sequence.tokens for chat in chats)
    used, most = _blocks_in(run[step]), max(map(_blocks_in, run[: step + 1]))

    def kib(tokens: int) -> str:
        return f"{tokens * token_bytes / 1024:,.0f} KiB"

    more = (
        f"{len(chats)} rows x {columns} columns; {1 - stored / places:.0%} is padding or belongs "
        "to chats that have ended"
    )
    less = (
        f"{used} blocks of {size} slots; {1 - stored / (used * size):.0%} of the slots empty. "
        f"At their peak {kib(most * size)}"
    )
    padded = [partial(_padded_row, chat, step, longest, widest) for chat in chats]
    in_blocks = [partial(_row_of_blocks, chat, step, size, widest) for chat in chats]
    return page(
        f"Step {step}: the rectangle takes {kib(places)}, the blocks take {kib(used * size)}.",
        Beside(
            [
                [title(ONE_RECTANGLE), Text(more, (12, 11)), Legend(LOOKS_OF_ROWS), *padded],
                [title(BLOCKS), Text(less, (12, 11)), Legend(LOOKS_OF_BLOCKS), *in_blocks],
            ],
        ),
    )


ONE_RECTANGLE = "A conventional cache: one rectangle"
BLOCKS = "The same chats in blocks"


def _short(question: str) -> str:
    """Return a question without the middle of a long one."""
    if len(question) < 70:
        return question
    sentences = question.split(". ") * 2
    return f"{sentences[0]}. … {sentences[-1]}"


def _blocks_in(moment: Moment) -> int:
    return sum(len(sequence.blocks) for sequence in moment.values())


def _padded_row(chat: Chat, step: int, longest: int, widest: int, space: Space) -> Drawn:
    """Draw a chat as a row of the rectangle, below its question.

    Args:
        step: the step.
        longest: tokens of the longest prompt.
        widest: columns of the rectangle after the last step.
    """
    columns = longest + step - 1
    start = longest - chat.sequence.prompt
    stop = longest + min(step, chat.end) - 1  # the token that was written last is not stored yet
    look = chat.look._replace(hatch="xx" if chat.end <= step else "")
    tokens = [Run(0, columns, PADDING, LINE), Run(start, stop, look)]
    say = f"{chat.asked} A row of {columns} slots, {columns - stop + start} of them padding"
    say += "; the chat has ended, the row stays." if chat.end <= step else "."
    asked = shortened(chat.asked, 12, space.width)
    bar = Strip(space.x, space.y + 18, space.width / widest, 17)
    return _row(space, chat.name, say, asked, INK, rows(tokens, bar))


def _row_of_blocks(chat: Chat, step: int, size: int, widest: int, space: Space) -> Drawn:
    """Draw a chat in its blocks, below the end of its answer.

    Args:
        step: the step.
        size: slots in a block.
        widest: columns of the rectangle after the last step.
    """
    sequence = chat.sequence
    table = Table(chat.name, sequence.blocks, sequence.tokens, chat.look)
    blocks = [
        Block(number, (Owner(chat.name, chat.look, table.filled(entry, size)),))
        for entry, number in enumerate(sequence.blocks)
    ]
    answer = "".join(sequence.new_words).replace("\n", " ").strip()
    say = f"{chat.asked} {len(blocks)} blocks of {size} slots for {sequence.tokens} tokens."
    wrote = tail(answer, space.pick(70, 44))
    width = size * space.width / widest - 2
    drawn = pool(blocks, Grid(space.x, space.y + 18, max(1, len(blocks)), width, 17, 2))
    ink = INK
    if chat.end <= step:
        ink = SOFT
        ended = f"ended with step {chat.end}; its blocks are free"
        drawn.append(label(space.x, space.y + 31, ended, 11.5, SOFT))
    return _row(space, chat.name, say, wrote, ink, drawn)


def _row(space: Space, name: str, say: str, text: str, ink: str, parts: list[str]) -> Drawn:
    """Draw a text above parts, as one that can be pointed at as a whole."""
    ground = box(space.x, space.y, space.width, 36, CARD, 0)
    head = label(space.x, space.y + 12, text, 12, ink, space.width)
    return Drawn([linked([name], say, ground, head, *parts)], space.y + ROW)
