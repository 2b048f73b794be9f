"""What a running engine holds, as the state of a block grid: live in a notebook, and for the server's live page."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import count
from typing import Any

from IPython.display import display

from pagedlab.widgets.block_grid import BlockGrid
from pagedlab.widgets.picture import Picture
from pagedlab.widgets.reading import Reading, read
from pagedlab.widgets.session import MAX_BLOCKS

MAX_COLORS = 10_000  # names of sequences whose colours are remembered
INTERVAL = 0.1  # seconds between two states
BYTES_PER_SECOND = 500_000  # half of what a Jupyter server lets a kernel say before it drops messages
MAX_FRAMES = 240  # states kept to look back at; beyond it every other one is forgotten


class EngineView(ExitStack):
    """Watches `llm` from now until `close()`; `frame()` is its state now. All in the thread that runs the engine.

    llm    has `pool`, `on_step(callback) -> unsubscribe`, `decode(token_ids) -> str`, and `sequences()`, each of
           which has `name`, `table` and `token_ids` (the tokens whose keys and values lie in the table's blocks)
    words  whether blocks say what they hold, and not only whose they are
    """

    def __init__(self, llm: Any, words: bool = True, on_step: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.steps = 0
        self.colors: dict[str, int] = defaultdict(count().__next__)  # running number of each sequence, by name
        self._llm, self._show_words, self._after_step = llm, words, on_step
        self._shown = min(llm.pool.num_blocks, MAX_BLOCKS)
        self._peak: dict[str, int] = {}
        self._copied = 0
        self._copies: deque[list[int]] = deque(maxlen=8)  # since the last frame
        self._texts: dict[tuple[str, int], tuple[int, str]] = {}  # by sequence and logical block: tokens, words
        self._kept: set[int] = set()  # blocks whose contents a cache keeps after their last reference
        self._words: dict[int, str] = {}  # what each block held when it was last looked at
        self.callback(llm.on_step(self._on_step))
        if subscribe := getattr(llm.pool, "subscribe", None):
            self.callback(subscribe(self._on_event))

    def frame(self) -> dict[str, Any]:
        """The state now; JSON types only. Of a large pool the first 1,024 blocks, but counters of all."""
        pool, sequences = self._llm.pool, self._llm.sequences()
        reading = read(pool, {s.name: s.table for s in sequences}, self._shown, pool.block_size)
        now = {"used": pool.num_blocks - reading.free, "shared": reading.shared, "sequences": len(sequences)}
        self._peak = {name: max(now[name], self._peak.get(name, 0)) for name in now}
        frame = reading.snapshot(self.colors) | {
            "used": now["used"],
            "problems": [],  # prefix caches and swapped sequences hold blocks that no running table lists
            "hidden": pool.num_blocks - self._shown,
            "cached": getattr(pool, "num_cached", 0),
            "engine_steps": self.steps,
            "copied": self._copied,
            "copies": list(self._copies),
            "texts": self._decode(sequences, reading) if self._show_words else {},
            "peak": self._peak,
        }
        self._copies.clear()
        while len(self.colors) > MAX_COLORS:
            del self.colors[next(iter(self.colors))]
        return frame

    def _on_step(self) -> None:
        self.steps += 1
        self._after_step()

    def _on_event(self, event: Any) -> None:
        match event.kind:
            case "copy":
                self._copied += 1
                self._copies.append([event.source, event.block_id])
            case "keep" | "revive":
                self._kept.add(event.block_id)
            case "evict" | "forget":
                self._kept.discard(event.block_id)
            case "allocate":
                self._words.pop(event.block_id, None)

    def _decode(self, sequences: list[Any], reading: Reading) -> dict[str, str]:
        """The words in each block. A block's text is decoded again only when it holds more tokens than before."""
        texts: dict[int, str] = {}
        size, before, self._texts = reading.block_size, self._texts, {}
        for sequence in sequences:
            table = reading.tables[sequence.name]
            for index, block_id in enumerate(table.blocks):
                place, held = (sequence.name, index), table.fill(index, size)
                known, text = before.get(place, (None, ""))
                if known != held:
                    text = self._llm.decode(sequence.token_ids[index * size : index * size + held])
                self._texts[place] = held, text
                if block_id is not None:
                    texts[block_id] = max(texts.get(block_id, ""), text, key=len)
        self._words |= texts
        texts |= {b: self._words[b] for b in self._kept & self._words.keys() if not reading.counts[b]}
        return {str(block_id): text for block_id, text in texts.items()}


class LiveGrid(BlockGrid):
    """Shows `llm`'s pool while it generates, and afterwards lets you look back with the slider.

    llm  as for `EngineView`

    Nothing to click, but every block says which words it holds. Only the first 1,024 are drawn; the counters are the
    pool's. Without `with`, it watches until `close()`.

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
        self._loop: asyncio.AbstractEventLoop | None = None
        with suppress(RuntimeError):
            self._loop = asyncio.get_running_loop()
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
            self._loop.call_soon_threadsafe(self._loop.call_later, INTERVAL, self._catch_up)

    def _catch_up(self) -> None:
        if self._pending:
            self.refresh()
