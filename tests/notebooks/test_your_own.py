"""The lesson that docs/your_own.md builds runs from top to bottom, and its check judges right and wrong answers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import pagedlab.model
from pagedlab.checks import check

pytest.importorskip("anywidget", reason="the widgets need pip install 'pagedlab[notebooks]'")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "your_own.md"


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PAGEDLAB_MODEL", str(pagedlab.model.TINY_MODEL))
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), names)
    return names


def test_the_stub_is_not_attempted_and_answers_are_judged(names: dict[str, Any]) -> None:
    assert check.empty_slots(names["my_empty_slots"]).status == "not attempted"
    assert check.empty_slots(lambda num_tokens, block_size: -num_tokens % block_size).status == "passed"
    wrong = check.empty_slots(lambda num_tokens, block_size: block_size - num_tokens % block_size)
    assert wrong.status == "failed"
    assert "(4, 4)\nexpected   0\nyours      4" in str(wrong), "the smallest case that differs"


def test_the_stage_recorded_both_answers(names: dict[str, Any]) -> None:
    assert names["llm"].stats.output_tokens > 0
    assert names["stage"].recorded["steps"]
