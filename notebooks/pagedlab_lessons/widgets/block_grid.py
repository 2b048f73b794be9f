"""The block grid: a pool that is driven by clicks, and drawn as it says it is.

    page   --{op: "append", sequence: "s0", n: 5}-->   BlockPoolWidget  -->  Session  -->  pool
    page   <------------- `state`, whole --------------  snapshot  <--  reading  <---  and tables

A message arrives, and `state` is replaced as a whole after every operation; the page updates what
differs. block_grid.js and block_grid.css draw. They decide nothing about blocks.
"""

from collections.abc import Callable
from typing import Any

import traitlets

from pagedlab.arguments import one_of
from pagedlab.blocks import BlockPool, BlockTable, Pool
from pagedlab_lessons.readers_code import explain
from pagedlab_lessons.widgets.examples import CHALLENGES, PRESETS
from pagedlab_lessons.widgets.page import Page
from pagedlab_lessons.widgets.picture import picture_of_grid
from pagedlab_lessons.widgets.reading import columns_of
from pagedlab_lessons.widgets.session import Session


class BlockPoolWidget(Session, Page, page="block_grid"):
    """A block pool to click on. It drives `pool`; `tables` are by the name of their sequence.

    Errors and mistakes of the pool and the tables are shown in the widget. Undo, redo and the
    scrubber make a fresh pool and repeat the log.

    Args:
        pool: a class with BlockPool's verbs, called as `pool(num_blocks, block_size)`.
        table: a class called as `table(pool)`, with append, fork, free, block_ids and num_tokens.
        num_blocks: of the pool.
        block_size: of the pool.
        preset: the name of an example to begin with, one of `PRESETS`.
        challenge: the name of a goal, one of `CHALLENGES`. It sets the number of blocks.

    Raises:
        ValueError: If an argument makes no sense.
    """

    state = traitlets.Dict()  # what the page shows, as block_grid.js says

    def __init__(
        self,
        pool: Callable[[int, int], Any] = BlockPool,
        *,
        table: Callable[[Pool], Any] = BlockTable,
        num_blocks: int = 64,
        block_size: int = 16,
        preset: str | None = None,
        challenge: str | None = None,
    ) -> None:
        self.challenge = None
        if challenge:
            self.challenge = CHALLENGES[one_of("challenge", challenge, CHALLENGES)]
            num_blocks = self.challenge.num_blocks
        Page.__init__(self)
        Session.__init__(self, pool, table, num_blocks, block_size)
        self.on_msg(self.receive)
        if preset:
            self.preset(preset)

    def preset(self, name: str) -> None:
        """Start over and play an example, up to the first operation that fails.

        Args:
            name: one of `PRESETS`.
        """
        operations = PRESETS[one_of("preset", name, PRESETS)]
        with self.hold_sync():
            self.reset()
            for operation in operations:
                self.do(*operation)
                if self.last.error:
                    break

    def picture(self) -> str:
        """Return the present state as a drawing, for where no widget runs."""
        return picture_of_grid(self.state)

    # ------------------------------------------------------------------ page and Python

    def receive(self, _widget: Any, message: Any, _buffers: Any = None) -> None:
        """Answer a message of the page: do the operation, or show why not."""
        try:
            match message:
                case {"op": "undo" | "redo" | "reset" as verb}:
                    getattr(self, verb)()
                case {"op": "seek", "step": int(step)}:
                    self.seek(step)
                case {"op": "preset", "name": str(name)}:
                    self.preset(name)
                case {"op": str(verb)}:
                    self.do(verb, message.get("sequence"), message.get("n"))
                case _:
                    raise ValueError(f"not an operation: {message!r}")
        except Exception as error:  # a click never goes without an answer
            self.show(note=explain(error))

    def show(self, note: str = "") -> None:
        """Send the present state to the page.

        Args:
            note: why a message was refused.
        """
        reading = self.reading
        last = self.last
        goal = self.challenge and vars(self.challenge) | {"missing": self.challenge.missing(self)}
        copying = sum(len(table.blocks) for table in reading.tables.values())
        tokens = max(0, copying - reading.used) * self.block_size
        self.state = {
            "block_size": self.block_size,
            "columns": columns_of(self.num_blocks),
            "counts": reading.counts,
            "tables": [
                {"name": name, **table._asdict(), "look": self.looks[name]}
                for name, table in reading.tables.items()
            ],
            "figures": {
                "used": reading.used,
                "free": reading.free,
                "shared": reading.shared,
                "copied": self.copied,
                "with copies": copying,  # blocks in use if each sequence had its own
            },
            "saved": f"{tokens // 2:,} MiB",  # of LLaMA-2-7B, half a MiB a token
            "serial": self.state.get("serial", 0) + 1,  # number of the state
            "presets": [] if self.challenge else ["Examples …", *PRESETS],
            "usual": self.block_size * 5 // 4,
            "focus": None if note else last.operation.changed,
            "next": {name: self._next(name) for name in reading.tables},
            "alert": "\n".join(filter(None, [note, last.error, *last.problems, *reading.problems])),
            "spoken": note or last.text,
            "step": self.cursor,
            "steps": len(self.entries),
            "copies": list(map(list, last.copies)),
            "log": [[entry.text, bool(entry.error or entry.problems)] for entry in self.entries],
            "challenge": goal,
        }

    def _next(self, name: str) -> str:
        """Say what the reader can do while this sequence is selected."""
        blocks, tokens = self.reading.tables[name]
        last = blocks[-1] if blocks else 0
        if tokens % self.block_size and self.reading.counts[last] > 1:
            # A reader's own table may forget the copy, so this says the rule and not what happens.
            return (
                f"{name} shares block {last}, which has room. A write must copy this block first: "
                "write a token and see."
            )
        if len(self.tables) > 1:
            return f"{name} is selected. Click a block or a row to select another sequence."
        return (
            f"{name} is selected. Append to it, or Fork it: a second sequence over the same blocks."
        )
