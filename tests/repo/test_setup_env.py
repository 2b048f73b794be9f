"""The set-up before there is anything to set up with: what it asks of pip, and what it says if something is missing."""

import ast
import subprocess
import sys
import venv
from pathlib import Path
from unittest.mock import Mock

import pytest

import setup_env
from support.paths import ROOT

EVERYTHING = 4  # calls of pip: torch, the project, a pip that knows dependency groups, the groups


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """An environment of its own to make, no GPU, and no real pip: the list fills with what pip was asked."""
    folder = tmp_path / ".venv"
    for name, value in (("VENV", folder), ("STAMP", folder / "stamp"), ("PYTHON", folder / "bin" / "python")):
        monkeypatch.setattr(setup_env, name, value)
    commands = []

    def run(command, **options):
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(setup_env.shutil, "which", lambda name: None)
    monkeypatch.setattr(venv, "create", lambda path, **options: Path(path).mkdir(exist_ok=True))
    monkeypatch.setattr(subprocess, "run", run)
    return commands


def start(monkeypatch, *options):
    monkeypatch.setattr(sys, "argv", ["setup_env.py", *options])
    setup_env.main()


def test_an_old_python_can_read_it():
    """Its main program then says which is needed."""
    source = (ROOT / "tools" / "setup_env.py").read_bytes().decode("ascii")
    ast.parse(source, feature_version=(3, 6))


def test_a_reader_gets_less_than_the_tests_need_and_a_second_run_does_nothing(asked, monkeypatch):
    start(monkeypatch, "--reader")
    torch, project = asked
    assert torch[-1].startswith("torch==")
    assert project[-1] == f"{ROOT}[notebooks,gguf]"
    start(monkeypatch, "--reader")
    assert len(asked) == 2
    start(monkeypatch)
    assert len(asked) == 2 + EVERYTHING
    assert asked[-1][-2:] == ["--group", f"{ROOT / 'pyproject.toml'}:tests"]
    for option in ((), ("--reader",), ("--site",)):
        start(monkeypatch, *option)
    assert len(asked) == 2 + EVERYTHING, "what the tests need holds the rest"


@pytest.mark.parametrize(("is_full", "said"), [(True, "could not make"), (False, "pip could not install")])
def test_a_set_up_that_fails_says_so_and_the_next_one_starts_over(asked, monkeypatch, is_full, said):
    if is_full:
        monkeypatch.setattr(venv, "create", Mock(side_effect=OSError(28, "No space left")))
    monkeypatch.setattr(subprocess, "run", lambda command, **options: subprocess.CompletedProcess(command, 1))
    with pytest.raises(SystemExit, match=said):
        start(monkeypatch)
    assert not setup_env.STAMP.exists()
