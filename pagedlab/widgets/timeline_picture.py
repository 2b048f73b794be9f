"""The timeline without a page: a PNG and a text, for notebooks that are read and not run."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from PIL import Image

from pagedlab.widgets.static import CARD, INK, SCALE, SOFT, Canvas, Picture, band, font, mix

WIDTH = 820  # of all steps, in pixels of the page; one step is 1 to 24 wide
MARGIN, LEFT, TOP, BARS = 16, 66, 74, 36


class TimelinePicture(Picture):
    """A still of a timeline's `state`: rows in colours, patterns and letters, and the tokens of each step.

    Below it, if there are any, the `blocks` of one step, in the state of a block grid.
    """

    def __init__(self, state: dict[str, Any], blocks: dict[str, Any] | None = None) -> None:
        super().__init__(state)
        self.blocks = blocks

    def headline(self) -> str:
        """The figures in one line."""
        return self.state["headline"] + self.state["hidden"]

    def text(self) -> str:
        """The headline, and each row as letters with a bar where it ends."""
        rows, kinds = self.state["rows"], self._kinds()
        names = max((len(row["name"]) for row in rows), default=0)
        lines = [self.headline(), ", ".join(f"{letter} {kind['name']}" for letter, kind in kinds.items())]
        for row in rows:
            lines.append(f"{row['name']:>{names}}  {' ' * (row['first'] - 1)}{row['kinds']}{'|' if row['end'] else ''}")
        if self.blocks:
            lines.append(f"Step {self.blocks['engine_steps']}: {Picture(self.blocks).text()}")
        return "\n".join(filter(None, lines))

    def image(self) -> Image.Image:
        """The drawing, with `SCALE` pixels to one of the page."""
        timeline = self._timeline()
        if not self.blocks:
            return timeline
        blocks, gap = Picture(self.blocks).image(), 4 * SCALE
        both = Image.new("RGBA", (max(timeline.width, blocks.width), timeline.height + gap + blocks.height))
        both.paste(timeline)
        both.paste(blocks, (0, timeline.height + gap))
        return both

    def _timeline(self) -> Image.Image:
        steps, rows, kinds = self.state["steps"], self.state["rows"], self._kinds()
        cell = max(1.0, min(24.0, WIDTH * SCALE // max(1, steps) / SCALE))
        pitch, height = (22, 18) if len(rows) <= 24 else (14, 12)
        bottom = TOP + pitch * len(rows)
        canvas = Canvas(max(round(LEFT + cell * steps) + 10, 770) + MARGIN, bottom + BARS + 36)
        canvas.card()
        canvas.write(MARGIN, MARGIN, self.headline(), 12.5, INK)
        x: float = MARGIN
        for kind in kinds.values():
            _run(canvas, kind, x, MARGIN + 24, 24, 18, 24)
            x = _beside(canvas, x + 30, kind["name"])
        _box(canvas, x, MARGIN + 23, 3, 20, INK)
        _beside(canvas, x + 9, "finished")
        for number, row in enumerate(rows):
            y = TOP + pitch * number
            canvas.block(MARGIN, y + 2, height - 4, [(row, 1)], 1)
            canvas.write(MARGIN + height + 2, y + height / 2, row["name"], 11 if pitch > 20 else 9, INK, "lm")
            x = LEFT + cell * (row["first"] - 1)
            for letter, cells in groupby(row["kinds"]):
                width = cell * len(list(cells))
                _run(canvas, kinds[letter], x, y, width, height, cell)
                x += width
            if row["end"]:
                _box(canvas, x - 1, y - 1, 3, height + 2, INK)
        self._bars(canvas, bottom + 8, cell)
        return canvas.image

    def _bars(self, canvas: Canvas, top: float, cell: float) -> None:
        """Tokens computed in each step, stacked by kind, over an axis of steps."""
        steps, batches, kinds = self.state["steps"], self.state["batches"], self._kinds()
        most = max((sum(batch.values()) for batch in batches), default=0) or 1
        for step, batch in enumerate(batches):
            y = top + BARS
            for letter, kind in kinds.items():
                if tokens := batch.get(letter):
                    y -= (size := BARS * tokens / most)
                    _box(canvas, LEFT + cell * step, y, max(0.5, cell - (cell > 4)), size, kind["color"])
        canvas.write(MARGIN, top + BARS / 2, "tokens", 11, SOFT, "lm")
        canvas.write(LEFT - 4, top, str(most), 9, SOFT, "rt")
        every = next(n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500) if n * cell >= 28 or n == 500)
        if self.blocks:
            at = LEFT + cell * (self.blocks["engine_steps"] - 0.5)
            canvas.draw.polygon(
                [(SCALE * (at + x), SCALE * (top + BARS + y)) for x, y in ((-5, 8), (5, 8), (0, 1))], INK
            )
        for step in range(every, steps + 1, every):
            canvas.write(LEFT + cell * (step - 0.5), top + BARS + 4, str(step), 9, SOFT, "mt")
        canvas.write(MARGIN, top + BARS + 4, "step", 11, SOFT, "lt")

    def _kinds(self) -> dict[str, dict[str, Any]]:
        """The kinds that occur, by letter."""
        there = {letter for row in self.state["rows"] for letter in row["kinds"]}
        return {kind["letter"]: kind for kind in self.state["kinds"] if kind["letter"] in there}


def _box(canvas: Canvas, x: float, y: float, width: float, height: float, color: Any) -> None:
    left, top, right, bottom = (round(SCALE * at) for at in (x, y, x + width, y + height))
    canvas.draw.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), fill=color)


def _beside(canvas: Canvas, x: float, name: str) -> float:
    """A name in the legend; where the next entry begins."""
    canvas.write(x, MARGIN + 33, name, 11.5, SOFT, "lm")
    return x + canvas.draw.textlength(name, font=font(11.5 * SCALE)) / SCALE + 20


def _run(canvas: Canvas, kind: dict[str, Any], x: float, y: float, width: float, height: float, cell: float) -> None:
    """Neighbouring cells of one kind, with their letter where there is room."""
    left, right = round(SCALE * x), round(SCALE * (x + width))
    color = "#{:02X}{:02X}{:02X}".format(*mix(kind["color"], CARD, 0.3)) if kind["pale"] else kind["color"]
    canvas.image.paste(band(color, kind["pattern"], right - left, round(SCALE * height)), (left, round(SCALE * y)))
    if cell >= 6:
        for i in range(1, round(width / cell)):
            _box(canvas, x + cell * i - 0.5, y, 0.5, height, CARD)
    if width >= 8 and height >= 14:
        centre, half = x + min(width, max(cell, 13)) / 2, min(11, width - 3) / 2
        _box(canvas, centre - half, y + 3, 2 * half, height - 6, CARD)
        canvas.write(centre, y + height / 2, kind["letter"], 10.5 if half > 5 else 9, INK, "mm")
