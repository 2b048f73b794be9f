"""The closing quiz of a notebook: every answer is a button and says why it is right or wrong."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from pagedlab.lessons.quiz import quiz_of

HERE = Path(__file__).parent


class Quiz(anywidget.AnyWidget):
    """Shows a notebook's questions, e.g. `Quiz("02")`. What is stored in the notebook folds each reason away.

    chosen  the number of the answer picked for each question, None before that
    """

    _esm = HERE / "quiz.js"
    _css = HERE / "quiz.css"
    questions: Any = traitlets.List().tag(sync=True)
    chosen: Any = traitlets.List().tag(sync=True)

    def __init__(self, notebook: str) -> None:
        questions = [
            {"text": question.text, "answers": [answer._asdict() for answer in question.answers]}
            for question in quiz_of(notebook)
        ]
        super().__init__(questions=questions, chosen=[None] * len(questions))

    def __repr__(self) -> str:
        lines = []
        for i, question in enumerate(self.questions, 1):
            lines.append(f"{i}. {question['text']}")
            lines += [
                f"   {letter}) {answer['text']}" for letter, answer in zip("abcd", question["answers"], strict=False)
            ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Each answer unfolds its reason, without a kernel and without a script."""
        parts = []
        for i, question in enumerate(self.questions, 1):
            parts.append(f"<p><b>{i}. {_inline(question['text'])}</b></p>")
            for answer in question["answers"]:
                said = "Right." if answer["right"] else "Wrong."
                parts.append(
                    f'<details style="margin-left:1em"><summary>{_inline(answer["text"])}</summary>'
                    f"<p>{said} {_inline(answer['why'])}</p></details>"
                )
        return "\n".join(parts)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        return {**bundle, "text/plain": repr(self), "text/html": self._repr_html_()}, metadata


def _inline(text: str) -> str:
    return re.sub(r"`(.+?)`", r"<code>\1</code>", html.escape(text))
