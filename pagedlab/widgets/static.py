"""The block grid without a page: a PNG and a text, for notebooks that are read and not run."""

from __future__ import annotations

import io
from base64 import b64encode
from functools import cache
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from pagedlab.widgets.reading import runs

SCALE = 2  # pixels of the PNG to one of the page
MAX_ROWS = 12  # block tables drawn
CARD, _EDGE, INK, SOFT, _EMPTY = "#FFFFFF", "#C9CDD2", "#1F2328", "#5F6772", "#EEF0F2"


def columns(num_blocks: int) -> int:
    """Blocks in a row: 8, 16, or 32 for a large pool. block_grid.js draws the same."""
    return 8 if num_blocks <= 8 else 16 if num_blocks <= 128 else 32


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
        counts = self.state["counts"]
        wide = columns(len(counts))
        lines = [self.headline()]
        for first in range(0, len(counts), wide):
            row = counts[first : first + wide]
            if any(row):
                lines.append(f"{first:>5}  " + " ".join(f"{count or '.':>2}" for count in row))
        names = max((len(table["name"]) for table in self.state["tables"]), default=0)
        for table in self.state["tables"]:
            blocks = runs(table["blocks"])
            lines.append(f"{table['name']:>{names}}  {table['tokens']:>5} tokens in blocks {blocks or 'none yet'}")
        return "\n".join([*lines, *self.state["problems"]])

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, str], dict[str, Any]]:
        image, file = self.image(), io.BytesIO()
        image.quantize(64).save(file, format="png", optimize=True)
        size = {"width": image.width // SCALE, "height": image.height // SCALE}
        return {"image/png": b64encode(file.getvalue()).decode(), "text/plain": self.text()}, {"image/png": size}

    def __repr__(self) -> str:
        return self.text()

    def image(self) -> Image.Image:
        """The drawing, with `SCALE` pixels to one of the page."""
        state = self.state
        counts, size, tables = state["counts"], state["block_size"], state["tables"]
        wide = columns(len(counts))
        cell, gap, margin = (24 if wide > 16 else 42), 4, 16
        pitch = cell + gap
        grid_top = margin + 26
        rows = -(-len(counts) // wide)
        tables_top = grid_top + rows * pitch + 10
        drawn = tables[:MAX_ROWS]
        height = tables_top + 26 * len(drawn) + (20 if tables[MAX_ROWS:] else 0) + margin - 8
        canvas = Canvas(max(wide * pitch - gap, 620) + 2 * margin, height)
        canvas.card()
        canvas.write(margin, margin, self.headline(), 12.5, INK)
        owners: dict[int, list[tuple[dict[str, Any], int]]] = {}
        for table in tables:
            for index, block_id in enumerate(table["blocks"]):
                if block_id is not None:
                    owners.setdefault(block_id, []).append((table, min(size, table["tokens"] - index * size)))
        for block_id, count in enumerate(counts):
            x, y = margin + block_id % wide * pitch, grid_top + block_id // wide * pitch
            canvas.block(x, y, cell, owners.get(block_id, [])[:4], size, lost=bool(count))
            canvas.label(x + 3, y + 3, str(block_id), 10 if wide <= 16 else 8, bool(count))
            if count > 1:
                canvas.badge(x + cell - 11, y + cell - 11, str(count), 9)
        for row, table in enumerate(drawn):
            y = tables_top + 26 * row
            canvas.block(margin, y + 2, 16, [(table, size)], size)
            canvas.write(margin + 24, y + 3, f"{table['name']}, {table['tokens']} tokens", 11.5, INK)
            canvas.write(margin + 170, y + 3, _shorten(runs(table["blocks"]) or "no block", 80), 11.5, SOFT)
        if tables[MAX_ROWS:]:
            canvas.write(margin, height - margin - 8, f"and {len(tables) - MAX_ROWS} more sequences", 11.5, SOFT)
        return canvas.image


class Canvas:
    """Pillow in page pixels."""

    def __init__(self, width: int, height: int) -> None:
        self.image = Image.new("RGBA", (width * SCALE, height * SCALE), (0, 0, 0, 0))
        self.draw = ImageDraw.Draw(self.image)

    def card(self) -> None:
        width, height = self.image.size
        self.draw.rounded_rectangle((0, 0, width - 1, height - 1), 20, fill=CARD, outline=_EDGE, width=SCALE)

    def write(self, x: float, y: float, text: str, size: float, color: str, anchor: str = "la") -> None:
        self.draw.text((x * SCALE, y * SCALE), text, font=font(size * SCALE), fill=color, anchor=anchor)

    def label(self, x: float, y: float, text: str, size: float, on_color: bool) -> None:
        box = self.draw.textbbox((x * SCALE + 4, y * SCALE + 2), text, font=font(size * SCALE))
        if on_color:
            self.draw.rounded_rectangle((box[0] - 4, box[1] - 4, box[2] + 4, box[3] + 4), 6, fill=CARD)
        self.write(x + 2, y + 1, text, size, INK if on_color else "#8A929C")

    def badge(self, x: float, y: float, text: str, size: float) -> None:
        radius = size * 0.9 * SCALE
        x, y = x * SCALE, y * SCALE
        self.draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=INK, outline=CARD, width=SCALE)
        self.draw.text((x, y), text, font=font(size * SCALE), fill=CARD, anchor="mm")

    def block(
        self, x: int, y: int, side: int, owners: list[tuple[dict[str, Any], int]], size: int, lost: bool = False
    ) -> None:
        """A square, cut into one upright band for each owner, filled from below as far as its tokens go."""
        x, y, side = x * SCALE, y * SCALE, side * SCALE
        tile = Image.new("RGBA", (side, side), _EMPTY)
        if lost and not owners:
            owners = [({"color": "#8A8A8A", "pattern": 4}, size)]
        for i, (owner, held) in enumerate(owners):
            left, right = side * i // len(owners), side * (i + 1) // len(owners)
            tile.paste(mix(owner["color"], CARD, 0.22), (left, 0, right, side))
            top = side - round(side * max(held, 0) / size)
            if top < side:
                tile.paste(band(owner["color"], owner["pattern"], right - left, side - top), (left, top))
        mask = Image.new("L", (side, side), 0)
        ImageDraw.Draw(mask).rounded_rectangle((0, 0, side - 1, side - 1), side // 8, fill=255)
        self.image.paste(tile, (x, y), mask)
        edge = mix(owners[0][0]["color"], "#000000", 0.85) if owners else _EDGE
        self.draw.rounded_rectangle((x, y, x + side - 1, y + side - 1), side // 8, outline=edge, width=1)


@cache
def font(size: float) -> Any:
    return ImageFont.load_default(size)


def mix(color: str, other: str, share: float) -> tuple[int, int, int]:
    a, b = (tuple(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in (color, other))
    red, green, blue = (round(p * share + q * (1 - share)) for p, q in zip(a, b, strict=True))
    return red, green, blue


def band(color: str, pattern: int, width: int, height: int) -> Image.Image:
    """A rectangle in the sequence's colour and pattern, numbered as in `colors.HATCHES`: none // .. \\\\ xx -- ||"""
    band = Image.new("RGBA", (width, height), color)
    draw, ink, step = ImageDraw.Draw(band), mix(color, "#000000", 0.62), 12
    for at in range(-height, width + height, step):
        if pattern in (1, 4):
            draw.line((at, height, at + height, 0), fill=ink, width=2)
        if pattern in (3, 4):
            draw.line((at, 0, at + height, height), fill=ink, width=2)
        if pattern == 6:
            draw.line((at, 0, at, height), fill=ink, width=2)
        if pattern == 5:
            draw.line((0, height - at, width, height - at), fill=ink, width=2)
        if pattern == 2:
            for y in range(height - 6, 0, -step):
                draw.ellipse((at, y, at + 3, y + 3), fill=ink)
    return band


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 2] + " …"
