"""The timeline of a running engine: a row a request, a column a step, and under it the stage at that step.

    kernel  --- `run`: rows as letters, words, tokens --->  page      while the engine runs, and at the end
    kernel  <------------ `step`, an integer ------------>  page      whoever moves the slider

timeline.js draws the rows, on top of stage.js. Both show the same `step`.
"""

from __future__ import annotations

import json
import time
from typing import Any

import traitlets

from pagedlab.lessons.colors import HATCHES, NEUTRAL, sequence_look
from pagedlab.lessons.timeline import KINDS, Recording
from pagedlab.widgets.page import script, style
from pagedlab.widgets.picture import TimelinePicture
from pagedlab.widgets.stage import BYTES_PER_SECOND, INTERVAL, Stage

MAX_STEPS, MAX_ROWS = 1200, 64  # what is drawn; the recording goes on

# Colour and pattern of each kind, named as in colors.HATCHES. What computes nothing is pale.
LOOKS = {
    "W": (NEUTRAL, "//", True),
    "P": ("#0072B2", "", False),
    "D": ("#56B4E9", "..", False),
    "R": ("#D55E00", "xx", False),
    "S": ("#CC79A7", "||", True),
    "-": ("#E69F00", "--", True),
}


class Timeline(Stage):
    """Records `llm` from now on and shows who did what in each step, and the texts and blocks of the step pointed at.

    llm     as for `Recording` and `Stage`
    blocks  False for the rows alone

        with Timeline(llm) as timeline:  # shown at once; the picture stored in the notebook is of the whole run
            llm.generate(prompts)
        timeline.recording.summary()

    Drawn are the first 64 requests and 1,200 steps. `close()` ends the recording, and so does the end of the block.
    """

    _esm = script("stage", "timeline")
    _css = style("block_grid", "stage", "timeline")
    run = traitlets.Dict().tag(sync=True)  # see `_run`

    def __init__(self, llm: Any, *, blocks: bool = True) -> None:
        self.recording = Recording(llm)  # it hears of a step before the stage does
        self._blocks = blocks
        super().__init__(llm)
        self.step = 0

    def end(self) -> None:
        """Stop recording, show all of it, and point at the step with the most blocks in use. The slider still works."""
        if self.recording.watching:
            self.recording.close()
            super().end()
            used = [step["used"] for step in self.replay(0).steps[: self.run["steps"] + 1]]
            self.seek(max(range(len(used)), key=lambda i: (used[i], i)) if self._blocks else self.recording.steps)

    def seek(self, step: int) -> None:
        """Point at a step, from 1 on: the slider moves there, and the stage shows the blocks after it."""
        self.step = max(0, min(step, self.recording.steps, MAX_STEPS))

    def refresh(self) -> None:
        """Show the recording as it is now, and its last step."""
        self.run = self._run()
        if self._blocks:
            super().refresh()
        else:
            self._due = time.monotonic() + max(INTERVAL, len(json.dumps(self.run)) / BYTES_PER_SECOND)
        self.seek(self.recording.steps)

    def picture(self) -> TimelinePicture:
        """All steps and the blocks of the step pointed at, as a PNG and as text, for places where no widget runs."""
        drawn = self._blocks and self.recording.steps
        return TimelinePicture(self.run, self.replay(self.step).grid() if drawn else None)

    def _on_step(self) -> None:
        if time.monotonic() >= self._due:
            self.refresh()

    def _run(self) -> dict[str, Any]:
        """JSON types only. `first` counts from 1; kinds, tokens, wrote, reads and writes are one a cell."""
        recording, figures = self.recording, self.recording.summary()
        steps = min(recording.steps, MAX_STEPS)
        rows: list[dict[str, Any]] = []
        assert self.recorder is not None
        looks = self.recorder.looks
        for row in [row for row in recording.rows if row.first <= steps][:MAX_ROWS]:
            cells = row.cells[: steps - row.first + 1]
            rows.append(
                {
                    "name": row.name,
                    **sequence_look(looks[row.name]),
                    "first": row.first,
                    "kinds": "".join(cell.kind for cell in cells),
                    "cells": [[c.start, c.tokens, c.wrote, c.reads, c.writes] if c.tokens else 0 for c in cells],
                    "end": row.end if len(cells) == len(row.cells) else None,
                }
            )
        left_out = {"steps": recording.steps - steps, "requests": len(recording.rows) - len(rows)}
        hidden = " and ".join(f"{number} {what}" for what, number in left_out.items() if number)
        gave_way = sum(figures.preempted.values())
        return {
            "steps": steps,
            "rows": rows,
            "batches": recording.batches()[:steps],
            "hidden": f". Not drawn: {hidden}" if hidden else "",
            "headline": f"{recording.steps} steps, {figures.written:,} tokens written, "
            f"{figures.written_a_step:.1f} a step; steps waited: {figures.waited_mean:.1f} on average, "
            f"{figures.waited_p99:.0f} at the 99th percentile" + (f"; preemptions: {gave_way}" if gave_way else ""),
            "kinds": [
                {"letter": k, "name": KINDS[k], "color": color, "pattern": HATCHES.index(hatch), "pale": pale}
                for k, (color, hatch, pale) in LOOKS.items()
            ],
        }

    def __repr__(self) -> str:
        return f"Timeline: {self.run['headline']}"
