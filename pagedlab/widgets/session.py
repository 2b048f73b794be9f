"""Operations on a pool by name, a log of them in words, and going back by replaying the log.

A session drives any pool with BlockPool's verbs and any table class made as `table(pool)`. It keeps no books
of its own: after each operation it reads pool and tables again, and what they say is what is shown. Going back
starts the pool over and runs the operations up to there, so it works for classes that know nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, get_args

from pagedlab.blocks import BlockCopy, BlockTable, Pool
from pagedlab.checks import explain
from pagedlab.widgets.reading import Reading, blocks_text, read, whole_number
from pagedlab.widgets.words import Operation, Verb, failure_problems, problems_of, words_for

MAX_BLOCKS = 1024  # what one page can show and still answer a click at once
_ANYTHING = (Exception, KeyboardInterrupt)  # what a reader's class may raise, or be stopped by


@dataclass(frozen=True)
class Entry:
    """What an operation did, as read from pool and tables before and after it."""

    operation: Operation
    text: str  # in words
    error: str | None = None  # what the pool or the table raised
    problems: tuple[str, ...] = ()  # what it did wrong without raising
    copies: tuple[BlockCopy, ...] = ()
    taken: tuple[int, ...] = ()  # blocks that a table holds now and none held before
    freed: tuple[int, ...] = ()  # blocks whose count went to 0
    calls: tuple[str, ...] = ()  # the pool's own events, in order, if it has `subscribe`


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
        self._make: Any = pool if isinstance(pool, type) else type(pool)
        self.num_blocks = _size(self.pool, "num_blocks", num_blocks)
        self.block_size = _size(self.pool, "block_size", block_size)
        if self.num_blocks > MAX_BLOCKS:
            raise ValueError(f"the widget shows up to {MAX_BLOCKS} blocks, this pool has {self.num_blocks}")
        self.log: list[Entry] = []
        self.cursor = 0
        self.broken: str | None = None  # why there is no pool
        self.reading: Reading
        if self.pool is None:
            self._start_over()
        else:
            self._clear()
            if self.reading.used:
                used = blocks_text(b for b, count in enumerate(self.reading.counts) if count)
                raise ValueError(f"the pool is in use ({used}): pass a fresh one, so that going back has a start")
        for operation in start:
            self.do(operation.verb, operation.sequence, operation.n, operation.child)
        self.floor = len(self.log)

    def do(self, verb: Verb, sequence: str | None = None, n: int = 0, child: str | None = None) -> Entry:
        """Run one operation on pool and tables and log it; operations that were undone are forgotten.

        What pool or table raise is in the entry. `ValueError` if the operation itself makes no sense.
        """
        if verb not in get_args(Verb):
            raise ValueError(f"there is no operation {verb!r}; there are {', '.join(get_args(Verb))}")
        count = whole_number(n)
        least = 1 if verb == "append" else 0
        if count is None or count < least:
            raise ValueError(f"{verb} takes a whole number of tokens, at least {least}, got {n!r}")
        if verb == "new":
            sequence = sequence or self._next_name()
        elif sequence not in self.tables:
            names = ", ".join(self.tables) or "none yet: make one with new"
            raise ValueError(f"there is no sequence {sequence!r}; there are {names}")
        if verb == "fork":
            child = child or self._next_name()
        made = child if verb == "fork" else sequence if verb == "new" else None
        if made in self.tables:
            raise ValueError(f"there is a sequence {made!r} already; free it first, or take another name")
        del self.log[self.cursor :]
        self.log.append(self._run(Operation(verb, str(sequence), count, child)))
        self.cursor += 1
        return self.log[-1]

    def seek(self, step: int) -> None:
        """Go to the state after `step` operations, forward or back; beyond either end means that end."""
        step = max(self.floor, min(len(self.log), step))
        if step == self.cursor:
            return
        if step < self.cursor:
            self._start_over()
        first, self.cursor = 0 if step < self.cursor else self.cursor, step
        for entry in self.log[first : max(first, step - 1)]:
            with suppress(*_ANYTHING):
                self._apply(entry.operation)
        self.reading = self._read()
        if step > first:
            self.log[step - 1] = self._run(self.log[step - 1].operation)

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
        self.broken = None
        try:
            if self.pool is None:
                self.pool = self._make(self.num_blocks, self.block_size)
            else:
                # In place, so that the pool which the reader passed in stays the one that is shown.
                type(self.pool).__init__(self.pool, self.num_blocks, self.block_size)
        except _ANYTHING as error:
            name = getattr(self._make, "__name__", "the pool")
            self.broken = f"{name}({self.num_blocks}, {self.block_size}) raised {explain(error)}"
        self._clear()

    def _clear(self) -> None:
        self.tables: dict[str, Any] = {}
        self.colors: dict[str, int] = {}  # running number of each sequence, which gives it its colour
        self._made = 0
        self._calls: list[str] = []
        subscribe = getattr(self.pool, "subscribe", None)
        if callable(subscribe):
            subscribe(self._note_call)
        self.reading = self._read()

    def _note_call(self, event: Any) -> None:
        if event.kind == "copy":
            self._calls.append(f"copy {event.source} → {event.block_id}")
        else:
            now = f" (count {event.refcount})" if event.kind in ("share", "release") else ""
            self._calls.append(f"{event.kind} {event.block_id}{now}")

    def _read(self) -> Reading:
        if self.broken:
            return Reading(self.block_size, [0] * self.num_blocks, 0, {}, [self.broken])
        return read(self.pool, self.tables, self.num_blocks, self.block_size)

    def _next_name(self) -> str:
        number = self._made
        while f"s{number}" in self.tables:
            number += 1
        return f"s{number}"

    def _apply(self, op: Operation) -> Any:
        """Run the operation on the real objects and return what `append` returned. They may raise anything."""
        if self.broken:
            raise RuntimeError("there is no pool to work on")
        if op.verb == "new":
            table: Any = self.table(self.pool)
            self._add(op.sequence, table)
            return table.append(op.n) if op.n else []
        table = self.tables[op.sequence]
        match op.verb:
            case "append":
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
        return []

    def _add(self, name: str, table: Any) -> None:
        self.tables[name] = table
        self.colors[name] = self._made
        self._made += 1

    def _run(self, op: Operation) -> Entry:
        before = self.reading
        self._calls.clear()
        returned, error = (), None
        try:
            returned = self._apply(op)
        except _ANYTHING as raised:
            error = explain(raised)
        calls = tuple(self._calls)
        after = self.reading = self._read()
        held = {b for table in before.tables.values() for b in table.blocks}
        taken = tuple(b for table in after.tables.values() for b in table.blocks if b is not None and b not in held)
        freed = tuple(b for b, count in enumerate(before.counts) if count and not after.counts[b])
        copies = _copies(returned)
        wrong = failure_problems(op, before, after) if error else problems_of(op, before, after, returned, copies)
        text = f"{op}: {error or words_for(op, before, after, copies or (), freed)}"
        return Entry(op, text, error, tuple(wrong), tuple(copies or ()), taken, freed, calls)


def _size(pool: Any, name: str, default: int) -> int:
    """A size of the pool; of a pool that has none, `default`, so that a first draft shows too."""
    size = whole_number(default if pool is None else getattr(pool, name, None))
    if size is not None and size >= 1:
        return size
    if pool is None:
        raise ValueError(f"{name} must be a whole number of at least 1, got {default!r}")
    return default


def _copies(returned: Any) -> list[BlockCopy] | None:
    """What `append` returned as pairs; None if it is nothing of the kind."""
    try:
        copies = [BlockCopy(*pair) for pair in returned]
    except TypeError:
        return None
    return copies if all(isinstance(b, int) for copy in copies for b in copy) else None
