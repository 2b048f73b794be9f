"""The timeline of an engine: a row a request, a column a step, and what everybody does in the step
pointed at.
"""

import time
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise
from typing import Any

from pagedlab.lessons.colors import NEUTRAL, sequence_color
from pagedlab.lessons.drawing import (
    BOLD,
    CARD,
    INK,
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
from pagedlab.lessons.timeline import KINDS, Recording, Row
from pagedlab.widgets.explore import Explorer
from pagedlab.widgets.picture import Picture
from pagedlab.widgets.recording import Recorder, Replay

INTERVAL = 0.25  # seconds between two drawings while the engine runs
MAX_STEPS, MAX_ROWS = 1200, 64  # what is drawn; the recording goes on
BARS = 36  # how high the bars are
ENDS = {"stop": "the model ended it", "length": "it has all its tokens", "abort": "it was aborted"}

# Colour and hatch of each kind, and whether it is pale: what computes nothing is.
LOOKS = {
    "W": (NEUTRAL, "//", True),
    "P": ("#0072B2", "", False),
    "D": ("#56B4E9", "..", False),
    "R": ("#D55E00", "xx", False),
    "S": ("#CC79A7", "||", True),
    "-": ("#E69F00", "--", True),
}
# The hatches as `stripes` takes them.
STRIPES: dict[str, tuple[Any, ...]] = {
    "W": (45, 0.2),
    "R": (45, 1, CARD),
    "S": (0, 0.2),
    "-": (90, 0.2),
}
FILLS = {
    kind: f"url(#pt-{KINDS[kind].split()[0]})" if kind in STRIPES else look[0]
    for kind, look in LOOKS.items()
}


class Timeline(Explorer):
    """Records `llm` from now on and draws who did what in each step, and the blocks after the step
    pointed at.

    llm     as for `Recording` and `Recorder`
    blocks  False for the rows alone

        with Timeline(llm) as timeline:  # shown at once; the picture stored in the notebook is of the whole run
            llm.generate(prompts)
        timeline.recording.summary()

    Drawn are the first 64 requests and 1,200 steps. `close()` ends the recording, and so does the
    end of the block.
    """

    def __init__(self, llm: Any, *, blocks: bool = True) -> None:
        # it hears of a step before what draws it does
        self.recording, self._due = (
            Recording(llm),
            0.0,
        )
        self.recorder = self.recording.enter_context(Recorder(llm)) if blocks else None
        super().__init__(
            self._draw_step, "A click on a row or a bar goes to its step.", step=([0], 0)
        )
        self.recording.callback(llm.on_step(self._on_step))

    def end(self) -> None:
        """Stop recording, draw all of it, and point at the step with the most blocks in use, if
        there are any.
        """
        if self.recording.watching:
            self.recording.close()
            steps = self.recorder.recording["steps"][: MAX_STEPS + 1] if self.recorder else []
            self.seek(
                max(
                    range(len(steps)),
                    key=lambda i: (steps[i]["used"], i),
                    default=self.recording.steps,
                )
            )

    def seek(self, step: int) -> None:
        """Point at a step, from 1 on: the slider moves there."""
        last = min(self.recording.steps, MAX_STEPS)
        first = min(1, last)
        self.offer(step=(range(first, last + 1), max(first, min(step, last))))

    def _on_step(self) -> None:
        if time.monotonic() >= self._due:
            self.seek(self.recording.steps)
            self._due = time.monotonic() + INTERVAL

    def _after(self, step: int) -> Replay | None:
        return Replay(self.recorder.recording).seek(step) if self.recorder and step else None

    def _draw_step(self, step: int) -> str:
        return draw_timeline(self.recording, step, self._after(step))

    def __repr__(self) -> str:
        rows = drawn_rows(self.recording)
        names = max((len(row.name) for row in rows), default=0)
        there = ", ".join(
            f"{kind} {name}"
            for kind, name in KINDS.items()
            if any(kind in row.kinds for row in rows)
        )
        lines = [
            f"{row.name:>{names}}  {' ' * (row.first - 1)}{row.kinds}{'|' if row.end else ''}"
            for row in rows
        ]
        if after := self._after(self.values["step"]):
            lines.append(f"Step {self.values['step']}: {Picture(after.grid()).text()}")
        return "\n".join([headline(self.recording), there, *lines])


def drawn_rows(run: Recording) -> list[Row]:
    """The rows that are drawn."""
    return [row for row in run.rows if row.first <= MAX_STEPS][:MAX_ROWS]


def headline(run: Recording) -> str:
    """The run in figures, and what of it is not drawn."""
    figures, gave_way = run.summary(), sum(run.preempted.values())
    left_out = {"steps": run.steps - MAX_STEPS, "requests": len(run.rows) - len(drawn_rows(run))}
    hidden = " and ".join(f"{number} {what}" for what, number in left_out.items() if number > 0)
    said = (
        f"{run.steps} steps, {figures.written:,} tokens written, {figures.written_a_step:.1f} a "
        "step; steps waited: "
    )
    said += f"{figures.waited_mean:.1f} on average, {figures.waited_p99:.0f} at the 99th percentile"
    return (
        said
        + (f"; preemptions: {gave_way}" if gave_way else "")
        + (f". Not drawn: {hidden}" if hidden else "")
    )


def told(row: Row, step: int) -> str:
    """What a request does in a step, in words; nothing if it is not there."""
    at = step - row.first
    if not 0 <= at < len(row.cells):
        return ""
    cell, last = row.cells[at], at == len(row.cells) - 1
    where = f"token{'s' * (cell.tokens > 1)} {cell.start}" + (
        f"–{cell.start + cell.tokens - 1}" * (cell.tokens > 1)
    )
    cached = cell.kind == "P" and cell.start and not {"P", "R"} & {*row.kinds[:at]}
    said = [
        KINDS[cell.kind]
        + (f": {where}" if cell.tokens else "")
        + (f" “{cell.reads}”" if cell.reads else ""),
        f"the {cell.start} before were cached" if cached else "",
        f"writes {f'{cell.wrote} tokens, ' if cell.wrote > 1 else ''}“{cell.writes}”"
        if cell.wrote
        else "",
        ENDS.get(row.end or "", "") if last else "",
    ]
    return "; ".join(filter(None, said)).replace("\n", " ")


def draw_timeline(run: Recording, step: int, after: Replay | None = None) -> str:
    """Rows of cells by kind, the tokens of each step as bars, and with a replay the blocks after
    the step.
    """
    rows, steps, batches = drawn_rows(run), min(run.steps, MAX_STEPS), run.batches()[:MAX_STEPS]
    pitch, high = min(24.0, 560 / max(1, steps)), 17 if len(rows) <= 24 else 13
    there = [kind for kind in KINDS if any(kind in row.kinds for row in rows)]
    parts = [stripes(FILLS[k][5:-1], LOOKS[k][0], *STRIPES[k]) for k in there if k in STRIPES]
    parts.append(
        label(
            0, 15, headline(run) if steps else "Nothing has run yet.", 13.5, within=1080, look=BOLD
        )
    )
    parts += legend(0, 27, {KINDS[kind]: (FILLS[kind],) for kind in there})
    for i, row in enumerate(rows):
        y, x, said = 54.0 + high * i, 44 + pitch * (row.first - 1), told(row, step)
        drawn = [box(0, y, 1080, high, CARD, 0), box(0, y, 4, high - 3, sequence_color(i))]
        drawn.append(label(8, y + 11, row.name, 11))
        wrote = "".join(after.texts.get(row.name, {"words": ()})["words"]) if after and said else ""
        shown = f"{said.split(':')[0]} … {wrote[-48:]}".replace("\n", " ") if wrote else said
        drawn.append(
            label(632, y + 11, shown if len(shown) < 64 else f"{shown[:62]} …", 11.5, within=448)
        )
        parts.append(linked([row.name], f"{row.name}, step {step}, {said or 'not there'}", *drawn))
        for kind, cells in groupby(row.kinds[: steps - row.first + 1]):
            first, many = round((x - 44) / pitch) + 1, len([*cells])
            drawn = [box(x, y, max(0.5, pitch * many - 0.5), high - 3, FILLS[kind])]
            if pitch * many >= 15:
                drawn += [
                    box(x + 1.5, y + 1, 10, high - 5, CARD, 0.9),
                    label(x + 3.5, y + high / 2 + 2, kind, 10),
                ]
            when = f"steps {first} to {first + many - 1}" if many > 1 else f"step {first}"
            parts.append(
                linked(
                    [row.name], f"{row.name}, {KINDS[kind]}, {when}", *drawn, goes=f"step={first}"
                )
            )
            x += pitch * many
        if row.end and row.first + len(row.cells) - 1 <= steps:
            parts.append(box(x - 1, y - 1, 3, high - 1, INK))
    y = 54.0 + high * len(rows)
    most = max((sum(batch.values()) for batch in batches), default=0) or 1
    parts += [label(0, y + 14, "tokens", 10.5, SOFT), label(0, y + 28, f"to {most:,}", 10.5, SOFT)]
    for at, batch in enumerate(batches, 1):
        x, tops = (
            44 + pitch * (at - 1),
            [BARS * n / most for n in accumulate(batch.values(), initial=0)],
        )
        drawn = [box(x, y + 2, pitch, BARS, CARD, 0)]  # all its height can be pointed at
        for kind, (low, top) in zip(batch, pairwise(tops), strict=True):
            drawn.append(
                box(x, y + 2 + BARS - top, max(0.5, pitch - (pitch > 4)), top - low, FILLS[kind])
            )
        whose = ", ".join(f"{n:,} {KINDS[kind]}" for kind, n in batch.items())
        parts.append(
            linked(
                [f"step-{at}"], f"step {at}, tokens computed: {whose}", *drawn, goes=f"step={at}"
            )
        )
    every = next((n for n in (1, 2, 5, 10, 20, 50, 100) if n * pitch >= 28), 200)
    y += BARS + 14
    marks = (
        (44 + pitch * (n - 0.5) - 3.2 * len(str(n)), str(n)) for n in range(every, steps + 1, every)
    )
    parts += [label(x, y, said, 10.5, SOFT) for x, said in ((0, "step"), *marks)]
    if step:
        x, through = 44 + pitch * (step - 1), 'pointer-events="none"'
        parts.append(box(x, 51, max(1.5, pitch), y - 64, NEUTRAL, 0.16, INK, through))
    if after:
        parts.append(label(0, y + 24, "blocks", 10.5, SOFT))
        parts += memory(44, y + 11, 560, len(after.counts), _owners(after, rows))
        y += 12 + 22 * -(-len(after.counts) // 32)
    return svg(1080, y + 6, parts)


def _owners(after: Replay, rows: Sequence[Row]) -> dict[int, Owner]:
    """Whose each block is, for `memory`; of a shared block, who came first."""
    size, owners = after.recording["block_size"], dict[int, Owner]()
    numbers = {row.name: i for i, row in enumerate(rows)}
    for name, text in after.texts.items():
        row = name.split(".")[0]  # a request's texts are r0, r0.1, ...
        for place, block in enumerate(text["blocks"] if row in numbers else ()):
            held = text["words"][place * size : min(text["tokens"], (place + 1) * size)]
            say = f"block {block}, {name}: {''.join(held)!r}"
            owners.setdefault(block, (row, say, sequence_color(numbers[row]), len(held) / size))
    return owners
