"""The closing quizzes: one right answer a question, a reason for each, a quiz in every notebook. And its frame."""

import re
from dataclasses import replace

import nbformat
import pytest
from pagedlab_lessons.widgets import Answer, Question, Quiz
from pagedlab_lessons.widgets.quiz import QUESTIONS, quiz_of

from support.paths import NOTEBOOKS, ROOT, each_notebook


@pytest.mark.parametrize("notebook", QUESTIONS)
def test_one_answer_is_right_and_every_answer_says_why(notebook):
    questions = quiz_of(notebook)
    assert len(questions) == 3
    for question in questions:
        assert sum(answer.right for answer in question.answers) == 1, question.text
        assert 3 <= len(question.answers) <= 4
        assert len({answer.text for answer in question.answers}) == len(question.answers)
        for answer in question.answers:
            assert len(answer.why.split()) >= 5, f"say why: {answer.text}"
            assert answer.why[-1] in ".?)", answer.why


def test_the_right_answer_is_not_always_in_one_place():
    places = [[answer.right for answer in q.answers].index(True) for name in QUESTIONS for q in quiz_of(name)]
    assert max(map(places.count, set(places))) < 0.6 * len(places)


SUM = Question("What is `1 + 1`?", (Answer("2", "Count.", right=True), Answer("11", "That is `'1' + '1'`.")))


def test_a_teacher_asks_own_questions():
    shown = Quiz([SUM])
    assert repr(shown) == "1. What is `1 + 1`?\n   a) 2\n   b) 11"
    page = shown._repr_html_()
    assert "<code>1 + 1</code>" in page
    assert "Right. Count." in page
    names = re.findall(r'<details class="pq-\w+" name="([^"]+)"', page)
    assert names == ["What is `1 + 1`?"] * 2, "the browser closes one when the other opens"


@pytest.mark.parametrize("answers", [SUM.answers[:1], SUM.answers[1:] * 2])
def test_a_question_without_one_right_answer_and_a_wrong_one_is_refused(answers):
    with pytest.raises(ValueError, match="question 2 needs one right answer"):
        Quiz([SUM, replace(SUM, answers=answers)])


@each_notebook
def test_every_notebook_has_its_quiz(path):
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    asked = [cell for cell in cells if f'Quiz("{path.stem[:2]}")' in cell.source]
    assert len(asked) == 1, f'{path.name} needs one cell with Quiz("{path.stem[:2]}")'
    data = asked[0].outputs[-1].data
    quiz = Quiz(path.stem[:2])
    stored = data["text/plain"], data["text/html"]
    assert stored == (repr(quiz), quiz._repr_html_()), "the stored output is of an older quiz: run `make notebooks`"


@each_notebook
def test_notebooks_open_and_end_in_the_same_way(path):
    cells = nbformat.read(path, 4).cells
    texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
    assert texts[0].startswith(f"# {path.stem[:2]} · ")
    opening = "\n".join(texts[:4])
    words = ["**Takes** ", "**Needs** "] if path.stem[:2] == "00" else ["You will\n1. ", "\n3. ", "**Builds on** "]
    assert all(word in opening for word in words), opening
    headings = [text.split("\n")[0] for text in texts]
    places = [headings.index(f"## {name}") for name in ("Three questions", "What you know now", "In production")]
    assert places == sorted(places)
    exercises = [heading for heading in headings if heading.startswith(("## Exercise ", "## Puzzle "))]
    if path.stem[:2] != "00":
        assert [int(heading.split()[2]) for heading in exercises] == list(range(1, len(exercises) + 1))
        assert len(exercises) == sum("exercise" in cell.metadata.get("tags", []) for cell in cells) >= 2
    on = [text for text in texts if text.startswith("**Next:**")]
    assert len(on) == 1
    assert places[-1] < texts.index(on[0])


@pytest.mark.parametrize("path", NOTEBOOKS[1:7], ids=lambda path: path.stem)
def test_notebooks_open_on_a_picture(path):
    """A folded cell after a short title draws it, and its stored output is the picture already."""
    title, _, picture = nbformat.read(path, 4).cells[:3]
    assert len(title.source.split()) <= 120, "a reader sees the picture without scrolling"
    assert picture.cell_type == "code"
    assert picture.metadata["jupyter"]["source_hidden"]
    stored = [output.data for output in picture.outputs if "data" in output]
    assert any("image/png" in data or "<img " in data.get("text/html", "") for data in stored)
    assert "explore(" in picture.source


def test_glossary_is_linked_from_every_notebook_but_by_terms_that_it_has():
    headings = re.findall(r"^### (.+)$", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    terms = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    for path in NOTEBOOKS:
        linked = set(re.findall(r"docs/glossary\.md#([\w-]+)", path.read_text()))
        assert linked, path.name
        assert linked <= terms, path.name
