"""A guess before a result: `guess` asks for a number, `reveal` later sets it beside the truth.

The notebook runs without an answer. What is stored in it is plain HTML and text; the input box is live only.
"""

from __future__ import annotations

import html
import math
from contextlib import suppress
from typing import Any

import ipywidgets as widgets
from IPython.display import display


def parse(text: str) -> float | None:
    """The number in what a reader typed ("1,024", "12 %", "about 4.5"), or None."""
    for word in text.replace(",", "").replace("%", " ").replace("~", " ").split():
        with suppress(ValueError):
            if math.isfinite(number := float(word)):
                return number
    return None


class Guess(widgets.HBox):
    """A question with an input box. Made and shown by `guess`."""

    def __init__(self, question: str, unit: str = "") -> None:
        self.question, self.unit = question, unit
        self._html = f"<b>Guess:</b> {html.escape(question)}"
        self._text = widgets.Text(placeholder="your guess", layout={"width": "10em"})
        self._text.add_class("pagedlab-guess")
        super().__init__([widgets.HTML(self._html), self._text, widgets.Label(unit)])

    @property
    def value(self) -> float | None:
        """The reader's number, None as long as there is none."""
        return parse(self._text.value)

    def reveal(self, truth: float) -> Revealed:
        """Guess and truth side by side, shown as the last line of a cell. Run the cell again after a new guess."""
        return Revealed(self.question, self.value, float(truth), self.unit)

    def __repr__(self) -> str:
        return f"Guess: {self.question} (an input box when the notebook runs; {self.unit or 'a number'})"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        stored = {"text/plain": repr(self), "text/html": f"<p>{self._html}</p>"}
        return {**super()._repr_mimebundle_(**kwargs), **stored}


class Revealed:
    """Guess and truth as bars, one above the other; the truth alone where there was no guess."""

    def __init__(self, question: str, guessed: float | None, truth: float, unit: str) -> None:
        self.question, self.unit = question, unit
        self.rows = [("it is", truth, "#0072B2")]
        if guessed is not None:
            self.rows.insert(0, ("you said", guessed, "#8A8A8A"))

    def _say(self, number: float) -> str:
        return f"{f'{number:,.0f}' if abs(number) >= 1000 else f'{number:.4g}'} {self.unit}".strip()

    def __repr__(self) -> str:
        said = ", ".join(f"{name} {self._say(number)}" for name, number, _ in self.rows)
        return f"{self.question} {said}" + ("" if self.rows[1:] else " (you made no guess)")

    def _repr_html_(self) -> str:
        longest = 12 if self.rows[1:] else 0  # a bar alone says nothing
        largest = max(abs(number) for _, number, _ in self.rows) or 1
        bar = "display:inline-block;height:.8em;background:{};width:{:.2f}em"
        bars = "".join(
            f'<tr><td style="text-align:right">{name}</td><td style="text-align:left;width:24em">'
            f'<span style="{bar.format(color, longest * abs(number) / largest)}"></span> '
            f"<b>{html.escape(self._say(number))}</b></td></tr>"
            for name, number, color in self.rows
        )
        missed = "" if self.rows[1:] else " <i>(no guess made)</i>"
        return f"<div>{html.escape(self.question)}{missed}<table>{bars}</table></div>"


def guess(question: str, unit: str = "") -> Guess:
    """Ask for a number and show the input box; keep what is returned for `reveal`."""
    asked = Guess(question, unit)
    display(asked)
    return asked
