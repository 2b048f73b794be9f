"""The block grid of a running engine: nothing to click, every block says which words it holds."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from IPython.display import display

from pagedlab.widgets.block_grid import BlockGrid
from pagedlab.widgets.engine_view import EngineView
from pagedlab.widgets.picture import Picture

INTERVAL = 0.1  # seconds between two states
BYTES_PER_SECOND = 500_000  # half of what a Jupyter server lets a kernel say before it drops messages
MAX_FRAMES = 240  # states kept to look back at; beyond it every other one is forgotten


class LiveGrid(BlockGrid):
    """Shows `llm`'s pool while it generates, and afterwards lets you look back with the slider.

    llm  as for `EngineView`

    Only the first 1,024 blocks are drawn; the counters are the pool's. Without `with`, it watches until `close()`.

        with LiveGrid(llm):    # shown at once, and watches until here
            llm.generate(...)
    """

    def __init__(self, llm: Any) -> None:
        self.view = EngineView(llm, on_step=self._on_step)
        self._frames: list[dict[str, Any]] = []
        self._serial = 0
        self._due, self._pending = 0.0, False
        super().__init__(live=True, presets=[])
        self.on_msg(self._receive)
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        self.refresh()

    def __enter__(self) -> Any:
        self._handle = display(self, display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        if self._handle is not None:  # None outside a notebook
            self._handle.update(self)

    def end(self) -> None:
        """Show the engine's pool for the last time, and stop watching it. The slider still works."""
        self.refresh()
        self.view.close()

    def close(self) -> None:
        """Stop watching the engine and take the widget off the page."""
        self.end()
        super().close()

    def refresh(self) -> None:
        """Show the engine's pool as it is now."""
        self._pending = False
        self._frames.append(self.view.frame())
        if len(self._frames) > MAX_FRAMES:
            del self._frames[-2::-2]
        self._wait_after(self._frames[-1])
        self.seek(len(self._frames))

    def seek(self, step: int) -> None:
        """Show an earlier state: 1 is the first that is kept. The next step of the engine shows the present again."""
        step = max(1, min(len(self._frames), step))
        self._serial += 1
        position = {"serial": self._serial, "floor": 1, "step": step, "steps": len(self._frames)}
        self.state = {**self._frames[step - 1], **position}

    def busiest(self) -> int:
        """The number, from 0, of the state with the most blocks in use, the last one if there are several."""
        return max(range(len(self._frames)), key=lambda i: (self._frames[i]["used"], i))

    def picture(self) -> Picture:
        """The busiest moment as a PNG and as text."""
        return Picture(self._frames[self.busiest()])

    def _receive(self, _widget: Any, message: Any, _buffers: Any = None) -> None:
        match message:
            case {"step": int(step)}:
                self.seek(step)

    def _wait_after(self, sent: dict[str, Any]) -> None:
        self._due = time.monotonic() + max(INTERVAL, len(json.dumps(sent)) / BYTES_PER_SECOND)

    def _on_step(self) -> None:
        # Without an event loop nothing could come back later for the last state, so each one is shown.
        if self._loop is None or time.monotonic() >= self._due:
            self.refresh()
        elif not self._pending:
            self._pending = True
            self._loop.call_soon_threadsafe(self._loop.call_later, INTERVAL, self._refresh_if_pending)

    def _refresh_if_pending(self) -> None:
        if self._pending:
            self.refresh()
