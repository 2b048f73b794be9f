"""What the server's live page shows: the block grid of notebook 02, fed by snapshots of the engine's pool."""

from __future__ import annotations

from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

from pagedlab.engine import LLM
from pagedlab.widgets.block_grid import snapshot
from pagedlab.widgets.reading import read
from pagedlab.widgets.session import MAX_BLOCKS

WIDGETS = Path(__file__).parent / "widgets"
FILES = {"/": "live_page.html", "/block_grid.js": "block_grid.js", "/block_grid.css": "block_grid.css"}


class BlockView:
    """Turns the engine's state into block_grid.js's. Call it in the thread that owns the engine."""

    def __init__(self, llm: LLM, show_words: bool) -> None:
        self._show_words = show_words
        self._colors: dict[str, int] = {}
        self._numbers = count()
        self._peak = {"used": 0, "shared": 0, "sequences": 0}
        self._events: Counter[str] = Counter()
        subscribe = getattr(llm.pool, "subscribe", None)
        if subscribe is not None:
            subscribe(lambda event: self._events.update([event.kind]))

    def __call__(self, llm: LLM) -> dict[str, Any]:
        """The state now; JSON types only. Without `show_words`, blocks say whose they are and not what they hold."""
        pool, sequences = llm.pool, llm.sequences()
        known = self._colors
        self._colors = {s.name: known[s.name] if s.name in known else next(self._numbers) for s in sequences}
        shown, size = min(pool.num_blocks, MAX_BLOCKS), pool.block_size
        reading = read(pool, {s.name: s.table for s in sequences}, shown, size)
        texts: dict[str, str] = {}
        for sequence in sequences if self._show_words else ():
            for index, block_id in enumerate(sequence.table.block_ids):
                if str(block_id) not in texts:
                    held = sequence.token_ids[index * size : min((index + 1) * size, sequence.table.num_tokens)]
                    texts[str(block_id)] = llm.decode(held)
        state = snapshot(reading, self._colors)
        state["used"] = pool.num_blocks - pool.num_free
        now = {"used": state["used"], "shared": state["shared"], "sequences": len(sequences)}
        self._peak = {name: max(value, now[name]) for name, value in self._peak.items()}
        return state | {
            "problems": [],  # a prefix cache and a swapped request hold blocks that no running table lists
            "hidden": pool.num_blocks - shown,
            "cached": getattr(pool, "num_cached", 0),
            "engine_steps": llm.stats.steps,
            "copied": self._events["copy"],
            "copies": [],
            "texts": texts,
            "peak": self._peak,
        }
