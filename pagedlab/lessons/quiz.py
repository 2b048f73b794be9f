"""The closing questions of each notebook: three each, one right answer, and a reason for every answer.

    quiz_of("02")[0].answers[1].why

They stand in quiz.json, by the notebook's two digits, and are shown by `pagedlab.widgets.quiz`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

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
    if notebook not in QUESTIONS:
        raise ValueError(f"there is no quiz {notebook!r}: choose one of {', '.join(QUESTIONS)}")
    return tuple(Question(asked["text"], tuple(Answer(**a) for a in asked["answers"])) for asked in QUESTIONS[notebook])
