"""The closing quiz of a notebook: questions with one right answer, and a reason for each answer."""

import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase

from pagedlab.arguments import one_of

# The series' own questions, by the notebook's two digits.
QUESTIONS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
# JupyterLab takes no key on such an element for a command: "d d" would delete the cell.
NO_COMMANDS = 'data-lm-suppress-shortcuts="true"'
STYLE = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")


@dataclass
class Answer:
    """An answer to choose.

    Args:
        text: the answer.
        why: why it is right or wrong.
        right: whether it is the right one.
    """

    text: str
    why: str
    right: bool = False


@dataclass
class Question:
    """A question with two answers or more, one of them right.

    Args:
        text: the question.
        answers: those to choose from.
    """

    text: str
    answers: tuple[Answer, ...]


def quiz_of(notebook: str) -> tuple[Question, ...]:
    """Return the questions of one of the series' notebooks.

    Args:
        notebook: its two digits.

    Raises:
        ValueError: If it has none.
    """
    return tuple(
        Question(asked["text"], tuple(Answer(**answer) for answer in asked["answers"]))
        for asked in QUESTIONS[one_of("notebook", notebook, QUESTIONS)]
    )


class Quiz:
    """A quiz: an answer unfolds and says why it is right or wrong. ::

        Quiz("02")
        Quiz([Question("What is `1 + 1`?", (
            Answer("2", "Count.", right=True),
            Answer("11", "That is `'1' + '1'`."),
        ))])

    Words between backticks are code. It is plain HTML, so it needs no kernel. Make it the last line
    of a cell.

    Args:
        questions: two digits of one of the series' notebooks, or a list of your own questions.

    Raises:
        ValueError: If a question has not exactly one right answer and a wrong one.
    """

    def __init__(self, questions: str | Sequence[Question]) -> None:
        self.questions = quiz_of(questions) if isinstance(questions, str) else questions
        for number, question in enumerate(self.questions, 1):
            right = sum(answer.right for answer in question.answers)
            if right != 1 or len(question.answers) < 2:
                raise ValueError(
                    f"question {number} needs one right answer and a wrong one at least, "
                    f"got {right} right of {len(question.answers)}"
                )

    def __repr__(self) -> str:
        lines = []
        for i, question in enumerate(self.questions, 1):
            lines.append(f"{i}. {question.text}")
            for letter, answer in zip(ascii_lowercase, question.answers, strict=False):
                lines.append(f"   {letter}) {answer.text}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        boxes = "\n".join(_box(i, question) for i, question in enumerate(self.questions, 1))
        return f'<style>{STYLE}</style>\n<div class="pq-root">\n{boxes}\n</div>'


def _box(number: int, question: Question) -> str:
    """Return a question as HTML, of whose answers one is open at a time."""
    parts = [f"<p><b>{number}. {_inline(question.text)}</b></p>"]
    name = html.escape(question.text)
    for answer in question.answers:
        kind = "right" if answer.right else "wrong"
        summary = f'<summary class="pq-answer" {NO_COMMANDS}>{_inline(answer.text)}</summary>'
        why = f'<p class="pq-why">{kind.title()}. {_inline(answer.why)}</p>'
        parts.append(f'<details class="pq-{kind}" name="{name}">{summary}{why}</details>')
    return f'<div class="pq-box" aria-live="polite">{"".join(parts)}</div>'


def _inline(text: str) -> str:
    """Return text as HTML, with words between backticks as code."""
    return re.sub(r"`(.+?)`", r"<code>\1</code>", html.escape(text))
