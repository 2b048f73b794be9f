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
    Block,
    Drawing,
    Run,
    Table,
    blocks_of,
)
from pagedlab_lessons.drawing.flow import (
    Bar,
    Beside,
    Item,
    Lane,
    Lanes,
    Named,
    Pool,
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
    sides = [
        _Side(title, spans[title], run[min(step, len(run) - 1)], step, is_over, longest)
        for title, run in runs.items()
    ]
    done = [f"{side.short_title} {side.finished} of {len(side.spans)}" for side in sides]
    last = " and ".join(f"{ends[side.title][-1]} steps ({side.short_title})" for side in sides)
    said = f"The last answer is finished after {last}."
    pale = " Pale: later steps." if is_over else ""
    return page(
        f"After {step} steps, finished answers: {', '.join(done)}.",
        Text((said + pale, ""), 13),
        *(item for side in sides for item in side.items(places, blocks, size)),
        Text(("", said)),
    )


@dataclass(frozen=True)
class _Side:
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
        lanes = [self._row(row, name) for row, name in enumerate(self.spans)]
        pool = Named("blocks", Pool(drawn, columns=(min(blocks, 32), 8)), NAMES)
        return [
            Beside(
                [[title((self.title, name))], [Text(state, color=color, look=BOLD, above=(6, 0))]],
                SHARES,
            ),
            note(("", about)),
            Lanes(lanes, self.longest, self.step, "step", NAMES, share=SHARES[0]),
            Beside([[pool], [note((count, ""))]], SHARES),
        ]

    def _linked(self, block: Block) -> Block:
        """The block, which lights up with the rows of its owners."""
        links = tuple(self._link(owner.name) for owner in block.owners)
        return replace(block, links=links or (f"b{block.number}",))

    def _link(self, name: str) -> str:
        return f"{self.title[0]}-{name}"

    def _row(self, row: int, name: str) -> Lane:
        """One sequence: how long it waits, how long it writes, and the end of what it wrote."""
        begin, end = self.spans[name]
        waits = begin - 1
        look = _look(row)
        runs = [
            Run(0, min(waits, self.step), FREE, LINE),
            Run(waits, min(end, self.step), look),
        ]
        if self.is_over:
            runs.append(Run(max(0, self.step), waits, FREE.pale))
            runs.append(Run(max(waits, self.step), end, look.pale))
        say = (
            f"{name} waits {waits} steps and writes {end - waits}: its answer is there after step "
            f"{end}"
        )
        bar = Bar(runs, [self._link(name)], say, "waits" if waits else "")
        sequence = self.moment[name]
        prompt = "".join(sequence.words[: sequence.prompt])
        wrote = "".join(sequence.new_words).replace("\n", " ")
        shown = f"… {prompt.split()[-1]}{wrote}" if len(wrote) < 56 else tail(wrote, 56, 60)
        return Lane(name, [bar], shown if wrote else "")


SHARES = (0.57, 0.43)  # of a wide page: bars and blocks, words


def _look(row: int) -> Look:
    """The look of a row: the first one, which runs longest, has its own colour."""
    rest = SEQUENCE_COLORS[1:]
    return Look(rest[(row - 1) % len(rest)] if row else SEQUENCE_COLORS[0])
