"""A guess before a result: `guess` asks for a number, `reveal` later sets it beside the truth, when
it is asked for.

Until the reader has guessed or says "show me", the truth is not on the page; what is stored folds
it away.
"""

from __future__ import annotations

import html
import math
from contextlib import suppress
from typing import Any

import traitlets
from IPython.display import display

from pagedlab.widgets.assets import live_script, live_style
from pagedlab.widgets.page import Page, png


def parse(text: str) -> float | None:
    """The number in what a reader typed ("1,024", "12 %", "about 4.5"), or None."""
    for word in text.replace(",", "").replace("%", " ").replace("~", " ").split():
        with suppress(ValueError):
            if math.isfinite(number := float(word)):
                return number
    return None


class Guess(Page):
    """A question with an input box, made and shown by `guess`.

    With a truth it is what `reveal` returns.
    """

    _esm: Any = live_script("guess")
    _css: Any = live_style("block_grid", "guess")
    question: Any = traitlets.Unicode().tag(sync=True)
    unit: Any = traitlets.Unicode().tag(sync=True)
    reveals: Any = traitlets.Bool().tag(sync=True)  # whether it knows the truth
    typed: Any = traitlets.Unicode().tag(sync=True)
    shown: Any = traitlets.Bool().tag(sync=True)  # asked for without a guess
    page: Any = traitlets.Unicode().tag(sync=True)  # what stands below the question

    def __init__(
        self, question: str, unit: str = "", typed: str = "", truth: Any = None, evidence: Any = ()
    ) -> None:
        self.truth, self._evidence = truth, "".join(map(_as_html, evidence))
        super().__init__(question=question, unit=unit, reveals=truth is not None, typed=typed)
        self.observe(self._update, names=["typed", "shown"])
        self._update()

    @property
    def value(self) -> float | None:
        """The reader's number, None as long as there is none."""
        return parse(self.typed)

    def reveal(self, truth: float, *evidence: Any) -> Guess:
        """Guess and truth on one scale, a cell's last line; below them texts and figures that give
        it away.
        """
        revealed = Guess(self.question, self.unit, self.typed, float(truth), evidence)
        traitlets.link((self, "typed"), (revealed, "typed"))
        return revealed

    def _say(self, number: float) -> str:
        return html.escape(
            f"{f'{number:,.0f}' if abs(number) >= 1000 else f'{number:.3g}'} {self.unit}".strip()
        )

    def _update(self, _: Any = None) -> None:
        guessed, self.page = self.value, ""
        if self.truth is None:
            if self.typed:
                self.page = (
                    "A number, please." if guessed is None else f"Noted: {self._say(guessed)}."
                )
        elif guessed is not None or self.shown:
            marks = (
                {"it is": self.truth}
                if guessed is None
                else {"it is": self.truth, "you said": guessed}
            )
            low, high = min(0, *marks.values()), max(0, *marks.values())
            places = ((name, n, 100 * (n - low) / (high - low or 1)) for name, n in marks.items())
            said = (
                f'<span style="--at:{at:.1f}%">{name} <b>{self._say(n)}</b></span>'
                for name, n, at in places
            )
            self.page = f'<div class="pg-scale">{"".join(said)}</div>{self._evidence}'

    def __repr__(self) -> str:
        return (
            f"Guess: {self.question} "
            f"({'the answer is folded away' if self.reveals else self.unit or 'a number'})"
        )

    def still(self) -> Any:
        stored = f"<p><b>Guess:</b> {html.escape(self.question)}</p>"
        if self.reveals:
            answer = (
                f"<p>{html.escape(self.question)} "
                f"<b>{self._say(self.truth)}</b></p>{self._evidence}"
            )
            stored = f"<details><summary>The answer</summary>{answer}</details>"
        return {"text/html": stored}, {}


def _as_html(evidence: Any) -> str:
    """A text, or a figure at twice the pixels."""
    if isinstance(evidence, str):
        return f"<pre>{html.escape(evidence)}</pre>"
    import matplotlib.pyplot as plt

    plt.close(evidence)  # otherwise the notebook shows it a second time
    return (
        f'<img width="{int(96 * evidence.get_size_inches()[0])}" alt="" '
        f'src="data:image/png;base64,{png(evidence)}">'
    )


def guess(question: str, unit: str = "") -> Guess:
    """Ask for a number and show the input box; keep what is returned for `reveal`."""
    asked = Guess(question, unit)
    display(asked)
    return asked
