"""The live page: the notebooks' stage, playing what this server's engine does.

With none open nothing is recorded.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagedlab.llm import LLM
from pagedlab.widgets.assets import script, style

if TYPE_CHECKING:
    from pagedlab.widgets.recording import Recorder

KEEP = 2_000  # steps that can be looked back at
UNWATCHED = 20.0  # seconds after which recording ends


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


# the media type of each file, and what reads it
FILES = {
    "/": ("text/html", partial(_read, "live_page.html")),
    "/live_page.js": ("text/javascript", partial(_read, "live_page.js")),
    "/stage.js": ("text/javascript", partial(script, "stage")),
    "/stage.css": ("text/css", partial(style, "block_grid", "stage")),
}


class LivePage:
    """What the page asks for. All in the thread that runs the engine.

    Args:
        names: of a tenant's texts that run now; None where there are no keys, and everybody sees
            everything.
    """

    def __init__(self, names: Callable[[str | None], set[str]] | None) -> None:
        self._names = names
        self._recorder: Recorder | None = None
        self._asked = 0.0

    def look(self, llm: LLM, tenant: str | None, since: int) -> dict[str, Any]:
        """A recording of what happened, from its step number `first` on: what the page does not
        have yet, or all.

        Where there are keys: the present alone, a tenant's own texts without words, and of others'
        blocks that they are used.
        """
        from pagedlab.widgets.recording import Recorder, Replay

        self._asked = time.monotonic()
        if self._recorder is None:
            self._recorder = Recorder(
                llm, words=self._names is None, most=KEEP, on_step=self._stop_if_alone
            )
        recorder, recording = self._recorder, self._recorder.recording
        recorder.update()
        if self._names is None:
            known = since - recorder.forgotten
            start = known if 0 < known <= len(recording["steps"]) else 0
            return recording | {
                "steps": recording["steps"][start:],
                "first": recorder.forgotten + start,
            }
        now, own = Replay(recording).seek(len(recording["steps"]) - 1).whole(), self._names(tenant)
        texts = {name: text for name, text in now["texts"].items() if name in own}
        held = Counter(block_id for text in texts.values() for block_id in text["blocks"][1])
        counts = {block_id: held[block_id] or 1 for block_id in now["counts"]}
        step = {
            "step": now["step"],
            "used": now["used"],
            "cached": now["cached"],
            "counts": counts,
            "texts": texts,
        }
        return recording | {"steps": [step], "first": 0}

    def _stop_if_alone(self) -> None:
        if self._recorder and time.monotonic() - self._asked > UNWATCHED:
            self._recorder.close()
            self._recorder = None
