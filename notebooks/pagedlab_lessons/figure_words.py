"""A figure described in words: the alt text that a notebook stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a server has widgets without matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def described(figure: Figure) -> str:
    """Return what is seen of a figure in words: titles, axes, and what the legends list."""
    said = [_axes_in_words(ax) for ax in figure.axes]
    legends = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    if legends:
        said.append(f"legend: {', '.join(legends)}")
    suptitle = figure.get_suptitle()
    parts = [" ".join(part.split()) for part in (suptitle, *said) if part]
    return "Figure. " + ". ".join(parts) if parts else "Figure"


def _axes_in_words(ax: Axes) -> str:
    """Return the title of axes, what is over what, and the entries of their legend."""
    said = []
    if ax.get_title():
        said.append(ax.get_title())
    names = [label.get_text() for label in ax.get_yticklabels() if label.get_text().strip()]
    vertical = ax.get_ylabel() or (", ".join(names) if _has_words(names) else "")
    horizontal = ax.get_xlabel()
    if vertical and horizontal:
        said.append(f"{vertical}, over {horizontal}")
    else:
        said.append(vertical or horizontal)
    legend = ax.get_legend()
    if legend:
        said.append(f"legend: {', '.join(text.get_text() for text in legend.get_texts())}")
    return "; ".join(part for part in said if part)


def _has_words(names: Sequence[str]) -> bool:
    """Whether these names of ticks are words, and not numbers."""
    return any(letter.isalpha() for name in names for letter in name.replace("mathdefault", ""))
