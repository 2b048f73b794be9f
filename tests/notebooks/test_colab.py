"""The cell for Google Colab: it does nothing elsewhere, and in Colab it leaves PyTorch and Triton alone."""

from __future__ import annotations

import re
import shlex
import sys
from importlib.metadata import requires
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


class FakeShell:
    """Takes the place of IPython's shell: remembers the commands, runs none."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    def system(self, command: str) -> None:
        self.commands.append(command)

    def run_line_magic(self, name: str, arguments: str, **_: Any) -> None:
        self.commands.append(f"{name} {arguments}")


@pytest.fixture
def cell() -> str:
    notebook = nbformat.read(ROOT / "notebooks" / "00_start_here.ipynb", as_version=4)
    cells = [cell.source for cell in notebook.cells if "colab" in cell.metadata.get("tags", [])]
    if not cells:
        pytest.skip("notebook 00 has no cell tagged colab")
    (source,) = cells
    assert "OWNER" not in source
    address = re.sub('^repository = ".*?"', 'repository = "https://example.org/pagedlab"', source, flags=re.MULTILINE)
    return TransformerManager().transform_cell(address)


def commands(cell: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    shell = FakeShell()
    monkeypatch.chdir(folder)
    exec(cell, {"get_ipython": lambda: shell})
    return shell.commands


def installed_by(requirement: str) -> set[str]:
    """The names of a requirement and of all it depends on, as installed here, optional ones not asked for left out."""
    found: set[str] = set()
    names = [Requirement(requirement).name]
    while names:
        name = canonicalize_name(names.pop())
        if name not in found:
            found.add(name)
            needs = map(Requirement, requires(name) or [])
            names += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return found


def test_it_does_nothing_outside_colab(cell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert commands(cell, tmp_path, monkeypatch) == []


def test_in_colab_without_an_address_it_says_what_to_write(
    cell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    with pytest.raises(SystemExit, match="Write the address of your copy"):
        commands(cell.replace("https://example.org/pagedlab", ""), tmp_path, monkeypatch)


def test_in_colab_it_runs_once(cell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    assert commands(cell, tmp_path, monkeypatch)
    (tmp_path / "data").mkdir()
    (tmp_path / "notebooks").mkdir()
    assert commands(cell, tmp_path / "notebooks", monkeypatch) == []


def test_it_never_installs_torch(cell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    for command in commands(cell, tmp_path, monkeypatch):
        words = shlex.split(command)
        if words[0] != "pip":
            continue
        packages = [word for word in words[2:] if not word.startswith("-")]
        assert packages
        if "--no-deps" in words:
            assert packages == [".."]
            continue
        for package in packages:
            assert not installed_by(package) & {"torch", "triton"}, package


def test_the_walk_over_dependencies_sees_torch() -> None:
    assert "torch" in installed_by("accelerate")
