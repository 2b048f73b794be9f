"""The block grid: a pool that is driven by clicks, and drawn as it says it is.

    page   --{op: "append", sequence: "s0", n: 5}-->   BlockPoolWidget   -->   pool
    page   <------------- `state`, whole -----------  reading  <-----------  and tables

A message arrives, and `state` is replaced as a whole after every operation; the page updates what
differs. block_grid.js and block_grid.css draw. They decide nothing about blocks.

The widget keeps no counts itself: after each operation it reads pool and tables again and shows
what they say. Going back makes a fresh pool and repeats the operations of the log up to there, so
pool and table classes need not know of it.
"""

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import traitlets

from pagedlab.arguments import integer, one_of
from pagedlab.blocks import BlockPool, BlockTable, Pool
from pagedlab_lessons.readers_code import explain
from pagedlab_lessons.widgets.examples import CHALLENGES, PRESETS
from pagedlab_lessons.widgets.judging import NOTHING, Entry, judged
from pagedlab_lessons.widgets.operations import VERBS, Operation
from pagedlab_lessons.widgets.page import Page
from pagedlab_lessons.widgets.picture import picture_of_grid
from pagedlab_lessons.widgets.reading import Reading, columns_of, read

MAX_BLOCKS = 1024  # more would make a click slow
_ANYTHING = (Exception, KeyboardInterrupt)  # what a reader's class may raise, or be stopped by


class BlockPoolWidget(Page, page="block_grid"):
    """A block pool to click on. It drives `pool`; `tables` are by the name of their sequence.

    Errors and mistakes of the pool and the tables are shown in the widget. Undo, redo and the
    scrubber make a fresh pool and repeat the log: `entries[:cursor]` has happened, and the entries
    after it can be done again.

    Args:
        pool: a class with BlockPool's verbs, called as `pool(num_blocks, block_size)`.
        table: a class called as `table(pool)`, with append, fork, free, block_ids and num_tokens.
        num_blocks: of the pool, at most `MAX_BLOCKS`.
        block_size: of the pool.
        preset: the name of an example to begin with, one of `PRESETS`.
        challenge: the name of a goal, one of `CHALLENGES`. It sets the number of blocks.

    Raises:
        ValueError: If an argument makes no sense.
    """

    state = traitlets.Dict()  # what the page shows, as block_grid.js says
    reading: Reading  # the present state

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
        super().__init__()
        self.pool_class = pool
        self.table_class = table
        self.num_blocks = integer("num_blocks", num_blocks, 1, MAX_BLOCKS)
        self.block_size = integer("block_size", block_size, 1)
        self.reset()
        self.on_msg(self.receive)
        if preset:
            self.preset(preset)

    def do(
        self,
        verb: str,
        sequence: str | None = None,
        n: int | None = None,
        child: str | None = None,
    ) -> str:
        """Do what a click does. Operations that were undone are forgotten. ::

            new         make a sequence of `n` tokens (default 0)
            append      add `n` tokens (default 1)
            write       append one token. If the last block is shared, it is copied first
            fork        make a second sequence over the same blocks
            free        release all blocks

        An error of the pool or the table is logged, not raised.

        Args:
            verb: one of these.
            sequence: name of the sequence; a new one is s0, s1, ... by default.
            n: number of tokens.
            child: name of a fork; by default a free one.

        Returns:
            The name of the sequence that was made or changed.

        Raises:
            ValueError: If the operation makes no sense.
        """
        if verb == "write":
            verb, n = "append", 1
        one_of("verb", verb, VERBS)
        least = int(verb == "append")
        n = integer("n", least if n is None else n, least)
        fresh = next(f"s{i}" for i in count() if f"s{i}" not in self.looks)
        if verb == "new":
            sequence = sequence or fresh
        elif sequence not in self.tables:
            raise ValueError(
                f"there is no sequence {sequence!r}; there are {[*self.tables] or 'none yet'}"
            )
        if verb == "fork":
            child = child or fresh
            n = 0
        operation = Operation(verb, str(sequence), n, child)
        if verb in ("new", "fork") and operation.changed in self.tables:
            raise ValueError(
                f"there is a sequence {operation.changed!r} already; free it first, or take "
                "another name"
            )
        before = self.reading
        returned: Any = ()
        error = ""
        try:
            returned = self._apply(operation)
        except _ANYTHING as raised:
            error = explain(raised)
        self.reading = self._read()
        entry = judged(operation, before, self.reading, returned, error)
        self.entries[self.cursor :] = [entry]
        self.cursor += 1
        self.show()
        return operation.changed

    def undo(self) -> None:
        """Go back one step."""
        self.seek(self.cursor - 1)

    def redo(self) -> None:
        """Go forward one step that was undone."""
        self.seek(self.cursor + 1)

    def seek(self, step: int) -> None:
        """Show the state after `step` operations.

        Args:
            step: beyond either end of the log it means that end.
        """
        self.cursor = max(0, min(len(self.entries), step))
        self.pool = self.pool_class(self.num_blocks, self.block_size)
        self.tables: dict[str, Any] = {}
        self.looks: dict[str, int] = {}  # the running number of each sequence, also of those freed
        for entry in self.entries[: self.cursor]:
            with suppress(*_ANYTHING):
                self._apply(entry.operation)
        self.reading = self._read()
        self.show()

    def reset(self) -> None:
        """Start over with a fresh pool and an empty log."""
        self.entries: list[Entry] = []
        self.seek(0)

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

    @property
    def last(self) -> Entry:
        """The operation that led to the present state."""
        return self.entries[self.cursor - 1] if self.cursor else NOTHING

    @property
    def copied(self) -> int:
        """Blocks copied so far."""
        return sum(len(entry.copies) for entry in self.entries[: self.cursor])

    def picture(self) -> str:
        """Return the present state as a drawing, for where no widget runs."""
        return picture_of_grid(self.state)

    # ------------------------------------------------------------------ running

    def _read(self) -> Reading:
        return read(self.pool, self.tables, self.num_blocks, self.block_size)

    def _apply(self, operation: Operation) -> Any:
        """Run an operation on pool and tables, which may raise anything.

        Returns:
            What `append` returned, otherwise ().
        """
        verb, sequence, n, _ = operation
        if verb == "free":
            self.tables[sequence].free()
            del self.tables[sequence]
            return ()
        copies: Any = ()
        table = self.table_class(self.pool) if verb == "new" else self.tables[sequence]
        if verb == "fork":
            table = table.fork()
            if not hasattr(table, "block_ids"):
                raise TypeError(f"fork returned {table!r}, not a table")
        elif n:
            copies = table.append(n)
        self.tables[operation.changed] = table
        self.looks.setdefault(operation.changed, len(self.looks))
        return copies

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
