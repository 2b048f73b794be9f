"""The lesson that docs/your_own.md builds runs from top to bottom, and its check judges right and wrong answers."""

import re

import pytest
from pagedlab_lessons.checks import check

import pagedlab.model

pytest.importorskip("anywidget", reason="the widgets need pip install 'pagedlab[notebooks]'")
from support.exercises import run_cell
from support.paths import ROOT

PAGE = ROOT / "docs" / "your_own.md"
CELL = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
HINT = re.compile(r"<summary>Hint \d</summary>")
MARKDOWN_CELL = re.compile(r"^````markdown\n(.*?)^````", re.DOTALL | re.MULTILINE)


def cells():
    return CELL.findall(MARKDOWN_CELL.sub("", PAGE.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def names():
    names = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGEDLAB_MODEL", str(pagedlab.model.TINY_MODEL))
        for cell in cells():
            run_cell(cell, names)
    return names


def test_the_stub_is_not_attempted_and_answers_are_judged(names):
    assert check.empty_slots(names["my_empty_slots"]).status == "not attempted"
    assert check.empty_slots(lambda num_tokens, block_size: -num_tokens % block_size).status == "passed"
    wrong = check.empty_slots(lambda num_tokens, block_size: block_size - num_tokens % block_size)
    assert wrong.status == "failed"
    assert "(4, 4)\nexpected   0\nyours      4" in str(wrong), "the smallest case that differs"


def test_the_folded_solution_passes_and_the_expected_mistakes_fail(names):
    (markdown,) = MARKDOWN_CELL.findall(PAGE.read_text(encoding="utf-8"))
    assert len(HINT.findall(markdown)) == 3
    solution = {}
    run_cell(CELL.findall(markdown)[0], solution)
    assert check.empty_slots(solution["my_empty_slots"]).status == "passed"
    assert check.empty_slots(names["empty_slots"]).message.startswith("Right in all 4 cases")
    for mistake in ("forgets_full_blocks", "counts_the_tokens", "counts_from_one"):
        result = check.empty_slots(names[mistake])
        assert result.status == "failed"
        assert "The blocks have 1 x 4 = 4 slots; filled: " in result.message


def test_the_stage_recorded_both_answers(names):
    assert names["llm"].stats.output_tokens > 0
    assert names["stage"].recorded["steps"]
