"""The widgets without a page: a drawing, for notebooks that are read and not run."""

import re
from itertools import groupby
from operator import itemgetter
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
    svg,
    wide,
)
from pagedlab_lessons.drawing.flow import Drawn, Item, Legend, Space, Text, note, stack
from pagedlab_lessons.widgets.page import stored
from pagedlab_lessons.widgets.replayed import answers_of, grid_of

MAX_ROWS = 12  # block tables drawn
MAX_TEXTS = 4
LONGEST = 60  # letters of a list of blocks
LINE = 20  # pixels from line to line of an answer
GAP = 8  # pixels between a prompt and its answer
DOTS = "… "  # where lines are left out


class Picture:
    """A still of a block grid's `state`: counts, owners' looks and fill, then the block tables."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state
        self.cached: frozenset[int] = frozenset()  # blocks whose contents are kept

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

    def above(self) -> list[Item]:
        """What is above the blocks: the goal of the widget's challenge, if it has one."""
        challenge = self.state.get("challenge")
        goal = f"Challenge: {challenge['goal']}" if challenge else ""
        return [Text(goal, look=BOLD)]

    def drawing(self) -> str:
        """The picture as an SVG."""
        tables = self.state["tables"]
        left_out = len(tables) - MAX_ROWS
        items: list[Item] = [*self.above(), Text(self.headline()), self._pool]
        items += map(_table, tables[:MAX_ROWS])
        items.append(note(f"and {left_out} more sequences" if left_out > 0 else ""))
        drawn = stack(items, Space(0, 0, self._width, is_narrow=False))
        return svg(self._width, drawn.bottom, drawn.parts, self.headline())

    def blocks(self) -> list[Block]:
        """The blocks, as the pool counts them and the tables list them."""
        tables = [
            Table(table["name"], table["blocks"], table["tokens"], look_in(table))
            for table in self.state["tables"]
        ]
        counts, size = self.state["counts"], self.state["block_size"]
        return blocks_of(tables, len(counts), size, cached=self.cached, counts=counts)

    @property
    def _side(self) -> int:
        """Pixels of a block."""
        return 24 if self.state["columns"] > 16 else 42

    @property
    def _width(self) -> int:
        return max(self.state["columns"] * (self._side + 4) - 4, 620)

    def _pool(self, space: Space) -> Drawn:
        blocks = self.blocks()
        grid = Grid(space.x, space.y + 4, self.state["columns"], self._side, self._side)
        return Drawn(pool(blocks, grid), grid.bottom(len(blocks)) + 8)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return stored(self.drawing(), self.headline()), {}


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

    def above(self) -> list[Item]:
        """The answers: a name, and the last lines."""
        shown = self.answers[:MAX_TEXTS]
        most = 5 if len(shown) < 3 else 2  # lines of each
        items: list[Item] = []
        for answer in shown:
            said = answer["name"]
            if answer["state"] == "abort":
                said += " (aborted: its blocks are free)"
            items += [Legend([(look_in(answer), said)]), _words_of(answer, most)]
        return items


def look_in(shown: dict[str, Any]) -> Look:
    """The look of a table or an answer, which has a colour and the number of a hatch."""
    return Look(shown["color"], HATCHES[shown["pattern"]])


def _table(table: dict[str, Any]) -> Item:
    """A sequence's name and the ids of its blocks."""
    blocks = runs(table["blocks"]) or "none yet"
    if len(blocks) > LONGEST:
        blocks = f"{blocks[: LONGEST - 2]} …"
    said = f"{table['name']}, {table['tokens']} tokens in blocks {blocks}"
    return Legend([(look_in(table), said)])


def _words_of(answer: dict[str, Any], most: int) -> Item:
    """The last lines of an answer; words of neighbouring blocks have different tints.

    Args:
        answer: as `answers_of` returns it.
        most: lines.
    """

    def draw(space: Space) -> Drawn:
        lines = _lines(answer["runs"], space.width - wide(DOTS, 12) - GAP)
        if len(lines) > most:
            lines[-most].insert(0, (None, DOTS, True))
        parts = []
        y = space.y
        for line in lines[-most:]:
            x = space.x
            was_prompt = False
            for (entry, is_prompt), run in groupby(line, key=itemgetter(0, 2)):
                words = "".join(word for _, word, _ in run)
                if was_prompt and not is_prompt:
                    x += GAP
                was_prompt = is_prompt
                if entry is not None:
                    share = 0.34 if entry % 2 else 0.16
                    parts.append(box(x, y - 2, wide(words, 12), 18, answer["color"], share))
                parts.append(label(x, y + 12, words, 12, SOFT if is_prompt else INK))
                x += wide(words, 12)
            y += LINE
        return Drawn(parts, y + 6)

    return draw


def _lines(runs: list[Any], width: float) -> list[list[Any]]:
    """The words of an answer in lines of at most `width`, each with its entry and whether it is a
    prompt's.
    """
    lines: list[list[Any]] = [[]]
    room = width
    for entry, text, is_prompt in runs:
        for word in re.findall(r"\S+\s*|\s+", text.replace("\n", " ")):
            room -= wide(word, 12)
            if room < 0 and lines[-1]:
                lines.append([])
                room = width - wide(word, 12)
            lines[-1].append((entry, word, is_prompt))
    return lines
