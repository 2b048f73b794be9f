"""The guess before a result: what it keeps, and what it leaves in a stored notebook."""

import re

import nbformat
import pytest
from pagedlab_lessons.widgets.guess import Guess, guess, in_words

from support.paths import each_notebook


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (999.6, "1,000"),
        (6.0209, "6.02"),
        (0, "0"),
        (1e-5, "0.00001"),
        (-1234.5, "-1,234"),
        (1e7, "10,000,000"),
        (-0.000012345, "-0.0000123"),
    ],
)
def test_numbers_are_written_without_an_exponent(number, said):
    assert in_words(number) == said


def test_the_truth_is_on_the_page_only_when_it_is_asked_for():
    shown = Guess("How much?", "%").reveal(6.0209, "because 1 < 2")
    assert shown.page == ""
    assert "6.0" not in repr(shown) + str(shown.get_state())
    shown.shown = True
    assert "it is <b>6.02 %</b>" in shown.page
    assert "1 &lt; 2" in shown.page
    assert "you said" not in shown.page


def test_answered_reveals_both_and_keeps_up_with_a_new_answer_wherever_it_is_typed():
    asked = Guess("How many?", "requests")
    asked.typed = "30"
    shown = asked.reveal(142.9)
    assert asked.page == "Noted: 30 requests."
    assert "you said <b>30 requests</b>" in shown.page
    for box in (asked, shown):
        box.typed = "12345"
        assert (asked.value, shown.value) == (12345, 12345)
        assert "you said <b>12,345 requests</b>" in shown.page
        assert "it is <b>143 requests</b>" in shown.page
        box.typed = ""
        assert asked.page == shown.page == ""


@pytest.mark.parametrize(("typed", "truth", "scale"), [("-2", -4, (-4, 0)), ("0", 0, (0, 0)), ("5", 2, (0, 5))])
def test_both_lie_on_one_scale_with_zero_on_it(typed, truth, scale):
    asked = Guess("How many?")
    asked.typed = typed
    meters = re.findall(r'<meter min="(.*?)" max="(.*?)" value="(.*?)">', asked.reveal(truth).page)
    assert [tuple(map(float, meter)) for meter in meters] == [(*scale, truth), (*scale, float(typed))]


def test_the_question_is_text_not_markup():
    asked = guess("Is 1 < 2 & <b>bold</b>?")
    for shown in (asked, asked.reveal(1)):
        assert "<b>bold" not in shown._repr_mimebundle_()[0]["text/html"]


def test_what_is_stored_reads_without_a_kernel_and_folds_the_answer_away():
    asked = Guess("How much?", "%")
    stored, _ = asked._repr_mimebundle_()
    assert "How much?" in stored["text/html"]
    assert stored["text/plain"].startswith("Guess: How much?")
    assert "application/vnd.jupyter.widget-view+json" in stored
    stored, _ = asked.reveal(6.0209, "because 1 < 2")._repr_mimebundle_()
    assert stored["text/html"].startswith("<details><summary>The answer</summary>")
    assert re.search("6.02 %.*because 1 &lt; 2.*</details>$", stored["text/html"])
    assert "6" not in stored["text/plain"]


def test_a_guess_outlives_a_second_run_of_its_cell():
    first = guess("How many survive?", "blocks")
    first.typed = "10"
    again = guess("How many survive?", "blocks")
    assert again.typed == "10"
    assert "you said <b>10 blocks</b>" in again.reveal(12).page
    assert guess("How many others?").typed == ""


@pytest.mark.parametrize(
    ("question", "unit", "typed", "said"),
    [
        ("What share of the slots is used?", "%", "50", "Noted: 50 %."),
        ("How many?", "tokens", "1", "Noted: 1 token."),
        ("How long?", "ms", "1", "Noted: 1 ms."),
    ],
)
def test_what_is_said_of_a_guess(question, unit, typed, said):
    asked = Guess(question, unit)
    asked.typed = typed
    assert asked.page == said


@each_notebook
def test_no_stored_answer_stands_open_beside_its_guess(path):
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    asked = {name: i for i, cell in enumerate(cells) for name in re.findall(r"^(\w+) = guess\(", cell.source, re.M)}
    for name, start in asked.items():
        end = next((i for i, cell in enumerate(cells) if f"{name}.reveal(" in cell.source), None)
        assert end is not None, f"{name} is never revealed"
        data = next(output.data for output in cells[end].outputs if output.output_type == "execute_result")
        assert re.fullmatch(r"<details><summary>The answer</summary>.*</details>", data["text/html"], re.S), name
        number = re.search(r"<b>(\S*)", data["text/html"])[1]
        outputs = [output for cell in cells[start : end + 1] for output in cell.outputs]
        said = [output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs]
        alone = (
            rf"(?<![\w.]){re.escape(number)}(?![\d.]*\d)"  # not a part of another number, and not the one in Qwen2.5
        )
        assert len(number) < 3 or not re.search(alone, "\n".join(said)), f"{name}: {number} stands open"
