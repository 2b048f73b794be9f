"""The set-up before there is anything to set up with: each thing that can be missing ends in a sentence."""

from __future__ import annotations

import ast
import importlib.util
import os
import runpy
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def setup_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """tools/environment.py with an environment of its own to make, no GPU, and no real pip."""
    spec = importlib.util.spec_from_file_location("environment", ROOT / "tools" / "environment.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path / ".venv"
    for name, value in (("VENV", folder), ("STAMP", folder / "stamp"), ("PYTHON", folder / "bin" / "python")):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(module, "answers", lambda *command: False)
    monkeypatch.setattr(venv, "create", lambda path, **options: Path(path).mkdir(exist_ok=True))
    return module


def pip_answers(monkeypatch: pytest.MonkeyPatch, code: int) -> list[list[str]]:
    """Let pip end with this code; the list fills with what it was asked."""
    asked: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        asked.append(command)
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(subprocess, "run", run)
    return asked


def message(setup_env: ModuleType) -> str:
    with pytest.raises(SystemExit) as exit:
        setup_env.main()
    assert isinstance(exit.value.code, str), "a message, and status 1"
    assert "\n" not in exit.value.code
    assert not setup_env.STAMP.exists(), "the next run must start over"
    return exit.value.code


ENTRY = ROOT / "tools" / "setup_env.py"
TOO_OLD = "pagedlab needs Python 3.10 or newer, and this is {}: make PYTHON=python3.12, or"
TOO_OLD += " python3.12 tools/setup_env.py"
OLD_PYTHONS = ("2.7", "3.6", "3.9")
# The syntax that Python 2.7 shares with every later one, as far as the entry needs it.
OLD_SYNTAX = {"Module", "Expr", "Constant", "Import", "ImportFrom", "alias", "If", "Compare", "Lt", "Eq", "Attribute"}
OLD_SYNTAX |= {"Name", "Load", "Store", "Tuple", "Call", "Assign", "BinOp", "Add", "Subscript"}


def test_python_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    monkeypatch.setattr(sys, "version", "3.9.18 (main)")
    with pytest.raises(SystemExit) as exit:
        runpy.run_path(str(ENTRY), run_name="__main__")
    assert exit.value.code == TOO_OLD.format("3.9.18")


def test_the_entry_can_be_read_by_any_python() -> None:
    """Its tree has nodes of old syntax only, and its bytes need no declaration of their encoding."""
    source = ENTRY.read_bytes().decode("ascii")
    tree = ast.parse(source, feature_version=(3, 4))
    assert {type(node).__name__ for node in ast.walk(tree)} <= OLD_SYNTAX
    kinds = [type(node).__name__ for node in tree.body]
    assert kinds == ["Expr", "Import", "If", "ImportFrom", "If"], "the version is checked before the rest is imported"


@pytest.mark.parametrize("version", OLD_PYTHONS)
def test_an_old_python_says_which_is_needed(version: str) -> None:
    """Where such a Python is installed."""
    name = f"python{version}"
    asked = [name, "-c", "import sys; print(sys.version.split()[0])"]
    if not shutil.which(name) or (told := subprocess.run(asked, capture_output=True, text=True)).returncode:
        pytest.skip(f"{name} is not installed")
    run = subprocess.run([name, ENTRY], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (1, "", TOO_OLD.format(told.stdout.strip()) + "\n")


def test_the_path_cannot_hold_an_environment(
    setup_env: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / f"a{os.pathsep}b").mkdir()
    monkeypatch.setattr(setup_env, "VENV", folder / ".venv")
    monkeypatch.setattr(setup_env, "STAMP", folder / ".venv" / "stamp")
    asked = pip_answers(monkeypatch, 0)
    said = message(setup_env)
    assert str(folder) in said
    assert f"has a {os.pathsep!r} in its path" in said
    assert "move or rename the folder" in said
    assert not asked
    assert not (folder / ".venv").exists()


def test_a_stamp_that_is_no_text_counts_as_out_of_date(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pip_answers(monkeypatch, 0)
    setup_env.VENV.mkdir()
    setup_env.STAMP.write_bytes(b"\xff\xfe\x00 \x80")
    setup_env.main()
    assert len(asked) == 2
    setup_env.main()
    assert len(asked) == 2


def test_a_reader_gets_less_than_the_tests_need(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pip_answers(monkeypatch, 0)
    monkeypatch.setattr(sys, "argv", ["setup_env.py", "--reader"])
    setup_env.main()
    assert asked[-1][-1].endswith("[notebooks,gguf]")
    setup_env.main()
    assert len(asked) == 2, "nothing is left to install"
    monkeypatch.setattr(sys, "argv", ["setup_env.py"])
    setup_env.main()
    assert asked[-1][-1].endswith("[notebooks,gguf,tests]")
    monkeypatch.setattr(sys, "argv", ["setup_env.py", "--reader"])
    setup_env.main()
    assert len(asked) == 4, "what the tests need holds what a reader needs"


def test_the_disk_is_full(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, **options: Any) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(venv, "create", full)
    said = message(setup_env)
    assert "could not write .venv" in said
    assert "No space left on device" in said


def test_the_disk_is_full_when_the_stamp_is_written(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    pip_answers(monkeypatch, 0)
    write_text = Path.write_text

    def full(path: Path, text: str) -> int:
        if path == setup_env.STAMP:
            raise OSError(28, "No space left on device", str(path))
        return write_text(path, text)

    monkeypatch.setattr(Path, "write_text", full)
    assert "No space left on device" in message(setup_env)


def test_venv_has_no_pip(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def create(path: Path, **options: Any) -> None:
        raise subprocess.CalledProcessError(1, "ensurepip")

    monkeypatch.setattr(venv, "create", create)
    assert "apt install python3-venv" in message(setup_env)


def test_pip_fails(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    pip_answers(monkeypatch, 1)
    assert "pip could not install torch==" in message(setup_env)


@pytest.mark.parametrize("newest", [False, True], ids=["pinned", "newest"])
def test_a_second_run_does_nothing(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch, newest: bool) -> None:
    monkeypatch.setattr(setup_env, "NEWEST", newest)
    asked = pip_answers(monkeypatch, 0)
    setup_env.main()
    torch, project = asked
    assert torch[-1] == "torch" if newest else torch[-1].startswith("torch==")
    assert project[-1].endswith("[notebooks,gguf,tests]")
    pins = (setup_env.VENV / "constraints.txt").read_text()
    assert ("torch==" in pins) is not newest
    assert ("==" in pins) is not newest
    setup_env.main()
    assert len(asked) == 2
    monkeypatch.setattr(setup_env, "NEWEST", not newest)
    setup_env.main()
    assert len(asked) == 4, "another recipe, another environment"


def test_other_requirements_are_installed_into_the_same_environment(
    setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked, made = pip_answers(monkeypatch, 0), []
    monkeypatch.setattr(venv, "create", lambda path, **options: (made.append(path), Path(path).mkdir(exist_ok=True)))
    setup_env.main()
    base = setup_env.STAMP.read_text().split()[0]
    setup_env.STAMP.write_text(f"{base} another")  # as if pyproject.toml had been changed since
    setup_env.main()
    assert (len(asked), len(made)) == (4, 1)
