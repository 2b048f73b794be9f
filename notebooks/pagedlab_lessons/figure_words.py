"""A figure as a notebook stores it: a PNG, and what is seen of it in words, the alt text."""

import base64
import io
import struct
from typing import Any


def as_png(figure: Any, **options: Any) -> tuple[str, dict[str, Any]]:
    """Return a figure as PNG with twice the pixels, in base64, and its size and alt text.

    Args:
        figure: of matplotlib.
        options: for its `savefig`.
    """
    file = io.BytesIO()
    ground = getattr(figure, "ground", "white")
    figure.savefig(file, format="png", dpi=192, facecolor=ground, **options)
    png = file.getvalue()
    width, height = struct.unpack(">II", png[16:24])
    size = {"width": width // 2, "height": height // 2, "alt": described(figure)}
    return base64.b64encode(png).decode(), size


def described(figure: Any) -> str:
    """Return what is seen of a figure in words: titles, axes, and what the legends list."""
    said = [figure.get_suptitle(), *map(_axes_in_words, figure.axes)]
    said += map(_legend_in_words, figure.legends)
    return ". ".join(["Figure", *(" ".join(part.split()) for part in said if part)])


def _axes_in_words(ax: Any) -> str:
    """Return the title of axes, what is over what, and the entries of their legend."""
    names = [label.get_text() for label in ax.get_yticklabels() if label.get_text().strip()]
    # ticks that are words, and not numbers
    is_named = any(map(str.isalpha, "".join(names).replace("mathdefault", "")))
    vertical = ax.get_ylabel() or (", ".join(names) if is_named else "")
    over = ", over ".join(filter(None, (vertical, ax.get_xlabel())))
    legend = ax.get_legend()
    parts = (ax.get_title(), over, _legend_in_words(legend) if legend else "")
    return "; ".join(filter(None, parts))


def _legend_in_words(legend: Any) -> str:
    return f"legend: {', '.join(text.get_text() for text in legend.get_texts())}"
