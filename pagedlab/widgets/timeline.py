"""The timeline of a running engine: a row a request, a column a step, and under it the block grid of that step.

    kernel  --- `state`: rows as letters, words, tokens --->  page      while the engine runs, and at the end
    kernel  <-------------- `step`, an integer ------------>  page      whoever moves the slider

timeline.js draws. The grid is `LiveGrid` with a frame for every step; moving `step` seeks in it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import traitlets
from IPython.display import display

from pagedlab.lessons.colors import HATCHES, NEUTRAL, sequence_look
from pagedlab.lessons.timeline import KINDS, Recording
from pagedlab.widgets.live_grid import BYTES_PER_SECOND, INTERVAL, LiveGrid
from pagedlab.widgets.timeline_picture import TimelinePicture

_HERE = Path(__file__).parent
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


class _View(anywidget.AnyWidget):
    """The page's side of the rows."""

    _esm = _HERE / "timeline.js"
    _css = (_HERE / "block_grid.css").read_text(encoding="utf-8") + (_HERE / "timeline.css").read_text(encoding="utf-8")
    state = traitlets.Dict().tag(sync=True)  # see Timeline._state
    step = traitlets.Int(0).tag(sync=True)


class _StepGrid(LiveGrid):
    """A live grid with a frame for every step, 0 being the start, and no slider of its own."""

    def _on_step(self) -> None:
        if len(self._frames) <= MAX_STEPS:
            self._frames.append(self.view.frame())

    def refresh(self) -> None:
        if not self._frames:
            self._frames.append(self.view.frame())
        self.seek(len(self._frames))

    def busiest(self) -> int:
        """The last step with the most blocks in use."""
        return max(range(len(self._frames)), key=lambda step: (self._frames[step]["used"], step))


class Timeline(ipywidgets.VBox):
    """Records `llm` from now on and shows who did what in each step, and the block grid of the step pointed at.

    llm     as for `Recording` and `LiveGrid`
    blocks  False for the rows alone

        with Timeline(llm) as timeline:  # shown at once; the picture stored in the notebook is of the whole run
            llm.generate(prompts)
        timeline.recording.summary()

    Drawn are the first 64 requests and 1,200 steps. `close()` ends the recording, and so does the end of the block.
    """

    def __init__(self, llm: Any, *, blocks: bool = True) -> None:
        self.grid = _StepGrid(llm) if blocks else None  # it hears of a step before the rows do
        self.recording = Recording(llm)
        self.view = _View()
        self._due, self._serial, self._handle = 0.0, 0, None
        super().__init__([self.view, *([self.grid] if self.grid else [])])
        self.add_class("pt-box")
        self._stop = llm.on_step(self._on_step)
        self.view.observe(self._on_seek, names="step")
        self.refresh()

    def __enter__(self) -> Timeline:
        self._handle = display(self, display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        if self._handle is not None:  # None outside a notebook
            self._handle.update(self)

    def end(self) -> None:
        """Stop recording, show all of it, and point at the step with the most blocks in use. The slider still works."""
        if self.recording.watching:
            self._stop()
            self.recording.close()
            if self.grid:
                self.grid.view.close()
            self.refresh()
            if self.grid:
                self.seek(self.grid.busiest())

    def close(self) -> None:
        """Stop recording and take the widget off the page."""
        self.end()
        for child in self.children:
            child.close()
        super().close()

    def seek(self, step: int) -> None:
        """Point at a step, from 1 on: the slider moves there, and the grid shows the blocks after it."""
        self.view.step = max(0, min(step, self.recording.steps, MAX_STEPS))

    def refresh(self) -> None:
        """Show the recording as it is now, and its last step."""
        self._serial += 1
        self.view.state = self._state()
        self._due = time.monotonic() + max(INTERVAL, len(json.dumps(self.view.state)) / BYTES_PER_SECOND)
        self.seek(self.recording.steps)

    def picture(self) -> TimelinePicture:
        """All steps and the blocks of the step pointed at, as a PNG and as text, for places where no widget runs."""
        return TimelinePicture(self.view.state, self.grid.state if self.grid and self.recording.steps else None)

    def _on_step(self) -> None:
        if time.monotonic() >= self._due:
            self.refresh()

    def _on_seek(self, change: Any) -> None:
        if self.grid:
            self.grid.seek(change["new"] + 1)

    def _state(self) -> dict[str, Any]:
        """JSON types only. `first` counts from 1; kinds, tokens, wrote, reads and writes are one a cell."""
        recording, figures = self.recording, self.recording.summary()
        steps = min(recording.steps, MAX_STEPS)
        rows: list[dict[str, Any]] = []
        for row in [row for row in recording.rows if row.first <= steps][:MAX_ROWS]:
            number = self.grid.view.colors[row.name] if self.grid else len(rows)
            cells = row.cells[: steps - row.first + 1]
            rows.append(
                {
                    "name": row.name,
                    **sequence_look(number),
                    "first": row.first,
                    "kinds": "".join(cell.kind for cell in cells),
                    "cells": [[c.start, c.tokens, c.wrote, c.reads, c.writes] if c.tokens else 0 for c in cells],
                    "end": row.end if len(cells) == len(row.cells) else None,
                }
            )
        hidden = [f"{recording.steps - steps} steps"] * (recording.steps > steps)
        hidden += [f"{len(recording.rows) - len(rows)} requests"] * (len(recording.rows) > len(rows))
        gave_way = sum(figures.preempted.values())
        preempted = f"; preemptions: {gave_way}" if gave_way else ""
        return {
            "serial": self._serial,
            "steps": steps,
            "rows": rows,
            "batches": recording.batches()[:steps],
            "hidden": f". Not drawn: {' and '.join(hidden)}" if hidden else "",
            "headline": f"{recording.steps} steps, {figures.written:,} tokens written, "
            f"{figures.written_a_step:.1f} a step; steps waited: {figures.waited_mean:.1f} on average, "
            f"{figures.waited_p99:.0f} at the 99th percentile{preempted}",
            "kinds": [
                {"letter": k, "name": KINDS[k], "color": color, "pattern": HATCHES.index(hatch), "pale": pale}
                for k, (color, hatch, pale) in LOOKS.items()
            ],
        }

    def __repr__(self) -> str:
        return f"Timeline: {self.view.state['headline']}"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        live = super()._repr_mimebundle_(**kwargs)
        data, metadata = self.picture()._repr_mimebundle_()
        return {**(live or {}), **data}, metadata
