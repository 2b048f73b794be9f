"""The widgets without a page: a drawing and a text, for notebooks that are read and not run."""

import re
from textwrap import wrap
from typing import Any

from pagedlab.recipes.trace import Replay
from pagedlab_lessons.colors import HATCHES, Look
from pagedlab_lessons.drawing import (
    BOLD,
    INK,
    SOFT,
    Block,
    Grid,
    Table,
    blocks_of,
    box,
    label,
    pool,
    runs,
    shape,
    svg,
    wide,
)
from pagedlab_lessons.widgets.page import stored
from pagedlab_lessons.widgets.replayed import answers_of, grid_of

MAX_ROWS = 12  # block tables drawn
MAX_TEXTS = 4
LONGEST = 60  # letters of a list of blocks
ROW = 26  # pixels from table to table
GOAL_FONT = 12.5  # pixels
GOAL_LINE = 18  # pixels from line to line
WORDS_LEFT = 50.0  # pixels: where the words of an answer begin, at least
GAP = 8.0  # pixels between a prompt and its answer


class Picture:
    """A still of a block grid's `state`: counts, owners' looks and fill, then the block tables."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state
        self.cached: frozenset[int] = frozenset()  # blocks whose contents are kept
        columns = state["columns"]
        side = 24 if columns > 16 else 42
        self.grid = Grid(0, 0, columns, side, side)
        self.width = max(columns * (side + 4) - 4, 620)

    def headline(self) -> str:
        """The counters in one line; a counter at zero is left out."""
        state = self.state
        said = f"{len(state['counts'])} blocks of {state['block_size']}: {state['used']} used, "
        said += f"{state['free']} free"
        for counter in ("shared", "copied"):
            if state[counter]:
                said += f", {state[counter]} {counter}"
        if state["copying"] != state["used"]:
            said += f"; a copy for each sequence would take {state['copying']}"
        return said

    def goal(self) -> str:
        """The goal of the widget's challenge, or "" if it has none."""
        challenge = self.state.get("challenge")
        return f"Challenge: {challenge['goal']}" if challenge else ""

    def text(self) -> str:
        """A challenge's goal, the reference counts as a grid of numbers, and the block tables.

        Rows of free blocks are left out.
        """
        counts, tables = self.state["counts"], self.state["tables"]
        columns = self.state["columns"]
        lines = [self.headline()]
        if self.goal():
            lines.insert(0, self.goal())
        for first in range(0, len(counts), columns):
            row = counts[first : first + columns]
            if any(row):
                lines.append(f"{first:>5}  " + " ".join(f"{count or '.':>2}" for count in row))
        names = max((len(table["name"]) for table in tables), default=0)
        for table in tables:
            blocks = runs(table["blocks"]) or "none yet"
            lines.append(
                f"{table['name']:>{names}}  {table['tokens']:>5} tokens in blocks {blocks}"
            )
        return "\n".join([*lines, *self.state["problems"]])

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return {**stored(self.drawing(), self.headline()), "text/plain": self.text()}, {}

    def drawing(self) -> str:
        """The picture as an SVG."""
        lines = wrap(self.goal(), int(self.width / wide("x", GOAL_FONT)))
        parts = [
            label(0, 12 + GOAL_LINE * number, line, GOAL_FONT, look=BOLD)
            for number, line in enumerate(lines)
        ]
        top = GOAL_LINE * len(lines) + 6 if lines else 0
        below, height = self.blocks_and_tables(top)
        return svg(self.width, height, [*parts, *below], self.headline())

    def blocks(self) -> list[Block]:
        """The blocks, as the pool counts them and the tables list them."""
        tables = [
            Table(table["name"], table["blocks"], table["tokens"], look_in(table))
            for table in self.state["tables"]
        ]
        counts, size = self.state["counts"], self.state["block_size"]
        return blocks_of(tables, len(counts), size, cached=self.cached, counts=counts)

    def blocks_and_tables(self, top: float) -> tuple[list[str], float]:
        """Blocks and tables from `top` on, and where they end."""
        blocks = self.blocks()
        grid = self.grid.moved(0, top + 26)
        parts = [label(0, top + 12, self.headline(), 12.5, within=self.width), *pool(blocks, grid)]
        below = grid.bottom(len(blocks)) + 10
        tables = self.state["tables"]
        for table in tables[:MAX_ROWS]:
            parts += _table(table, below)
            below += ROW
        left_out = len(tables) - MAX_ROWS
        if left_out > 0:
            parts.append(label(0, below + 12, f"and {left_out} more sequences", 12, SOFT))
            below += ROW
        return parts, below


class StagePicture(Picture):
    """A still of a recording after a step: what is written, tinted as the blocks that hold it,
    above blocks and tables.

    Args:
        replay: at that step.
    """

    def __init__(self, replay: Replay) -> None:
        super().__init__(grid_of(replay))
        self.cached = frozenset(replay.kept)
        self.answers = answers_of(replay)

    def text(self) -> str:
        """As of a block grid, and under it the texts."""
        words = []
        for answer in self.answers:
            written = "".join(words for _, words, _ in answer["runs"]).strip()
            words.append(f"{answer['name']:>4}  {written!r}")
        return "\n".join([super().text(), *words])

    def drawing(self) -> str:
        """The picture as an SVG."""
        shown = self.answers[:MAX_TEXTS]
        most = 5 if len(shown) < 3 else 2  # lines of each
        left = max([WORDS_LEFT, *(30 + wide(answer["name"], 12) for answer in shown)])
        parts: list[str] = []
        y = 0.0
        for answer in shown:
            parts += [shape(0, y, 16, 16, look_in(answer)), label(22, y + 12, answer["name"])]
            for line in _lines(_runs_and_end(answer), self.width - left - GAP, most):
                parts += _line(line, left, y, answer["color"])
                y += 20
            y += 8
        below, height = self.blocks_and_tables(y + 6 if shown else y)
        return svg(self.width, height, [*parts, *below], self.headline())


def look_in(shown: dict[str, Any]) -> Look:
    """The look of a table or an answer, which has a colour and the number of a hatch."""
    return Look(shown["color"], HATCHES[shown["pattern"]])


def _runs_and_end(answer: dict[str, Any]) -> list[Any]:
    """Return the runs of an answer; those of an aborted one end with what became of its blocks."""
    holds_no_block = all(entry is None for entry, _, _ in answer["runs"])
    if answer["state"] == "abort" and holds_no_block:
        return [*answer["runs"], (None, " [aborted: blocks freed]", True)]
    return answer["runs"]


def _table(table: dict[str, Any], y: float) -> list[str]:
    """A sequence's name and the ids of its blocks."""
    blocks = runs(table["blocks"]) or "no block"
    if len(blocks) > LONGEST:
        blocks = f"{blocks[: LONGEST - 2]} …"
    return [
        shape(0, y, 16, 16, look_in(table)),
        label(24, y + 12, f"{table['name']}, {table['tokens']} tokens"),
        label(170, y + 12, blocks, 12, SOFT),
    ]


def _line(line: list[Any], left: float, y: float, color: str) -> list[str]:
    """A line of words; those of neighbouring blocks have different tints."""
    parts = []
    x = left
    was_prompt = False
    for entry, words, is_prompt in line:
        if was_prompt and not is_prompt:
            x += GAP
        was_prompt = is_prompt and not words.endswith(" ")
        if entry is not None:
            share = 0.34 if entry % 2 else 0.16
            parts.append(box(x, y - 2, wide(words, 12), 18, color, share))
        parts.append(label(x, y + 12, words, 12, SOFT if is_prompt else INK))
        x += wide(words, 12)
    return parts


def _lines(runs: list[Any], width: float, most: int) -> list[list[Any]]:
    """Runs of words broken into lines of at most `width`; the last `most` lines, after dots
    if there are more.
    """
    lines: list[list[Any]] = [[]]
    room = width
    for place, text, asked in runs:
        for word in re.findall(r"\S*\s*", text.replace("\n", " ")):
            if wide(word, 12) > room and lines[-1]:
                lines.append([])
                room = width
            room -= wide(word, 12)
            if lines[-1] and lines[-1][-1][::2] == (place, asked):
                lines[-1][-1] = place, lines[-1][-1][1] + word, asked
            elif word:
                lines[-1].append((place, word, asked))
    if len(lines) > most:
        lines[-most].insert(0, (None, "… ", True))
    return lines[-most:]
