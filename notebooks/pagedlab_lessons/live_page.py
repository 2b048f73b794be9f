"""The live page: the notebooks' stage, which plays the steps of this server's engine.

Nothing is recorded while no page is open.
"""

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pagedlab.engine import LLM
from pagedlab.recipes.trace import Recorder, Replay
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
    """The recording for the page. All calls are in the thread that runs the engine.

    Args:
        names: the names of a tenant's sequences that run now; None where there are no keys, and
            every visitor sees every sequence.
    """

    files = FILES

    def __init__(self, names: Callable[[str | None], set[str]] | None) -> None:
        self._names = names
        self._recorder: Recorder | None = None
        self._asked = 0.0

    def look(self, llm: LLM, tenant: str | None, since: int) -> dict[str, Any]:
        """Return the steps that the page does not have yet, or the whole recording.

        Where there are keys, return the present alone, see `present_of`.
        """
        self._asked = time.monotonic()
        if self._recorder is None:
            self._recorder = Recorder(
                llm,
                drawn=MOST_BLOCKS,
                most=KEEP,
                on_step=self._stop_if_alone,
            )
        self._recorder.update()
        if self._names is None:
            return film(news_of(self._recorder.recording, self._recorder.forgotten, since))
        return film(present_of(self._recorder.recording, self._names(tenant)))

    def _stop_if_alone(self) -> None:
        if self._recorder and time.monotonic() - self._asked > UNWATCHED:
            self._recorder.close()
            self._recorder = None


def news_of(recording: dict[str, Any], forgotten: int, since: int) -> dict[str, Any]:
    """The steps of a recording that a page does not have, or all if it has none of them.

    Args:
        recording: without its first `forgotten` steps.
        forgotten: how many steps are gone.
        since: the number of steps that the page has seen.
    """
    steps = recording["steps"]
    start = since - forgotten
    if not 0 < start <= len(steps):
        start = 0
    return recording | {"steps": steps[start:], "first": forgotten + start}


def present_of(recording: dict[str, Any], own: set[str]) -> dict[str, Any]:
    """The last step alone, for a tenant: of others' blocks it says only that they are used.

    Args:
        own: the names of the tenant's sequences.
    """
    replay = Replay(recording)
    now = replay.seek(len(replay) - 1).whole()
    texts = {name: text for name, text in now["texts"].items() if name in own}
    held = Counter[int]()
    for text in texts.values():
        text.pop("words", None)  # the page shows none where there are keys
        held.update(text["blocks"][1])
    step = {
        "step": now["step"],
        "used": now["used"],
        "cached": now["cached"],
        "counts": {block_id: held[block_id] or 1 for block_id in now["counts"]},
        "texts": texts,
    }
    return recording | {"steps": [step], "first": 0}
