"""Operations on a pool by name, a log of what they did in words, and going back by replaying the
log.

A session drives any pool with BlockPool's verbs and any table class made as `table(pool)`. It keeps
no books of its own: after each operation it reads pool and tables again, and what they say is what
is shown. Going back starts the pool over and runs the operations up to there, so it works for
classes that know nothing of it.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

from pagedlab.blocks import BlockCopy, BlockTable, Pool
from pagedlab.lessons.readers_code import explain
from pagedlab.validation import integer, one_of
from pagedlab.widgets.reading import Reading, TableReading, blocks_text, read, runs, whole_number

MAX_BLOCKS = 1024  # what one page can show and still answer a click at once
_ANYTHING = (Exception, KeyboardInterrupt)  # what a reader's class may raise, or be stopped by
VERBS = {
    "new": "new {sequence}",
    "append": "append {n} to {sequence}",
    "fork": "fork {sequence} into {child}",
    "truncate": "cut {sequence} to {n}",
    "free": "free {sequence}",
}


class Operation(NamedTuple):
    """One step.

    `n`: tokens to add (new, append) or to keep (truncate). `child`: the name that a fork gets.
    """

    verb: str  # one of VERBS
    sequence: str
    n: int = 0
    child: str | None = None

    def __str__(self) -> str:
        return VERBS[self.verb].format(**self._asdict())


def operations(text: str) -> tuple[Operation, ...]:
    """Operations as one writes them down: "new s0 20, fork s0 s1, append s1 1, truncate s1 4, free
    s0".
    """
    return tuple(
        Operation(verb, name, child=rest[0])
        if verb == "fork"
        else Operation(verb, name, n=int(rest[0]) if rest else 0)
        for verb, name, *rest in map(str.split, text.split(","))
    )


class Entry:
    """An operation in the log, and what it did as read from pool and tables before and after it."""

    def __init__(
        self,
        op: Operation,
        before: Reading,
        after: Reading,
        returned: Any,
        error: str | None,
        calls: list[str],
    ) -> None:
        self._before, self._after, self._returned = before, after, returned
        self._old = before.tables.get(op.sequence, TableReading([], 0))
        # of a fork, the child
        self._new = after.tables.get(op.child or op.sequence, TableReading([], 0))
        self.operation = op
        self.error = error  # what the pool or the table raised
        self.calls = list(calls)  # the pool's own events, in order, if it has `subscribe`
        # `taken` are those that none held then
        held = {b for table in before.tables.values() for b in table.blocks}
        self.taken = [
            b
            for table in after.tables.values()
            for b in table.blocks
            if b is not None and b not in held
        ]
        # its count is 0 now
        self.freed = [b for b, count in enumerate(before.counts) if count and not after.counts[b]]
        pairs = _pairs(returned)
        self.copies = pairs or []  # that `append` named
        self.text = f"{op}: {error or '; '.join(self._words()) or 'no block changes'}"
        rules = self._after_an_error() if error else self._rules(pairs)
        # what it did wrong without raising
        self.problems = [said for broken, said in rules if broken]

    def _words(self) -> Iterator[str]:
        """What an operation that did not fail has done to which blocks."""
        op, old, new, size = self.operation, self._old, self._new, self._after.block_size
        match op.verb:
            case "new" | "append":
                for source, destination in self.copies:
                    counts = self._before.counts
                    shared = counts[source] if 0 <= source < len(counts) else "?"
                    yield f"block {source} is shared by {shared}, copied to {destination}"
                last = len(old.blocks) - 1
                if old.blocks and old.tokens % size and not self.copies:
                    yield (
                        f"block {runs(new.blocks[last : last + 1])} now holds "
                        f"{new.fill(last, size)} of {size}"
                    )
                if more := new.blocks[last + 1 :]:
                    yield f"takes {blocks_text(more)}"
                if op.verb == "new":
                    yield f"{new.tokens} tokens" if new.tokens else "empty"
            case "fork" if new.blocks == old.blocks:
                yield (
                    f"both list {blocks_text(new.blocks)}; nothing is copied"
                    if new.blocks
                    else "both are empty"
                )
            case "fork":
                yield (
                    f"{op.child} lists {blocks_text(new.blocks)}, {op.sequence} "
                    f"{blocks_text(old.blocks)}"
                )
            case "truncate" | "free":
                if self.freed:
                    yield (
                        f"{blocks_text(self.freed)} {'are' if self.freed[1:] else 'is'} free again"
                    )
                kept = [
                    b
                    for b in old.blocks
                    if b is not None and b not in self.freed and b not in new.blocks
                ]
                if others := sorted({name for b in kept for name in self._after.owners(b)}):
                    yield (
                        f"{blocks_text(kept)} {'stay' if kept[1:] else 'stays'} with "
                        f"{', '.join(others)}"
                    )

    def _after_an_error(self) -> Iterator[tuple[object, str]]:
        """What fails must leave all as it was; an empty table more is fine."""
        was, now = self._before, self._after
        tables = {
            name: table for name, table in now.tables.items() if name in was.tables or table.blocks
        }
        changed = (now.counts, now.free, tables) != (was.counts, was.free, was.tables)
        yield (
            changed,
            f"{self.operation} failed, but not without a trace: what fails must change nothing",
        )

    def _rules(self, pairs: list[BlockCopy] | None) -> Iterator[tuple[object, str]]:
        """Whether a rule is broken, as far as tables and counts show it, and how to say so."""
        op, name, old, new = self.operation, self.operation.sequence, self._old, self._new
        before, after = self._before.tables, self._after.tables
        others = [
            other
            for other in after
            if other not in (name, op.child) and before.get(other) != after[other]
        ]
        yield others, f"{op} changed the table of {' and '.join(others)} too"
        if op.verb == "fork":
            said = (
                f"{op.child} has {new.tokens} tokens in blocks {new.blocks}, not {old.tokens} in "
                f"{old.blocks}"
            )
            yield new != old, f"{said}: a fork shares its parent's blocks and copies none"
        if op.verb not in ("new", "append"):
            return
        expected = "expected is a list of (source, destination), often empty"
        yield pairs is None, f"append returned {self._returned!r}; {expected}"
        total, full = old.tokens + op.n, old.tokens // self._after.block_size
        yield (
            new.tokens != total,
            f"{name} holds {new.tokens} tokens; {old.tokens} and {op.n} make {total}",
        )
        replaced = new.blocks[:full] != old.blocks[:full]
        yield (
            replaced,
            (
                f"{op} replaced a full block, which nobody writes again: "
                f"{blocks_text(old.blocks[:full])}"
            ),
        )
        # The last block, if it was partly filled, is written now.
        was, now = (next(iter(table.blocks[full:]), None) for table in (old, new))
        if replaced or was is None or now is None:
            return
        readers = [reader for reader in self._before.owners(was) if reader != name]
        unnamed = pairs is not None and (was, now) not in pairs
        yield (
            was == now and readers,
            f"{name} writes into block {was}, which {' and '.join(readers)} reads too",
        )
        yield (
            was != now and not readers,
            f"block {was} was {name}'s alone and was copied all the same",
        )
        yield (
            was != now and unnamed,
            f"{name} moved from block {was} to {now}, but append named no such copy",
        )


def _pairs(returned: Any) -> list[BlockCopy] | None:
    """What `append` returned as copies; None if it is nothing of the kind."""
    with suppress(TypeError):
        copies = [BlockCopy(*pair) for pair in returned]
        if all(isinstance(b, int) for copy in copies for b in copy):
            return copies
    return None


class Session:
    """A pool, its tables by name, and the log.

    `log[:cursor]` has happened; what comes after can be redone.

    `pool` is an instance, fresh, or a class that is called as `pool(num_blocks, block_size)`.
    """

    def __init__(
        self,
        pool: Pool | type[Pool],
        table: Callable[[Pool], Any] = BlockTable,
        num_blocks: int = 64,
        block_size: int = 16,
    ) -> None:
        self.table = table
        self.pool: Any = None if isinstance(pool, type) else pool
        self._class: Any = pool if isinstance(pool, type) else type(pool)
        self.num_blocks = _size(self.pool, "num_blocks", num_blocks)
        self.block_size = _size(self.pool, "block_size", block_size)
        if self.num_blocks > MAX_BLOCKS:
            raise ValueError(
                f"the widget shows up to {MAX_BLOCKS} blocks, this pool has {self.num_blocks}"
            )
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
                raise ValueError(
                    f"the pool is in use ({used}): pass a fresh one, so that going back has a start"
                )

    def do(
        self, verb: str, sequence: str | None = None, n: int = 0, child: str | None = None
    ) -> Entry:
        """Run one operation on pool and tables and log it; operations that were undone are
        forgotten.

        What pool or table raise is in the entry. `ValueError` if the operation itself makes no
        sense.
        """
        one_of("verb", verb, VERBS)
        tokens = integer("n", n, 1 if verb == "append" else 0)
        free_name = next(
            name for name in map("s{}".format, count(self._made)) if name not in self.tables
        )
        if verb == "new":
            sequence = sequence or free_name
        elif sequence not in self.tables:
            names = ", ".join(self.tables) or "none yet: make one with new"
            raise ValueError(f"there is no sequence {sequence!r}; there are {names}")
        elif verb == "fork":
            child = child or free_name
        made = {"new": sequence, "fork": child}.get(verb)
        if made in self.tables:
            raise ValueError(
                f"there is a sequence {made!r} already; free it first, or take another name"
            )
        self.log[self.cursor :] = [self._run(Operation(verb, str(sequence), tokens, child))]
        self.cursor += 1
        return self.log[-1]

    def seek(self, step: int) -> None:
        """Go to the state after `step` operations, forward or back; beyond either end means that
        end.
        """
        step = max(0, min(len(self.log), step))
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

    def origins(self) -> dict[int, int]:
        """For each block with a reference, the step (from 1) in which a table last took it."""
        taken = {
            b: step for step, entry in enumerate(self.log[: self.cursor], 1) for b in entry.taken
        }
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
            self._broken = (
                f"{self._class.__name__}({self.num_blocks}, {self.block_size}) raised "
                f"{explain(error)}"
            )
        self._clear()

    def _clear(self) -> None:
        self.tables.clear()
        self.colors: dict[
            str, int
        ] = {}  # running number of each sequence, which gives it its colour
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
        """Run the operation on the real objects and return what `append` returned.

        They may raise anything.
        """
        if self._broken:
            raise RuntimeError("there is no pool to work on")
        if op.verb == "new":
            table = self.table(self.pool)
            copies = table.append(op.n) if op.n else ()
            self._add(op.sequence, table)  # not one that found no room
            return copies
        table = self.tables[op.sequence]
        match op.verb:
            case "append" if op.n:
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
    asked = integer(name, default, 1)
    return whole_number(getattr(pool, name, None)) or asked
