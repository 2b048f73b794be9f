"""Two ranks, one table: what is in the pool of each rank after every step of a recorded run.

recording = record(llm, prompts, params, readings={"keys": keys_of_each_rank(llm)})
frames = frames_of(recording)
draw_pools(frames, step, block_size, heads)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pagedlab.lessons.colors import sequence_color
from pagedlab.lessons.drawing import (
    BOLD,
    INK,
    LINE,
    SOFT,
    block_of_words,
    box,
    label,
    linked,
    plain,
    svg,
)
from pagedlab.trace import Replay

LAYER = 2  # whose keys are shown
WIDTH = 1080
TABLE_TOP = 28
TABLE_PITCH = 34.0  # from table to table
POOL_LEFT = 555  # of the second pool
COLUMNS = 8  # blocks in a row of a pool
BLOCK_WIDTH = 65.6
BLOCK_HEIGHT = 76.0

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


@dataclass(frozen=True)
class Held:
    """A block that is in use: the number of its sequence, and its words."""

    row: int
    words: list[str]


def keys_of_each_rank(llm: Any) -> Callable[[], list[list[Key]]]:
    """A reading for `Recorder`: of each rank and block, two numbers of the block's first key.

    The cache is filled with NaN before, so that what is a number was written.
    """
    llm.cache.poison()

    def read() -> list[list[Key]]:
        blocks = range(llm.pool.num_blocks)
        keys = []
        for part in llm.cache.of_each_rank(blocks):
            of_blocks = part[0, LAYER, :, 0, 0, :2].tolist()
            keys.append([[_number(value) for value in key] for key in of_blocks])
        return keys

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


def draw_pools(frames: Sequence[Frame], step: int, size: int, heads: Sequence[str]) -> str:
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
    headline = "One table: rank 0 has it, and tells every rank which blocks to use"
    parts = [label(0, 16, headline, 14, look=BOLD)]
    held: dict[int, Held] = {}
    for row, table in enumerate(frame.tables):
        for entry, block in enumerate(table.blocks):
            held[block] = Held(row, table.words_in(entry, size))
        parts += _table(frame, row, 1030 / longest, size, heads)
    top = TABLE_TOP + TABLE_PITCH * len(frame.tables) + 26
    for rank in range(len(frame.keys)):
        parts += _pool(frame, rank, top, held, size, heads)
    y = top + 12 + 76 * -(-len(frame.keys[0]) // COLUMNS) + 14
    key = (
        f"In a block: its filled slots, and two numbers of its first key in layer {LAYER}, as that "
        "rank has them."
    )
    parts.append(label(0, y, key, 12, SOFT))
    return svg(WIDTH, y + 8, parts)


def _table(frame: Frame, row: int, wide: float, size: int, heads: Sequence[str]) -> list[str]:
    """A sequence's blocks in a row, each `wide` pixels, with their words."""
    table = frame.tables[row]
    y = TABLE_TOP + TABLE_PITCH * row
    parts = [label(0, y + 18, f"text {row}", 12, SOFT, 44)]
    for entry, block in enumerate(table.blocks):
        words = table.words_in(entry, size)
        say = _say(block, Held(row, words), frame.keys, heads)
        x = 50 + wide * entry
        parts.append(block_of_words(x, y, wide - 6, 27, block, words, sequence_color(row), say))
    return parts


def _pool(
    frame: Frame, rank: int, top: float, held: dict[int, Held], size: int, heads: Sequence[str]
) -> list[str]:
    """The blocks of a rank, in rows."""
    left = POOL_LEFT * rank
    parts = [
        label(left, top, f"Pool of rank {rank}", 14, look=BOLD),
        label(left + 130, top, f"{heads[rank]} of every layer", 12, SOFT),
    ]
    for block, key in enumerate(frame.keys[rank]):
        x = left + BLOCK_WIDTH * (block % COLUMNS)
        y = top + 12 + BLOCK_HEIGHT * (block // COLUMNS)
        if block in held:
            say = _say(block, held[block], frame.keys, heads)
            drawn = _used_block(x, y, held[block], key, size)
            color = INK
        else:
            say = f"block {block}: free, on every rank"
            drawn = [_ground(x, y)]
            color = SOFT
        drawn.append(label(x + 5, y + 14, str(block), 12, color, look=BOLD))
        parts.append(linked([f"b{block}"], say, *drawn))
    return parts


def _ground(x: float, y: float) -> str:
    return box(x, y, 60, 70, "var(--well)", 1, LINE)


def _used_block(x: float, y: float, held: Held, key: Key, size: int) -> list[str]:
    """A block in the colour of its sequence: a mark for each slot, and the numbers of its key."""
    color = sequence_color(held.row)
    drawn = [_ground(x, y), box(x, y, 60, 70, color, 0.22, color)]
    for slot in range(size):
        share = 0.85 if slot < len(held.words) else 0.12
        drawn.append(box(x + 7 * slot + 2, y + 20, 5, 8, color, share))
    written = [number for number in key if number is not None]
    for i, number in enumerate(written):
        drawn.append(label(x + 5, y + 44 + 17 * i, f"{number:+.2f}", 12.5))
    return drawn


def _say(block: int, held: Held, keys: Sequence[list[Key]], heads: Sequence[str]) -> str:
    """What is said of a block that is pointed at."""
    ranks = []
    for rank, of_blocks in enumerate(keys):
        numbers = ", ".join("nan" if n is None else f"{n:+.2f}" for n in of_blocks[block])
        ranks.append(f"rank {rank}, {heads[rank]}: {numbers} …")
    return f"block {block}, text {held.row}: {' '.join(held.words)}\n{';  '.join(ranks)}"
