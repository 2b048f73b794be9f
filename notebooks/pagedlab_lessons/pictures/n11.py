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
from pagedlab_lessons.colors import NEUTRAL, WELL, Look, look_of, sequence_color
from pagedlab_lessons.drawing import (
    SOFT,
    Beside,
    Block,
    Blocks,
    Drawing,
    Drawn,
    Item,
    Named,
    Pool,
    Space,
    Table,
    Text,
    Word,
    blocks_of,
    box,
    label,
    linked,
    note,
    owned,
    page,
    shape,
    title,
    wide,
)

LAYER = 2  # whose keys are shown
LARGE = 860  # pixels that become `flow.WIDTH`, so that letters of 11 have 14 on a page

Key = list[float]  # the first numbers of a block's first key; none where nothing was written


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

    # NaN, which is unlike itself, was never written
    return lambda: [
        [[n for n in key if n == n] for key in blocks] for blocks in llm.keys[:, :, 0, :2].tolist()
    ]


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
        written = [_with_key(*pair) for pair in zip(blocks, frame.keys[rank], strict=True)]
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


def _with_key(block: Block, key: Key) -> Block:
    """The block of a rank: if it is in use, with its first word and numbers of that word's key."""
    if not block.owners:
        return block
    word = block.words[0].text if block.words else ""
    return replace(block, lines=(word, *(f"{n:+.2f}" for n in key)))


# A layer, cut over two ranks ----------------------------------------------------------------------

SIGN = 18  # pixels that a sign between two shapes takes
VECTOR = 16  # pixels that a vector is high, at least
COLUMNS = "half of the columns"
ROWS = "half of the rows"


class Piece(NamedTuple):
    """A matrix, or a vector, which is one row; a rank has a part of it.

    Args:
        name: of it.
        rows: of all ranks together; of a matrix, one for each input.
        columns: one for each output.
        part: what the rank has of it; all, but for `COLUMNS` and `ROWS`.
        rank: who has the part.
        look: of the part.
    """

    name: str
    rows: int
    columns: int
    part: str
    rank: int
    look: Look


def _product(*factors: Piece | str) -> Item:
    """Pieces and signs from left to right, all to one scale."""

    def draw(space: Space) -> Drawn:
        scale = space.pick(0.22, 0.16)
        x = space.x
        top = space.y + 20
        bottom = top
        parts = []
        for piece in factors:
            if isinstance(piece, str):
                parts.append(label(x, top + 13, piece, 14))
                x += SIGN
                continue
            width = scale * piece.columns
            height = max(VECTOR, scale * piece.rows)
            left, upper, wide_part, high_part = x, top, width, height
            if piece.part == COLUMNS:
                wide_part /= 2
                left += piece.rank * wide_part
            if piece.part == ROWS:
                high_part /= 2
                upper += piece.rank * high_part
            drawn = (
                label(x, top - 5, piece.name),
                box(x, top, width, height, WELL, 1, SOFT),
                shape(left, upper, wide_part, high_part, piece.look, SOFT),
            )
            words = f"Rank {piece.rank}, {piece.name}: {piece.part}."
            parts.append(linked([piece.name], words, *drawn))
            x += max(width, wide(piece.name, 12)) + 6
            bottom = max(bottom, top + height)
        return Drawn(parts, bottom + 6)

    return draw


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
    columns: list[list[Item]] = []
    sums: list[Piece | str] = []
    for rank in range(2):
        look = look_of(rank + 3)  # the opening's sequences have the first three
        copy = Piece("x", 1, hidden, "a copy of the token's vector", rank, Look(NEUTRAL))
        matrices = []
        for name in first:
            outputs, inputs = getattr(part, f"{name}_proj").weight.shape
            matrices.append(Piece(f"{name}.T", inputs, outputs, COLUMNS, rank, look))
        middle = Piece("heads" if is_attention else "middle", 1, width, COLUMNS, rank, look)
        narrowing = Piece(f"{last}.T", width, hidden, ROWS, rank, look)
        partial = Piece("partial sum", 1, hidden, "all numbers, none of them complete", rank, look)
        columns.append(
            [
                title(f"Rank {rank}"),
                Text("1 column-parallel: all inputs, half of the outputs"),
                _product(copy, "@", *matrices, "→", middle),
                Text("2 row-parallel: half of the inputs, a partial sum"),
                _product(middle, "@", narrowing, "=", partial),
            ]
        )
        sums += [partial._replace(name=f"rank {rank}'s"), "=" if rank else "+"]
    output = Piece("output", 1, hidden, "the total, which every rank has", 0, Look(NEUTRAL))
    return page(
        "Nothing is sent between the two cuts. One sum ends this part.",
        Beside(columns),
        title("3 all-reduce: the partial sums are added up, and every rank gets the total"),
        _product(*sums, output),
        note(
            "To scale. A matrix has a row for each input. Filled: what a rank has; grey: whole, "
            "on both ranks. →: silu(…) * (…), or attention."
        ),
        width=LARGE,
    )


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
    lanes = []
    for stage in range(stages):
        cells = [_tick(stage, time, stages, batches) for time in range(TICKS)]
        shown = Blocks((cells, cells[: TICKS // 2]), (TICKS, TICKS // 2), size=1)
        lanes.append(Named(f"stage {stage}", shown, (60, 54)))
    idle = 1 - batches / stages
    return page(
        f"Batches under way: {batches}. Each stage is idle for {idle:.0%} of the time.",
        *lanes,
        note("Time goes to the right. A2 is token 2 of batch A. Dashed: the stage is idle."),
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


def _cell(color: int, word: Word, link: str, say: str) -> Block:
    """A box with one word."""
    owners = owned(sequence_color(color))
    return Block(None, owners, words=(word,), links=(link,), say=say)


# A ring -------------------------------------------------------------------------------------------


def summed_in(rank: int, part: int, ranks: int, hop: int) -> list[int]:
    """The ranks whose numbers a rank's copy of a part sums after a hop.

    A part starts at the rank of its number, and each hop brings it to the next rank.
    """
    away = (rank - part) % ranks
    gathered = hop - (ranks - 1)  # hops of the all-gather, which starts at the last rank on the way
    if gathered >= (away + 1) % ranks:
        return list(range(ranks))
    if away <= hop:
        return sorted((part + step) % ranks for step in range(away + 1))
    return [rank]


def draw_ring(ranks: int, hop: int) -> Drawing:
    """Draw what each rank has of each part after a hop, and what this hop sent.

    Args:
        ranks: in the ring.
        hop: those of an all-reduce; 0 is the start.
    """
    hop = min(hop, 2 * (ranks - 1))
    lanes = []
    for rank in range(ranks):
        parts = [_part(rank, part, ranks, hop) for part in range(ranks)]
        shown = Blocks(parts, ranks, size=1, font=(14, 12))
        lanes.append(Named(f"rank {rank}", shown, (70, 46)))
    phase = "every rank cuts its vector into parts"
    if hop:
        phase = "reduce-scatter adds up" if hop < ranks else "all-gather passes on the totals"
    return page(
        f"Hop {hop} of {2 * (ranks - 1)}: {phase}.",
        *lanes,
        note(
            "A column is a part. A box names the ranks whose vectors it sums. ↓: this hop brought "
            f"it from the rank above; rank 0 gets it from rank {ranks - 1}."
        ),
        width=LARGE,
    )


def _part(rank: int, part: int, ranks: int, hop: int) -> Block:
    """A rank's copy of a part."""
    summed = summed_in(rank, part, ranks, hop)
    numbers = "+".join(map(str, summed))
    said = f"the sum of ranks {numbers}" if len(summed) > 1 else "only its own numbers"
    word = Word(numbers, "empty")
    if len(summed) == ranks:
        said = "the total"
        word = Word("total", "new")
    if hop and part == (rank - hop) % ranks:
        word = word._replace(text=f"↓ {word.text}")
    return _cell(part, word, f"part{part}", f"Rank {rank}, part {part}: {said}.")
