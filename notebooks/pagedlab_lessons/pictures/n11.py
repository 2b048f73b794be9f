"""Notebook 11's opening: what is in the pool of each rank after every step of a recorded run.

recording = record(llm, prompts, params, readings={"keys": keys_of_each_rank(llm)})
frames = frames_of(recording)
draw_pools(frames, step, block_size, heads)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pagedlab.recipes.trace import Replay
from pagedlab_lessons.colors import Look, sequence_color
from pagedlab_lessons.drawing import Block, Drawing, Owner, Word, plain
from pagedlab_lessons.drawing.flow import (
    Beside,
    Blocks,
    Item,
    Named,
    Pool,
    note,
    page,
    title,
)

LAYER = 2  # whose keys are shown

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
    tables = []
    held: dict[int, Block] = {}
    for row, table in enumerate(frame.tables):
        blocks = _blocks_of(frame, row, size, heads)
        held |= dict(zip(table.blocks, blocks, strict=True))
        short = [replace(block, words=block.words[:1]) for block in blocks]
        shown = Blocks((blocks, short), (longest, 4), height=(27, 24), most=longest)
        tables.append(Named(f"r{row}", shown, (50, 26)))
    pools: list[list[Item]] = []
    for rank, of_rank in enumerate(heads):
        blocks = _blocks_of_pool(frame, rank, held)
        head = title(f"Pool of rank {rank}", f"{of_rank} of every layer")
        pools.append([head, Pool(blocks, columns=(8, 6), height=70, gap=(6, 4))])
    headline = "Block tables: rank 0 has them, and tells every rank which blocks to use."
    explained = (
        "In a block: its first word, and the first two numbers of that word's key in layer "
        f"{LAYER}. They differ, because each rank has other heads."
    )
    name = f"{headline} {explained}"
    return page(headline, *tables, Beside(pools), note(explained), name=name)


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
