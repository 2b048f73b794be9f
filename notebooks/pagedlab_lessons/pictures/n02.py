"""Notebook 02's opening: a text, its block table, and memory."""

from collections.abc import Sequence
from functools import partial

from pagedlab.blocks import BlockTable
from pagedlab_lessons.colors import NEUTRAL, SEQUENCE_COLORS, Look
from pagedlab_lessons.drawing import Block, Blocks, Drawing, Legend, Owner, Word, owned, page, title

# The colours of the entries of a block table. The tints of blue and sky are alike, as are those of
# orange and vermilion: they are far apart.
ENTRY_COLORS = (*SEQUENCE_COLORS[:4], *SEQUENCE_COLORS[:3:-1])


def position_to_slot(texts: Sequence[str], table: BlockTable, left_out: int = 0) -> Drawing:
    """Draw a text, its block table and the memory; each part is linked with its counterparts.

    Args:
        texts: a word for each token.
        table: of the text.
        left_out: number of further words, which found no free block.
    """
    pool = table.pool
    size = pool.block_size
    empty = size * [Word("", "empty")]
    words = [Word(text, links=(f"t{at}",), say=_said(table, at)) for at, text in enumerate(texts)]
    words += empty  # the last block is not full
    text = []
    entries = []
    memory = []
    for number in range(pool.num_blocks):
        owners = (Owner("another sequence", Look(NEUTRAL)),) if pool.refcount(number) else ()
        memory.append(Block(number, owners, words=_numbered(empty, number * size)))
    for entry, number in enumerate(table.block_ids):
        owner = owned(ENTRY_COLORS[entry % len(ENTRY_COLORS)])
        positions = range(entry * size, (entry + 1) * size)
        held = words[positions.start : positions.stop]
        text.append(Block(None, owner, words=_numbered(held, positions.start)))
        entries.append(Block(None, owner, words=(_entry(entry, number, positions, len(texts)),)))
        memory[number] = Block(number, owner, words=_numbered(held, number * size))
    headline = f"The text, {len(texts)} words by position"
    if left_out:
        headline += f"; {left_out} more find no free block"
    columns = (16 // size, 8 // size)
    blocks = partial(Blocks, columns=columns, size=size, height=(44, 36), font=(12.5, 11))
    name = f"Memory, {pool.num_blocks * size} slots in blocks of {size}; dashed: free"
    return page(
        headline,
        blocks(text),
        title(
            (
                "Its block table: the number of each entry, and the block that it names",
                "Its block table: entry, block",
            )
        ),
        blocks(entries, columns=(12, 4), size=1),
        title(name),
        blocks(memory, head=15),
        Legend([(Look(NEUTRAL).tint, "another sequence's")]),
    )


def _numbered(words: Sequence[Word], first: int) -> tuple[Word, ...]:
    """Return words with their numbers, from the first one's on."""
    return tuple(word._replace(number=number) for number, word in enumerate(words, first))


def _said(table: BlockTable, position: int) -> str:
    """Return how a position becomes a slot."""
    size = table.pool.block_size
    entry, offset = divmod(position, size)
    block = table.block_ids[entry]
    return (
        f"position {position} is in entry {entry}, at offset {offset}; "
        f"entry {entry} says block {block}: slot {block * size + offset}"
    )


def _entry(entry: int, block: int, positions: range, stop: int) -> Word:
    """Return an entry of the block table: it lights up with the words of its block."""
    stored = positions[: stop - positions[0]]
    say = (
        f"entry {entry}: words {stored[0]} to {stored[-1]} are in block {block}, "
        f"from slot {block * len(positions)} on"
    )
    links = (f"e{entry}", *(f"t{position}" for position in stored))
    return Word(f"block {block}", number=entry, links=links, say=say)
