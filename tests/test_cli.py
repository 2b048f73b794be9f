"""The command line: texts, figures, and errors of one line."""

from __future__ import annotations

import pytest

from pagedlab.__main__ import main
from pagedlab.model import TINY_MODEL


def test_prints_texts_and_statistics(capsys: pytest.CaptureFixture[str]) -> None:
    prompts = ["Once upon a time", "The memory of a computer is made of"]
    code = main([*prompts, "--model", str(TINY_MODEL), "--attention", "online", "--max-tokens", "12"])
    out = capsys.readouterr().out
    assert code == 0
    assert all(f"> {prompt}" in out for prompt in prompts)
    assert "blocks" in out
    assert "tokens/s" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hello", "--max-tokens", "0"], "max_tokens"),
        (["hello", "--temperature", "-1"], "temperature"),
        (["hello", "--attention", "magic"], "there is no attention backend 'magic'"),
        ([""], "empty"),
        (["a long text " * 50, "--num-blocks", "2"], "the pool has 2"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments, "--model", str(TINY_MODEL)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_missing_model_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hello", "--model", "./no-such-folder"]) == 2
    assert "no folder './no-such-folder'" in capsys.readouterr().err
