"""Many sequences at once, step by step: the race of 09, and 08's rectangle beside blocks.

Both draw `trace.moments(recording)`, the sequences by name after each step. pictures.py has the
other openings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pagedlab.lessons.colors import NEUTRAL, sequence_color
from pagedlab.lessons.drawing import (
    BAD,
    BOLD,
    CARD,
    INK,
    LINE,
    SOFT,
    Owner,
    box,
    label,
    legend,
    linked,
    memory,
    stripes,
    svg,
)
from pagedlab.trace import SequenceState

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
COLUMNS = 560  # all steps
TEXT = 632  # where the words begin
LANE = 14  # pixels a row


@dataclass(frozen=True)
class Lane:
    """One run of a race after a step.

    Args:
        title: of the run.
        spans: of its sequences.
        moment: its sequences after the step.
        step: the step.
        is_over: whether the future is drawn too, pale.
        pitch: the width of a step, in pixels.
    """

    title: str
    spans: dict[str, Span]
    moment: Moment
    step: int
    is_over: bool
    pitch: float

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
        return LANE * len(self.spans)

    def x(self, step: int) -> float:
        """Where a step is."""
        return LEFT + self.pitch * step


def race(runs: dict[str, Sequence[Moment]], step: int, places: int, blocks: int, size: int) -> str:
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
    y = 56.0
    below: list[str] = []
    for lane in lanes:
        below += _lane(lane, y, places, blocks, size)
        y += 7 + lane.height + 48
    y -= 9
    last = max(lane.last for lane in lanes)
    for number in range(0, last + 1, 10):
        below.append(label(lanes[0].x(number) - 8, y, str(number), 11, SOFT))
    below.append(label(0, y, "step", 11, SOFT))
    done = [f"{lane.short_title} {lane.finished} of {len(lane.spans)}" for lane in lanes]
    said = f"After {step} steps, answers written to their end: {', '.join(done)}."
    whole = " and ".join(f"{lane.last} steps {lane.short_title}" for lane in lanes)
    more = f"Until everybody has an answer: {whole}."
    if lanes[-1].is_over:
        more += " Pale is what is still to come."
    parts = [*below, label(0, 15, said, 15, look=BOLD), label(0, 33, more, 13)]
    return svg(WIDTH, y + 6, parts)


def _lanes(runs: dict[str, Sequence[Moment]], step: int) -> list[Lane]:
    """The runs after the step, on one scale."""
    spans = {title: steps_of(run) for title, run in runs.items()}
    ends = {title: sorted(span.end for span in of_run.values()) for title, of_run in spans.items()}
    longest = max(of_run[-1] for of_run in ends.values())
    one_left = list(ends.values())[-1][-2]
    lanes = []
    for title, run in runs.items():
        moment = run[min(step, len(run) - 1)]
        lane = Lane(title, spans[title], moment, step, step >= one_left, COLUMNS / longest)
        lanes.append(lane)
    return lanes


def _lane(lane: Lane, y: float, places: int, blocks: int, size: int) -> list[str]:
    """One run: a title, a row for each sequence, and the pool."""
    empty = places - lane.writing
    said = f"waiting {lane.waiting}, places empty {empty} of {places}"
    wasted = lane.step and lane.waiting and empty
    x = lane.x(lane.step)
    path = f"M{x:.1f} {y + 5:.0f}V{y + lane.height + 36:.0f}"
    parts = [
        label(0, y, lane.title, 12.5, look=BOLD),
        label(TEXT, y, said, 12.5, BAD if wasted else INK, look=BOLD),
        f'<path d="{path}" stroke="{INK}" stroke-dasharray="3 3"/>',
    ]
    owners: dict[int, Owner] = {}
    for row, name in enumerate(lane.spans):
        color = sequence_color(row and 1 + (row - 1) % 6)
        parts.append(_racer(lane, name, y + 7 + LANE * row, color))
        owners |= _blocks_of(lane, name, color, size)
    top = y + lane.height + 13
    said = f"{len(owners)} of {blocks} blocks hold something"
    parts.append(label(0, top + 13, "blocks", 11, SOFT, 36))
    parts += memory(LEFT, top, COLUMNS, blocks, owners)
    parts.append(label(TEXT, top + 13, said, 12, SOFT))
    return parts


def _racer(lane: Lane, name: str, top: float, color: str) -> str:
    """One sequence: how long it waits, how long it writes, and its words."""
    begin, end = lane.spans[name]
    sequence = lane.moment[name]
    waits = begin - 1
    drawn = [label(0, top + 10, name, 11, SOFT)]
    drawn += _bar(lane, 0, waits, top, "var(--well)", LINE)
    drawn += _bar(lane, waits, end, top, color, "none")
    if lane.pitch * min(waits, lane.step) > 40:
        drawn.append(label(46, top + 9.5, "waits", 10.5, SOFT))
    prompt = "".join(sequence.words[: sequence.prompt])
    wrote = "".join(sequence.new_words).replace("\n", " ")
    shown = f"… {prompt.split()[-1]}{wrote}" if len(wrote) < 56 else _tail(wrote, 56, 60)
    drawn.append(label(TEXT, top + 10, shown if wrote else "", 11.5, INK, WIDTH - TEXT))
    say = (
        f"{name} waits {waits} steps and writes {end - waits}: its answer is there after step {end}"
    )
    return linked([_link(lane, name)], say, *drawn)


def _link(lane: Lane, name: str) -> str:
    return f"{lane.title[0]}-{name}"


def _bar(lane: Lane, first: int, last: int, top: float, color: str, edge: str) -> list[str]:
    """A stretch of steps: solid up to the lane's step, and pale after it if the race is over."""
    drawn = []
    now = min(last, lane.step)
    if first < now:
        width = lane.pitch * (now - first) - 1
        drawn.append(box(lane.x(first), top, width, 11.5, color, 0.75, edge))
    later = max(first, lane.step)
    if lane.is_over and later < last:
        width = lane.pitch * (last - later) - 1
        drawn.append(box(lane.x(later), top, width, 11.5, color, 0.18))
    return drawn


def _blocks_of(lane: Lane, name: str, color: str, size: int) -> dict[int, Owner]:
    """The blocks of a sequence, for `memory`."""
    sequence = lane.moment[name]
    owners: dict[int, Owner] = {}
    for entry, block in enumerate(sequence.blocks):
        held = sequence.words_in(entry, size)
        say = f"block {block}, {name}: {''.join(held)!r}"
        owners[block] = (_link(lane, name), say, color, len(held) / size)
    return owners


# The rectangle ------------------------------------------------------------------------------------

RIGHT = 570  # where the blocks begin
ROW = 40.0  # pixels a chat
FIRST_ROW = 112.0
PADDING = "url(#pl-pad)"


@dataclass(frozen=True)
class Chat:
    """A chat after a step, as a row of an ordinary cache and in blocks.

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
) -> str:
    """Chats after `step`, on one scale: as the rows of an ordinary cache, padded on the left, and
    in their blocks.

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
    parts = [stripes("pl-pad", NEUTRAL)]
    for row, chat in enumerate(chats):
        y = FIRST_ROW + ROW * row
        parts.append(_padded_row(whole, chat, y, sequence_color(row)))
        parts.append(_row_of_blocks(whole, chat, y, sequence_color(row)))
    most = max(_blocks_in(moment) for moment in run[: step + 1])
    parts += _figures(whole, most, token_bytes)
    looks = {
        "holds a token": (sequence_color(0), 0.75, LINE),
        "padding": (PADDING, 1, LINE),
        "of a chat that has ended": (sequence_color(0), 0.2, LINE),
    }
    parts += legend(0, 71, looks)
    return svg(WIDTH, 104 + 40 * len(chats), parts)


def _blocks_in(moment: Moment) -> int:
    return sum(len(sequence.blocks) for sequence in moment.values())


def _padded_row(whole: Rectangle, chat: Chat, y: float, color: str) -> str:
    """The chat as a row of the rectangle."""
    left = (whole.longest - chat.sequence.prompt) * whole.unit
    width = chat.held * whole.unit
    drawn = [
        box(0, y - 12, 540, 36, CARD, 0),  # the whole line can be pointed at
        label(0, y, chat.asked, 12, INK, 500),
        box(0, y + 6, whole.columns * whole.unit, 17, PADDING, 1, LINE),
        box(left, y + 6, width, 17, CARD),
        box(left, y + 6, width, 17, color, 0.2 if chat.is_over else 0.75),
    ]
    padding = whole.columns - chat.held
    say = f"{chat.asked} A row of {whole.columns} places, {padding} of them padding"
    say += "; the chat has ended, the row stays." if chat.is_over else "."
    return linked([chat.name], say, *drawn)


def _row_of_blocks(whole: Rectangle, chat: Chat, y: float, color: str) -> str:
    """The chat in its blocks."""
    size = whole.size
    stored = chat.sequence.tokens
    blocks = chat.sequence.blocks
    drawn = [
        box(560, y - 12, 520, 36, CARD, 0),
        label(RIGHT, y, chat.wrote, 12, SOFT if chat.is_over else INK, 500),
    ]
    for entry, block in enumerate(blocks):
        x = RIGHT + entry * size * whole.unit
        full = min(size, stored - entry * size)
        drawn.append(box(x, y + 6, size * whole.unit - 2, 17, CARD, 1, color))
        drawn.append(box(x, y + 6, full * whole.unit - 2, 17, color, 0.75))
        drawn.append(label(x + 4, y + 18.5, str(block), 11, look=BOLD))
    if chat.is_over:
        said = f"ended with step {chat.end}; its blocks are free"
        drawn.append(label(RIGHT, y + 19, said, 11.5, SOFT))
    say = f"{chat.asked} {len(blocks)} blocks of {size} for {stored} tokens."
    return linked([chat.name], say, *drawn)


def _figures(whole: Rectangle, most: int, token_bytes: float) -> list[str]:
    """How much memory the rectangle and the blocks take.

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
        "is padding or of chats that ended"
    )
    less = (
        f"{whole.blocks} blocks of {whole.size}; {1 - whole.stored / slots:.0%} empty. "
        f"At their peak {kib(most * whole.size)}"
    )
    return [
        label(0, 15, said, 15, look=BOLD),
        label(0, 42, "An ordinary cache: one rectangle", 13, look=BOLD),
        label(RIGHT, 42, "The same chats in blocks", 13, look=BOLD),
        label(0, 61, more, 12, INK, 540),
        label(RIGHT, 61, less, 12, INK, 510),
    ]
