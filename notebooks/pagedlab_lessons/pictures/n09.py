"""Notebook 09's opening: one set of requests in two runs, step by step."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pagedlab.recipes.trace import SequenceState
from pagedlab_lessons.colors import FREE, SEQUENCE_COLORS, Look
from pagedlab_lessons.drawing import (
    BAD,
    BOLD,
    INK,
    LINE,
    Bar,
    Beside,
    Drawing,
    Item,
    Lane,
    Lanes,
    Named,
    Pool,
    Run,
    Table,
    Text,
    blocks_of,
    note,
    page,
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


def tail(text: str, most: int) -> str:
    """The end of a text that has `most` letters or more, from a word on."""
    return text if len(text) < most else f"… {text[-most:].split(' ', 1)[-1]}"


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
    ends = [sorted(span.end for span in steps_of(run).values()) for run in runs.values()]
    longest = max(times[-1] for times in ends)
    is_over = step >= ends[-1][-2]
    done = []
    last = []
    items = []
    for (name, run), times in zip(runs.items(), ends, strict=True):
        shown = longest if is_over else step
        items += _side(name, run, step, shown, longest, places, blocks, size)
        short = name.split(":")[0].lower()
        done.append(f"{short} {sum(end <= step for end in times)} of {len(times)}")
        last.append(f"{times[-1]} steps ({short})")
    said = f"The last answer is finished after {' and '.join(last)}."
    pale = " Pale: later steps." if is_over else ""
    return page(
        f"After {step} steps, finished answers: {', '.join(done)}.",
        Text(said + pale, (13, 11)),
        *items,
    )


def _side(
    title: str,
    run: Sequence[Moment],
    step: int,
    shown: int,
    longest: int,
    places: int,
    blocks: int,
    size: int,
) -> list[Item]:
    """Return one run of a race after a step: a title, a row for each sequence, and the pool.

    Args:
        title: of the run.
        run: its moments.
        step: the step.
        shown: the last step that is drawn; those after `step` are pale.
        longest: steps of the longest run.
        places: sequences that run at once.
        blocks: of the pool.
        size: slots in a block.
    """
    spans = steps_of(run)
    moment = run[min(step, len(run) - 1)]
    waiting = sum(span.begin > step for span in spans.values())
    empty = places - sum(span.begin <= step <= span.end for span in spans.values())
    state = f"in this step: waiting {waiting}, places empty {empty} of {places}"
    color = BAD if step and waiting and empty else INK
    own, *others = SEQUENCE_COLORS
    tables = []
    lanes = []
    for row, (name, (begin, end)) in enumerate(spans.items()):
        sequence = moment[name]
        # The first one, which runs longest, has a colour of its own.
        look = Look(others[(row - 1) % len(others)] if row else own)
        tables.append(Table(name, sequence.blocks, sequence.tokens, look, sequence.words))
        waits = begin - 1
        runs = [
            Run(0, min(waits, step), FREE, LINE),
            Run(waits, min(end, step), look),
            Run(step, min(waits, shown), FREE.tint),
            Run(max(waits, step), min(end, shown), look.tint),
        ]
        say = (
            f"{name} waits {waits} steps and writes {end - waits}: its answer is there after step "
            f"{end}"
        )
        bar = Bar(runs, [f"{title[0]}-{name}"], say, "waits" if waits else "")
        words = "".join(sequence.words if sequence.num_new else []).replace("\n", " ")
        lanes.append(Lane(name, [bar], tail(words, 62)))
    drawn = blocks_of(tables, blocks, size)
    for block in drawn:
        block.links = tuple(f"{title[0]}-{owner.name}" for owner in block.owners)
    used = sum(block.is_used for block in drawn)
    pool = Named("blocks", Pool(drawn, columns=(min(blocks, 32), 8), gap=2), NAMES)
    head = Text(title, 13, look=BOLD, above=6)
    count = note((f"{used} of {blocks} blocks are in use", ""))
    return [
        Beside([[head], [Text(state, color=color, look=BOLD, above=6)]]),
        Lanes(lanes, longest, step, "step", NAMES),
        Beside([[pool], [count]]),
    ]
