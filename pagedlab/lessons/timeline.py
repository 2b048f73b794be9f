"""Who did what in every step of an engine: recorded while it runs, to be drawn, counted and
compared.

    with Recording(llm) as run:
        llm.generate(prompts)
    print(run.summary())

A row is a request, a cell one of its steps, from the one in which it is first seen to the one in
which it ends. What a cell can be is in `KINDS`. `pagedlab.widgets.Timeline` draws a recording.
"""

import math
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

KINDS = {
    "W": "waiting",  # in the queue, and in no block
    "P": "prefill",  # tokens of its prompt are computed
    "D": "decode",  # each of its texts gets one more token
    # tokens are computed that were computed before: it gave way, and its blocks are lost
    "R": "recomputed",
    "S": "swapped",  # its blocks lie in host memory
    "-": "passed over",  # it runs, but others took all tokens of this step
}
SHOWN_TOKENS = 16  # of a chunk, as words


class Cell(NamedTuple):
    """One step of a request: its kind, the chunk computed (`tokens` from position `start` on), and
    what came of it.
    """

    kind: str
    start: int = 0
    tokens: int = 0
    again: int = 0  # of them computed before, and lost
    wrote: int = 0  # new tokens, one a text
    # the chunk as words, its first ones; not for a decode, which reads what was written last
    reads: str = ""
    writes: str = ""


@dataclass
class Row:
    """One request. Its cells are those of steps `first`, `first` + 1, ..."""

    name: str
    first: int
    cells: list[Cell] = field(default_factory=list)
    end: str | None = None  # finish reason of its first text, None while it is not finished
    reached: int = 0  # how far it was ever computed
    written: int = 0  # tokens of its texts

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
        return next((i for i, cell in enumerate(self.cells, 1) if cell.wrote), None)


class Summary(NamedTuple):
    """A run in figures.

    Steps are not seconds: one with many tokens takes longer, and `largest` says how many.
    """

    steps: int
    written: int  # tokens
    computed: int  # tokens, those of prompts and those computed again included
    recomputed: int  # tokens, of those computed
    largest: int  # tokens computed in one step, at most
    waited_mean: float  # steps in which a request got nothing
    waited_p99: float
    preempted: dict[str, int]  # by how: "recompute", "swap"

    @property
    def written_a_step(self) -> float:
        """Mean number of new tokens in a step: the sequences that were really served side by
        side.
        """
        return self.written / self.steps if self.steps else 0.0


class Recording(ExitStack):
    """Watches an engine from now until `close()`, or for the length of a `with` block.

    llm  has `on_step(callback) -> unsubscribe`, `decode(token_ids) -> str`, `plan` (the latest step's `Schedule`)
         and `scheduler` with its queues `waiting`, `running` and `swapped`
    """

    def __init__(self, llm: Any) -> None:
        super().__init__()
        self.rows: list[Row] = []  # in order of arrival
        self.steps = 0
        self.preempted: Counter[str] = Counter()
        self._llm = llm
        self._live: dict[Any, Row] = {}  # by request, as long as it is unfinished
        self.watching = True  # the next step is still recorded
        self.callback(setattr, self, "watching", False)
        self.callback(llm.on_step(self._on_step))

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
        return Summary(
            steps=self.steps,
            written=sum(cell.wrote for cell in cells),
            computed=sum(cell.tokens for cell in cells),
            recomputed=sum(cell.again for cell in cells),
            largest=max((sum(batch.values()) for batch in self.batches()), default=0),
            waited_mean=sum(waited) / len(waited),
            # The nearest rank: a wait that somebody really had, the longest of up to a hundred.
            waited_p99=float(waited[math.ceil(0.99 * len(waited)) - 1]),
            preempted=dict(self.preempted),
        )

    def _on_step(self) -> None:
        self.steps += 1
        plan, queues = self._llm.plan, self._llm.scheduler
        self.preempted.update(preemption.mode for preemption in plan.preempted)
        chunks: dict[Any, list[Any]] = defaultdict(list)
        for chunk in plan.chunks:
            chunks[chunk.request].append(chunk)
        kinds = {"S": queues.swapped, "-": queues.running, "W": queues.waiting}
        places = {request: kind for kind, queue in kinds.items() for request in queue}
        for request in sorted(
            {*chunks, *places} - {*self._live}, key=lambda request: request.request_id
        ):
            if request.unfinished or request in chunks:
                self._live[request] = Row(f"r{request.request_id}", self.steps)
                self.rows.append(self._live[request])
        for request, row in list(self._live.items()):
            if request in chunks:
                row.cells.append(self._computed(request, row, chunks[request]))
            elif request in places:
                row.cells.append(Cell(places[request]))
            if not request.unfinished:
                row.end = request.sequences[0].finish_reason
            if request not in places:  # finished or aborted
                del self._live[request]

    def _computed(self, request: Any, row: Row, chunks: list[Any]) -> Cell:
        first, outputs = chunks[0], [text.output_ids for text in request.sequences]
        lengths = [len(ids) for ids in outputs]
        again = sum(max(0, min(chunk.stop, row.reached) - chunk.start) for chunk in chunks)
        kind = "R" if again else "P" if first.start < first.sequence.num_prompt_tokens else "D"
        tokens, wrote = (
            sum(chunk.stop - chunk.start for chunk in chunks),
            max(0, sum(lengths) - row.written),
        )
        row.reached, row.written = max(row.reached, *(chunk.stop for chunk in chunks)), sum(lengths)
        reads = (
            "" if kind == "D" else self._words(first.sequence.token_ids[first.start : first.stop])
        )
        new = [self._words(ids[-1:]) for ids in outputs if wrote and len(ids) == max(lengths)]
        return Cell(kind, first.start, tokens, again, wrote, reads, writes=" | ".join(new[:4]))

    def _words(self, token_ids: list[int]) -> str:
        return self._llm.decode(token_ids[:SHOWN_TOKENS]) + (
            " …" if len(token_ids) > SHOWN_TOKENS else ""
        )
