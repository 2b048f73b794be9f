"""The closing quiz of a notebook: three questions of quiz.json, one right answer each, a reason for
every answer.
"""

import html
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import traitlets

from pagedlab.validation import one_of
from pagedlab.widgets.assets import live_script, live_style
from pagedlab.widgets.page import Page

# by the notebook's two digits
QUESTIONS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


class Answer(NamedTuple):
    text: str
    why: str
    right: bool


class Question(NamedTuple):
    text: str
    answers: tuple[Answer, ...]


def quiz_of(notebook: str) -> tuple[Question, ...]:
    """The questions of a notebook, by its two digits. `ValueError` if it has none."""
    questions = QUESTIONS[one_of("notebook", notebook, QUESTIONS)]
    return tuple(
        Question(asked["text"], tuple(Answer(**a) for a in asked["answers"])) for asked in questions
    )


class Quiz(Page):
    """Shows a notebook's questions, e.g.

    `Quiz("02")`. What is stored in the notebook unfolds without a script.

    chosen  the number of the answer that is unfolded for each question, None where none is
    """

    _esm = live_script("quiz")
    _css = live_style("quiz")
    page: Any = traitlets.Unicode().tag(sync=True)
    chosen: Any = traitlets.List().tag(sync=True)

    def __init__(self, notebook: str) -> None:
        self._questions = quiz_of(notebook)
        page = "\n".join(_box(i, question) for i, question in enumerate(self._questions, 1))
        super().__init__(page=page, chosen=[None] * len(self._questions))

    def __repr__(self) -> str:
        lines = []
        for i, question in enumerate(self._questions, 1):
            lines.append(f"{i}. {question.text}")
            lines += [
                f"   {letter}) {answer.text}"
                for letter, answer in zip("abcd", question.answers, strict=False)
            ]
        return "\n".join(lines)

    def still(self) -> Any:
        return {"text/html": self.page}, {}


def _box(number: int, question: Question) -> str:
    """A question as HTML.

    Where nothing styles it, the answers are set in and their reasons folded away.
    """
    parts = [f"<p><b>{number}. {_inline(question.text)}</b></p>"]
    for answer in question.answers:
        kind = "right" if answer.right else "wrong"
        summary = f'<summary class="pq-answer">{_inline(answer.text)}</summary>'
        why = f'<p class="pq-why">{kind.title()}. {_inline(answer.why)}</p>'
        parts.append(f'<details class="pq-{kind}" style="margin-left:1em">{summary}{why}</details>')
    return f'<div class="pq-box" aria-live="polite">{"".join(parts)}</div>'


def _inline(text: str) -> str:
    return re.sub(r"`(.+?)`", r"<code>\1</code>", html.escape(text))
