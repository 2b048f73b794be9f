"""The widgets without a page: a PNG and a text, for notebooks that are read and not run."""

import io
import re
from base64 import b64encode
from functools import cache
from typing import Any

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

from pagedlab.lessons.colors import NEUTRAL
from pagedlab.lessons.drawing import runs

SCALE = 2  # pixels of the PNG to one of the page
MAX_ROWS = 12  # block tables drawn
MAX_TEXTS = 4
CARD, EDGE, INK, SOFT, PALE, WELL = "#FFFFFF", "#C9CDD2", "#1F2328", "#5F6772", "#8A929C", "#EEF0F2"
LOST: dict[str, Any] = {"color": NEUTRAL, "pattern": 4}  # the look of a block that is counted and in no table
MARGIN = 16


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
        wide = self.state["columns"]
        lines = [self.headline()]
        for first in range(0, len(counts), wide):
            if any(row := counts[first : first + wide]):
                lines.append(f"{first:>5}  " + " ".join(f"{count or '.':>2}" for count in row))
        names = max((len(table["name"]) for table in tables), default=0)
        for table in tables:
            blocks = runs(table["blocks"]) or "none yet"
            lines.append(f"{table['name']:>{names}}  {table['tokens']:>5} tokens in blocks {blocks}")
        return "\n".join([*lines, *self.state["problems"]])

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        image, file = self.image(), io.BytesIO()
        image.quantize(128).save(file, format="png", optimize=True)
        size = {"width": image.width // SCALE, "height": image.height // SCALE}
        return {"image/png": b64encode(file.getvalue()).decode(), "text/plain": self.text()}, {"image/png": size}

    def image(self) -> Image.Image:
        """The drawing, with `SCALE` pixels to one of the page."""
        counts, size, tables = self.state["counts"], self.state["block_size"], self.state["tables"]
        wide = self.state["columns"]
        cell, text = (24, 8) if wide > 16 else (42, 10)
        top, pitch = MARGIN + 26, cell + 4
        below = top + -(-len(counts) // wide) * pitch + 10
        drawn, more = tables[:MAX_ROWS], len(tables[MAX_ROWS:])
        canvas = Canvas(max(wide * pitch - 4, 620) + 2 * MARGIN, below + 26 * (len(drawn) + bool(more)) + 8)
        canvas.write(MARGIN, MARGIN, self.headline(), 12.5, INK)
        owners: dict[int, list[tuple[dict[str, Any], float]]] = {}
        for table in tables:
            for index, block_id in enumerate(table["blocks"]):
                filled = max(0, min(1, table["tokens"] / size - index))
                owners.setdefault(block_id, []).append((table, filled))
        for block_id, count in enumerate(counts):
            x, y = MARGIN + block_id % wide * pitch, top + block_id // wide * pitch
            canvas.box(x, y, cell, cell, WELL)
            own = owners.get(block_id, [(LOST, 1)] * bool(count))[:4]
            for i, (owner, filled) in enumerate(own):  # an upright band for each, filled from below
                left, width, height = x + cell * i / len(own), cell / len(own), cell * filled
                canvas.box(left, y, width, cell, owner["color"], share=0.22)
                canvas.box(left, y + cell - height, width, height, owner["color"], owner["pattern"])
            color, halo = (INK, CARD) if count else (PALE, "")
            canvas.write(x + 6, y + 4, str(block_id), text, color, halo=halo)
            if count > 1:
                canvas.write(x + cell - 9, y + cell - 9, str(count), 11, CARD, "mm", INK)
        for row, table in enumerate(drawn):
            y = below + 26 * row
            canvas.box(MARGIN, y + 2, 16, 16, table["color"], table["pattern"])
            canvas.write(MARGIN + 24, y + 3, f"{table['name']}, {table['tokens']} tokens", 11.5, INK)
            blocks = runs(table["blocks"]) or "no block"
            canvas.write(MARGIN + 170, y + 3, blocks if len(blocks) <= 80 else blocks[:78] + " …", 11.5, SOFT)
        if more:
            canvas.write(MARGIN, below + 26 * MAX_ROWS, f"and {more} more sequences", 11.5, SOFT)
        return canvas.image


class StagePicture(Picture):
    """A still of a recording after a step: what is written, tinted as the blocks that hold it, above blocks and tables.

    replay  as `recording.Replay`, at that step
    """

    def __init__(self, replay: Any) -> None:
        super().__init__(replay.grid())
        self.answers = [answer for answer in replay.answers() if answer["state"] != "dropped"]

    def text(self) -> str:
        """As of a block grid, and under it the texts."""
        words = [f"{a['name']:>4}  {''.join(words for _, words, _ in a['runs']).strip()!r}" for a in self.answers]
        return "\n".join([super().text(), *words])

    def image(self) -> Image.Image:
        """The drawing, with `SCALE` pixels to one of the page."""
        blocks = super().image()
        width, shown = blocks.width // SCALE, self.answers[:MAX_TEXTS]
        rows = [_lines(answer["runs"], width - 2 * MARGIN - 50, 5 if len(shown) < 3 else 2) for answer in shown]
        canvas = Canvas(width, 20 * sum(map(len, rows)) + 8 * len(rows) + 2 * MARGIN - 8)
        y = MARGIN
        for answer, lines in zip(shown, rows, strict=True):
            canvas.box(MARGIN, y + 2, 16, 16, answer["color"], answer["pattern"])
            canvas.write(MARGIN + 22, y + 3, answer["name"], 11.5, INK)
            for line in lines:
                x: float = MARGIN + 50
                for place, words, asked in line:
                    wide = font(12 * SCALE).getlength(words) / SCALE
                    if place is not None:
                        canvas.box(x, y, wide, 18, answer["color"], share=0.34 if place % 2 else 0.16)
                    canvas.write(x, y + 2, words, 12, SOFT if asked else INK)
                    x += wide
                y += 20
            y += 8
        both = Image.new("RGBA", (blocks.width, canvas.image.height + 4 * SCALE + blocks.height))
        both.paste(canvas.image)
        both.paste(blocks, (0, canvas.image.height + 4 * SCALE))
        return both if shown else blocks


def _lines(runs: list[Any], width: float, most: int) -> list[list[Any]]:
    """Runs of words broken into lines of at most `width`; the last `most` lines."""
    lines: list[list[Any]] = [[]]
    room = width
    for place, text, asked in runs:
        for word in re.findall(r"\S*\s*", text.replace("\n", " ")):
            wide = font(12 * SCALE).getlength(word) / SCALE
            if wide > room and lines[-1]:
                lines.append([])
                room = width
            room -= wide
            if word:
                lines[-1].append((place, word, asked))
    return lines[-most:]


class Canvas:
    """A card to draw on with Pillow, in pixels of the page."""

    def __init__(self, width: int, height: int) -> None:
        self.image = Image.new("RGBA", (width * SCALE, height * SCALE))
        self._draw = ImageDraw.Draw(self.image)
        corner = (width * SCALE - 1, height * SCALE - 1)
        self._draw.rounded_rectangle((0, 0, *corner), 10 * SCALE, fill=CARD, outline=EDGE, width=SCALE)

    def write(self, x: float, y: float, text: str, size: float, color: str, anchor: str = "la", halo: str = "") -> None:
        """Text; a `halo` is a colour around it, so that it can be read on a pattern."""
        where, width = (x * SCALE, y * SCALE), round(size / 2) if halo else 0
        self._draw.text(where, text, color, font(size * SCALE), anchor, stroke_width=width, stroke_fill=halo or None)

    def box(self, x: float, y: float, w: float, h: float, color: str, pattern: int = 0, share: float = 1) -> None:
        """A rectangle in a share of a colour, and in a pattern, numbered as in `colors.HATCHES`."""
        left, top, right, bottom = (round(SCALE * at) for at in (x, y, x + w, y + h))
        if right <= left or bottom <= top:
            return
        j, i = np.mgrid[: bottom - top, : right - left]
        up, down = (i + j) % 12 < 3, (i - j) % 12 < 3
        dots = (i % 12 < 4) & (j % 12 < 4)
        inked = (i < 0, up, dots, down, up | down, j % 12 < 2, i % 12 < 2)[pattern]
        face = 255 - share * (255 - np.array(ImageColor.getrgb(color)))
        pixels = np.where(inked[..., None], 0.62 * face, face).astype(np.uint8)
        self.image.paste(Image.fromarray(pixels), (left, top))


font = cache(ImageFont.load_default)
