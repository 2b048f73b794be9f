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
from pagedlab_lessons.drawing import Block, Drawing, Table, blocks_of, described
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
        sequences = [one for one in replay.seek(step).sequences.values() if one.blocks]
        tables = []
        for row, one in enumerate(sequences):
            look = Look(sequence_color(row))
            tables.append(Table(f"r{row}", one.blocks, one.tokens, look, one.words))
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
    blocks = []
    for block, *keys in zip(
        blocks_of(frame.tables, len(frame.keys[0]), size), *frame.keys, strict=True
    ):
        blocks.append(replace(block, say=_say(block, keys, heads)))
    tables = []
    for table in frame.tables:
        held = [blocks[number] for number in table.blocks if number is not None]
        short = [replace(block, words=block.words[:1]) for block in held]
        shown = Blocks((held, short), (longest, 4), height=(27, 24), most=longest)
        tables.append(Named(table.name, shown, (50, 26)))
    pools: list[list[Item]] = []
    for rank, of_rank in enumerate(heads):
        written = [_with_key(*pair) for pair in zip(blocks, frame.keys[rank], strict=True)]
        head = title(f"Pool of rank {rank}", f"{of_rank} of every layer")
        pools.append([head, Pool(written, columns=(8, 6), height=70, gap=(6, 4))])
    headline = "Block tables: rank 0 has them, and tells every rank which blocks to use."
    explained = (
        "In a block: its first word, and the first two numbers of that word's key in layer "
        f"{LAYER}. They differ, because each rank has other heads."
    )
    name = f"{headline} {explained}"
    return page(headline, *tables, Beside(pools), note(explained), name=name)


def _with_key(block: Block, key: Key) -> Block:
    """The block of a rank: if it is in use, with its first word and numbers of that word's key."""
    if not block.owners:
        return block
    word = block.words[0].text if block.words else ""
    return replace(block, lines=(word, *(f"{n:+.2f}" for n in key if n is not None)))


def _say(block: Block, keys: Sequence[Key], heads: Sequence[str]) -> str:
    """The line of text for a block that is pointed at."""
    if not block.owners:
        return f"{described(block)}, on every rank"
    ranks = []
    for rank, key in enumerate(keys):
        numbers = ", ".join("nan" if n is None else f"{n:+.2f}" for n in key)
        ranks.append(f"rank {rank}, {heads[rank]}: {numbers} …")
    return f"{described(block)}\n{';  '.join(ranks)}"
