"""The live page: the notebooks' stage, which plays the steps of this server's engine.

Nothing is recorded while no page is open.
"""

import time
from functools import partial
from pathlib import Path
from typing import Any

from pagedlab.engine import LLM
from pagedlab.recipes.trace import Recorder
from pagedlab_lessons.widgets.assets import script, style
from pagedlab_lessons.widgets.film import film

MOST_BLOCKS = 32_768  # that can be drawn; the page draws those in use
KEEP = 2_000  # steps that can be looked back at
UNWATCHED = 20.0  # seconds after which recording ends


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


# the media type of each file, and the function that reads it
FILES = {
    "/": ("text/html", partial(_read, "live_page.html")),
    "/live_page.js": ("text/javascript", partial(_read, "live_page.js")),
    "/stage.js": ("text/javascript", partial(script, "stage")),
    "/stage.css": ("text/css", partial(style, "block_grid", "stage")),
}


class LivePage:
    """The recording for the page. All calls are in the thread that runs the engine."""

    files = FILES

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._asked = 0.0

    def look(self, llm: LLM, since: int) -> dict[str, Any]:
        """Return the steps that the page does not have yet, or all if it has none of them.

        Args:
            llm: whose steps are recorded.
            since: the number of steps that the page has seen.
        """
        self._asked = time.monotonic()
        if self._recorder is None:
            self._recorder = Recorder(
                llm, drawn=MOST_BLOCKS, most=KEEP, on_step=self._stop_if_alone
            )
        recorder = self._recorder
        recorder.update()
        steps = recorder.recording["steps"]
        start = since - recorder.forgotten
        if not 0 < start <= len(steps):
            start = 0
        news = {"steps": steps[start:], "first": recorder.forgotten + start}
        return film(recorder.recording | news)

    def _stop_if_alone(self) -> None:
        if self._recorder and time.monotonic() - self._asked > UNWATCHED:
            self._recorder.close()
            self._recorder = None
