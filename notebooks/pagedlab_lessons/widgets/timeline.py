"""The timeline of an engine: a row a request, a column a step, and what each request does in the
step pointed at.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from pagedlab.recipes.trace import Recorder, Replay
from pagedlab.recipes.trace.format import request_of
from pagedlab_lessons.colors import NEUTRAL, STEP_LOOKS, Look, sequence_color
from pagedlab_lessons.drawing import (
    BOLD,
    CARD,
    INK,
    SOFT,
    Block,
    Grid,
    Strip,
    Table,
    blocks_of,
    box,
    label,
    linked,
    pool,
    shape,
    svg,
)
from pagedlab_lessons.drawing import Run as Bar
from pagedlab_lessons.drawing import rows as draw_rows
from pagedlab_lessons.drawing.flow import Legend, Space
from pagedlab_lessons.timeline import KINDS, Cell, Row, RowReader, Run
from pagedlab_lessons.widgets.explore import Explorer

INTERVAL = 0.25  # seconds between two drawings while the engine runs
MAX_STEPS = 1200  # that are drawn; the recording goes on
MAX_ROWS = 64
ENDS = {
    "stop": "the model ended it",
    "length": "it has all its tokens",
    "abort": "it was aborted",
    "error": "it failed",
}

LOOKS = STEP_LOOKS  # colour, hatch, and whether it is pale; by kind

# The drawing, in pixels.
WIDTH = 1080
LEFT = 44  # of the first column
COLUMNS = 560  # all of them
TOP = 54.0  # of the first row
TEXT = 632  # where the words of a row begin
BARS = 36  # how high the bars are
SHOWN_LETTERS = 64  # of the words of a row
BLOCKS_A_ROW = 32


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
        most_tokens: tokens of a step whose bar has the full height; None for the largest step.
    """

    _is_recording = False  # until there is a recorder: a widget that is refused closes itself too

    def __init__(self, llm: Any, *, blocks: bool = True, most_tokens: int | None = None) -> None:
        self._due = 0.0
        self._draws_blocks = blocks
        self._most_tokens = most_tokens
        self.recorder = Recorder(llm, on_step=self._on_step)
        self._is_recording = True
        self._reader = RowReader(self.recorder.recording)
        self._replay = Replay(self.recorder.recording)
        super().__init__(
            self._draw_step, "A click on a row or a bar goes to its step.", step=([0], 0)
        )

    @property
    def run(self) -> Run:
        """The rows of the recording."""
        return self._reader.read()

    def end(self) -> None:
        """Stop recording, draw all of it, and point at the step with the most blocks in use."""
        if not self._is_recording:
            return
        self._is_recording = False
        self.recorder.close()
        self.seek(self._fullest_step() if self._draws_blocks else self.run.steps)

    def seek(self, step: int) -> None:
        """Point at a step, from 1 on: the slider moves there."""
        last = min(self.run.steps, MAX_STEPS)
        first = min(1, last)
        self.offer(step=(range(first, last + 1), max(first, min(step, last))))

    def _fullest_step(self) -> int:
        """The last of the steps with the most blocks in use."""
        used = [step["used"] for step in self.recorder.steps[: MAX_STEPS + 1]]
        return len(used) - 1 - used[::-1].index(max(used))

    def _on_step(self) -> None:
        if time.monotonic() >= self._due:
            self.seek(self.run.steps)
            self._due = time.monotonic() + INTERVAL

    def _after(self, step: int) -> Replay | None:
        """The state after the step, if blocks are drawn."""
        if not self._draws_blocks or not step:
            return None
        return self._replay.seek(step)

    def _draw_step(self, step: int) -> str:
        return draw_timeline(self.run, step, self._after(step), self._most_tokens)

    def __repr__(self) -> str:
        return headline(self.run)


# What is said -------------------------------------------------------------------------------------


def drawn_rows(run: Run) -> list[Row]:
    """The rows that are drawn."""
    return [row for row in run.rows if row.first <= MAX_STEPS][:MAX_ROWS]


def kinds_in(rows: Sequence[Row]) -> list[str]:
    """The kinds of cells that these rows have, in the order of `KINDS`."""
    there = {cell.kind for row in rows for cell in row.cells}
    return [kind for kind in KINDS if kind in there]


def headline(run: Run) -> str:
    """The run in figures, and what of it is not drawn."""
    figures = run.summary()
    said = (
        f"{run.steps} steps, {figures.written:,} tokens written, "
        f"{figures.written_a_step:.1f} a step; steps waited: {figures.waited_mean:.1f} on average, "
        f"{figures.waited_p99:.0f} at the 99th percentile"
    )
    preemptions = sum(run.preempted.values())
    if preemptions:
        said += f"; preemptions: {preemptions}"
    left_out = {"steps": run.steps - MAX_STEPS, "requests": len(run.rows) - len(drawn_rows(run))}
    hidden = [f"{number} {what}" for what, number in left_out.items() if number > 0]
    if hidden:
        said += f". Not drawn: {' and '.join(hidden)}"
    return said


def told(row: Row, step: int) -> str:
    """The work of a request in a step, in words; nothing if it is not there."""
    at = step - row.first
    if not 0 <= at < len(row.cells):
        return ""
    cell = row.cells[at]
    before = row.kinds[:at]
    said = [_computes(cell)]
    if cell.kind == "P" and cell.start and "P" not in before and "R" not in before:
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
    if cell.reads:
        said += f" “{cell.reads}”"
    return said


# What is drawn ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """Where rows and columns are.

    Args:
        rows: the rows that are drawn.
        steps: how many steps are drawn.
        pitch: the width of a step, in pixels.
        high: the height of a row, in pixels.
    """

    rows: list[Row]
    steps: int
    pitch: float
    high: int

    def x(self, step: int) -> float:
        """The left edge of a step's column."""
        return LEFT + self.pitch * (step - 1)

    def y(self, row: int) -> float:
        """The top of a row."""
        return TOP + self.high * row

    @property
    def bottom(self) -> float:
        """Where the rows end."""
        return self.y(len(self.rows))


def draw_timeline(
    run: Run, step: int, after: Replay | None = None, most_tokens: int | None = None
) -> str:
    """Rows of cells by kind, the tokens of each step as bars, and with a replay the blocks after
    the step.

    Args:
        run: the recorded run.
        step: the step pointed at, from 1 on; 0 for none.
        after: the state after the step.
        most_tokens: tokens of a step whose bar has the full height; None for the largest step.
    """
    rows = drawn_rows(run)
    steps = min(run.steps, MAX_STEPS)
    high = 17 if len(rows) <= 24 else 13
    layout = Layout(rows, steps, min(24.0, COLUMNS / max(1, steps)), high)
    parts = _head(run, kinds_in(rows))
    for number, row in enumerate(rows):
        wrote = ""
        if after and row.name in after.sequences:
            wrote = "".join(after.sequences[row.name].words)
        parts += _row(layout, number, step, wrote)
    parts += _bars(layout, run.batches()[:steps], most_tokens)
    y = layout.bottom + BARS + 14
    parts += _axis(layout, y)
    if step:
        parts.append(_pointer(layout, step, y))
    if after:
        parts.append(label(0, y + 24, "blocks", 10.5, SOFT))
        blocks = _blocks(after, rows)
        grid = Grid.within(LEFT, y + 11, COLUMNS, min(len(blocks), BLOCKS_A_ROW), 19, 3)
        parts += pool(blocks, grid)
        y = grid.bottom(len(blocks)) + 1
    return svg(WIDTH, y + 6, parts, _name(run, step))


def _name(run: Run, step: int) -> str:
    """The description: the run in figures, and the step that is pointed at."""
    return f"{headline(run)}. Step {step}" if run.steps else "Nothing has run yet."


def _head(run: Run, kinds: list[str]) -> list[str]:
    """The run in figures, and what the looks mean."""
    said = headline(run) if run.steps else "Nothing has run yet."
    legend = Legend([(LOOKS[kind], KINDS[kind]) for kind in kinds])
    head = label(0, 15, said, 13.5, within=WIDTH, look=BOLD)
    return [head, *legend(Space(0, 26, WIDTH, is_narrow=False)).parts]


def _row(layout: Layout, number: int, step: int, wrote: str) -> list[str]:
    """A request: its name, its cells, and what it does in the step.

    Args:
        wrote: its words after the step, if they are known.
    """
    row = layout.rows[number]
    y = layout.y(number)
    said = told(row, step)
    drawn = [
        box(0, y, WIDTH, layout.high, CARD, 0),
        box(0, y, 4, layout.high - 3, sequence_color(number)),
        label(8, y + 11, row.name, 11),
        label(TEXT, y + 11, _shown(said, wrote), 11.5, within=WIDTH - TEXT),
    ]
    parts = [linked([row.name], f"{row.name}, step {step}, {said or 'not there'}", *drawn)]
    first = row.first
    for kind, cells in groupby(row.kinds[: layout.steps - row.first + 1]):
        many = len(list(cells))
        parts.append(_cells(layout, row.name, y, kind, first, many))
        first += many
    if row.end and row.first + len(row.cells) - 1 <= layout.steps:
        parts.append(box(layout.x(first) - 1, y - 1, 3, layout.high - 1, INK))
    return parts


def _shown(said: str, wrote: str) -> str:
    """The words of a row: what it does, and the end of what it wrote."""
    if said and wrote:
        return _cut(f"{said.split(':')[0]} … {wrote[-48:]}".replace("\n", " "))
    return _cut(said)


def _cut(text: str) -> str:
    return text if len(text) < SHOWN_LETTERS else f"{text[: SHOWN_LETTERS - 2]} …"


def _cells(layout: Layout, name: str, y: float, kind: str, first: int, many: int) -> str:
    """Cells of one kind, side by side: `many` steps from the step `first` on."""
    x = layout.x(first)
    width = layout.pitch * many
    strip = Strip(x, y, layout.pitch, layout.high - 3, gap=0.5)
    drawn = draw_rows([Bar(0, many, LOOKS[kind])], strip)
    if width >= 15:
        drawn.append(box(x + 1.5, y + 1, 10, layout.high - 5, CARD, 0.9))
        drawn.append(label(x + 3.5, y + layout.high / 2 + 2, kind, 10))
    when = f"steps {first} to {first + many - 1}" if many > 1 else f"step {first}"
    return linked([name], f"{name}, {KINDS[kind]}, {when}", *drawn, goes=f"step={first}")


def _bars(layout: Layout, batches: list[dict[str, int]], most_tokens: int | None) -> list[str]:
    """The tokens of each step, as a bar of colours.

    A larger step than `most_tokens` makes all bars lower, so that its bar fits.
    """
    most = max((sum(batch.values()) for batch in batches), default=0) or 1
    most = max(most, most_tokens or 1)
    y = layout.bottom
    parts = [
        label(0, y + 14, "tokens", 10.5, SOFT),
        label(0, y + 28, f"to {most:,}", 10.5, SOFT),
    ]
    for step, batch in enumerate(batches, 1):
        parts.append(_bar(layout, step, batch, most))
    return parts


def _bar(layout: Layout, step: int, batch: dict[str, int], most: int) -> str:
    """One step's tokens by kind; `most` tokens are as high as a bar can be."""
    x = layout.x(step)
    y = layout.bottom + 2
    width = max(0.5, layout.pitch - (layout.pitch > 4))
    drawn = [box(x, y, layout.pitch, BARS, CARD, 0)]  # all its height can be pointed at
    below = 0
    for kind, tokens in batch.items():
        low = BARS * below / most
        below += tokens
        top = BARS * below / most
        drawn.append(shape(x, y + BARS - top, width, top - low, LOOKS[kind]))
    tokens_by_kind = ", ".join(f"{n:,} {KINDS[kind]}" for kind, n in batch.items())
    said = f"step {step}, tokens computed: {tokens_by_kind}"
    return linked([f"step-{step}"], said, *drawn, goes=f"step={step}")


def _axis(layout: Layout, y: float) -> list[str]:
    """The numbers of the steps, as many as there is room for."""
    fitting = [n for n in (1, 2, 5, 10, 20, 50, 100) if n * layout.pitch >= 28]
    every = fitting[0] if fitting else 200
    parts = [label(0, y, "step", 10.5, SOFT)]
    for step in range(every, layout.steps + 1, every):
        middle = LEFT + layout.pitch * (step - 0.5)
        parts.append(label(middle - 3.2 * len(str(step)), y, str(step), 10.5, SOFT))
    return parts


def _pointer(layout: Layout, step: int, y: float) -> str:
    """The column that is pointed at; a click goes through it."""
    width = max(1.5, layout.pitch)
    height = y - 64
    return box(layout.x(step), 51, width, height, NEUTRAL, 0.16, INK, 'pointer-events="none"')


def _blocks(after: Replay, rows: Sequence[Row]) -> list[Block]:
    """The blocks after the step, in the colours of the requests that are drawn."""
    numbers = {row.name: i for i, row in enumerate(rows)}
    tables = []
    for name, sequence in after.sequences.items():
        request = request_of(name)
        if request in numbers:
            look = Look(sequence_color(numbers[request]))
            tables.append(Table(name, sequence.blocks, sequence.tokens, look, sequence.words))
    size = after.recording["block_size"]
    blocks = blocks_of(tables, len(after.counts), size, cached=after.kept)
    return [_linked_to_requests(block) for block in blocks]


def _linked_to_requests(block: Block) -> Block:
    """The block, which lights up with the rows of its requests."""
    requests = dict.fromkeys(request_of(owner.name) for owner in block.owners)
    return replace(block, links=tuple(requests))
