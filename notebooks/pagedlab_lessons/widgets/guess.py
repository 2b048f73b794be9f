"""A guess before a result: `guess` asks for a number, and `reveal` later shows it beside the truth.

The truth is not on the page until the reader has guessed or clicks "show me". In a stored notebook
it is folded away.
"""

import html
import math
from typing import Any

import traitlets
from IPython.display import display

from pagedlab_lessons.widgets.page import Page


def in_words(number: float) -> str:
    """Return a number with three significant digits or all digits before the point: "1,235"."""
    if number == 0 or abs(number) >= 99.95:
        return f"{number:,.0f}"
    decimals = max(0, 2 - math.floor(math.log10(abs(number))))
    return f"{number:.{decimals}f}".rstrip("0").rstrip(".")


# What readers typed, by question: a cell that is run again has the guess that was typed before.
_typed: dict[str, str] = {}


class Guess(Page, page="guess"):
    """A question with an input box, made and shown by `guess`.

    With a truth it is what `reveal` returns.
    """

    question = traitlets.Unicode()
    unit = traitlets.Unicode()
    reveals = traitlets.Bool()  # whether it knows the truth
    typed = traitlets.Unicode()  # a number as HTML writes it, or ""
    shown = traitlets.Bool()  # whether "show me" was clicked
    page = traitlets.Unicode()  # HTML below the question

    def __init__(
        self, question: str, unit: str = "", typed: str = "", truth: Any = None, evidence: Any = ()
    ) -> None:
        self.truth = truth
        self._evidence = "".join(f"<pre>{html.escape(text)}</pre>" for text in evidence)
        super().__init__(question=question, unit=unit, reveals=truth is not None, typed=typed)
        self.observe(self._update, names=["typed", "shown"])
        self._update()

    @property
    def value(self) -> float | None:
        """The reader's number, None as long as there is none."""
        return float(self.typed) if self.typed else None

    def reveal(self, truth: float, *evidence: str) -> "Guess":
        """Show the guess and the truth on one scale. Make this the last line of a cell.

        Args:
            truth: the right number.
            evidence: texts to show below. In JupyterLab whatever else the cell prints and draws
                waits for the answer too; so a picture has a cell of its own.
        """
        revealed = Guess(self.question, self.unit, self.typed, float(truth), evidence)
        traitlets.link((self, "typed"), (revealed, "typed"))
        return revealed

    def _say(self, number: float) -> str:
        is_plural = number != 1 or len(self.unit) <= 2  # "ms" is no plural
        unit = self.unit if is_plural else self.unit.removesuffix("s")
        return html.escape(f"{in_words(number)} {unit}".strip())

    def _update(self, _: Any = None) -> None:
        if self.truth is not None and (self.value is not None or self.shown):
            self.page = self._scale() + self._evidence
        else:
            self.page = "" if self.value is None else f"Noted: {self._say(self.value)}."

    def _scale(self) -> str:
        """Return the truth, and the guess if there is one, on a scale with zero on it."""
        marks = {"it is": self.truth}
        if self.value is not None:
            marks["you said"] = self.value
        low = min(0, *marks.values())
        high = max(0, *marks.values())
        scale = f'min="{low}" max="{high}"'
        return "".join(
            f'<p><meter {scale} value="{number}"></meter> {name} <b>{self._say(number)}</b></p>'
            for name, number in marks.items()
        )

    def __repr__(self) -> str:
        asked_for = "the answer is folded away" if self.reveals else self.unit or "a number"
        return f"Guess: {self.question} ({asked_for})"

    def still(self) -> Any:
        question = html.escape(self.question)
        if not self.reveals:
            return {"text/html": f"<p><b>Guess:</b> {question}</p>"}, {}
        answer = f"<p>{question} <b>{self._say(self.truth)}</b></p>{self._evidence}"
        folded = f"<details><summary>The answer</summary>{answer}</details>"
        return {"text/html": folded}, {}


def guess(question: str, unit: str = "") -> Guess:
    """Ask the reader for a number and show the input box.

    Args:
        question: the question.
        unit: shown after the input box, such as "%" or "blocks".

    Returns:
        The question; keep it, and later end a cell with `asked.reveal(truth)`. If its cell is run
        again, it still has the guess.
    """
    asked = Guess(question, unit, _typed.get(question, ""))
    asked.observe(lambda change: _typed.update({question: change.new}), names="typed")
    display(asked)
    return asked
