"""Notebook 11's pictures.

The opening is what is in the pool of each rank after every step of a recorded run:

    recording = record(llm, prompts, params, readings={"keys": keys_of_each_rank(llm)})
    frames = frames_of(recording)
    draw_pools(frames, step, block_size, heads)

The others are a layer that is cut (`draw_cut`), a pipeline (`draw_pipeline`) and a ring
(`draw_ring`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from pagedlab.recipes.trace import Replay
from pagedlab_lessons.colors import Look, sequence_color
from pagedlab_lessons.drawing import (
    Block,
    Drawing,
    Table,
    Word,
    blocks_of,
    owned,
)
from pagedlab_lessons.drawing.flow import (
    Beside,
    Blocks,
    Item,
    Named,
    Pixels,
    Pool,
    note,
    page,
    title,
)

LAYER = 2  # whose keys are shown
LARGE = 860  # pixels that become `flow.WIDTH`, so that letters of 11 have 14 on a page

Key = list[float]  # the first numbers of a block's first key; 0 where nothing was written


class Frame(NamedTuple):
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

    def keys() -> list[list[Key]]:
        return llm.keys[:, :, 0, :2].nan_to_num().tolist()

    return keys


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
            tables.append(Table(f"s{row}", one.blocks, one.tokens, look, one.words))
        if tables:
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
    blocks = blocks_of(frame.tables, len(frame.keys[0]), size)
    tables = []
    for table in frame.tables:
        held = [blocks[number] for number in table.blocks if number is not None]
        short = [replace(block, words=block.words[:1]) for block in held]
        shown = Blocks((held, short), (longest, 4), height=(40, 24))
        tables.append(Named(table.name, shown, (50, 26)))
    pools: list[list[Item]] = []
    for rank, of_rank in enumerate(heads):
        written = []
        for block, key in zip(blocks, frame.keys[rank], strict=True):
            lines = [block.words[0].text, *(f"{n:+.2f}" for n in key)] if block.words else []
            written.append(replace(block, lines=tuple(lines)))
        head = title(f"Pool of rank {rank}", f"{of_rank} of every layer")
        pools.append([head, Pool(written, columns=(8, 6), height=70, gap=(6, 4))])
    return page(
        "Block tables: rank 0 has them, and tells every rank which blocks to use.",
        *tables,
        Beside(pools),
        note(
            "Coloured from below: how full a block is. In it: its first word, and the first two "
            f"numbers of that word's key in layer {LAYER}."
        ),
    )


# A layer, cut over two ranks ----------------------------------------------------------------------


def draw_cut(layer: Any, is_attention: bool) -> Drawing:
    """Draw what each of two ranks has of an MLP or of an attention, and the one sum at its end.

    Args:
        layer: a decoder layer of a transformers model.
        is_attention: whether its attention is drawn, or its MLP.
    """
    part = layer.self_attn if is_attention else layer.mlp
    first = ("q", "k", "v") if is_attention else ("gate", "up")
    last = "o" if is_attention else "down"
    hidden, width = getattr(part, f"{last}_proj").weight.shape
    columns = [_cut("x", (1, hidden), "a copy of the token's vector", 1)]
    for name in first:
        size = getattr(part, f"{name}_proj").weight.T.shape
        columns.append(_cut(f"{name}.T", size, "half of the columns", 2, (80, 44)))
    middle = "heads" if is_attention else "middle"
    columns.append(_cut(middle, (1, width), "half of the columns", 2))
    narrowing = _cut(f"{last}.T", (width, hidden), "half of the rows", 1, (60, 30))
    partial = _cut("partial sum", (1, hidden), "all numbers, none of them complete", 1)
    output = _cut("output", (1, hidden), "the total, which every rank has", 1)
    explained = note("A matrix has a row for each input. Side by side: columns are cut.")
    return page(
        "Nothing is sent between the two cuts. One sum ends this part.",
        title("1 column-parallel: all inputs, half of the outputs"),
        Beside(columns),
        title("2 row-parallel: half of the inputs, a partial sum"),
        Beside([narrowing, partial]),
        title("3 all-reduce: the partial sums are added up, and every rank gets the total"),
        Beside([output, [explained]]),
        width=LARGE,
    )


def _cut(
    name: str, size: Sequence[int], part: str, columns: int, height: Pixels = 26
) -> list[Item]:
    """A matrix or a vector, and the part that each rank has of it."""
    blocks = [
        _cell(3 + rank, Word(f"rank {rank}", "empty"), name, f"Rank {rank}, {name}: {part}.")
        for rank in range(2)  # the opening's sequences have the first three colours
    ]
    words = note(f"{name}, {size[0]:,} x {size[1]:,}")
    return [words, Blocks(blocks, columns, size=1, height=height, gap=2)]


# A pipeline ---------------------------------------------------------------------------------------

TICKS = 12  # that a pipeline is drawn for


def draw_pipeline(stages: int, batches: int) -> Drawing:
    """Draw which batch each stage of a pipeline runs at each time, and the bubbles between.

    A batch begins its next token when the last stage has finished the one before.

    Args:
        stages: each has some whole layers.
        batches: that are under way; more than stages would wait.
    """
    batches = min(batches, stages)
    cells = [
        [_tick(stage, time, stages, batches) for time in range(TICKS)] for stage in range(stages)
    ]
    idle = 1 - batches / stages
    return page(
        f"Batches under way: {batches}. Each stage is idle for {idle:.0%} of the time.",
        *_rows("stage", cells),
        note("Time goes to the right. B2 is token 2 of batch B. Dashed: the stage is idle."),
        width=LARGE,
    )


def _tick(stage: int, time: int, stages: int, batches: int) -> Block:
    """What a stage does at a time: its batch's next token, or nothing."""
    token, batch = divmod(time - stage, stages)
    if token < 0 or batch >= batches:
        return Block(None, say=f"Stage {stage} is idle: a bubble.", links=(f"time{time}",))
    name = "ABCD"[batch]
    word = Word(f"{name}{token}")
    return _cell(batch, word, f"{name}{token}", f"Stage {stage}: token {token} of batch {name}.")


def _rows(name: str, cells: Sequence[list[Block]]) -> list[Item]:
    """Rows of cells, each with its name; a narrow drawing shows the first cells."""
    items: list[Item] = []
    for row, several in enumerate(cells):
        few = several[: TICKS // 2]
        shown = Blocks((several, few), (len(several), len(few)), size=1)
        items.append(Named(f"{name} {row}", shown, (60, 54)))
    return items


def _cell(color: int, word: Word, link: str, say: str) -> Block:
    """A box with one word."""
    owners = owned(sequence_color(color))
    return Block(None, owners, words=(word,), links=(link,), say=say)


# A ring -------------------------------------------------------------------------------------------


def draw_ring(ranks: int, hop: int) -> Drawing:
    """Draw what each rank has of each part after a hop, and what this hop sent.

    Args:
        ranks: in the ring.
        hop: those of an all-reduce; 0 is the start.
    """
    hop = min(hop, 2 * (ranks - 1))
    # the ranks whose numbers each rank's copy of each part sums; totals travel on in the same way
    sums = [[{rank} for _ in range(ranks)] for rank in range(ranks)]
    for now in range(1, hop + 1):
        for rank in range(ranks):
            part = (rank - now) % ranks
            sums[rank][part] |= sums[rank - 1][part]
    cells = [
        [_part(rank, part, summed, hop, ranks) for part, summed in enumerate(parts)]
        for rank, parts in enumerate(sums)
    ]
    phase = "every rank cuts its vector into parts"
    if hop:
        phase = "reduce-scatter adds up" if hop < ranks else "all-gather passes on the totals"
    return page(
        f"Hop {hop} of {2 * (ranks - 1)}: {phase}.",
        *_rows("rank", cells),
        note(
            "A column is a part. A box names the ranks whose vectors it sums. ↓: this hop brought "
            f"it from the rank above; rank 0 gets it from rank {ranks - 1}."
        ),
        width=LARGE,
    )


def _part(rank: int, part: int, summed: set[int], hop: int, ranks: int) -> Block:
    """A rank's copy of a part, which sums these ranks."""
    numbers = "+".join(map(str, sorted(summed)))
    said = f"the sum of ranks {numbers}" if len(summed) > 1 else "only its own numbers"
    word = Word(numbers, "empty")
    if len(summed) == ranks:
        said = "the total"
        word = Word("total", "new")
    if hop and part == (rank - hop) % ranks:
        word = word._replace(text=f"↓ {word.text}")
    return _cell(part, word, f"part{part}", f"Rank {rank}, part {part}: {said}.")
