"""The effect of one operation on a pool and its tables, in words, and the rules that it broke.

Both are read from pool and tables before and after the operation.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pagedlab.arguments import integer
from pagedlab.blocks import BlockCopy
from pagedlab_lessons.widgets.operations import Operation
from pagedlab_lessons.widgets.reading import NO_TABLE, Reading, TableReading, blocks_text


@dataclass
class Entry:
    """An operation in the log, with what it did.

    Args:
        operation: what was asked for.
        text: the operation and what it did, in words.
        error: what pool or table raised, in words; "" if nothing.
        problems: the rules that it broke, in words.
        copies: (source, destination) of each block that was copied.
    """

    operation: Operation
    text: str
    error: str = ""
    problems: Sequence[str] = ()
    copies: Sequence[BlockCopy] = ()


NOTHING = Entry(Operation("", ""), "the pool is empty")  # what led to an empty pool


def judged(
    operation: Operation, before: Reading, after: Reading, returned: Any, error: str
) -> Entry:
    """Return an operation's entry in the log.

    Args:
        operation: what was asked for.
        before: pool and tables before it.
        after: pool and tables after it.
        returned: what `append` returned, otherwise ().
        error: what pool or table raised, in words; "" if nothing.
    """
    copies = []
    problems = []
    try:
        copies = [BlockCopy(*(integer("it", block_id) for block_id in pair)) for pair in returned]
    except (TypeError, ValueError):
        problems.append(
            f"append returned {returned!r}, not a list of (source, destination), often empty"
        )
    if not error:
        problems += _broken_rules(operation, before, after, copies)
    elif before != after:
        problems.append(f"{operation} failed, and yet something changed")
    done = error or "; ".join(_words(operation, before, after, copies)) or "no block changes"
    return Entry(operation, f"{operation}: {done}", error, problems, copies)


def _words(
    operation: Operation, before: Reading, after: Reading, copies: list[BlockCopy]
) -> Iterator[str]:
    """Say what the operation did to which blocks."""
    for source, destination in copies:
        yield f"copies block {source} to {destination}"
    moved = {block_id for copy in copies for block_id in copy}
    changed = defaultdict[str, list[int]](list)
    for block_id, (was, now) in enumerate(zip(before.counts, after.counts, strict=True)):
        if was != now and block_id not in moved:
            changed[_change(was, now)].append(block_id)
    for said, block_ids in changed.items():
        yield said.format(blocks_text(block_ids))
    if operation.n and not moved and not changed:
        held = (after.tables[operation.sequence].tokens - 1) % after.block_size + 1
        yield f"the last block now holds {held} of {after.block_size}"


def _change(was: int, now: int) -> str:
    """Say what a change of its reference count means for a block."""
    if not was:
        return "takes {}"
    if not now:
        return "frees {}"
    return "shares {}, and copies nothing" if now > was else "leaves {} to other sequences"


def _broken_rules(
    operation: Operation, before: Reading, after: Reading, copies: list[BlockCopy]
) -> Iterator[str]:
    """Say which rules the operation broke, as far as tables and counts show it."""
    name = operation.changed
    for other, table in after.tables.items():
        if other != name and before.tables.get(other) != table:
            yield f"{operation} changed the table of {other} too"
    if operation.verb == "free":
        return
    old = before.tables.get(operation.sequence, NO_TABLE)
    new = after.tables[name]
    total = old.tokens + operation.n
    if new.tokens != total:
        yield f"{name} holds {new.tokens} tokens; {old.tokens} and {operation.n} make {total}"
    if operation.verb != "fork":
        yield from _rules_of_writing(name, old, new, before, copies)
    elif new.blocks != old.blocks:
        listed, right = blocks_text(new.blocks), blocks_text(old.blocks)
        yield f"{name} lists {listed}, not {right}: a fork shares its parent's blocks"


def _rules_of_writing(
    name: str, old: TableReading, new: TableReading, before: Reading, copies: list[BlockCopy]
) -> Iterator[str]:
    """Say whether a sequence wrote into a block that is full or shared, or copied without need."""
    full = old.tokens // before.block_size
    if new.blocks[:full] != old.blocks[:full]:
        replaced = blocks_text(old.blocks[:full])
        yield f"{name} replaced a full block, which is never written again: {replaced}"
        return
    # what was, and is, the block that was partly filled
    for was, now in zip(old.blocks[full:], new.blocks[full:], strict=False):
        readers = before.readers(was, but=name)
        if was == now and readers:
            yield f"{name} writes into block {was}, which {readers} reads too"
        elif was != now and not readers:
            yield f"block {was} was {name}'s alone and was copied all the same"
        elif was != now and (was, now) not in copies:
            yield f"{name} moved from block {was} to {now}, but append named no such copy"
