"""The closing quiz of a notebook: every answer is a button and says why it is right or wrong."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from pagedlab.lessons.quiz import Answer, quiz_of

HERE = Path(__file__).parent


class Quiz(anywidget.AnyWidget):
    """Shows a notebook's questions, e.g. `Quiz("02")`. What is stored in the notebook folds each reason away.

    chosen  the number of the answer picked for each question, None before that
    """

    _esm = HERE / "quiz.js"
    _css = HERE / "quiz.css"
    questions: Any = traitlets.List().tag(sync=True)  # as HTML
    chosen: Any = traitlets.List().tag(sync=True)

    def __init__(self, notebook: str) -> None:
        self._asked = quiz_of(notebook)
        super().__init__(
            questions=[
                {"text": f"{i}. {_inline(question.text)}", "answers": [_shown(answer) for answer in question.answers]}
                for i, question in enumerate(self._asked, 1)
            ],
            chosen=[None] * len(self._asked),
        )

    def __repr__(self) -> str:
        lines = []
        for i, question in enumerate(self._asked, 1):
            lines.append(f"{i}. {question.text}")
            lines += [f"   {letter}) {answer.text}" for letter, answer in zip("abcd", question.answers, strict=False)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Each answer unfolds its reason, without a kernel and without a script."""
        parts = []
        for question in self.questions:
            parts.append(f"<p><b>{question['text']}</b></p>")
            for answer in question["answers"]:
                summary = f"<summary>{answer['text']}</summary><p>{answer['why']}</p>"
                parts.append(f'<details style="margin-left:1em">{summary}</details>')
        return "\n".join(parts)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        live, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        return {**live, "text/plain": repr(self), "text/html": self._repr_html_()}, metadata


def _shown(answer: Answer) -> dict[str, Any]:
    why = f"{'Right' if answer.right else 'Wrong'}. {answer.why}"
    return {"text": _inline(answer.text), "why": _inline(why), "right": answer.right}


def _inline(text: str) -> str:
    return re.sub(r"`(.+?)`", r"<code>\1</code>", html.escape(text))
