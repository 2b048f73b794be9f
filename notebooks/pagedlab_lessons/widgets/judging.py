"""The effect of one operation on a pool and its tables, in words, and the rules that it broke.

Both are read from pool and tables before and after the operation.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pagedlab.blocks import BlockCopy
from pagedlab_lessons.widgets.operations import Operation
from pagedlab_lessons.widgets.reading import Reading, TableReading, blocks_text

NO_TABLE = TableReading([], 0)


@dataclass
class Entry:
    """An operation in the log, with what it did.

    Args:
        operation: what was asked for.
        before: pool and tables before it.
        after: pool and tables after it.
        returned: what `append` returned, otherwise ().
        error: what pool or table raised, in words; "" if nothing.
        calls: events of the pool, if it has `subscribe`.

    Attributes:
        copies: (source, destination) of each block that was copied.
        text: the operation and what it did, in words.
        problems: the rules that it broke, in words.
    """

    operation: Operation
    before: Reading
    after: Reading
    returned: Any
    error: str
    calls: list[str]

    def __post_init__(self) -> None:
        self.old = self.before.tables.get(self.operation.sequence, NO_TABLE)
        self.new = self.after.tables.get(self.operation.changed, NO_TABLE)
        self.copies = _copies_of(self.returned) or []
        done = self.error or "; ".join(self._words()) or "no block changes"
        self.text = f"{self.operation}: {done}"
        self.problems = list(self._broken_rules())

    def _words(self) -> Iterator[str]:
        """Say what the operation did to which blocks."""
        for source, destination in self.copies:
            yield f"copies block {source} to {destination}"
        moved = {block_id for copy in self.copies for block_id in copy}
        changed = defaultdict[str, list[int]](list)
        for block_id, was in enumerate(self.before.counts):
            now = self.after.counts[block_id]
            if was != now and block_id not in moved:
                changed[_change(was, now)].append(block_id)
        for said, block_ids in changed.items():
            yield said.format(blocks_text(block_ids))
        if self.operation.n and not moved and not changed:
            held = self.new.held(len(self.new.blocks) - 1, self.after.block_size)
            yield f"the last block now holds {held} of {self.after.block_size}"

    def _broken_rules(self) -> Iterator[str]:
        """Say which rules the operation broke, as far as tables and counts show it."""
        operation, changed = self.operation, self.operation.changed
        if self.error:
            if self.before != self.after:
                yield f"{operation} failed, and yet something changed: it must change nothing"
            return
        others = [
            name
            for name, table in self.after.tables.items()
            if name != changed and self.before.tables.get(name) != table
        ]
        if others:
            yield f"{operation} changed the table of {' and '.join(others)} too"
        if operation.verb == "fork" and self.new != self.old:
            yield (
                f"{changed} has {self.new.tokens} tokens in blocks {self.new.blocks}, not "
                f"{self.old.tokens} in {self.old.blocks}: a fork shares its parent's blocks and "
                "copies none"
            )
        if operation.verb in ("new", "append"):
            yield from self._rules_of_append(changed)

    def _rules_of_append(self, name: str) -> Iterator[str]:
        """An append adds its tokens, names its copies, and writes into no shared block."""
        old, new, n = self.old, self.new, self.operation.n
        copies = _copies_of(self.returned)
        if copies is None:
            yield (
                f"append returned {self.returned!r}; expected is a list of (source, destination), "
                "often empty"
            )
        if new.tokens != old.tokens + n:
            yield (f"{name} holds {new.tokens} tokens; {old.tokens} and {n} make {old.tokens + n}")
        full = old.tokens // self.after.block_size
        if new.blocks[:full] != old.blocks[:full]:
            replaced = blocks_text(old.blocks[:full])
            yield f"{name} replaced a full block, which is never written again: {replaced}"
            return
        # what was, and is, the block that was partly filled
        for was, now in zip(old.blocks[full:], new.blocks[full:], strict=False):
            readers = " and ".join(set(self.before.owners(was)) - {name})
            if was == now and readers:
                yield f"{name} writes into block {was}, which {readers} reads too"
            elif was != now and not readers:
                yield f"block {was} was {name}'s alone and was copied all the same"
            elif was != now and (was, now) not in self.copies:
                yield f"{name} moved from block {was} to {now}, but append named no such copy"


def _copies_of(returned: Any) -> list[BlockCopy] | None:
    """Return what `append` returned as copies, None if it is no list of (source, destination)."""
    with suppress(TypeError):
        copies = [BlockCopy(*pair) for pair in returned]
        if all(isinstance(block_id, int) for copy in copies for block_id in copy):
            return copies
    return None


def _change(was: int, now: int) -> str:
    """Say what a change of its reference count means for a block."""
    if not was:
        return "takes {}"
    if not now:
        return "frees {}"
    return "shares {}, and copies nothing" if now > was else "leaves {} to other sequences"
