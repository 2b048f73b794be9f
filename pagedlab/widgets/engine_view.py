"""What a running engine holds, as the state of a block grid: for the live grid and for the server's live page."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from typing import Any

from pagedlab.widgets.reading import Reading, read
from pagedlab.widgets.session import MAX_BLOCKS

MAX_COLORS = 10_000  # names of sequences whose colours are remembered


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
