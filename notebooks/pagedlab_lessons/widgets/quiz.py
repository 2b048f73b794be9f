"""The closing quiz of a notebook: questions with one right answer, and a reason for each answer."""

import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import traitlets

from pagedlab.arguments import one_of
from pagedlab_lessons.widgets.assets import live_script, live_style
from pagedlab_lessons.widgets.page import Page

# The series' own questions, by the notebook's two digits.
QUESTIONS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Question:
    """A question with two answers or more, one of them right.

    Args:
        text: the question.
        answers: a tuple of `Answer`.

    Raises:
        TypeError: If the answers are something else.
    """

    text: str
    answers: tuple[Answer, ...]

    def __post_init__(self) -> None:
        is_tuple = isinstance(self.answers, (tuple, list))
        if not is_tuple or not all(isinstance(answer, Answer) for answer in self.answers):
            raise TypeError(f"answers must be a tuple of Answer, got {self.answers!r}")


def quiz_of(notebook: str) -> tuple[Question, ...]:
    """Return the questions of one of the series' notebooks.

    Args:
        notebook: its two digits.

    Raises:
        ValueError: If it has none.
    """
    asked = QUESTIONS[one_of("notebook", notebook, QUESTIONS)]
    return tuple(
        Question(question["text"], tuple(Answer(**answer) for answer in question["answers"]))
        for question in asked
    )


class QuizPage(Page):
    """Questions whose answers unfold. Made by `Quiz`, which says what they are."""

    _esm = live_script("quiz")
    _css = live_style("quiz")
    page: Any = traitlets.Unicode().tag(sync=True)
    # for each question the number of the answer that is unfolded, None where none is
    chosen: Any = traitlets.List().tag(sync=True)

    def __init__(self, questions: tuple[Question, ...]) -> None:
        self._questions = questions
        page = "\n".join(_box(i, question) for i, question in enumerate(self._questions, 1))
        super().__init__(page=page, chosen=[None] * len(self._questions))

    def __repr__(self) -> str:
        lines = []
        for i, question in enumerate(self._questions, 1):
            lines.append(f"{i}. {question.text}")
            for j, answer in enumerate(question.answers):
                lines.append(f"   {chr(ord('a') + j)}) {answer.text}")
        return "\n".join(lines)

    def still(self) -> Any:
        return {"text/html": self.page}, {}


def Quiz(  # noqa: N802 - notebooks use this name
    questions: str | Sequence[Question], *more: Question
) -> QuizPage:
    """Show a quiz: an answer unfolds and says why it is right or wrong. ::

        Quiz("02")
        Quiz([Question("What is `1 + 1`?", (
            Answer("2", "Count.", right=True),
            Answer("11", "That is `'1' + '1'`."),
        ))])

    Words between backticks are code. The quiz that a notebook stores unfolds without a script.

    Args:
        questions: two digits of one of the series' notebooks, or a list of your own questions.
        more: nothing; it is refused.

    Returns:
        The widget. Make it the last line of a cell.

    Raises:
        TypeError: If the questions are not in a list.
        ValueError: If a question has fewer than two answers, or not exactly one right one.
    """
    if more or isinstance(questions, Question):
        raise TypeError("put the questions into a list: Quiz([first, second])")
    return QuizPage(quiz_of(questions) if isinstance(questions, str) else _valid(questions))


def _valid(questions: Sequence[Question]) -> tuple[Question, ...]:
    """Return a teacher's questions if they make sense."""
    is_list = isinstance(questions, (list, tuple))
    if not is_list or not questions or not all(isinstance(q, Question) for q in questions):
        raise ValueError(
            f"questions must be a notebook's two digits or a list of Question, got {questions!r}"
        )
    for i, question in enumerate(questions, 1):
        right = sum(answer.right for answer in question.answers)
        if len(question.answers) < 2:
            raise ValueError(
                f"question {i} needs two answers at least, got {len(question.answers)}"
            )
        if right != 1:
            raise ValueError(f"question {i} needs one right answer, got {right}")
    return tuple(questions)


def _box(number: int, question: Question) -> str:
    """Return a question as HTML.

    Without a style sheet the answers are indented and their reasons folded away.
    """
    parts = [f"<p><b>{number}. {_inline(question.text)}</b></p>"]
    for answer in question.answers:
        kind = "right" if answer.right else "wrong"
        summary = f'<summary class="pq-answer">{_inline(answer.text)}</summary>'
        why = f'<p class="pq-why">{kind.title()}. {_inline(answer.why)}</p>'
        parts.append(f'<details class="pq-{kind}" style="margin-left:1em">{summary}{why}</details>')
    return f'<div class="pq-box" aria-live="polite">{"".join(parts)}</div>'


def _inline(text: str) -> str:
    """Return text as HTML, with words between backticks as code."""
    return re.sub(r"`(.+?)`", r"<code>\1</code>", html.escape(text))
