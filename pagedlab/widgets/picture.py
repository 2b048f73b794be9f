"""The widgets without a page: a PNG and a text, for notebooks that are read and not run."""

from __future__ import annotations

import io
from base64 import b64encode
from functools import cache
from itertools import groupby
from typing import Any

from PIL import Image, ImageColor, ImageDraw, ImageFont

from pagedlab.lessons.colors import HATCHES, NEUTRAL
from pagedlab.widgets.reading import runs

SCALE = 2  # pixels of the PNG to one of the page
MAX_ROWS = 12  # block tables drawn
CARD, EDGE, INK, SOFT, PALE, EMPTY = "#FFFFFF", "#C9CDD2", "#1F2328", "#5F6772", "#8A929C", "#EEF0F2"
MARGIN = 16
WIDTH = 820  # of all steps of a timeline, in pixels of the page; one step is 1 to 24 wide
LEFT, TOP, BARS = 66, 74, 36  # of a timeline: where its rows begin, and how high its bars are


class Picture:
    """A still of a block grid's `state`: counts, owners' colours and fill, then the block tables."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def headline(self) -> str:
        """The counters in one line."""
        s = self.state
        return (
            f"{len(s['counts'])} blocks of {s['block_size']}: {s['used']} used, {s['free']} free, "
            f"{s['shared']} shared, {s['copied']} copied; a copy for each sequence would take {s['copying']}"
        )

    def text(self) -> str:
        """Reference counts as a grid of numbers, free rows left out, and the block tables."""
        counts, tables = self.state["counts"], self.state["tables"]
        wide = columns(len(counts))
        lines = [self.headline()]
        for first in range(0, len(counts), wide):
            if any(row := counts[first : first + wide]):
                lines.append(f"{first:>5}  " + " ".join(f"{count or '.':>2}" for count in row))
        names = max((len(table["name"]) for table in tables), default=0)
        for table in tables:
            blocks = runs(table["blocks"]) or "none yet"
            lines.append(f"{table['name']:>{names}}  {table['tokens']:>5} tokens in blocks {blocks}")
        return "\n".join([*lines, *self.state["problems"]])

    def beside(self, live: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """A widget's own MIME bundle, and with it the picture for places where no widget runs."""
        data, metadata = self._repr_mimebundle_()
        return {**(live[0] if isinstance(live, tuple) else live), **data}, metadata  # anywidget's has metadata too

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        image, file = self.image(), io.BytesIO()
        image.quantize(64).save(file, format="png", optimize=True)
        size = {"width": image.width // SCALE, "height": image.height // SCALE}
        return {"image/png": b64encode(file.getvalue()).decode(), "text/plain": self.text()}, {"image/png": size}

    def __repr__(self) -> str:
        return self.text()

    def image(self) -> Image.Image:
        """The drawing, with `SCALE` pixels to one of the page."""
        counts, size, tables = self.state["counts"], self.state["block_size"], self.state["tables"]
        wide = columns(len(counts))
        cell = 24 if wide > 16 else 42
        pitch, grid_top = cell + 4, MARGIN + 26
        tables_top = grid_top + -(-len(counts) // wide) * pitch + 10
        drawn, more = tables[:MAX_ROWS], len(tables[MAX_ROWS:])
        height = tables_top + 26 * len(drawn) + (20 if more else 0) + MARGIN - 8
        canvas = Canvas(max(wide * pitch - 4, 620) + 2 * MARGIN, height)
        canvas.write(MARGIN, MARGIN, self.headline(), 12.5, INK)
        owners: dict[int, list[tuple[dict[str, Any], float]]] = {}
        for table in tables:
            for index, block_id in enumerate(table["blocks"]):
                filled = max(0, min(1, table["tokens"] / size - index))
                owners.setdefault(block_id, []).append((table, filled))
        for block_id, count in enumerate(counts):
            x, y = MARGIN + block_id % wide * pitch, grid_top + block_id // wide * pitch
            nobody = [({"color": NEUTRAL, "pattern": 4}, 1)] if count else []
            canvas.block(x, y, cell, owners.get(block_id, nobody)[:4])
            color, halo = (INK, CARD) if count else (PALE, None)
            canvas.write(x + 6, y + 4, str(block_id), 10 if wide <= 16 else 8, color, halo=halo)
            if count > 1:
                canvas.write(x + cell - 9, y + cell - 9, str(count), 11, CARD, "mm", INK)
        for row, table in enumerate(drawn):
            y = tables_top + 26 * row
            canvas.block(MARGIN, y + 2, 16, [(table, 1)])
            canvas.write(MARGIN + 24, y + 3, f"{table['name']}, {table['tokens']} tokens", 11.5, INK)
            blocks = runs(table["blocks"]) or "no block"
            canvas.write(MARGIN + 170, y + 3, blocks if len(blocks) <= 80 else blocks[:78] + " …", 11.5, SOFT)
        if more:
            canvas.write(MARGIN, height - MARGIN - 8, f"and {more} more sequences", 11.5, SOFT)
        return canvas.image


class TimelinePicture(Picture):
    """A still of a timeline's `state`: rows in colours, patterns and letters, and the tokens of each step.

    Below it, if there are any, the `blocks` of one step, in the state of a block grid.
    """

    def __init__(self, state: dict[str, Any], blocks: dict[str, Any] | None = None) -> None:
        super().__init__(state)
        self.blocks = blocks
        there = {letter for row in state["rows"] for letter in row["kinds"]}
        self._kinds = {kind["letter"]: kind for kind in state["kinds"] if kind["letter"] in there}

    def headline(self) -> str:
        """The figures in one line."""
        return self.state["headline"] + self.state["hidden"]

    def text(self) -> str:
        """The headline, and each row as letters with a bar where it ends."""
        rows = self.state["rows"]
        names = max((len(row["name"]) for row in rows), default=0)
        lines = [self.headline(), ", ".join(f"{letter} {kind['name']}" for letter, kind in self._kinds.items())]
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
        blocks, top = Picture(self.blocks).image(), timeline.height + 4 * SCALE
        both = Image.new("RGBA", (max(timeline.width, blocks.width), top + blocks.height))
        both.paste(timeline)
        both.paste(blocks, (0, top))
        return both

    def _timeline(self) -> Image.Image:
        steps, rows = self.state["steps"], self.state["rows"]
        cell = max(1.0, min(24.0, WIDTH * SCALE // max(1, steps) / SCALE))
        pitch, height = (22, 18) if len(rows) <= 24 else (14, 12)
        bottom = TOP + pitch * len(rows)
        canvas = Canvas(max(round(LEFT + cell * steps) + 10, 770) + MARGIN, bottom + BARS + 36)
        canvas.write(MARGIN, MARGIN, self.headline(), 12.5, INK)
        x: float = MARGIN
        for kind in self._kinds.values():
            canvas.run(kind, x, MARGIN + 24, 24, 18, 24)
            x = 20 + canvas.write(x + 30, MARGIN + 33, kind["name"], 11.5, SOFT, "lm")
        canvas.box(x, MARGIN + 23, 3, 20, INK)
        canvas.write(x + 9, MARGIN + 33, "finished", 11.5, SOFT, "lm")
        for number, row in enumerate(rows):
            y = TOP + pitch * number
            canvas.block(MARGIN, y + 2, height - 4, [(row, 1)])
            canvas.write(MARGIN + height + 2, y + height / 2, row["name"], 11 if pitch > 20 else 9, INK, "lm")
            x = LEFT + cell * (row["first"] - 1)
            for letter, cells in groupby(row["kinds"]):
                width = cell * len(list(cells))
                canvas.run(self._kinds[letter], x, y, width, height, cell)
                x += width
            if row["end"]:
                canvas.box(x - 1, y - 1, 3, height + 2, INK)
        self._bars(canvas, bottom + 8, cell)
        return canvas.image

    def _bars(self, canvas: Canvas, top: float, cell: float) -> None:
        """Tokens computed in each step, stacked by kind, over an axis of steps."""
        steps, batches = self.state["steps"], self.state["batches"]
        most = max((sum(batch.values()) for batch in batches), default=0) or 1
        for step, batch in enumerate(batches):
            y = top + BARS
            for letter, kind in self._kinds.items():
                if tokens := batch.get(letter):
                    y -= (size := BARS * tokens / most)
                    canvas.box(LEFT + cell * step, y, max(0.5, cell - (cell > 4)), size, kind["color"])
        canvas.write(MARGIN, top + BARS / 2, "tokens", 11, SOFT, "lm")
        canvas.write(LEFT - 4, top, str(most), 9, SOFT, "rt")
        every = next(n for n in (1, 2, 5, 10, 20, 50, 100, 200, 500) if n * cell >= 28 or n == 500)
        if self.blocks:
            at, y = LEFT + cell * (self.blocks["engine_steps"] - 0.5), top + BARS
            canvas.draw.polygon([SCALE * n for n in (at - 5, y + 8, at + 5, y + 8, at, y + 1)], INK)
        for step in range(every, steps + 1, every):
            canvas.write(LEFT + cell * (step - 0.5), top + BARS + 4, str(step), 9, SOFT, "mt")
        canvas.write(MARGIN, top + BARS + 4, "step", 11, SOFT, "lt")


class Canvas:
    """A card to draw on with Pillow, in pixels of the page."""

    def __init__(self, width: int, height: int) -> None:
        self.image = Image.new("RGBA", (width * SCALE, height * SCALE))
        self.draw = ImageDraw.Draw(self.image)
        corner = (width * SCALE - 1, height * SCALE - 1)
        self.draw.rounded_rectangle((0, 0, *corner), 10 * SCALE, fill=CARD, outline=EDGE, width=SCALE)

    def write(
        self, x: float, y: float, text: str, size: float, color: str, anchor: str = "la", halo: str | None = None
    ) -> float:
        """Returns where the text ends. A `halo` is a colour around it, so that it can be read on a pattern."""
        where, look = (x * SCALE, y * SCALE), font(size * SCALE)
        self.draw.text(where, text, color, look, anchor, stroke_width=round(size / 2) if halo else 0, stroke_fill=halo)
        return x + self.draw.textlength(text, look) / SCALE

    def box(self, x: float, y: float, width: float, height: float, color: str) -> None:
        left, top, right, bottom = (round(SCALE * at) for at in (x, y, x + width, y + height))
        self.draw.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), fill=color)

    def block(self, x: int, y: int, side: int, owners: list[tuple[dict[str, Any], float]]) -> None:
        """A square, cut into one upright band for each owner, filled from below as far as its tokens go."""
        x, y, side = x * SCALE, y * SCALE, side * SCALE
        tile, mask = Image.new("RGB", (side, side), EMPTY), Image.new("L", (side, side))
        for i, (owner, filled) in enumerate(owners):
            left, right, height = side * i // len(owners), side * (i + 1) // len(owners), round(side * filled)
            tile.paste(mix(owner["color"], CARD, 0.22), (left, 0, right, side))
            if height:
                tile.paste(band(owner["color"], owner["pattern"], right - left, height), (left, side - height))
        ImageDraw.Draw(mask).rounded_rectangle((0, 0, side - 1, side - 1), side // 8, fill=255)
        self.image.paste(tile, (x, y), mask)
        edge = mix(owners[0][0]["color"], "#000000", 0.85) if owners else EDGE
        self.draw.rounded_rectangle((x, y, x + side - 1, y + side - 1), side // 8, outline=edge, width=1)

    def run(self, kind: dict[str, Any], x: float, y: float, width: float, height: float, cell: float) -> None:
        """Neighbouring cells of one kind, with their letter where there is room."""
        left, right = round(SCALE * x), round(SCALE * (x + width))
        color = mix(kind["color"], CARD, 0.3) if kind["pale"] else kind["color"]
        self.image.paste(band(color, kind["pattern"], right - left, round(SCALE * height)), (left, round(SCALE * y)))
        if cell >= 6:
            for i in range(1, round(width / cell)):
                self.box(x + cell * i - 0.5, y, 0.5, height, CARD)
        if width >= 8 and height >= 14:
            self.write(x + min(width, max(cell, 14)) / 2, y + height / 2, kind["letter"], 9.5, INK, "mm", CARD)


def columns(num_blocks: int) -> int:
    """Blocks in a row: 8, 16, or 32 for a large pool. block_grid.js draws the same."""
    return 8 if num_blocks <= 8 else 16 if num_blocks <= 128 else 32


font = cache(ImageFont.load_default)


def mix(color: str, other: str, share: float) -> str:
    both = zip(ImageColor.getrgb(color), ImageColor.getrgb(other), strict=True)
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02X}" for a, b in both)


def band(color: str, pattern: int, width: int, height: int) -> Image.Image:
    """A rectangle in the sequence's colour and pattern, a number in `colors.HATCHES`."""
    band = Image.new("RGB", (width, height), color)
    draw, ink = ImageDraw.Draw(band), mix(color, "#000000", 0.62)
    signs = set(HATCHES[pattern].replace("x", "/\\"))
    for at in range(-height, width + height, 12):
        lines = {"/": (at, height, at + height, 0), "\\": (at, 0, at + height, height)}
        lines |= {"|": (at, 0, at, height), "-": (0, height - at, width, height - at)}
        for sign in signs & lines.keys():
            draw.line(lines[sign], fill=ink, width=2)
        for y in range(height - 6, 0, -12) if "." in signs else ():
            draw.ellipse((at, y, at + 3, y + 3), fill=ink)
    return band
