"""What one operation did to a pool and its tables, in words.

It is read from pool and tables before and after the operation.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pagedlab.blocks import BlockCopy
from pagedlab_lessons.widgets.operations import Operation
from pagedlab_lessons.widgets.reading import Reading, blocks_text


@dataclass
class Entry:
    """An operation in the log, with what it did.

    Args:
        operation: what was asked for.
        text: the operation and what it did, in words.
        error: what pool or table raised, in words; "" if nothing.
        copies: (source, destination) of each block that was copied.
    """

    operation: Operation
    text: str
    error: str = ""
    copies: Sequence[BlockCopy] = ()


NOTHING = Entry(Operation("", ""), "the pool is empty")  # what led to an empty pool


def entry_of(
    operation: Operation, before: Reading, after: Reading, copies: Sequence[BlockCopy], error: str
) -> Entry:
    """Return an operation's entry in the log.

    Args:
        operation: what was asked for.
        before: pool and tables before it.
        after: pool and tables after it.
        copies: what `append` returned.
        error: what pool or table raised, in words; "" if nothing.
    """
    done = error or "; ".join(_words(operation, before, after, copies)) or "no block changes"
    return Entry(operation, f"{operation}: {done}", error, copies)


def _words(
    operation: Operation, before: Reading, after: Reading, copies: Sequence[BlockCopy]
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
        blocks, tokens = after.tables[operation.sequence]
        held = tokens - (len(blocks) - 1) * after.block_size
        yield f"the last block now holds {held} of {after.block_size}"


def _change(was: int, now: int) -> str:
    """Say what a change of its reference count means for a block."""
    if not was:
        return "takes {}"
    if not now:
        return "frees {}"
    return "shares {}, and copies nothing" if now > was else "leaves {} to other sequences"
