"""Operations on a pool by name, a log of them in words, and going back by replaying the log.

A session drives any pool with BlockPool's verbs and any table class made as `table(pool)`. It keeps no books
of its own: after each operation it reads pool and tables again, and what they say is what is shown. Going back
starts the pool over and runs the operations up to there, so it works for classes that know nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from pagedlab.blocks import BlockTable, Pool
from pagedlab.checks import explain
from pagedlab.widgets.operations import VERBS, Entry, Operation
from pagedlab.widgets.reading import Reading, blocks_text, read, whole_number

MAX_BLOCKS = 1024  # what one page can show and still answer a click at once
_ANYTHING = (Exception, KeyboardInterrupt)  # what a reader's class may raise, or be stopped by


class Session:
    """A pool, its tables by name, and the log. `log[:cursor]` has happened; what comes after can be redone.

    `pool` is an instance, fresh, or a class that is called as `pool(num_blocks, block_size)`. `start` are
    operations that `seek` does not go behind.
    """

    def __init__(
        self,
        pool: Pool | type[Pool],
        table: Callable[[Pool], Any] = BlockTable,
        num_blocks: int = 64,
        block_size: int = 16,
        start: Sequence[Operation] = (),
    ) -> None:
        self.table = table
        self.pool: Any = None if isinstance(pool, type) else pool
        self._class: Any = pool if isinstance(pool, type) else type(pool)
        self.num_blocks = _size(self.pool, "num_blocks", num_blocks)
        self.block_size = _size(self.pool, "block_size", block_size)
        if self.num_blocks > MAX_BLOCKS:
            raise ValueError(f"the widget shows up to {MAX_BLOCKS} blocks, this pool has {self.num_blocks}")
        self.log: list[Entry] = []
        self.cursor = 0
        self.tables: dict[str, Any] = {}
        self.reading: Reading
        self._broken: str | None = None  # why there is no pool
        if self.pool is None:
            self._start_over()
        else:
            self._clear()
            if self.reading.used:
                used = blocks_text(b for b, count in enumerate(self.reading.counts) if count)
                raise ValueError(f"the pool is in use ({used}): pass a fresh one, so that going back has a start")
        for operation in start:
            self.do(*operation)
        self.floor = len(self.log)

    def do(self, verb: str, sequence: str | None = None, n: int = 0, child: str | None = None) -> Entry:
        """Run one operation on pool and tables and log it; operations that were undone are forgotten.

        What pool or table raise is in the entry. `ValueError` if the operation itself makes no sense.
        """
        if verb not in VERBS:
            raise ValueError(f"there is no operation {verb!r}; there are {', '.join(VERBS)}")
        tokens, least = whole_number(n), int(verb == "append")
        if tokens is None or tokens < least:
            raise ValueError(f"{verb} takes a whole number of tokens, at least {least}, got {n!r}")
        free_name = next(name for name in map("s{}".format, count(self._made)) if name not in self.tables)
        if verb == "new":
            sequence = sequence or free_name
        elif sequence not in self.tables:
            names = ", ".join(self.tables) or "none yet: make one with new"
            raise ValueError(f"there is no sequence {sequence!r}; there are {names}")
        elif verb == "fork":
            child = child or free_name
        made = {"new": sequence, "fork": child}.get(verb)
        if made in self.tables:
            raise ValueError(f"there is a sequence {made!r} already; free it first, or take another name")
        self.log[self.cursor :] = [self._run(Operation(verb, str(sequence), tokens, child))]
        self.cursor += 1
        return self.log[-1]

    def seek(self, step: int) -> None:
        """Go to the state after `step` operations, forward or back; beyond either end means that end."""
        step = max(self.floor, min(len(self.log), step))
        if step < self.cursor:
            self._start_over()
            self.cursor = 0
        todo = [entry.operation for entry in self.log[self.cursor : step]]
        for operation in todo[:-1]:
            with suppress(*_ANYTHING):
                self._apply(operation)
        self.reading = self._read()
        if todo:
            self.log[step - 1] = self._run(todo[-1])
        self.cursor = step

    def reset(self) -> None:
        """Start over and forget the log, except for the operations that the session began with."""
        self.seek(self.floor)
        del self.log[self.floor :]

    @property
    def last(self) -> Entry | None:
        """The operation that led to the present state."""
        return self.log[self.cursor - 1] if self.cursor else None

    @property
    def copied(self) -> int:
        """Blocks copied so far."""
        return sum(len(entry.copies) for entry in self.log[: self.cursor])

    def origins(self) -> dict[int, int]:
        """For each block with a reference, the step (from 1) in which a table last took it."""
        taken = {b: step for step, entry in enumerate(self.log[: self.cursor], 1) for b in entry.taken}
        return {b: step for b, step in taken.items() if self.reading.counts[b]}

    # ------------------------------------------------------------------ running

    def _start_over(self) -> None:
        self._broken = None
        try:
            if self.pool is None:
                self.pool = self._class(self.num_blocks, self.block_size)
            else:
                # In place, so that the pool which the reader passed in stays the one that is shown.
                self._class.__init__(self.pool, self.num_blocks, self.block_size)
        except _ANYTHING as error:
            self._broken = f"{self._class.__name__}({self.num_blocks}, {self.block_size}) raised {explain(error)}"
        self._clear()

    def _clear(self) -> None:
        self.tables.clear()
        self.colors: dict[str, int] = {}  # running number of each sequence, which gives it its colour
        self._made = 0
        self._calls: list[str] = []
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

    def _apply(self, op: Operation) -> Any:
        """Run the operation on the real objects and return what `append` returned. They may raise anything."""
        if self._broken:
            raise RuntimeError("there is no pool to work on")
        if op.verb == "new":
            self._add(op.sequence, self.table(self.pool))
        table = self.tables[op.sequence]
        match op.verb:
            case "new" | "append" if op.n:
                return table.append(op.n)
            case "fork":
                child = table.fork()
                if not hasattr(child, "block_ids"):
                    raise TypeError(f"fork returned {child!r}, not a table")
                self._add(str(op.child), child)
            case "truncate":
                table.truncate(op.n)
            case "free":
                table.free()
                del self.tables[op.sequence]
        return ()

    def _add(self, name: str, table: Any) -> None:
        self.tables[name], self.colors[name] = table, self._made
        self._made += 1

    def _run(self, op: Operation) -> Entry:
        before = self.reading
        self._calls.clear()
        returned, error = (), None
        try:
            returned = self._apply(op)
        except _ANYTHING as raised:
            error = explain(raised)
        self.reading = self._read()
        return Entry(op, before, self.reading, returned, error, self._calls)


def _size(pool: Any, name: str, default: int) -> int:
    """A size of the pool; of a pool that has none, `default`, so that a first draft shows too."""
    asked, said = (whole_number(size) or 0 for size in (default, getattr(pool, name, None)))
    if asked < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {default!r}")
    return said if said >= 1 else asked
