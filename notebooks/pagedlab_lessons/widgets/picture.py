"""The block grid and the stage without a page: drawings for notebooks that are read and not run."""

from collections.abc import Collection
from dataclasses import replace
from textwrap import shorten
from typing import Any

from pagedlab.recipes.trace import Replay, SequenceState
from pagedlab_lessons.colors import look_of
from pagedlab_lessons.drawing import (
    BOLD,
    Blocks,
    Item,
    Legend,
    Pool,
    Space,
    Table,
    Text,
    Word,
    blocks_of,
    note,
    runs,
    stack,
    svg,
)
from pagedlab_lessons.widgets.reading import columns_of

MAX_ROWS = 12  # block tables drawn
MAX_TEXTS = 4
LONGEST = 60  # letters of a list of blocks
LETTERS = 160  # of an answer that ended
SLOTS_A_LINE = 16  # of an answer


def picture_of_pool(
    above: list[Item],
    tables: list[Table],
    block_size: int,
    counts: list[int],
    used: int,
    free: int,
    copied: int,
    cached: Collection[int] = (),
) -> str:
    """Return a still of a pool as an SVG: its counters, its blocks, and the block tables.

    Its name is the counters in one line. A counter at zero is left out.

    Args:
        above: what is above them.
        tables: of all sequences, the oldest first.
        block_size: of the pool.
        counts: the reference count of each block.
        used: blocks in use.
        free: blocks that are not.
        copied: blocks that were copied so far.
        cached: blocks whose contents are kept.
    """
    said = f"{len(counts)} blocks of {block_size}: {used} used, {free} free"
    shared = sum(count > 1 for count in counts)
    for number, name in ((shared, "shared"), (copied, "copied")):
        said += f", {number} {name}" if number else ""
    copying = sum(len(table.blocks) for table in tables)
    if copying != used:
        said += f"; a copy for each sequence would take {copying}"
    columns = max(16, columns_of(len(counts)))
    side = 24 if columns > 16 else 42
    width = columns * (side + 4) - 4
    blocks = blocks_of(tables, len(counts), block_size, cached=cached, counts=counts)
    left_out = len(tables) - MAX_ROWS
    items: list[Item] = [
        *above,
        Text(said),
        Pool(blocks, columns, height=side, gap=4),
        *map(_row, tables[:MAX_ROWS]),
        note(f"and {left_out} more sequences" if left_out > 0 else ""),
    ]
    drawn = stack(items, Space(0, 0, width, is_narrow=False))
    return svg(width, drawn.bottom, drawn.parts, said)


def _row(table: Table) -> Item:
    """A sequence's name and the ids of its blocks."""
    blocks = shorten(runs(table.blocks) or "none yet", LONGEST, placeholder=" …")
    return Legend([(table.look, f"{table.name}, {table.tokens} tokens in blocks {blocks}")])


def picture_of_grid(state: dict[str, Any]) -> str:
    """Return a still of a block grid's `state`, below the goal of its challenge."""
    tables = [Table(**each | {"look": look_of(each["look"])}) for each in state["tables"]]
    challenge = state["challenge"]
    goal = Text(f"Challenge: {challenge['goal']}" if challenge else "", look=BOLD)
    figures = (state["figures"][name] for name in ("used", "free", "copied"))
    return picture_of_pool([goal], tables, state["block_size"], state["counts"], *figures)


# The stage ----------------------------------------------------------------------------------------


def picture_of_stage(replay: Replay) -> str:
    """Return a still of a recording after a step, below the last blocks of what is written."""
    size = replay.recording["block_size"]
    num_blocks = replay.recording["num_blocks"]
    tables = [
        Table(name, each.blocks, each.tokens, look_of(each.look), words_of(each))
        for name, each in replay.sequences.items()
    ]
    above: list[Item] = []
    for table in tables[:MAX_TEXTS]:
        is_aborted = replay.sequences[table.name].state == "abort"
        ended = " (aborted: its blocks are free)" if is_aborted else ""
        above.append(Legend([(table.look, table.name + ended)]))
        above.append(_written(table, size, num_blocks, lines=5 if len(tables) < 3 else 2))
    return picture_of_pool(
        above,
        [table for table in tables if table.blocks],
        size,
        replay.counts,
        replay.used,
        num_blocks - replay.used,
        replay.copied,
        replay.kept,
    )


def words_of(sequence: SequenceState) -> list[str]:
    """Return the words of a sequence, with nothing in place of what a chat template added."""
    return ["" if i in sequence.roles else word for i, word in enumerate(sequence.words)]


def _written(table: Table, size: int, num_blocks: int, lines: int) -> Item:
    """The last words of a sequence in their blocks, or alone after it has released them."""
    if not table.blocks:
        text = " ".join("".join(word or " " for word in table.words).split())
        return Text(f"… {text[-LETTERS:].partition(' ')[2]}" if len(text) > LETTERS else text)
    columns = max(1, SLOTS_A_LINE // size)
    blocks = blocks_of([table], num_blocks, size)
    last = table.blocks[-lines * columns :]
    held = [blocks[number] for number in last if number is not None]
    template = (Word("(chat template)"),)
    held = [block if block.words else replace(block, words=template) for block in held]
    return Blocks(held, columns, height=22, gap=3)
