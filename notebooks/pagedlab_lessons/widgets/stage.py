"""The stage: what an engine did, played back word by word and block by block. stage.js draws it.

engine  -- after every step -->  Recorder  -- `recorded`, whole -->  the page, at its own speed
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import traitlets

from pagedlab.recipes.trace import Recorder, Replay, load_recording
from pagedlab_lessons.widgets.film import film
from pagedlab_lessons.widgets.opening import opening
from pagedlab_lessons.widgets.page import Page
from pagedlab_lessons.widgets.picture import picture_of_stage

INTERVAL = 0.1  # seconds between two messages to the page
# half of what a Jupyter server lets a kernel send before it drops messages
BYTES_PER_SECOND = 500_000


class Stage(Page, page="stage"):
    """Plays what an engine does, while it does it and afterwards: answers, blocks and tables.

        with Stage(llm):    # shown at once, and records until here
            llm.generate(prompts)

    Nothing is left out, however fast the engine is: the page follows at a speed that an eye can.
    Only the first 1,024 blocks are drawn; the counters are the pool's. Without `with`, it records
    until `end()`, which shows the last steps.

    Args:
        source: an engine, as for `trace.Recorder`; a recording; or the path of one.
        names: by each person's name, words that only this person's prompt has. The stage then says
            the name in place of "r0", and people have the first colours, in this order.

    Raises:
        ValueError: If a recording has another format.
    """

    recorded = traitlets.Dict()  # see docs/trace.md
    live = traitlets.Bool(False)  # whether more is to come

    def __init__(self, source: Any, names: Mapping[str, str] | None = None) -> None:
        self._names = names
        self._due = 0.0
        self.recorder: Recorder | None = None
        if isinstance(source, str | Path | dict):
            super().__init__(recorded=film(load_recording(source), self._names))
        else:
            self.recorder = Recorder(source, on_step=self._on_step)
            super().__init__(live=True)
            self.refresh()

    def end(self) -> None:
        """Show all that was recorded, and stop recording. The recording can still be played."""
        if self.recorder:
            self.recorder.update()
            self.refresh()
            self.recorder.close()
        self.live = False

    def refresh(self) -> None:
        """Show what has been recorded so far."""
        if self.recorder:
            self.recorded = film(self.recorder.recording, self._names)
            size = len(json.dumps(self.recorded))
            self._due = time.monotonic() + max(INTERVAL, size / BYTES_PER_SECOND)

    def replay(self, step: int | None = None) -> Replay:
        """Show what has been recorded so far, and return the state after that step.

        None is the step with most to see.
        """
        self.refresh()
        replay = Replay(self.recorded)
        return replay.seek(replay.busiest_step() if step is None else step)

    def save(self, path: str | Path) -> None:
        """Write the recording to a file, for `Stage(path)` to play."""
        text = json.dumps(self.replay(0).recording, separators=(",", ":"))
        Path(path).write_text(text + "\n", encoding="utf-8")

    def picture(self) -> str:
        """The step with most to see, as a drawing."""
        return picture_of_stage(self.replay())

    def opening(self) -> dict[str, str] | None:
        """Return the recording, for a page without a kernel."""
        return opening("stage", {"recorded": self.replay(0).recording, "live": False})

    def _on_step(self) -> None:
        if time.monotonic() >= self._due:
            self.refresh()
