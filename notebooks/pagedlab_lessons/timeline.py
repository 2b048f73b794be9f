"""What each request did in every step of a recorded run: rows of cells, to be drawn, counted and
compared.

    with Recorder(llm) as recorder:
        llm.generate(prompts)
    print(run_of(recorder.recording).summary())

A row is a request. A cell is one of its steps, from the step in which it is first seen to the step
in which it ends. `KINDS` names what a cell can be. `widgets.Timeline` draws the rows.
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pagedlab.recipes.trace import Replay, SequenceState
from pagedlab.recipes.trace.format import request_of

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
SHOWN_TOKENS = 16  # of a chunk, as words
SHOWN_SEQUENCES = 4  # whose new words are shown

Chunks = dict[str, list[int]]  # of one request: [start, stop] by the sequence's name


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
        end: why its first sequence ended; None while the request is unfinished.
        reached: tokens that were computed at some time.
        written: new tokens of its sequences.
    """

    name: str
    first: int
    cells: list[Cell] = field(default_factory=list)
    end: str | None = None
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
        for number, cell in enumerate(self.cells, 1):
            if cell.wrote:
                return number
        return None


class Summary(NamedTuple):
    """A run in figures.

    Steps are not seconds: one with many tokens takes longer, and `largest` says how many.

    Args:
        steps: how many there were.
        written: new tokens.
        computed: tokens, with those of prompts and those computed again.
        recomputed: how many of them were computed again.
        largest: tokens computed in one step, at most.
        waited_mean: steps in which a request got nothing.
        waited_p99: the same at the 99th percentile.
        preempted: preemptions by how: "recompute" or "swap".
    """

    steps: int
    written: int
    computed: int
    recomputed: int
    largest: int
    waited_mean: float
    waited_p99: float
    preempted: dict[str, int]

    @property
    def written_a_step(self) -> float:
        """Mean number of new tokens in a step: the sequences that were really served side by
        side.
        """
        return self.written / self.steps if self.steps else 0.0


@dataclass
class Run:
    """A recorded run by request.

    Args:
        rows: the requests, in order of arrival.
        steps: how many steps the engine made.
        preempted: preemptions by how.
    """

    rows: list[Row] = field(default_factory=list)
    steps: int = 0
    preempted: Counter[str] = field(default_factory=Counter)

    def batches(self) -> list[dict[str, int]]:
        """Tokens computed in each step, by kind."""
        steps: list[dict[str, int]] = [{} for _ in range(self.steps)]
        for row in self.rows:
            for step, cell in enumerate(row.cells, row.first - 1):
                if cell.tokens:
                    steps[step][cell.kind] = steps[step].get(cell.kind, 0) + cell.tokens
        return steps

    def summary(self) -> Summary:
        """The run so far in figures."""
        cells = [cell for row in self.rows for cell in row.cells]
        waited = sorted(row.waited for row in self.rows) or [0]
        # The nearest rank: a wait that some request had, the longest of up to a hundred.
        rank = math.ceil(0.99 * len(waited))
        return Summary(
            steps=self.steps,
            written=sum(cell.wrote for cell in cells),
            computed=sum(cell.tokens for cell in cells),
            recomputed=sum(cell.again for cell in cells),
            largest=max((sum(batch.values()) for batch in self.batches()), default=0),
            waited_mean=sum(waited) / len(waited),
            waited_p99=float(waited[rank - 1]),
            preempted=dict(self.preempted),
        )


def run_of(recording: dict[str, Any]) -> Run:
    """Return the rows of a recording. Its cells have words if they were recorded."""
    return RowReader(recording).read()


class RowReader:
    """Goes through the steps of a recording, and adds a cell a step to each request's row.

    Args:
        recording: it may grow between two calls of `read`.
    """

    def __init__(self, recording: dict[str, Any]) -> None:
        self._run = Run()
        self._replay = Replay(recording)
        self._engine_step = self._replay.now["step"]
        self._requests: dict[str, dict[str, SequenceState]] = {}  # the sequences of each, by name
        self._without_row: dict[str, None] = {}  # requests, in order of arrival
        self._live: dict[str, Row] = {}  # the rows of unfinished requests
        self._take_changes()

    def read(self) -> Run:
        """Add what the recording has by now, and return all rows."""
        replay = self._replay
        while replay.at < len(replay) - 1:
            replay.seek(replay.at + 1)
            self._take_changes()
            engine_step = replay.now["step"]
            if engine_step > self._engine_step:  # the others note what changed between two steps
                self._engine_step = engine_step
                self._add_step(replay.now)
        return self._run

    def _take_changes(self) -> None:
        """Take over the sequences that change in this step of the recording."""
        for name in self._replay.now.get("texts", {}):
            request = request_of(name)
            if request not in self._requests:
                self._requests[request] = {}
                self._without_row[request] = None
            self._requests[request][name] = self._replay.sequences[name]

    def _add_step(self, step: dict[str, Any]) -> None:
        """Add the cells of an engine's step."""
        self._run.steps += 1
        self._run.preempted.update(step.get("preempted", {}).values())
        computed: dict[str, Chunks] = defaultdict(dict)
        for name, chunk in step.get("computed", {}).items():
            computed[request_of(name)][name] = chunk
        self._add_rows(computed)
        for request, row in list(self._live.items()):
            sequences = self._sequences(request)
            unfinished = [sequence for sequence in sequences if sequence.is_unfinished]
            if not sequences:
                del self._live[request]
                continue
            if request in computed:
                row.cells.append(_computed_cell(row, computed[request], self._requests[request]))
            elif unfinished:
                row.cells.append(Cell(IDLE[unfinished[0].state]))
            if not unfinished:
                row.end = sequences[0].state
                del self._live[request]

    def _add_rows(self, computed: dict[str, Chunks]) -> None:
        """A row for each request that is new, unless it ended before any step computed it."""
        for request in self._without_row:
            sequences = self._sequences(request)
            is_unfinished = any(sequence.is_unfinished for sequence in sequences)
            if is_unfinished or (sequences and request in computed):
                row = Row(request, self._run.steps)
                self._run.rows.append(row)
                self._live[request] = row
        self._without_row.clear()

    def _sequences(self, request: str) -> list[SequenceState]:
        """Its sequences."""
        return list(self._requests[request].values())


def _computed_cell(row: Row, chunks: Chunks, by_name: dict[str, SequenceState]) -> Cell:
    """The cell of a step that computed these chunks of the request; the row takes note of them."""
    sequences = list(by_name.values())
    name, (start, stop) = next(iter(chunks.items()))
    tokens = sum(stop - start for start, stop in chunks.values())
    again = sum(max(0, min(stop, row.reached) - start) for start, stop in chunks.values())
    lengths = [sequence.num_new for sequence in sequences]
    wrote = max(0, sum(lengths) - row.written)
    row.reached = max(row.reached, *(stop for _, stop in chunks.values()))
    row.written = sum(lengths)
    if again:
        kind = "R"
    elif start < sequences[0].prompt:
        kind = "P"
    else:
        kind = "D"
    reads = "" if kind == "D" else _reads(by_name.get(name, sequences[0]), start, stop)
    writes = _writes(sequences, max(lengths)) if wrote else ""
    return Cell(kind, start, tokens, again, wrote, reads, writes)


def _reads(sequence: SequenceState, start: int, stop: int) -> str:
    """The first computed tokens as words."""
    words = sequence.words[start:stop]
    rest = " …" if len(words) > SHOWN_TOKENS else ""
    return "".join(words[:SHOWN_TOKENS]) + rest


def _writes(sequences: list[SequenceState], longest: int) -> str:
    """The last words of the sequences that are longest, which are those that went on."""
    words = [s.words[-1] for s in sequences if s.words and s.num_new == longest]
    return " | ".join(words[:SHOWN_SEQUENCES])
