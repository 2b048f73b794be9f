"""The timeline of an engine: a row a request, a column a step.

    with Recorder(llm) as recorder:
        llm.generate(prompts)
    print(run_of(recorder.recording).summary())

A cell is one step of a request, from the step in which it is first seen to the step in which it
ends. `KINDS` names what a cell can be. `Timeline` draws the rows, and what each request does in the
step pointed at.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from pagedlab.recipes.trace import Recorder, Replay, SequenceState
from pagedlab.recipes.trace.format import request_of
from pagedlab_lessons.colors import STEP_LOOKS, Look, sequence_color
from pagedlab_lessons.drawing import (
    CARD,
    Bar,
    Block,
    Drawing,
    Drawn,
    Item,
    Lane,
    Lanes,
    Legend,
    Named,
    Pool,
    Space,
    Table,
    blocks_of,
    box,
    linked,
    note,
    page,
    shape,
)
from pagedlab_lessons.drawing import Run as Cells
from pagedlab_lessons.widgets.explore import Explorer

KINDS = {
    "W": "waiting",  # in the queue, and in no block
    "P": "prefill",  # tokens of its prompt are computed
    "D": "decode",  # each of its sequences gets one more token
    # tokens are computed that were computed before: it was preempted, and its blocks were released
    "R": "recomputed",
    "S": "swapped",  # its blocks are in host memory
    "-": "passed over",  # it runs, but others took all tokens of this step
}
IDLE = {"waiting": "W", "running": "-", "swapped": "S"}  # the kind of a step that computes nothing
LOOKS = STEP_LOOKS  # colour, hatch, and whether it is pale; by kind
ENDS = {
    "stop": "the model ended it",
    "length": "it has all its tokens",
    "abort": "it was aborted",
    "error": "it failed",
}

INTERVAL = 0.25  # seconds between two drawings while the engine runs
MAX_STEPS = 1200  # that are drawn; the recording goes on
MAX_ROWS = 64
SHOWN_TOKENS = 16  # of a chunk, as words
SHOWN_SEQUENCES = 4  # whose new words are shown

# The drawing, in pixels.
LEFT = 44  # of the first column
SHARE = 0.5  # of the width that the columns have; the words have the rest
BARS = 36  # how high the bars are
SHOWN_LETTERS = 48  # of what a request wrote
BLOCKS_A_ROW = 32


# A run --------------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """One step of a request: what was computed of it, and what it wrote.

    Args:
        kind: a key of `KINDS`.
        start: the position of the first token that was computed.
        tokens: how many tokens were computed.
        again: how many of them were computed before, and lost.
        wrote: new tokens of all its sequences.
        reads: the first computed tokens as words; empty for a decode step.
        writes: the last new word of each sequence.
    """

    kind: str
    start: int = 0
    tokens: int = 0
    again: int = 0
    wrote: int = 0
    reads: str = ""
    writes: str = ""


@dataclass
class Row:
    """One request. Its cells are those of steps `first`, `first` + 1, ...

    Args:
        name: of the request.
        first: the step in which it is first seen.
        cells: one a step.
        end: why its first sequence ended; "" while the request is unfinished.
        reached: tokens that were computed at some time.
        written: new tokens of its sequences.
    """

    name: str
    first: int
    cells: list[Cell]
    end: str = ""
    reached: int = 0
    written: int = 0

    @property
    def kinds(self) -> str:
        """One letter a step."""
        return "".join(cell.kind for cell in self.cells)

    @property
    def waited(self) -> int:
        """Steps in which nothing of it was computed."""
        return sum(cell.tokens == 0 for cell in self.cells)

    @property
    def to_first_token(self) -> int | None:
        """Steps from its arrival to its first token, that one included."""
        return next((n for n, cell in enumerate(self.cells, 1) if cell.wrote), None)

    def compute(self, sequences: dict[str, SequenceState], chunks: dict[str, list[int]]) -> None:
        """Add the cell of a step that computed [start, stop] of these of its sequences."""
        name, (start, stop) = next(iter(chunks.items()))
        words = sequences[name].words[start:stop]
        reads = "".join(words[:SHOWN_TOKENS]) + " …" * (len(words) > SHOWN_TOKENS)
        new = [sequence.num_new for sequence in sequences.values()]
        wrote = max(0, sum(new) - self.written)
        again = sum(max(0, min(b, self.reached) - a) for a, b in chunks.values())
        kind = "R" if again else "P" if start < sequences[name].prompt else "D"
        # The longest sequences are those that went on.
        last = [s.words[-1] for s in sequences.values() if s.words and s.num_new == max(new)]
        cell = Cell(
            kind,
            start,
            tokens=sum(b - a for a, b in chunks.values()),
            again=again,
            wrote=wrote,
            reads="" if kind == "D" else reads,
            writes=" | ".join(last[:SHOWN_SEQUENCES]) if wrote else "",
        )
        self.cells.append(cell)
        self.reached = max(self.reached, *(b for _, b in chunks.values()))
        self.written = sum(new)


class Summary(NamedTuple):
    """A run in figures.

    Steps are not seconds: one with many tokens takes longer, and `largest` says how many.

    Args:
        steps: how many there were.
        written: new tokens.
        recomputed: tokens that were computed again.
        largest: tokens computed in one step, at most.
        waited_mean: steps in which a request got nothing.
        waited_longest: the most of one request.
    """

    steps: int
    written: int
    recomputed: int
    largest: int
    waited_mean: float
    waited_longest: int


@dataclass
class Run:
    """A recorded run by request.

    Args:
        rows: the requests, in order of arrival.
        batches: tokens computed in each step, by kind.
        preempted: preemptions by how: "recompute" or "swap".
    """

    rows: list[Row]
    batches: list[Counter[str]]
    preempted: Counter[str]

    @property
    def steps(self) -> int:
        """How many steps the engine made."""
        return len(self.batches)

    def summary(self) -> Summary:
        """The run so far in figures."""
        cells = [cell for row in self.rows for cell in row.cells]
        waited = [row.waited for row in self.rows] or [0]
        return Summary(
            steps=self.steps,
            written=sum(cell.wrote for cell in cells),
            recomputed=sum(cell.again for cell in cells),
            largest=max((batch.total() for batch in self.batches), default=0),
            waited_mean=sum(waited) / len(waited),
            waited_longest=max(waited),
        )


def run_of(recording: dict[str, Any]) -> Run:
    """Return the rows of a recording. Its cells have words if they were recorded."""
    run = Run([], [], Counter())
    rows = {}
    for after in _engine_steps(Replay(recording)):
        run.batches.append(Counter())
        run.preempted.update(after.now.get("preempted", {}).values())
        computed = after.now.get("computed", {})
        for request, own in _by_request(after.sequences).items():
            chunks = {name: computed[name] for name in own if name in computed}
            states = [sequence.state for sequence in own.values() if sequence.is_unfinished]
            if request not in rows and (chunks or states):
                rows[request] = Row(request, run.steps, [])
            row = rows.get(request)
            if not row or row.end:  # it ended, perhaps before any step
                continue
            if chunks:
                row.compute(own, chunks)
                run.batches[-1][row.cells[-1].kind] += row.cells[-1].tokens
            elif states:
                row.cells.append(Cell(IDLE[states[0]]))
            if not states:
                row.end = next(iter(own.values())).state
    run.rows = list(rows.values())
    return run


def _engine_steps(replay: Replay) -> Iterator[Replay]:
    """Seek each step of the engine in turn."""
    engine_step = replay.now["step"]
    for at in range(1, len(replay)):
        replay.seek(at)
        if replay.now["step"] > engine_step:  # the others note what changed between two steps
            engine_step = replay.now["step"]
            yield replay


def _by_request(sequences: dict[str, SequenceState]) -> dict[str, dict[str, SequenceState]]:
    """The sequences of each request by name."""
    requests = defaultdict[str, dict[str, SequenceState]](dict)
    for name, sequence in sequences.items():
        requests[request_of(name)][name] = sequence
    return requests


# What is said -------------------------------------------------------------------------------------


def headline(run: Run) -> str:
    """The run in figures, and what of it is not drawn."""
    if not run.steps:
        return "Nothing has run yet."
    figures = run.summary()
    said = (
        f"{run.steps} steps, {figures.written:,} tokens written, "
        f"{figures.written / run.steps:.1f} a step; "
        f"steps waited: {figures.waited_mean:.1f} on average, {figures.waited_longest} at most"
    )
    if run.preempted:
        said += f"; preemptions: {run.preempted.total()}"
    if run.steps > MAX_STEPS or len(run.rows) > MAX_ROWS:
        said += f". Drawn: the first {MAX_ROWS} requests in the first {MAX_STEPS:,} steps"
    return said


def told(row: Row, step: int) -> str:
    """The work of a request in a step, in words; nothing if it is not there."""
    at = step - row.first
    if at not in range(len(row.cells)):
        return ""
    cell = row.cells[at]
    said = [_computes(cell)]
    if cell.kind == "P" and cell.start and not {"P", "R"} & set(row.kinds[:at]):
        said.append(f"the {cell.start} before were cached")
    if cell.wrote:
        number = f"{cell.wrote} tokens, " if cell.wrote > 1 else ""
        said.append(f"writes {number}“{cell.writes}”")
    if at == len(row.cells) - 1 and row.end in ENDS:
        said.append(ENDS[row.end])
    return "; ".join(said).replace("\n", " ")


def _computes(cell: Cell) -> str:
    """The kind of the cell, and the tokens that it computes."""
    said = KINDS[cell.kind]
    if cell.tokens > 1:
        said += f": tokens {cell.start}–{cell.start + cell.tokens - 1}"
    elif cell.tokens:
        said += f": token {cell.start}"
    return f"{said} “{cell.reads}”" if cell.reads else said


# What is drawn ------------------------------------------------------------------------------------


def draw_timeline(run: Run, step: int, after: Replay | None, most_tokens: int) -> Drawing:
    """Rows of cells by kind, the tokens of each step as bars, and with a replay the blocks.

    Args:
        run: the recorded run.
        step: the step pointed at, from 1 on; 0 for none.
        after: the state after the step.
        most_tokens: tokens of a step whose bar has the full height; 0 for the largest step. A
            larger step makes all bars lower, so that its bar fits.
    """
    rows = [row for row in run.rows if row.first <= MAX_STEPS][:MAX_ROWS]
    steps = max(1, min(run.steps, MAX_STEPS))
    kinds = {cell.kind for row in rows for cell in row.cells}
    most = max(most_tokens, run.summary().largest, 1)
    items: list[Item] = [
        Legend([(LOOKS[kind], KINDS[kind]) for kind in KINDS if kind in kinds]),
        Lanes(
            [_lane(row, number, step, after) for number, row in enumerate(rows)],
            steps,
            step,
            "step",
            LEFT,
            every=10 * (1 + steps // 250),
        ),
        note(f"Tokens that each step computes; the scale ends at {most:,}"),
        partial(_bars, run.batches[:steps], most),
    ]
    if after:
        items.append(Named("blocks", Pool(_blocks(after, run), (BLOCKS_A_ROW, 8)), LEFT))
    said = headline(run)
    return page(said, *items, name=f"{said}. Step {step}" if step else said)


def _lane(row: Row, number: int, step: int, after: Replay | None) -> Lane:
    """A request: its cells, and in words what it does in the step and what it has written."""
    said = told(row, step)
    words = said
    if after and said and (state := after.sequences.get(row.name)) and state.words:
        wrote = "".join(state.words)[-SHOWN_LETTERS:]
        words = f"{said.split(':')[0]} … {wrote}".replace("\n", " ")
    bars: list[Bar] = []
    first = row.first
    for kind, cells in groupby(row.kinds[: MAX_STEPS - row.first + 1]):
        last = first + len(list(cells)) - 1
        when = f"steps {first} to {last}" if last > first else f"step {first}"
        say = f"{row.name}, {KINDS[kind]}, {when}"
        if not bars:  # it is pointed at with the words
            say = f"{row.name}, step {step}, {said or 'not there'} · {KINDS[kind]}, {when}"
        bars.append(Bar([Cells(first - 1, last, LOOKS[kind])], [row.name], say))
        first = last + 1
    return Lane(row.name, bars, words, sequence_color(number) if after else "none")


def _bars(batches: list[Counter[str]], most: int, space: Space) -> Drawn:
    """The tokens of each step by kind, as a bar below its column of cells."""
    pitch = (space.pick(SHARE, 1) * space.width - LEFT - 8) / max(1, len(batches))
    parts = []
    for step, batch in enumerate(batches, 1):
        x = space.x + LEFT + pitch * (step - 1)
        drawn = [box(x, space.y, pitch, BARS, CARD, 0)]  # all its height can be pointed at
        top = space.y + BARS
        said = []
        for kind, tokens in batch.items():
            height = BARS * tokens / most
            top -= height
            drawn.append(shape(x, top, max(0.5, pitch - 1), height, LOOKS[kind]))
            said.append(f"{tokens:,} {KINDS[kind]}")
        say = f"step {step}, tokens computed: {', '.join(said)}"
        parts.append(linked([f"step-{step}"], say, *drawn, goes=f"step={step}"))
    return Drawn(parts, space.y + BARS + 8)


def _blocks(after: Replay, run: Run) -> list[Block]:
    """The blocks after the step, in the colours of the requests.

    A block lights up with the rows of its requests.
    """
    looks = {row.name: Look(sequence_color(i)) for i, row in enumerate(run.rows)}
    tables = [
        Table(name, each.blocks, each.tokens, looks[request_of(name)], each.words)
        for name, each in after.sequences.items()
        if each.blocks
    ]
    size = after.recording["block_size"]
    blocks = blocks_of(tables, len(after.counts), size, cached=after.kept)
    return [
        replace(block, links=tuple({request_of(owner.name): 1 for owner in block.owners}))
        for block in blocks
    ]


# The widget ---------------------------------------------------------------------------------------


class Timeline(Explorer):
    """Records `llm` from now on and draws what each request did in each step, and the blocks after
    the step pointed at.

        with Timeline(llm) as timeline:  # shown at once; the stored picture is of the whole run
            llm.generate(prompts)
        timeline.run.summary()

    The first 64 requests and 1,200 steps are drawn. `close()` ends the recording, and so does the
    end of the block.

    Args:
        llm: an engine, as for `trace.Recorder`.
        blocks: False for the rows alone.
        most_tokens: tokens of a step whose bar has the full height; 0 for the largest step.
    """

    _is_recording = False  # until there is a recorder: a widget that is refused closes itself too

    def __init__(self, llm: Any, *, blocks: bool = True, most_tokens: int = 0) -> None:
        self._due = 0.0
        self._draws_blocks = blocks
        self._most_tokens = most_tokens
        self.recorder = Recorder(llm, on_step=self._on_step)
        self._is_recording = True
        self.run = run_of(self.recorder.recording)  # the rows, as they were drawn last
        self._replay = Replay(self.recorder.recording)
        super().__init__(
            self._draw_step, "A click on a bar of tokens goes to its step.", step=([0], 0)
        )

    def end(self) -> None:
        """Stop recording, draw all of it, and point at the step with the most blocks in use."""
        if not self._is_recording:
            return
        self._is_recording = False
        self.recorder.close()
        self.run = run_of(self.recorder.recording)
        used = [step["used"] for step in self.recorder.steps[: MAX_STEPS + 1]]
        fullest = len(used) - 1 - used[::-1].index(max(used))
        self.seek(fullest if self._draws_blocks else self.run.steps)

    def seek(self, step: int) -> None:
        """Point at a step, from 1 on: the slider moves there."""
        last = min(self.run.steps, MAX_STEPS)
        first = min(1, last)
        self.offer(step=(range(first, last + 1), max(first, min(step, last))))

    def _on_step(self) -> None:
        if time.monotonic() >= self._due:
            self.run = run_of(self.recorder.recording)
            self.seek(self.run.steps)
            self._due = time.monotonic() + INTERVAL

    def _draw_step(self, step: int) -> Drawing:
        after = self._replay.seek(step) if self._draws_blocks and step else None
        return draw_timeline(self.run, step, after, self._most_tokens)

    def __repr__(self) -> str:
        return headline(self.run)
