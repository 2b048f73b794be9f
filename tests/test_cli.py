"""The command line: texts, figures, and errors of one line."""

from __future__ import annotations

import pytest

from pagedlab.__main__ import main
from pagedlab.loading import DEFAULT_MODEL, TINY_MODEL


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
    assert "there is no './no-such-folder'" in capsys.readouterr().err
    assert main(["hello", "--model", "some/model"]) == 2
    assert "python -m pagedlab --download some/model fetches it" in capsys.readouterr().err


def test_nothing_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "name a prompt, or --download" in capsys.readouterr().err


def test_download_fetches(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fetched: list[str] = []
    monkeypatch.setattr("pagedlab.hub.download", fetched.append)
    assert main(["--download"]) == 0
    assert main(["--download", "some/model"]) == 0
    assert fetched == [DEFAULT_MODEL, "some/model"]
    assert capsys.readouterr() == ("", "")
    assert main(["hello", "--download", str(TINY_MODEL), "--max-tokens", "1"]) == 0
    assert f"model: {TINY_MODEL.name}" in capsys.readouterr().out, "what was fetched answers"
    assert main(["hello", "--download", "--model", str(TINY_MODEL), "--max-tokens", "1"]) == 0
    assert fetched[2:] == [str(TINY_MODEL), DEFAULT_MODEL]


def test_a_download_that_fails_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    from pagedlab.serving.__main__ import main as serve

    for program in (main, serve):
        assert program(["--download"]) == 2
        out, error = capsys.readouterr()
        assert error.startswith(f"error: {DEFAULT_MODEL} was not fetched (")
        assert len(error.splitlines()) == 1
        assert out == ""
