"""The widgets without a page: a drawing and a text, for notebooks that are read and not run."""

import re
from collections import defaultdict
from typing import Any

from pagedlab.lessons.colors import NEUTRAL
from pagedlab.lessons.drawing import CARD, INK, SOFT, box, label, runs, stripes, svg, wide
from pagedlab.trace import Replay
from pagedlab.widgets.page import stored
from pagedlab.widgets.replayed import answers_of, grid_of

MAX_ROWS = 12  # block tables drawn
MAX_TEXTS = 4
# so that a number can be read on a pattern
HALO = "paint-order:stroke;stroke:var(--card);stroke-width:4px"
# the look of a block that is counted and in no table
LOST: dict[str, Any] = {
    "color": NEUTRAL,
    "pattern": 4,
}
# The patterns of `colors.HATCHES`, none // .. \\ xx -- ||, as `stripes` takes them: how far turned,
# and the lines.
HATCHES = (
    (0, ""),
    (45, "M0 0V7"),
    (0, "M3 3h0"),
    (-45, "M0 0V7"),
    (45, "M0 0V7M0 3H7"),
    (90, "M0 0V7"),
    (0, "M0 0V7"),
)


class Picture:
    """A still of a block grid's `state`: counts, owners' colours and fill, then the block
    tables.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state
        self.looks = [*state["tables"], LOST]
        self.width = max(state["columns"] * (28 if state["columns"] > 16 else 46) - 4, 620)

    def headline(self) -> str:
        """The counters in one line."""
        s = self.state
        counts = f"{s['used']} used, {s['free']} free, {s['shared']} shared, {s['copied']} copied"
        size = f"{len(s['counts'])} blocks of {s['block_size']}"
        return f"{size}: {counts}; a copy for each sequence would take {s['copying']}"

    def text(self) -> str:
        """Reference counts as a grid of numbers, free rows left out, and the block tables."""
        counts, tables = self.state["counts"], self.state["tables"]
        columns = self.state["columns"]
        lines = [self.headline()]
        for first in range(0, len(counts), columns):
            if any(row := counts[first : first + columns]):
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
        parts, height = self.blocks(0)
        return svg(self.width, height, parts)

    def blocks(self, top: float) -> tuple[list[str], float]:
        """Blocks and tables from `top` on, and where they end."""
        counts, size, tables = self.state["counts"], self.state["block_size"], self.state["tables"]
        columns = self.state["columns"]
        cell, text = (24, 8) if columns > 16 else (42, 11)
        parts, below = [label(0, top + 12, self.headline(), 12.5, within=self.width)], top + 26
        owners: dict[int, list[tuple[dict[str, Any], float]]] = defaultdict(list)
        for table in tables:
            for index, block_id in enumerate(table["blocks"]):
                owners[block_id].append((table, max(0, min(1, table["tokens"] / size - index))))
        places = [
            (i % columns * (cell + 4), below + i // columns * (cell + 4))
            for i in range(len(counts))
        ]
        wells = "".join(f"M{x} {y:g}h{cell}v{cell}h-{cell}z" for x, y in places)
        parts.append(f'<path d="{wells}" fill="var(--well)"/>')
        ids, badges = {True: "", False: ""}, list[str]()
        for block_id, (count, (x, y)) in enumerate(zip(counts, places, strict=True)):
            own = owners[block_id][:4] or [(LOST, 1)] * bool(count)
            for i, (owner, filled) in enumerate(own):  # an upright band for each, filled from below
                left, width, height = x + cell * i / len(own), cell / len(own), cell * filled
                parts += [box(left, y, width, cell, owner["color"], 0.22)] * (filled < 1)
                parts.append(box(left, y + cell - height, width, height, _fill(owner)))
            ids[count > 0] += f'<text x="{x + 4}" y="{y + 2 + text:g}">{block_id}</text>'
            if count > 1:
                badges.append(
                    box(x + cell - text - 6, y + cell - text - 4, text + 5, text + 3, INK)
                )
                left = x + cell - text / 2 - 3.5 - wide(str(count), text) / 2
                badges.append(label(left, y + cell - 4, str(count), text, CARD))
        for used, look in (False, f"fill:{SOFT}"), (True, f"fill:{INK};font-weight:600;{HALO}"):
            parts.append(
                f'<g font-size="{text}" style="font-family:monospace;{look}">{ids[used]}</g>'
            )
        parts += badges
        below += -(-len(counts) // columns) * (cell + 4) + 10
        for row, table in enumerate(tables[:MAX_ROWS]):
            y = below + 26 * row
            blocks = runs(table["blocks"]) or "no block"
            parts.append(box(0, y, 16, 16, _fill(table)))
            parts.append(label(24, y + 12, f"{table['name']}, {table['tokens']} tokens"))
            parts.append(
                label(170, y + 12, blocks if len(blocks) <= 60 else blocks[:58] + " …", 12, SOFT)
            )
        below += 26 * len(tables[:MAX_ROWS])
        if more := len(tables[MAX_ROWS:]):
            parts.append(label(0, below + 12, f"and {more} more sequences", 12, SOFT))
            below += 26
        patterns = {_fill(owner): _pattern(owner) for owner in self.looks if owner["pattern"]}
        return [*patterns.values(), *parts], below


class StagePicture(Picture):
    """A still of a recording after a step: what is written, tinted as the blocks that hold it,
    above blocks and tables.

    replay  at that step
    """

    def __init__(self, replay: Replay) -> None:
        super().__init__(grid_of(replay))
        self.answers = [answer for answer in answers_of(replay) if answer["state"] != "dropped"]
        self.looks += self.answers

    def text(self) -> str:
        """As of a block grid, and under it the texts."""
        words = [
            f"{a['name']:>4}  {''.join(words for _, words, _ in a['runs']).strip()!r}"
            for a in self.answers
        ]
        return "\n".join([super().text(), *words])

    def drawing(self) -> str:
        """The picture as an SVG."""
        shown, parts, y = self.answers[:MAX_TEXTS], list[str](), 0.0
        for answer in shown:
            parts += [box(0, y, 16, 16, _fill(answer)), label(22, y + 12, answer["name"])]
            for line in _lines(answer["runs"], self.width - 50, 5 if len(shown) < 3 else 2):
                x = 50.0
                for place, words, asked in line:
                    if place is not None:
                        parts.append(
                            box(
                                x,
                                y - 2,
                                wide(words, 12),
                                18,
                                answer["color"],
                                0.34 if place % 2 else 0.16,
                            )
                        )
                    parts.append(label(x, y + 12, words, 12, SOFT if asked else INK))
                    x += wide(words, 12)
                y += 20
            y += 8
        blocks, height = self.blocks(y + 6 * bool(shown))
        return svg(self.width, height, [*parts, *blocks])


def _lines(runs: list[Any], width: float, most: int) -> list[list[Any]]:
    """Runs of words broken into lines of at most `width`; the last `most` lines, behind dots if
    there are more.
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


def _fill(look: dict[str, Any]) -> str:
    return f"url(#pp-{look['pattern']}-{look['color'][1:]})" if look["pattern"] else look["color"]


def _pattern(look: dict[str, Any]) -> str:
    color, (turn, lines) = look["color"], HATCHES[look["pattern"]]
    darker = "#" + "".join(f"{int(color[i : i + 2], 16) * 62 // 100:02x}" for i in (1, 3, 5))
    return stripes(_fill(look)[5:-1], color, turn, 1, darker, lines)
