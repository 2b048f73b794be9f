"""Operations on a pool, a log of what they did, and going back by replaying the log.

A session drives any pool with BlockPool's verbs and any table class made as `table(pool)`. It keeps
no counts itself: after each operation it reads pool and tables again and shows what they say. Going
back makes a fresh pool and repeats the operations up to there, so pool and table classes need not
know of it.
"""

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

from pagedlab.arguments import integer, one_of
from pagedlab.blocks import Pool
from pagedlab_lessons.readers_code import explain
from pagedlab_lessons.widgets.judging import NOTHING, Entry, judged
from pagedlab_lessons.widgets.operations import VERBS, Operation
from pagedlab_lessons.widgets.reading import Reading, read

MAX_BLOCKS = 1024  # more would make a click slow
_ANYTHING = (Exception, KeyboardInterrupt)  # what a reader's class may raise, or be stopped by


class Session:
    """A pool, its tables by name, and the log.

    `entries[:cursor]` has happened; the entries after it can be done again.

    Args:
        pool: a class that is called as `pool(num_blocks, block_size)`.
        table: a class that is called as `table(pool)`.
        num_blocks: of the pool, at most `MAX_BLOCKS`.
        block_size: of the pool.
    """

    reading: Reading  # the present state

    def __init__(
        self,
        pool: Callable[[int, int], Any],
        table: Callable[[Pool], Any],
        num_blocks: int,
        block_size: int,
    ) -> None:
        self.pool_class = pool
        self.table_class = table
        self.num_blocks = integer("num_blocks", num_blocks, 1, MAX_BLOCKS)
        self.block_size = integer("block_size", block_size, 1)
        self.reset()

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

    def show(self) -> None:
        """Show the present state. It is called after each change."""

    @property
    def last(self) -> Entry:
        """The operation that led to the present state."""
        return self.entries[self.cursor - 1] if self.cursor else NOTHING

    @property
    def copied(self) -> int:
        """Blocks copied so far."""
        return sum(len(entry.copies) for entry in self.entries[: self.cursor])

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
