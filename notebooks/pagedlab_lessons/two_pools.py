"""Two ranks, one table: what is in the pool of each rank after every step of a recorded run.

recording = record(llm, prompts, params, readings={"keys": keys_of_each_rank(llm)})
frames = frames_of(recording)
draw_pools(frames, step, block_size, heads)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Any

from pagedlab.recipes.trace import Replay
from pagedlab_lessons.colors import Look, sequence_color
from pagedlab_lessons.drawing import (
    BOLD,
    NARROW,
    SOFT,
    Block,
    Drawing,
    Grid,
    Owner,
    Word,
    label,
    narrow_svg,
    plain,
    pool,
    slots,
    svg,
)

LAYER = 2  # whose keys are shown
WIDTH = 1080
TABLE_TOP = 28
TABLE_PITCH = 34.0  # from table to table
POOL_LEFT = 555  # of the second pool
COLUMNS = 8  # blocks in a row of a pool
BLOCK_WIDTH = 65.6
BLOCK_HEIGHT = 76.0
NARROW_COLUMNS = 6  # blocks in a row of a pool on a narrow page
NARROW_ENTRIES = 4  # blocks in a row of a table on a narrow page

Key = list[float | None]  # the first numbers of a block's first key; None where nothing was written


@dataclass(frozen=True)
class Table:
    """A sequence: the words that have slots, and its blocks."""

    words: list[str]
    blocks: list[int]

    def words_in(self, entry: int, size: int) -> list[str]:
        """The words of a block, as they can be printed."""
        return [plain(word) for word in self.words[entry * size : (entry + 1) * size]]


@dataclass(frozen=True)
class Frame:
    """The state after a step.

    Args:
        tables: of each sequence that has blocks.
        keys: of each rank, a key of each block.
    """

    tables: list[Table]
    keys: list[list[Key]]


def keys_of_each_rank(llm: Any) -> Callable[[], list[list[Key]]]:
    """A reading for `Recorder`: of each rank and block, two numbers of the block's first key.

    Args:
        llm: a `WatchedRanks`.
    """

    def read() -> list[list[Key]]:
        first = llm.keys[:, :, 0, :2].tolist()
        return [[[_number(value) for value in key] for key in blocks] for blocks in first]

    return read


def _number(value: float) -> float | None:
    """None for NaN, which JSON does not have."""
    return value if value == value else None


def frames_of(recording: dict[str, Any]) -> list[Frame]:
    """A frame for each step after which a sequence has blocks.

    Args:
        recording: with words, and with the reading "keys" of `keys_of_each_rank`.
    """
    replay = Replay(recording)
    frames = []
    for step in range(1, len(replay)):
        sequences = replay.seek(step).sequences.values()
        tables = [Table(s.words[: s.tokens], s.blocks) for s in sequences if s.blocks]
        if tables and "readings" in replay.now:
            frames.append(Frame(tables, replay.now["readings"]["keys"]))
    return frames


def draw_pools(frames: Sequence[Frame], step: int, size: int, heads: Sequence[str]) -> Drawing:
    """The tables above, with the words; below them a pool a rank: the same ids, each with numbers
    of its own heads.

    Args:
        frames: as `frames_of` returns them.
        step: the number of the frame.
        size: slots in a block.
        heads: of each rank, which heads it has.
    """
    frame = frames[step]
    longest = max(len(table.blocks) for table in frames[-1].tables)
    headline = "Block tables: rank 0 has them, and tells every rank which blocks to use"
    parts = [label(0, 16, headline, 14, look=BOLD)]
    held: dict[int, Block] = {}
    for row, table in enumerate(frame.tables):
        blocks = _blocks_of(frame, row, size, heads)
        held |= dict(zip(table.blocks, blocks, strict=True))
        y = TABLE_TOP + TABLE_PITCH * row
        parts.append(label(0, y + 18, f"r{row}", 12, SOFT, 44))
        parts += slots(blocks, Grid.within(50, y, 1030, longest, 27, 6))
    top = TABLE_TOP + TABLE_PITCH * len(frame.tables) + 26
    for rank in range(len(frame.keys)):
        left = POOL_LEFT * rank
        grid = Grid(left, top + 12, COLUMNS, 60, 70, BLOCK_WIDTH - 60)
        parts += _title_of_pool(rank, left, top, 130, heads)
        parts += pool(_blocks_of_pool(frame, rank, held), grid)
    y = top + 12 + BLOCK_HEIGHT * -(-len(frame.keys[0]) // COLUMNS) + 14
    explained = (
        "In a block: its first word, and the first two numbers of that word's key in layer "
        f"{LAYER}. They differ, because each rank has other heads."
    )
    parts.append(label(0, y, explained, 12, SOFT, WIDTH))
    wide = svg(WIDTH, y + 8, parts, f"{headline}. {explained}")
    return Drawing(wide, _narrow_pools(frame, held, heads, f"{headline}.", explained, longest))


def _narrow_pools(
    frame: Frame,
    held: dict[int, Block],
    heads: Sequence[str],
    headline: str,
    explained: str,
    longest: int,
) -> str:
    """The tables with the first word of each block, then one pool below the other.

    Args:
        frame: after a step.
        held: the blocks in use, by number.
        heads: of each rank, which heads it has.
        headline: of the drawing.
        explained: what is in a block.
        longest: the most blocks of a table after any step.
    """
    parts = []
    y = 0.0
    for row, table in enumerate(frame.tables):
        parts.append(label(0, y + 16, f"r{row}", 12, SOFT))
        grid = Grid.within(26, y, NARROW - 26, NARROW_ENTRIES, 24, 4)
        blocks = [replace(held[number], words=held[number].words[:1]) for number in table.blocks]
        parts += slots(blocks, grid, font=12)
        y = grid.bottom(longest)
    for rank in range(len(frame.keys)):
        parts += _title_of_pool(rank, 0, y + 18, 122, heads)
        grid = Grid.within(0, y + 26, NARROW, NARROW_COLUMNS, 70, 4)
        parts += pool(_blocks_of_pool(frame, rank, held), grid)
        y = grid.bottom(len(frame.keys[rank])) + 4
    for line in wrap(explained, 44):
        parts.append(label(0, y + 12, line, 11, SOFT))
        y += 15
    return narrow_svg(y + 4, parts, headline)


def _blocks_of(frame: Frame, row: int, size: int, heads: Sequence[str]) -> list[Block]:
    """The blocks of a sequence, with their words."""
    table = frame.tables[row]
    look = Look(sequence_color(row))
    blocks = []
    for entry, number in enumerate(table.blocks):
        words = table.words_in(entry, size)
        block = Block(
            number,
            (Owner(f"r{row}", look, len(words) / size),),
            words=tuple(map(Word, words)),
            say=_say(number, row, words, frame.keys, heads),
        )
        blocks.append(block)
    return blocks


def _title_of_pool(
    rank: int, left: float, y: float, length: float, heads: Sequence[str]
) -> list[str]:
    """The name of a rank's pool, and after `length` pixels which heads are in it."""
    return [
        label(left, y, f"Pool of rank {rank}", 14, look=BOLD),
        label(left + length, y, f"{heads[rank]} of every layer", 12, SOFT),
    ]


def _blocks_of_pool(frame: Frame, rank: int, held: dict[int, Block]) -> list[Block]:
    """The blocks of a rank, and in each that is in use a word and numbers of its key."""
    blocks = []
    for number, key in enumerate(frame.keys[rank]):
        if number in held:
            written = [f"{value:+.2f}" for value in key if value is not None]
            word = held[number].words[0].text if held[number].words else ""
            block = replace(held[number], lines=(word, *written))
        else:
            block = Block(number, say=f"block {number}: free, on every rank")
        blocks.append(block)
    return blocks


def _say(
    block: int, row: int, words: Sequence[str], keys: Sequence[list[Key]], heads: Sequence[str]
) -> str:
    """The line of text for a block that is pointed at."""
    ranks = []
    for rank, of_blocks in enumerate(keys):
        numbers = ", ".join("nan" if n is None else f"{n:+.2f}" for n in of_blocks[block])
        ranks.append(f"rank {rank}, {heads[rank]}: {numbers} …")
    return f"block {block}, r{row}: {' '.join(words)}\n{';  '.join(ranks)}"
