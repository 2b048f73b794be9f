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
from pagedlab.blocks import BlockTable, Pool
from pagedlab_lessons.readers_code import explain
from pagedlab_lessons.widgets.judging import Entry
from pagedlab_lessons.widgets.operations import VERBS, Operation
from pagedlab_lessons.widgets.reading import Reading, read

MAX_BLOCKS = 1024  # more would make a click slow
_ANYTHING = (Exception, KeyboardInterrupt)  # what a reader's class may raise, or be stopped by


class Session:
    """A pool, its tables by name, and the log.

    `log[:cursor]` has happened; the entries after it can be done again.

    Args:
        pool: a class that is called as `pool(num_blocks, block_size)`.
        table: a class that is called as `table(pool)`.
        num_blocks: of the pool, at most `MAX_BLOCKS`.
        block_size: of the pool.
    """

    def __init__(
        self,
        pool: Callable[[int, int], Any],
        table: Callable[[Pool], Any] = BlockTable,
        num_blocks: int = 64,
        block_size: int = 16,
    ) -> None:
        self.table = table
        self.pool: Any = None
        self._class = pool
        self.num_blocks = integer("num_blocks", num_blocks, 1, MAX_BLOCKS)
        self.block_size = integer("block_size", block_size, 1)
        self.log: list[Entry] = []
        self.cursor = 0
        self.tables: dict[str, Any] = {}
        self.colors: dict[str, int] = {}  # running number of each sequence: its colour
        self.reading: Reading
        self._made = 0  # sequences so far
        self._calls: list[str] = []
        self._broken: str | None = None  # why there is no pool
        self._start_over()

    def do(
        self, verb: str, sequence: str | None = None, n: int = 0, child: str | None = None
    ) -> Entry:
        """Run one operation on pool and tables and log it.

        Operations that were undone are forgotten.

        Args:
            verb: one of `VERBS`.
            sequence: name of the sequence; a new one gets a free name by default.
            n: tokens to add (new, append).
            child: name of a fork; by default a free one.

        Returns:
            The log's new entry. It says what pool or table raised, if they did.

        Raises:
            ValueError: If the operation makes no sense.
        """
        operation = self._operation(verb, sequence, n, child)
        self.log[self.cursor :] = [self._run(operation)]
        self.cursor += 1
        return self.log[-1]

    def _operation(self, verb: str, sequence: str | None, n: int, child: str | None) -> Operation:
        """Return the operation, with names for new sequences, if it makes sense."""
        one_of("verb", verb, VERBS)
        tokens = integer("n", n, 1 if verb == "append" else 0)
        made = None
        if verb == "new":
            sequence = sequence or self._free_name()
            made = sequence
        elif sequence not in self.tables:
            names = ", ".join(self.tables) or "none yet: make one with new"
            raise ValueError(f"there is no sequence {sequence!r}; there are {names}")
        elif verb == "fork":
            child = child or self._free_name()
            made = child
        if made in self.tables:
            raise ValueError(
                f"there is a sequence {made!r} already; free it first, or take another name"
            )
        return Operation(verb, str(sequence), tokens, child)

    def _free_name(self) -> str:
        """Return the first of s0, s1, ... that was never given and is not in use."""
        return next(f"s{i}" for i in count(self._made) if f"s{i}" not in self.tables)

    def seek(self, step: int) -> None:
        """Show the state after `step` operations.

        Args:
            step: beyond either end of the log it means that end.
        """
        step = max(0, min(len(self.log), step))
        if step < self.cursor:
            self._start_over()
            self.cursor = 0
        to_do = [entry.operation for entry in self.log[self.cursor : step]]
        for operation in to_do[:-1]:
            with suppress(*_ANYTHING):
                self._apply(operation)
        self.reading = self._read()
        if to_do:
            self.log[step - 1] = self._run(to_do[-1])
        self.cursor = step

    def reset(self) -> None:
        """Start over and forget the log."""
        self.seek(0)
        self.log.clear()

    @property
    def last(self) -> Entry | None:
        """The operation that led to the present state."""
        return self.log[self.cursor - 1] if self.cursor else None

    @property
    def copied(self) -> int:
        """Blocks copied so far."""
        return sum(len(entry.copies) for entry in self.log[: self.cursor])

    # ------------------------------------------------------------------ running

    def _start_over(self) -> None:
        """Make a fresh pool, forget all tables, and listen to the pool."""
        self._broken = None
        try:
            self.pool = self._class(self.num_blocks, self.block_size)
        except _ANYTHING as error:
            call = f"{self._class.__name__}({self.num_blocks}, {self.block_size})"
            self._broken = f"{call} raised {explain(error)}"
        self.tables.clear()
        self.colors = {}
        self._made = 0
        self._calls = []
        subscribe = getattr(self.pool, "subscribe", None)
        if callable(subscribe):
            subscribe(self._note_call)
        self.reading = self._read()

    def _note_call(self, event: Any) -> None:
        source = f"{event.source} → " if event.kind == "copy" else ""
        now = f" (count {event.refcount})" if event.kind in ("share", "release") else ""
        self._calls.append(f"{event.kind} {source}{event.block_id}{now}")

    def _read(self) -> Reading:
        if self._broken:
            return Reading(self.block_size, [0] * self.num_blocks, 0, {}, [self._broken])
        return read(self.pool, self.tables, self.num_blocks, self.block_size)

    def _apply(self, operation: Operation) -> Any:
        """Run an operation on pool and tables, which may raise anything.

        Returns:
            What `append` returned, otherwise ().
        """
        if self._broken:
            raise RuntimeError("there is no pool to work on")
        if operation.verb == "new":
            return self._new(operation)
        table = self.tables[operation.sequence]
        match operation.verb:
            case "append" if operation.n:
                return table.append(operation.n)
            case "fork":
                child = table.fork()
                if not hasattr(child, "block_ids"):
                    raise TypeError(f"fork returned {child!r}, not a table")
                self._add(str(operation.child), child)
            case "free":
                table.free()
                del self.tables[operation.sequence]
        return ()

    def _new(self, operation: Operation) -> Any:
        """Make a table. One that finds no free blocks is not kept."""
        table = self.table(self.pool)
        copies = table.append(operation.n) if operation.n else ()
        self._add(operation.sequence, table)
        return copies

    def _add(self, name: str, table: Any) -> None:
        self.tables[name] = table
        self.colors[name] = self._made
        self._made += 1

    def _run(self, operation: Operation) -> Entry:
        """Run an operation and return its entry in the log."""
        before = self.reading
        self._calls.clear()
        returned: Any = ()
        error = None
        try:
            returned = self._apply(operation)
        except _ANYTHING as raised:
            error = explain(raised)
        self.reading = self._read()
        return Entry(operation, before, self.reading, returned, error, self._calls)
