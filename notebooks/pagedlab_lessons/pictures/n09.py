"""Notebook 09's opening: one set of requests in two runs, step by step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pagedlab.recipes.trace import SequenceState
from pagedlab_lessons.colors import FREE, SEQUENCE_COLORS, Look
from pagedlab_lessons.drawing import (
    BAD,
    BOLD,
    INK,
    LINE,
    SOFT,
    Block,
    Drawing,
    Run,
    Strip,
    Table,
    blocks_of,
    label,
    linked,
    rows,
)
from pagedlab_lessons.drawing.flow import (
    Beside,
    Drawn,
    Item,
    Named,
    Pool,
    Space,
    Text,
    note,
    page,
    title,
)

Moment = Mapping[str, SequenceState]  # the sequences by name after a step
NAMES = 40  # pixels of the names of rows


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


def tail(text: str, most: int, keep: int) -> str:
    """The end of a text that has `most` letters or more, from a word on."""
    return text if len(text) < most else f"… {text[-keep:].split(' ', 1)[-1]}"


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
    spans = {title: steps_of(run) for title, run in runs.items()}
    ends = {title: sorted(span.end for span in of_run.values()) for title, of_run in spans.items()}
    longest = max(of_run[-1] for of_run in ends.values())
    is_over = step >= list(ends.values())[-1][-2]
    lanes = [
        _Lane(title, spans[title], run[min(step, len(run) - 1)], step, is_over, longest)
        for title, run in runs.items()
    ]
    done = [f"{lane.short_title} {lane.finished} of {len(lane.spans)}" for lane in lanes]
    last = " and ".join(f"{ends[lane.title][-1]} steps ({lane.short_title})" for lane in lanes)
    said = f"The last answer is finished after {last}."
    pale = " Pale: later steps." if is_over else ""
    return page(
        f"After {step} steps, finished answers: {', '.join(done)}.",
        Text((said + pale, ""), 13),
        *(item for lane in lanes for item in lane.items(places, blocks, size)),
        Text(("", said)),
    )


@dataclass(frozen=True)
class _Lane:
    """One run of a race after a step.

    Args:
        title: of the run.
        spans: of its sequences.
        moment: its sequences after the step.
        step: the step.
        is_over: whether the future is drawn too, pale.
        longest: steps of the longest run.
    """

    title: str
    spans: dict[str, Span]
    moment: Moment
    step: int
    is_over: bool
    longest: int

    @property
    def short_title(self) -> str:
        """The title without what follows its colon."""
        return self.title.split(":")[0].lower()

    @property
    def finished(self) -> int:
        """How many sequences have ended."""
        return sum(span.end <= self.step for span in self.spans.values())

    def items(self, places: int, blocks: int, size: int) -> list[Item]:
        """A title, a row for each sequence, and the pool."""
        name, _, about = self.title.partition(": ")
        waiting = sum(span.begin > self.step for span in self.spans.values())
        writing = sum(span.begin <= self.step <= span.end for span in self.spans.values())
        empty = places - writing
        state = f"waiting {waiting}, places empty {empty} of {places}"
        color = BAD if self.step and waiting and empty else INK
        tables = []
        for row, (key, sequence) in enumerate(self.moment.items()):
            tables.append(Table(key, sequence.blocks, sequence.tokens, _look(row), sequence.words))
        drawn = [self._linked(block) for block in blocks_of(tables, blocks, size)]
        used = sum(block.is_used for block in drawn)
        count = f"{used} of {blocks} blocks are in use"
        pool = Named("blocks", Pool(drawn, columns=(min(blocks, 32), 8)), NAMES)
        return [
            Beside(
                [[title((self.title, name))], [Text(state, color=color, look=BOLD, above=(6, 0))]],
                SHARES,
            ),
            note(("", about)),
            self._rows,
            Beside([[pool], [note((count, ""))]], SHARES),
        ]

    def _linked(self, block: Block) -> Block:
        """The block, which lights up with the rows of its owners."""
        links = tuple(self._link(owner.name) for owner in block.owners)
        return replace(block, links=links or (f"b{block.number}",))

    def _link(self, name: str) -> str:
        return f"{self.title[0]}-{name}"

    def _rows(self, space: Space) -> Drawn:
        """A row for each sequence, the step as a line, and the numbers of the steps."""
        pitch, height = space.pick((13.25, 11), (13, 11))
        width = SHARES[0] * space.width if not space.is_narrow else space.width
        strip = Strip(space.x + NAMES, space.y, (width - NAMES - 8) / self.longest, height, gap=1)
        bottom = space.y + pitch * len(self.spans)
        x, _ = strip.corner(self.step)
        path = f"M{x:.1f} {space.y - 2:.0f}V{bottom:.0f}"
        parts = [f'<path d="{path}" stroke="{INK}" stroke-dasharray="3 3"/>']
        for row, name in enumerate(self.spans):
            place = replace(strip, y=space.y + pitch * row)
            words = [] if space.is_narrow else [self._words(name, place.y, space)]
            parts.append(self._row(name, _look(row), place, words))
        parts.append(label(space.x, bottom + 11, "step", 11, SOFT))
        for number in range(0, self.longest + 1, 10):
            left = strip.corner(number)[0] - 3 * len(str(number))
            parts.append(label(left, bottom + 11, str(number), 11, SOFT))
        return Drawn(parts, bottom + 20)

    def _row(self, name: str, look: Look, place: Strip, words: list[str]) -> str:
        """One sequence: how long it waits, how long it writes, and its words."""
        begin, end = self.spans[name]
        waits = begin - 1
        x, top = place.corner(0)
        drawn = [label(x - NAMES, top + 10, name, 11, SOFT)]
        drawn += self._bar(Run(0, waits, FREE, LINE), place)
        drawn += self._bar(Run(waits, end, look), place)
        if place.unit * min(waits, self.step) > 40:
            drawn.append(label(x + 6, top + 9.5, "waits", 11, SOFT))
        say = (
            f"{name} waits {waits} steps and writes {end - waits}: its answer is there after step "
            f"{end}"
        )
        return linked([self._link(name)], say, *drawn, *words)

    def _bar(self, steps: Run, place: Strip) -> list[str]:
        """A stretch of steps: solid up to the step, and pale after it if the race is over."""
        shown = [replace(steps, stop=min(steps.stop, self.step))]
        if self.is_over:
            later = max(steps.start, self.step)
            shown.append(Run(later, steps.stop, steps.look.pale))
        return rows(shown, place)

    def _words(self, name: str, top: float, space: Space) -> str:
        """The end of what a sequence has written."""
        sequence = self.moment[name]
        prompt = "".join(sequence.words[: sequence.prompt])
        wrote = "".join(sequence.new_words).replace("\n", " ")
        shown = f"… {prompt.split()[-1]}{wrote}" if len(wrote) < 56 else tail(wrote, 56, 60)
        left = SHARES[0] * (space.width - 24) + 24
        within = space.width - left
        return label(space.x + left, top + 10, shown if wrote else "", 11.5, INK, within)


SHARES = (0.57, 0.43)  # of a wide page: bars and blocks, words


def _look(row: int) -> Look:
    """The look of a row: the first one, which runs longest, has its own colour."""
    rest = SEQUENCE_COLORS[1:]
    return Look(rest[(row - 1) % len(rest)] if row else SEQUENCE_COLORS[0])
