"""The guess before a result: what it keeps, and what it leaves in a stored notebook."""

from __future__ import annotations

import pytest

from pagedlab.widgets.guess import Guess, guess, parse


@pytest.mark.parametrize(
    ("typed", "number"),
    [("12", 12), ("12%", 12), ("12 %", 12), ("1,024", 1024), ("about 4.5 GiB", 4.5), ("-3", -3), ("1e3", 1000)],
)
def test_a_number_is_found_in_what_people_type(typed: str, number: float) -> None:
    assert parse(typed) == number


@pytest.mark.parametrize("typed", ["", "   ", "no idea", "nan", "inf", "%"])
def test_no_number_is_no_guess(typed: str) -> None:
    assert parse(typed) is None


def test_unanswered_reveals_the_truth_alone() -> None:
    shown = Guess("How much?", "%").reveal(6.0209)
    assert repr(shown) == "How much? it is 6.021 % (you made no guess)"
    assert "you said" not in shown._repr_html_()


def test_answered_reveals_both_and_keeps_up_with_a_new_answer() -> None:
    asked = Guess("How many?", "requests")
    for typed, said in (("30", "30"), ("12,345", "12,345")):
        asked._text.value = typed
        shown = asked.reveal(142.9)
        assert repr(shown) == f"How many? you said {said} requests, it is 142.9 requests"
        assert shown._repr_html_().count("<tr>") == 2


def test_a_truth_of_zero_and_a_negative_guess_are_drawn() -> None:
    asked = Guess("How many?")
    asked._text.value = "-2"
    for truth in (0, 0.0, -4):
        assert "width:-" not in asked.reveal(truth)._repr_html_()
    assert repr(Guess("How many?").reveal(0)) == "How many? it is 0 (you made no guess)"


def test_the_question_is_text_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    asked = guess("Is 1 < 2 & <b>bold</b>?")
    assert "Is 1 < 2" in capsys.readouterr().out, "outside a notebook the question is printed"
    assert "<b>bold" not in asked.reveal(1)._repr_html_()
    assert "<b>bold" not in asked._repr_mimebundle_()["text/html"]


def test_what_is_stored_reads_without_a_kernel() -> None:
    stored = Guess("How much?", "%")._repr_mimebundle_()
    assert "How much?" in stored["text/html"]
    assert stored["text/plain"].startswith("Guess: How much?")
    assert "application/vnd.jupyter.widget-view+json" in stored
