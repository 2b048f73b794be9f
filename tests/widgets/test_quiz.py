"""The closing quizzes: one right answer a question, a reason for each, a quiz in every notebook. And its frame."""

import re
from dataclasses import FrozenInstanceError, replace

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


def test_an_unknown_notebook_is_named():
    with pytest.raises(ValueError, match=r"notebook must be one of '00', .* got '99'"):
        quiz_of("99")


SUM = Question("What is `1 + 1`?", (Answer("2", "Count.", right=True), Answer("11", "That is `'1' + '1'`.")))


def test_a_teacher_asks_own_questions():
    shown = Quiz([SUM])
    assert repr(shown) == "1. What is `1 + 1`?\n   a) 2\n   b) 11"
    assert "<code>1 + 1</code>" in shown.page
    assert "Right. Count." in shown.page
    assert shown.chosen == [None]


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ([], "questions must be"),
        (5, "questions must be"),
        (["What?"], "questions must be"),
        ([replace(SUM, answers=SUM.answers[:1])], "question 1 needs two answers at least, got 1"),
        ([SUM, replace(SUM, answers=SUM.answers[1:] * 2)], "question 2 needs one right answer, got 0"),
    ],
)
def test_questions_that_make_no_sense_are_refused(questions, message):
    with pytest.raises(ValueError, match=message):
        Quiz(questions)


@pytest.mark.parametrize("answers", [SUM.answers[0], ("2", "11"), "2", None])
def test_answers_that_are_no_tuple_of_answers_are_refused(answers):
    with pytest.raises(TypeError, match="answers must be a tuple of Answer, got "):
        Question("What is `1 + 1`?", answers)


def test_questions_outside_a_list_are_refused():
    for questions in ((SUM,), (SUM, SUM)):
        with pytest.raises(TypeError, match="put the questions into a list"):
            Quiz(*questions)


def test_questions_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        SUM.text = "What is `2 + 2`?"


@each_notebook
def test_every_notebook_ends_with_its_quiz(path):
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    asked = [cell for cell in cells if f'Quiz("{path.stem[:2]}")' in cell.source]
    assert len(asked) == 1, f'{path.name} needs one cell with Quiz("{path.stem[:2]}")'
    data = asked[0].outputs[-1].data
    for question in quiz_of(path.stem[:2]):
        assert question.text in data["text/plain"], "the stored output is of an older quiz: run `make notebooks`"
    assert data["text/html"].count("<details") == sum(len(q.answers) for q in quiz_of(path.stem[:2]))


@each_notebook
def test_notebooks_open_and_end_in_the_same_way(path):
    cells = nbformat.read(path, 4).cells
    texts = [cell.source for cell in cells if cell.cell_type == "markdown"]
    assert texts[0].startswith(f"# {path.stem[:2]} · ")
    opening = "\n".join(texts[:4])
    words = ["**Takes** ", "**Needs** "] if path.stem[:2] == "00" else ["You will\n1. ", "\n3. ", "**Builds on** "]
    assert all(word in opening for word in words), opening
    headings = [text.split("\n")[0] for text in texts]
    places = [headings.index(f"## {name}") for name in ("What you know now", "In production", "Three questions")]
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


def test_what_is_stored_reads_without_a_kernel_and_is_text_not_markup():
    quiz = Quiz("13")
    data, _ = quiz._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert "<code>llm.add</code>" in data["text/html"]
    assert "&quot;is green&quot;" in Quiz("05").page
    assert "1. A handler calls" in data["text/plain"]
    assert "   c) " in data["text/plain"]
    assert quiz.chosen == [None, None, None]
