"""The block grid of a running engine: nothing to click, every block says which words it holds."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from IPython.display import display

from pagedlab.widgets.block_grid import BlockGrid, snapshot
from pagedlab.widgets.reading import Reading, read, whole_number
from pagedlab.widgets.session import MAX_BLOCKS
from pagedlab.widgets.static import Picture

INTERVAL = 0.1  # seconds between two states
BYTES_PER_SECOND = 500_000  # half of what a Jupyter server lets a kernel say before it drops messages
MAX_FRAMES = 240  # states kept to look back at; beyond it every other one is forgotten


class LiveGrid(BlockGrid):
    """Shows `llm`'s pool while it generates, and afterwards lets you look back with the slider.

    llm  has `pool`, `on_step(callback) -> unsubscribe`, `decode(token_ids) -> str`, and `sequences()`, each of
         which has `name`, `table` and `token_ids` (the tokens whose keys and values lie in the table's blocks)

    Only the first 1,024 blocks are drawn; the counters are the pool's. `close()` ends the watching.

        with LiveGrid(llm):    # shown at once; the picture stored in the notebook is of the last state
            llm.generate(...)
    """

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._shown = min(llm.pool.num_blocks, MAX_BLOCKS)
        self._colors: dict[str, int] = {}
        self._texts: dict[tuple[str, int], tuple[int, str]] = {}
        self._frames: list[dict[str, Any]] = []
        self._peak = {"used": 0, "shared": 0, "sequences": 0}
        self._steps = self._copied = self._serial = 0
        self._copies: list[list[int]] = []
        self._kept: set[int] = set()  # blocks whose contents a cache keeps after their last reference
        self._words: dict[int, str] = {}  # what each block held when it was last looked at
        self._due, self._pending = 0.0, False
        super().__init__(live=True, presets=[])
        self.on_msg(self._receive)
        try:
            self._loop: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            self._loop = None
        subscribe = getattr(llm.pool, "subscribe", None)
        self._ends = [llm.on_step(self._on_step)] + ([subscribe(self._on_event)] if subscribe else [])
        self.refresh()

    def __enter__(self) -> LiveGrid:
        self._handle = display(self, display_id=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.refresh()
        if self._handle is not None:  # None outside a notebook
            self._handle.update(self)

    def close(self) -> None:
        """Stop watching the engine and take the widget off the page."""
        for end in self._ends:
            end()
        self._ends.clear()
        super().close()

    def refresh(self) -> None:
        """Show the engine's pool as it is now."""
        self._pending = False
        self._frames.append(self._frame())
        if len(self._frames) > MAX_FRAMES:
            del self._frames[-2::-2]
        self._due = time.monotonic() + max(INTERVAL, len(json.dumps(self._frames[-1])) / BYTES_PER_SECOND)
        self.seek(len(self._frames))

    def seek(self, step: int) -> None:
        """Show an earlier state: 1 is the first that is kept. The next step of the engine shows the present again."""
        step = max(1, min(len(self._frames), step))
        self._serial += 1
        position = {"serial": self._serial, "floor": 1, "step": step, "steps": len(self._frames)}
        self.state = {**self._frames[step - 1], **position}

    def picture(self) -> Picture:
        """The moment with the most blocks in use, the last one if there are several, as a PNG and as text."""
        return Picture(max(reversed(self._frames), key=lambda frame: frame["used"]))

    def _receive(self, _widget: Any, message: dict[str, Any], _buffers: Any = None) -> None:
        step = whole_number(message.get("step")) if isinstance(message, dict) else None
        if step is not None:
            self.seek(step)

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

    def _on_step(self) -> None:
        self._steps += 1
        # Without an event loop nothing could come back later for the last state, so each one is shown.
        if self._loop is None or time.monotonic() >= self._due:
            self.refresh()
        elif not self._pending:
            self._pending = True
            self._loop.call_soon_threadsafe(self._loop.call_later, INTERVAL, self._refresh_if_pending)

    def _refresh_if_pending(self) -> None:
        if self._pending:
            self.refresh()

    def _frame(self) -> dict[str, Any]:
        pool, sequences = self._llm.pool, self._llm.sequences()
        for sequence in sequences:
            self._colors.setdefault(sequence.name, len(self._colors))
        reading = read(pool, {s.name: s.table for s in sequences}, self._shown, pool.block_size)
        texts = self._decode(sequences, reading)
        copies, self._copies = self._copies, []
        frame = snapshot(reading, self._colors)
        frame |= {
            "used": pool.num_blocks - reading.free,
            "problems": [],  # prefix caches and swapped sequences hold blocks that no running table lists
            "hidden": pool.num_blocks - self._shown,
            "cached": getattr(pool, "num_cached", 0),
            "engine_steps": self._steps,
            "copied": self._copied,
            "copies": copies[-8:],
            "texts": texts,
        }
        now = {"used": frame["used"], "shared": frame["shared"], "sequences": len(sequences)}
        self._peak = {name: max(value, now[name]) for name, value in self._peak.items()}
        return {**frame, "peak": self._peak}

    def _decode(self, sequences: list[Any], reading: Reading) -> dict[str, str]:
        """The words in each block. A block's text is decoded again only when it holds more tokens than before."""
        texts: dict[int, str] = {}
        size = reading.block_size
        cache: dict[tuple[str, int], tuple[int, str]] = {}
        for sequence in sequences:
            table = reading.tables[sequence.name]
            for index, block_id in enumerate(table.blocks):
                held = table.fill(index, size)
                cached = self._texts.get((sequence.name, index))
                if cached is None or cached[0] != held:
                    start = index * size
                    cached = held, self._llm.decode(sequence.token_ids[start : start + held])
                cache[sequence.name, index] = cached
                if block_id is not None:
                    texts[block_id] = max(texts.get(block_id, ""), cached[1], key=len)
        self._texts = cache
        self._words |= texts
        texts |= {b: self._words[b] for b in self._kept & self._words.keys() if not reading.counts[b]}
        return {str(block_id): text for block_id, text in texts.items()}
