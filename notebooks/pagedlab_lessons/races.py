"""Many sequences at once, step by step: the race of 09, and 08's rectangle beside blocks.

Both draw `trace.moments(recording)`, the sequences by name after each step. pictures.py has the
other openings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import NamedTuple

from pagedlab.recipes.trace import SequenceState
from pagedlab_lessons.colors import FREE, NEUTRAL, SEQUENCE_COLORS, Look
from pagedlab_lessons.drawing import (
    BAD,
    BOLD,
    CARD,
    INK,
    LINE,
    NARROW,
    SOFT,
    Block,
    Drawing,
    Grid,
    Owner,
    Run,
    Strip,
    Table,
    blocks_of,
    box,
    label,
    legend,
    linked,
    narrow_svg,
    pool,
    rows,
    shortened,
    svg,
)

WIDTH = 1080
Moment = Mapping[str, SequenceState]  # the sequences by name after a step


class Span(NamedTuple):
    """The steps in which a sequence writes its first word and its last word."""

    begin: int
    end: int


def steps_of(run: Sequence[Moment]) -> dict[str, Span]:
    """The span of each sequence that was there before the first step."""
    spans = {}
    for name in run[0]:
        states = [moment[name] for moment in run]
        wrote = [step for step, state in enumerate(states) if state.num_new]
        ended = [step for step, state in enumerate(states) if not state.is_unfinished]
        spans[name] = Span(wrote[0], ended[0])
    return spans


def _tail(text: str, most: int, keep: int) -> str:
    """The end of a text that has `most` letters or more, from a word on."""
    return text if len(text) < most else f"… {text[-keep:].split(' ', 1)[-1]}"


# The race -----------------------------------------------------------------------------------------

LEFT = 40  # of step 0
TEXT = 632  # where the words begin


@dataclass(frozen=True)
class Track:
    """Where the lanes of a race are.

    Args:
        columns: pixels of all steps.
        pitch: pixels from row to row.
        bar: height of a row's bar, in pixels.
        font: size of the word "waits", in pixels.
        blocks_a_row: at most.
        block_height: in pixels.
    """

    columns: int
    pitch: int
    bar: float
    font: float
    blocks_a_row: int
    block_height: int

    def grid(self, y: float, blocks: int) -> Grid:
        """Where this many blocks are, from `y` down."""
        in_a_row = min(blocks, self.blocks_a_row)
        return Grid.within(LEFT, y, self.columns, in_a_row, self.block_height, 3)


WIDE = Track(560, 14, 11.5, 10.5, 32, 19)
PHONE = Track(NARROW - LEFT - 8, 13, 11, 11, 8, 18)


@dataclass(frozen=True)
class Lane:
    """One run of a race after a step.

    Args:
        title: of the run.
        spans: of its sequences.
        moment: its sequences after the step.
        step: the step.
        is_over: whether the future is drawn too, pale.
        longest: steps of the longest run.
        track: where it is drawn.
    """

    title: str
    spans: dict[str, Span]
    moment: Moment
    step: int
    is_over: bool
    longest: int
    track: Track

    @property
    def short_title(self) -> str:
        """The title without what follows its colon."""
        return self.title.split(":")[0].lower()

    @property
    def last(self) -> int:
        """The step in which its last sequence ends."""
        return max(span.end for span in self.spans.values())

    @property
    def finished(self) -> int:
        """How many sequences have ended."""
        return sum(span.end <= self.step for span in self.spans.values())

    @property
    def waiting(self) -> int:
        """How many sequences have written nothing."""
        return sum(span.begin > self.step for span in self.spans.values())

    @property
    def writing(self) -> int:
        """How many sequences are in the batch."""
        return sum(span.begin <= self.step <= span.end for span in self.spans.values())

    @property
    def height(self) -> int:
        """The height of its rows, in pixels."""
        return self.track.pitch * len(self.spans)

    @property
    def pitch(self) -> float:
        """The width of a step, in pixels."""
        return self.track.columns / self.longest

    def x(self, step: int) -> float:
        """Where a step is."""
        return LEFT + self.pitch * step


def race(
    runs: dict[str, Sequence[Moment]], step: int, places: int, blocks: int, size: int
) -> Drawing:
    """The same requests after `step` in two runs, on one scale of steps: which of them wait, what
    the others write, and in which blocks.

    The race is over when the last run has one sequence left; what is still to come is drawn pale
    then.

    Args:
        runs: the moments of each run, by its title.
        step: the step.
        places: sequences that run at once.
        blocks: of the pool.
        size: slots in a block.
    """
    lanes = _lanes(runs, step)
    done = [f"{lane.short_title} {lane.finished} of {len(lane.spans)}" for lane in lanes]
    said = f"After {step} steps, finished answers: {', '.join(done)}."
    more = _ends(lanes)
    if lanes[-1].is_over:
        more += " Pale: later steps."
    y = 56.0
    parts: list[str] = []
    for lane in lanes:
        parts += _lane(lane, y, places, blocks, size)
        y += 7 + lane.height + 66
    parts += [label(0, 15, said, 15, look=BOLD), label(0, 33, more, 13)]
    wide = svg(WIDTH, y - 21, parts, said)
    return Drawing(wide, _narrow_race(lanes, said, places, blocks, size))


def _narrow_race(lanes: Sequence[Lane], said: str, places: int, blocks: int, size: int) -> str:
    """The race without the words, and with the blocks of a lane in several rows."""
    y = 0.0
    parts: list[str] = []
    for lane in lanes:
        lane = replace(lane, track=PHONE)
        title, _, about = lane.title.partition(": ")
        parts.append(label(0, y + 13, title, 13, look=BOLD))
        state, color = _state(lane, places)
        parts.append(label(90, y + 13, state, 11, color, NARROW - 90, BOLD))
        y += 14
        for line in wrap(about, 44):
            parts.append(label(0, y + 13, line, 11, SOFT))
            y += 14
        drawn, grid = _rows_and_blocks(lane, y - 2, blocks, size)
        parts += drawn
        y = grid.bottom(blocks) + 12
    for line in wrap(_ends(lanes), 44):
        parts.append(label(0, y + 8, line, 11))
        y += 15
    return narrow_svg(y, parts, said)


def _ends(lanes: Sequence[Lane]) -> str:
    """When the last answer of each run is finished."""
    ends = " and ".join(f"{lane.last} steps ({lane.short_title})" for lane in lanes)
    return f"The last answer is finished after {ends}."


def _lanes(runs: dict[str, Sequence[Moment]], step: int) -> list[Lane]:
    """The runs after the step, on one scale."""
    spans = {title: steps_of(run) for title, run in runs.items()}
    ends = {title: sorted(span.end for span in of_run.values()) for title, of_run in spans.items()}
    longest = max(of_run[-1] for of_run in ends.values())
    one_left = list(ends.values())[-1][-2]
    lanes = []
    for title, run in runs.items():
        moment = run[min(step, len(run) - 1)]
        lanes.append(Lane(title, spans[title], moment, step, step >= one_left, longest, WIDE))
    return lanes


def _lane(lane: Lane, y: float, places: int, blocks: int, size: int) -> list[str]:
    """One run: a title, a row for each sequence, and the pool."""
    said, color = _state(lane, places)
    drawn, grid = _rows_and_blocks(lane, y, blocks, size)
    used = len({block for state in lane.moment.values() for block in state.blocks})
    count = f"{used} of {blocks} blocks are in use"
    return [
        label(0, y, lane.title, 12.5, look=BOLD),
        label(TEXT, y, said, 12.5, color, look=BOLD),
        *drawn,
        label(TEXT, grid.y + 13, count, 12, SOFT),
    ]


def _state(lane: Lane, places: int) -> tuple[str, str]:
    """What waits and what is empty, and the colour in which it is said."""
    empty = places - lane.writing
    wasted = lane.step and lane.waiting and empty
    said = f"waiting {lane.waiting}, places empty {empty} of {places}"
    return said, BAD if wasted else INK


def _rows_and_blocks(lane: Lane, y: float, blocks: int, size: int) -> tuple[list[str], Grid]:
    """A row for each sequence, and the pool; and where the pool is."""
    x = lane.x(lane.step)
    bottom = y + 7 + lane.height
    path = f"M{x:.1f} {y + 5:.0f}V{bottom:.0f}"
    parts = [f'<path d="{path}" stroke="{INK}" stroke-dasharray="3 3"/>']
    tables = []
    for row, name in enumerate(lane.spans):
        look = _look(row)
        parts.append(_racer(lane, name, y + 7 + lane.track.pitch * row, look))
        sequence = lane.moment[name]
        tables.append(Table(name, sequence.blocks, sequence.tokens, look, sequence.words))
    parts += _steps(lane, bottom + 11)
    grid = lane.track.grid(bottom + 20, blocks)
    drawn = [_linked(block, lane) for block in blocks_of(tables, blocks, size)]
    parts.append(label(0, grid.y + 13, "blocks", 11, SOFT, 36))
    return [*parts, *pool(drawn, grid)], grid


def _steps(lane: Lane, y: float) -> list[str]:
    """The numbers of the steps, below the rows."""
    numbers = range(0, lane.longest + 1, 10)
    steps = [
        label(lane.x(number) - 3 * len(str(number)), y, str(number), 11, SOFT) for number in numbers
    ]
    return [label(0, y, "step", 11, SOFT), *steps]


def _look(row: int) -> Look:
    """The look of a row: the first one, which runs longest, has its own colour."""
    rest = SEQUENCE_COLORS[1:]
    return Look(rest[(row - 1) % len(rest)] if row else SEQUENCE_COLORS[0])


def _linked(block: Block, lane: Lane) -> Block:
    """The block, which lights up with the rows of its owners."""
    names = [_link(lane, owner.name) for owner in block.owners]
    return replace(block, links=tuple(names) or (f"b{block.number}",))


def _racer(lane: Lane, name: str, top: float, look: Look) -> str:
    """One sequence: how long it waits, how long it writes, and its words."""
    begin, end = lane.spans[name]
    sequence = lane.moment[name]
    waits = begin - 1
    drawn = [label(0, top + 10, name, 11, SOFT)]
    drawn += _bar(lane, Run(0, waits, FREE, LINE), top)
    drawn += _bar(lane, Run(waits, end, look), top)
    if lane.pitch * min(waits, lane.step) > 40:
        drawn.append(label(46, top + 9.5, "waits", lane.track.font, SOFT))
    if lane.track is WIDE:
        drawn.append(_words_of(sequence, top))
    say = (
        f"{name} waits {waits} steps and writes {end - waits}: its answer is there after step {end}"
    )
    return linked([_link(lane, name)], say, *drawn)


def _words_of(sequence: SequenceState, top: float) -> str:
    """The end of what a sequence has written."""
    prompt = "".join(sequence.words[: sequence.prompt])
    wrote = "".join(sequence.new_words).replace("\n", " ")
    shown = f"… {prompt.split()[-1]}{wrote}" if len(wrote) < 56 else _tail(wrote, 56, 60)
    return label(TEXT, top + 10, shown if wrote else "", 11.5, INK, WIDTH - TEXT)


def _link(lane: Lane, name: str) -> str:
    return f"{lane.title[0]}-{name}"


def _bar(lane: Lane, steps: Run, top: float) -> list[str]:
    """A stretch of steps: solid up to the lane's step, and pale after it if the race is over."""
    now = min(steps.stop, lane.step)
    shown = [replace(steps, stop=now)]
    if lane.is_over:
        later = max(steps.start, lane.step)
        shown.append(Run(later, steps.stop, steps.look.pale))
    return rows(shown, Strip(LEFT, top, lane.pitch, lane.track.bar, gap=1))


# The rectangle ------------------------------------------------------------------------------------

RIGHT = 570  # where the blocks begin
ROW = 40.0  # pixels a chat
NARROW_ROW = 38.0  # on a narrow page
FIRST_ROW = 112.0
PADDING = Look(NEUTRAL, "//", is_pale=True)


@dataclass(frozen=True)
class Chat:
    """A chat after a step, as a row of a conventional cache and in blocks.

    Args:
        name: of its sequence.
        sequence: its sequence.
        question: what it asks.
        end: the step in which it ends.
        step: the step.
    """

    name: str
    sequence: SequenceState
    question: str
    end: int
    step: int

    @property
    def is_over(self) -> bool:
        """Whether its answer is complete."""
        return self.end <= self.step

    @property
    def held(self) -> int:
        """Tokens in its row; the token that was written last is not stored yet."""
        return self.sequence.prompt + min(self.step, self.end) - 1

    @property
    def asked(self) -> str:
        """Its question, without the middle of a long one."""
        if len(self.question) < 70:
            return self.question
        sentences = self.question.split(". ") * 2
        return f"{sentences[0]}. … {sentences[-1]}"

    @property
    def wrote(self) -> str:
        """The end of its answer."""
        return _tail("".join(self.sequence.new_words).replace("\n", " ").strip(), 70, 68)


@dataclass(frozen=True)
class Rectangle:
    """All chats after a step.

    Args:
        chats: the chats.
        longest: tokens of the longest prompt.
        step: the step.
        unit: the width of a token, in pixels.
        size: slots in a block.
    """

    chats: list[Chat]
    longest: int
    step: int
    unit: float
    size: int

    @property
    def columns(self) -> int:
        """Tokens that each row of the rectangle has room for."""
        return self.longest + self.step - 1

    @property
    def places(self) -> int:
        """Tokens that the rectangle has room for."""
        return self.columns * len(self.chats)

    @property
    def stored(self) -> int:
        """Tokens that are stored."""
        return sum(chat.sequence.tokens for chat in self.chats)

    @property
    def blocks(self) -> int:
        """Blocks that the chats have."""
        return sum(len(chat.sequence.blocks) for chat in self.chats)


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
    spans = steps_of(run)
    longest = max(sequence.prompt for sequence in run[0].values())
    last = max(span.end for span in spans.values())
    chats = [
        Chat(name, sequence, question, spans[name].end, step)
        for (name, sequence), question in zip(run[step].items(), questions, strict=True)
    ]
    whole = Rectangle(chats, longest, step, 500 / (longest + last - 1), size)
    parts = []
    for row, chat in enumerate(chats):
        y = FIRST_ROW + ROW * row
        parts.append(_padded_row(whole, chat, y, _look_of_chat(row), 500))
        parts.append(_row_of_blocks(whole, chat, RIGHT, y, _look_of_chat(row), 500))
    most = max(_blocks_in(moment) for moment in run[: step + 1])
    headline, more, less = _figures(whole, most, token_bytes)
    stored = Look(SEQUENCE_COLORS[0])
    looks = {
        "holds a token": stored,
        "padding": PADDING,
        "of a chat that has ended": stored.pale,
    }
    in_blocks = {"holds a token": stored, "empty slot": stored.pale}
    parts += [
        label(0, 15, headline, 15, look=BOLD),
        label(0, 42, "A conventional cache: one rectangle", 13, look=BOLD),
        label(RIGHT, 42, "The same chats in blocks", 13, look=BOLD),
        label(0, 61, more, 12, INK, 540),
        label(RIGHT, 61, less, 12, INK, 510),
        *legend(0, 71, looks),
        *legend(RIGHT, 71, in_blocks),
    ]
    wide = svg(WIDTH, 104 + 40 * len(chats), parts, headline)
    narrow = replace(whole, unit=NARROW / (longest + last - 1))
    return Drawing(wide, _narrow_rectangle(narrow, headline, (more, less), (looks, in_blocks)))


def _narrow_rectangle(
    whole: Rectangle,
    headline: str,
    figures: tuple[str, str],
    looks: tuple[dict[str, Look], dict[str, Look]],
) -> str:
    """The rectangle, and the blocks below it.

    Args:
        whole: all chats.
        headline: of the drawing.
        figures: what is said of the rectangle, and of the blocks.
        looks: what each look means in the rectangle, and in the blocks.
    """
    parts = []
    y = 0.0
    titles = ("A conventional cache: one rectangle", "The same chats in blocks")
    for number, title in enumerate(titles):
        parts.append(label(0, y + 12, title, 13, look=BOLD))
        y += 28
        for line in wrap(figures[number], 44):
            parts.append(label(0, y, line, 11))
            y += 15
        parts += legend(0, y - 8, looks[number], NARROW)
        y += 48 if number == 0 else 28
        for row, chat in enumerate(whole.chats):
            look = _look_of_chat(row)
            if number == 0:
                parts.append(_padded_row(whole, chat, y, look, NARROW))
            else:
                parts.append(_row_of_blocks(whole, chat, 0, y, look, NARROW))
            y += NARROW_ROW
    return narrow_svg(y - 8, parts, headline)


def _look_of_chat(row: int) -> Look:
    return Look(SEQUENCE_COLORS[row % len(SEQUENCE_COLORS)])


def _blocks_in(moment: Moment) -> int:
    return sum(len(sequence.blocks) for sequence in moment.values())


def _padded_row(whole: Rectangle, chat: Chat, y: float, look: Look, within: int) -> str:
    """The chat as a row of the rectangle, its question in `within` pixels."""
    start = whole.longest - chat.sequence.prompt
    stop = start + chat.held
    tokens = [
        Run(0, whole.columns, PADDING, LINE),
        Run(start, stop, Look(CARD)),
        Run(start, stop, look.pale if chat.is_over else look),
    ]
    drawn = [
        box(
            0, y - 12, 540 if within > NARROW else NARROW, 36, CARD, 0
        ),  # the whole line can be pointed at
        label(0, y, shortened(chat.asked, 12, within), 12, INK, within),
        *rows(tokens, Strip(0, y + 6, whole.unit, 17)),
    ]
    padding = whole.columns - chat.held
    say = f"{chat.asked} A row of {whole.columns} slots, {padding} of them padding"
    say += "; the chat has ended, the row stays." if chat.is_over else "."
    return linked([chat.name], say, *drawn)


def _row_of_blocks(
    whole: Rectangle, chat: Chat, left: float, y: float, look: Look, within: int
) -> str:
    """The chat in its blocks, its answer in `within` pixels."""
    size = whole.size
    stored = chat.sequence.tokens
    blocks = chat.sequence.blocks
    table = Table(chat.name, blocks, stored, look)
    is_wide = within > NARROW
    wrote = chat.wrote if is_wide else _tail(chat.wrote, 44, 42)
    drawn = [
        box(560 if is_wide else 0, y - 12, 520 if is_wide else NARROW, 36, CARD, 0),
        label(left, y, wrote, 12, SOFT if chat.is_over else INK, within),
    ]
    filled = [
        Block(number, (Owner(chat.name, look, table.filled(entry, size)),))
        for entry, number in enumerate(blocks)
    ]
    drawn += pool(filled, Grid(left, y + 6, max(1, len(blocks)), size * whole.unit - 2, 17, 2))
    if chat.is_over:
        said = f"ended with step {chat.end}; its blocks are free"
        drawn.append(label(left, y + 19, said, 11.5, SOFT))
    say = f"{chat.asked} {len(blocks)} blocks of {size} for {stored} tokens."
    return linked([chat.name], say, *drawn)


def _figures(whole: Rectangle, most: int, token_bytes: float) -> tuple[str, str, str]:
    """How much memory the rectangle and the blocks take: the headline, and a line about each.

    Args:
        most: blocks at the peak.
    """

    def kib(places: int) -> str:
        return f"{places * token_bytes / 1024:,.0f} KiB"

    slots = whole.blocks * whole.size
    said = (
        f"Step {whole.step}: the rectangle takes {kib(whole.places)}, the blocks take {kib(slots)}."
    )
    more = (
        f"{len(whole.chats)} rows x {whole.columns} columns; {1 - whole.stored / whole.places:.0%} "
        "is padding or belongs to chats that have ended"
    )
    less = (
        f"{whole.blocks} blocks of {whole.size}; {1 - whole.stored / slots:.0%} empty. "
        f"At their peak {kib(most * whole.size)}"
    )
    return said, more, less
