"""Operations, what they did in words, and what they did wrong as far as tables and counts show it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from pagedlab.blocks import BlockCopy
from pagedlab.widgets.reading import Reading, TableReading, blocks_text, runs

VERBS = {
    "new": "new {sequence}",
    "append": "append {n} to {sequence}",
    "fork": "fork {sequence} into {child}",
    "truncate": "cut {sequence} to {n}",
    "free": "free {sequence}",
}


class Operation(NamedTuple):
    """One step. `n`: tokens to add (new, append) or to keep (truncate). `child`: the name that a fork gets."""

    verb: str  # one of VERBS
    sequence: str
    n: int = 0
    child: str | None = None

    def __str__(self) -> str:
        return VERBS[self.verb].format(**self._asdict())


def operations(text: str) -> tuple[Operation, ...]:
    """Operations as one writes them down: "new s0 20, fork s0 s1, append s1 1, truncate s1 4, free s0"."""
    return tuple(
        Operation(verb, name, child=rest[0]) if verb == "fork" else Operation(verb, name, n=int(rest[0]) if rest else 0)
        for verb, name, *rest in map(str.split, text.split(","))
    )


class Entry:
    """An operation in the log: what it did, as read from pool and tables before and after it.

    text      in words
    error     what the pool or the table raised
    problems  what it did wrong without raising
    copies    that `append` named
    taken     blocks that a table holds now and none held before
    freed     blocks whose count went to 0
    calls     the pool's own events, in order, if it has `subscribe`
    """

    def __init__(
        self, op: Operation, before: Reading, after: Reading, returned: Any, error: str | None, calls: list[str]
    ) -> None:
        self.operation, self.error, self.calls = op, error, list(calls)
        self._before, self._after, self._returned = before, after, returned
        self._old = before.tables.get(op.sequence, TableReading([], 0))
        self._new = after.tables.get(op.child or op.sequence, TableReading([], 0))  # of a fork, the child
        held = {b for table in before.tables.values() for b in table.blocks}
        self.taken = [b for table in after.tables.values() for b in table.blocks if b is not None and b not in held]
        self.freed = [b for b, count in enumerate(before.counts) if count and not after.counts[b]]
        pairs = _pairs(returned)
        self.copies = pairs or []
        self.text = f"{op}: {error or '; '.join(self._words()) or 'no block changes'}"
        rules = self._after_an_error() if error else self._rules(pairs)
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
                    yield f"block {runs(new.blocks[last : last + 1])} now holds {new.fill(last, size)} of {size}"
                if more := new.blocks[last + 1 :]:
                    yield f"takes {blocks_text(more)}"
                if op.verb == "new":
                    yield f"{new.tokens} tokens" if new.tokens else "empty"
            case "fork" if new.blocks == old.blocks:
                yield f"both list {blocks_text(new.blocks)}; nothing is copied" if new.blocks else "both are empty"
            case "fork":
                yield f"{op.child} lists {blocks_text(new.blocks)}, {op.sequence} {blocks_text(old.blocks)}"
            case "truncate" | "free":
                if self.freed:
                    yield f"{blocks_text(self.freed)} {'are' if self.freed[1:] else 'is'} free again"
                kept = [b for b in old.blocks if b is not None and b not in self.freed and b not in new.blocks]
                if others := sorted({name for b in kept for name in self._after.owners(b)}):
                    yield f"{blocks_text(kept)} {'stay' if kept[1:] else 'stays'} with {', '.join(others)}"

    def _after_an_error(self) -> Iterator[tuple[object, str]]:
        """What fails must leave all as it was; an empty table more is fine."""
        was, now = self._before, self._after
        tables = {name: table for name, table in now.tables.items() if name in was.tables or table.blocks}
        changed = (now.counts, now.free, tables) != (was.counts, was.free, was.tables)
        yield changed, f"{self.operation} failed, but not without a trace: what fails must change nothing"

    def _rules(self, pairs: list[BlockCopy] | None) -> Iterator[tuple[object, str]]:
        """Whether a rule is broken, as far as tables and counts show it, and how to say so."""
        op, name, old, new = self.operation, self.operation.sequence, self._old, self._new
        before, after = self._before.tables, self._after.tables
        others = [other for other in after if other not in (name, op.child) and before.get(other) != after[other]]
        yield others, f"{op} changed the table of {' and '.join(others)} too"
        if op.verb == "fork":
            said = f"{op.child} has {new.tokens} tokens in blocks {new.blocks}, not {old.tokens} in {old.blocks}"
            yield new != old, f"{said}: a fork shares its parent's blocks and copies none"
        if op.verb not in ("new", "append"):
            return
        expected = "expected is a list of (source, destination), often empty"
        yield pairs is None, f"append returned {self._returned!r}; {expected}"
        total, full = old.tokens + op.n, old.tokens // self._after.block_size
        yield new.tokens != total, f"{name} holds {new.tokens} tokens; {old.tokens} and {op.n} make {total}"
        replaced = new.blocks[:full] != old.blocks[:full]
        yield replaced, f"{op} replaced a full block, which nobody writes again: {blocks_text(old.blocks[:full])}"
        # The last block, if it was partly filled, is written now.
        was, now = (next(iter(table.blocks[full:]), None) for table in (old, new))
        if replaced or was is None or now is None:
            return
        readers = [reader for reader in self._before.owners(was) if reader != name]
        unnamed = pairs is not None and (was, now) not in pairs
        yield was == now and readers, f"{name} writes into block {was}, which {' and '.join(readers)} reads too"
        yield was != now and not readers, f"block {was} was {name}'s alone and was copied all the same"
        yield was != now and unnamed, f"{name} moved from block {was} to {now}, but append named no such copy"


def _pairs(returned: Any) -> list[BlockCopy] | None:
    """What `append` returned as copies; None if it is nothing of the kind."""
    with suppress(TypeError):
        copies = [BlockCopy(*pair) for pair in returned]
        if all(isinstance(b, int) for copy in copies for b in copy):
            return copies
    return None
