"""The block grid and the stage without a page: drawings for notebooks that are read and not run."""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

from pagedlab.recipes.trace import Replay, SequenceState
from pagedlab_lessons.colors import HATCHES, Look, look_of
from pagedlab_lessons.drawing import (
    BOLD,
    INK,
    SOFT,
    Grid,
    Table,
    blocks_of,
    box,
    label,
    pool,
    runs,
    svg,
    wide,
)
from pagedlab_lessons.drawing.flow import Drawn, Item, Legend, Space, Text, note, stack
from pagedlab_lessons.widgets.page import stored
from pagedlab_lessons.widgets.reading import columns_of

MAX_ROWS = 12  # block tables drawn
MAX_TEXTS = 4
LONGEST = 60  # letters of a list of blocks
LINE = 20  # pixels from line to line of an answer
GAP = 8  # pixels between a prompt and its answer
DOTS = "… "  # where lines are left out


@dataclass
class Picture:
    """A still of a pool: its counters, its blocks, and the block tables.

    Args:
        block_size: of the pool.
        counts: the reference count of each block.
        used: blocks in use.
        free: blocks that are not.
        copied: blocks that were copied so far.
        tables: of all sequences, the oldest first.
        above: what is above them.
        cached: blocks whose contents are kept.
    """

    block_size: int
    counts: list[int]
    used: int
    free: int
    copied: int
    tables: list[Table]
    above: list[Item] = field(default_factory=list)
    cached: Collection[int] = ()

    def headline(self) -> str:
        """The counters in one line; a counter at zero is left out."""
        said = f"{len(self.counts)} blocks of {self.block_size}: {self.used} used, "
        said += f"{self.free} free"
        if shared := sum(count > 1 for count in self.counts):
            said += f", {shared} shared"
        if self.copied:
            said += f", {self.copied} copied"
        copying = sum(len(table.blocks) for table in self.tables)
        if copying != self.used:
            said += f"; a copy for each sequence would take {copying}"
        return said

    def drawing(self) -> str:
        """The picture as an SVG."""
        columns = columns_of(len(self.counts))
        side = 24 if columns > 16 else 42
        width = max(columns * (side + 4) - 4, 620)
        blocks = blocks_of(
            self.tables, len(self.counts), self.block_size, cached=self.cached, counts=self.counts
        )

        def squares(space: Space) -> Drawn:
            grid = Grid(space.x, space.y + 4, columns, side, side)
            return Drawn(pool(blocks, grid), grid.bottom(len(blocks)) + 8)

        left_out = len(self.tables) - MAX_ROWS
        items: list[Item] = [*self.above, Text(self.headline()), squares]
        items += map(_row, self.tables[:MAX_ROWS])
        items.append(note(f"and {left_out} more sequences" if left_out > 0 else ""))
        drawn = stack(items, Space(0, 0, width, is_narrow=False))
        return svg(width, drawn.bottom, drawn.parts, self.headline())

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return stored(self.drawing(), self.headline()), {}


def _row(table: Table) -> Item:
    """A sequence's name and the ids of its blocks."""
    blocks = runs(table.blocks) or "none yet"
    if len(blocks) > LONGEST:
        blocks = f"{blocks[: LONGEST - 2]} …"
    return Legend([(table.look, f"{table.name}, {table.tokens} tokens in blocks {blocks}")])


def picture_of_grid(state: dict[str, Any]) -> Picture:
    """Return a still of a block grid's `state`, below the goal of its challenge."""
    tables = [
        Table(each["name"], each["blocks"], each["tokens"], _look(each)) for each in state["tables"]
    ]
    challenge = state.get("challenge")
    goal = Text(f"Challenge: {challenge['goal']}" if challenge else "", look=BOLD)
    same = {name: state[name] for name in ("block_size", "counts", "used", "free", "copied")}
    return Picture(**same, tables=tables, above=[goal])


def _look(table: dict[str, Any]) -> Look:
    return Look(table["color"], HATCHES[table["pattern"]])


# The stage ----------------------------------------------------------------------------------------


def picture_of_stage(replay: Replay) -> Picture:
    """Return a still of a recording after a step, below what is written, tinted as its blocks."""
    size = replay.recording["block_size"]
    tables = []
    above: list[Item] = []
    shown = min(MAX_TEXTS, len(replay.sequences))
    for number, (name, sequence) in enumerate(replay.sequences.items()):
        look = look_of(sequence.look)
        if sequence.blocks:
            tables.append(Table(name, sequence.blocks, sequence.tokens, look))
        if number < shown:
            ended = " (aborted: its blocks are free)" if sequence.state == "abort" else ""
            above.append(Legend([(look, name + ended)]))
            above.append(Words(sequence, size, most=5 if shown < 3 else 2))
    free = replay.recording["num_blocks"] - replay.used
    counts = list(replay.counts)
    return Picture(size, counts, replay.used, free, replay.copied, tables, above, replay.kept)


@dataclass(frozen=True)
class Words:
    """The last lines of a sequence; words of neighbouring blocks have different tints.

    Args:
        sequence: with its words.
        block_size: tokens a block.
        most: lines.
    """

    sequence: SequenceState
    block_size: int
    most: int

    def __call__(self, space: Space) -> Drawn:
        lines = self.lines(space.width - wide(DOTS, 12) - GAP)
        if len(lines) > self.most:
            lines[-self.most].insert(0, (None, True, DOTS))
        color = look_of(self.sequence.look).color
        parts = []
        y = space.y
        for line in lines[-self.most :]:
            x = space.x
            was_prompt = False
            for (entry, is_prompt), run in groupby(line, key=itemgetter(0, 1)):
                words = "".join(word for _, _, word in run)
                if was_prompt and not is_prompt:
                    x += GAP
                was_prompt = is_prompt
                if entry is not None:
                    share = 0.34 if entry % 2 else 0.16
                    parts.append(box(x, y - 2, wide(words, 12), 18, color, share))
                parts.append(label(x, y + 12, words, 12, SOFT if is_prompt else INK))
                x += wide(words, 12)
            y += LINE
        return Drawn(parts, y + 6)

    def lines(self, width: float) -> list[list[tuple[int | None, bool, str]]]:
        """The words in lines of at most `width` pixels, each with the entry of the block table and
        whether it is the prompt's. What a chat template added is left out.
        """
        lines: list[list[tuple[int | None, bool, str]]] = [[]]
        room = width
        for (entry, is_prompt), text in self.texts().items():
            for word in re.findall(r"\S+\s*|\s+", text.replace("\n", " ")):
                if room < wide(word, 12) and lines[-1]:
                    lines.append([])
                    room = width
                lines[-1].append((entry, is_prompt, word))
                room -= wide(word, 12)
        return lines

    def texts(self) -> dict[tuple[int | None, bool], str]:
        """The words of each entry of the block table, those of the prompt apart."""
        texts: dict[tuple[int | None, bool], str] = {}
        for position, word in enumerate(self.sequence.words):
            if position not in self.sequence.roles:
                entry = position // self.block_size if position < self.sequence.tokens else None
                key = (entry, position < self.sequence.prompt)
                texts[key] = texts.get(key, "") + word
        return texts
