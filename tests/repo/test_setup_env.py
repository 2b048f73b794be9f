"""The set-up before there is anything to set up with: each thing that can be missing ends in a sentence."""

from __future__ import annotations

import importlib.util
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
    """tools/setup_env.py with an environment of its own to make, no GPU, and no real pip."""
    spec = importlib.util.spec_from_file_location("setup_env", ROOT / "tools" / "setup_env.py")
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


def test_python_is_too_old(setup_env: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 18))
    monkeypatch.setattr(sys, "version", "3.9.18 (main)")
    said = message(setup_env)
    assert "needs Python 3.10 or newer, and this is 3.9.18" in said
    assert "make PYTHON=python3.12" in said


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
    base, _ = setup_env.STAMP.read_text().split()
    setup_env.STAMP.write_text(f"{base} another")  # as if pyproject.toml had been changed since
    setup_env.main()
    assert (len(asked), len(made)) == (4, 1)
