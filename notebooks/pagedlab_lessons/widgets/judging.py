"""The effect of one operation on a pool and its tables, in words, and the rules that it broke.

Both are read from pool and tables before and after the operation.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from pagedlab.blocks import BlockCopy
from pagedlab_lessons.widgets.operations import Operation
from pagedlab_lessons.widgets.reading import Reading, TableReading, blocks_text, runs

NO_TABLE = TableReading([], 0)


def copies_of(returned: Any) -> list[BlockCopy] | None:
    """Return what `append` returned as copies, None if it is no list of (source, destination)."""
    with suppress(TypeError):
        copies = [BlockCopy(*pair) for pair in returned]
        if all(isinstance(block_id, int) for copy in copies for block_id in copy):
            return copies
    return None


class Entry:
    """An operation in the log, with what it did.

    Args:
        operation: what was asked for.
        before: pool and tables before it.
        after: pool and tables after it.
        returned: what `append` returned, otherwise ().
        error: what pool or table raised, in words; None if nothing.
        calls: events of the pool, if it has `subscribe`.

    Attributes:
        copies: (source, destination) of each block that was copied.
        freed: blocks without a reference now that had one before.
        text: the operation and what it did, in words.
        problems: the rules that it broke without raising an error, in words.
    """

    def __init__(
        self,
        operation: Operation,
        before: Reading,
        after: Reading,
        returned: Any,
        error: str | None,
        calls: Iterable[str],
    ) -> None:
        self.operation = operation
        self.error = error
        self.calls = list(calls)
        self._before = before
        self._after = after
        self._returned = returned
        self._pairs = copies_of(returned)
        self._old = before.tables.get(operation.sequence, NO_TABLE)
        self._new = after.tables.get(operation.child or operation.sequence, NO_TABLE)
        self.copies = self._pairs or []
        self.freed = [
            block_id
            for block_id, count in enumerate(before.counts)
            if count and not after.counts[block_id]
        ]
        done = error or "; ".join(self._words()) or "no block changes"
        self.text = f"{operation}: {done}"
        self.problems = list(self._traces_of_an_error() if error else self._broken_rules())

    # ------------------------------------------------------------------ in words

    def _words(self) -> Iterator[str]:
        """Say what the operation did to which blocks."""
        verb = self.operation.verb
        if verb in ("new", "append"):
            yield from self._words_of_append()
        elif verb == "fork":
            yield self._words_of_fork()
        else:
            yield from self._words_of_release()

    def _words_of_append(self) -> Iterator[str]:
        size = self._after.block_size
        counts = self._before.counts
        for source, destination in self.copies:
            shared = counts[source] if 0 <= source < len(counts) else "?"
            yield f"block {source} is shared by {shared}, copied to {destination}"
        last = len(self._old.blocks) - 1
        if self._old.blocks and self._old.tokens % size and not self.copies:
            block = runs(self._new.blocks[last : last + 1])
            yield f"block {block} now holds {self._new.fill(last, size)} of {size}"
        added = self._new.blocks[last + 1 :]
        if added:
            yield f"takes {blocks_text(added)}"
        if self.operation.verb == "new":
            yield _in_words(self._new.tokens)

    def _words_of_fork(self) -> str:
        old = self._old.blocks
        new = self._new.blocks
        if new != old:
            parent = f"{self.operation.sequence} {blocks_text(old)}"
            return f"{self.operation.child} lists {blocks_text(new)}, {parent}"
        if new:
            return f"both list {blocks_text(new)}; nothing is copied"
        return "both are empty"

    def _words_of_release(self) -> Iterator[str]:
        if self.freed:
            yield f"{blocks_text(self.freed)} {'are' if len(self.freed) > 1 else 'is'} free again"
        kept = [
            block_id
            for block_id in self._old.blocks
            if block_id not in (None, *self.freed, *self._new.blocks)
        ]
        readers = {name for block_id in kept for name in self._after.owners(block_id)}
        if readers:
            stay = "stay" if len(kept) > 1 else "stays"
            yield f"{blocks_text(kept)} {stay} with {', '.join(sorted(readers))}"

    # ------------------------------------------------------------------ rules

    def _traces_of_an_error(self) -> Iterator[str]:
        """Say whether an operation that failed changed anything; an empty table more is fine."""
        before = self._before
        after = self._after
        tables = {
            name: table
            for name, table in after.tables.items()
            if name in before.tables or table.blocks
        }
        if (after.counts, after.free, tables) != (before.counts, before.free, before.tables):
            yield (
                f"{self.operation} failed, and yet something changed: an operation that fails must "
                "change nothing"
            )

    def _broken_rules(self) -> Iterator[str]:
        """Say which rules the operation broke, as far as tables and counts show it."""
        yield from self._rule_of_other_tables()
        if self.operation.verb == "fork":
            yield from self._rule_of_fork()
        if self.operation.verb in ("new", "append"):
            yield from self._rules_of_append()

    def _rule_of_other_tables(self) -> Iterator[str]:
        """An operation changes one table only."""
        operation = self.operation
        others = [
            name
            for name, table in self._after.tables.items()
            if name not in (operation.sequence, operation.child)
            and self._before.tables.get(name) != table
        ]
        if others:
            yield f"{operation} changed the table of {' and '.join(others)} too"

    def _rule_of_fork(self) -> Iterator[str]:
        """A fork lists its parent's blocks."""
        old = self._old
        new = self._new
        if new != old:
            yield (
                f"{self.operation.child} has {new.tokens} tokens in blocks {new.blocks}, not "
                f"{old.tokens} in {old.blocks}: a fork shares its parent's blocks and copies none"
            )

    def _rules_of_append(self) -> Iterator[str]:
        """An append adds its tokens, names its copies, and writes into no shared block."""
        operation = self.operation
        name = operation.sequence
        old = self._old
        new = self._new
        if self._pairs is None:
            yield (
                f"append returned {self._returned!r}; expected is a list of (source, destination), "
                "often empty"
            )
        total = old.tokens + operation.n
        if new.tokens != total:
            yield f"{name} holds {new.tokens} tokens; {old.tokens} and {operation.n} make {total}"
        full = old.tokens // self._after.block_size
        if new.blocks[:full] != old.blocks[:full]:
            replaced = blocks_text(old.blocks[:full])
            yield f"{operation} replaced a full block, which is never written again: {replaced}"
        else:
            yield from self._rules_of_the_last_block(full)

    def _rules_of_the_last_block(self, full: int) -> Iterator[str]:
        """Judge the write into the last block, if it was partly filled.

        Args:
            full: number of full blocks before it.
        """
        name = self.operation.sequence
        was = _at(self._old.blocks, full)
        now = _at(self._new.blocks, full)
        if was is None or now is None:
            return
        readers = [reader for reader in self._before.owners(was) if reader != name]
        if was == now:
            if readers:
                yield f"{name} writes into block {was}, which {' and '.join(readers)} reads too"
            return
        if not readers:
            yield f"block {was} was {name}'s alone and was copied all the same"
        if self._pairs is not None and (was, now) not in self._pairs:
            yield f"{name} moved from block {was} to {now}, but append named no such copy"


def _at(blocks: list[int | None], index: int) -> int | None:
    """Return the block at an index, None if there is none."""
    return blocks[index] if index < len(blocks) else None


def _in_words(tokens: int) -> str:
    """Return how many tokens a sequence has: "empty", "1 token", "2 tokens"."""
    if not tokens:
        return "empty"
    return f"{tokens} token{'s' if tokens > 1 else ''}"
