"""The cell for Google Colab: it does nothing elsewhere, and in Colab it leaves PyTorch and Triton alone."""

import copy
import shlex
import sys
from types import ModuleType

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

import normalise_notebooks
from colab_cell import colab_cell, is_for_colab
from support.packages import installed_by
from support.paths import ROOT
from time_notebooks import code_of


class FakeShell:
    """Takes the place of IPython's shell: remembers the commands, runs none."""

    def __init__(self):
        self.commands = []

    def system(self, command):
        self.commands.append(command)

    def run_line_magic(self, name, arguments, **_):
        self.commands.append(f"{name} {arguments}")


@pytest.fixture
def cell():
    return TransformerManager().transform_cell(colab_cell("https://example.org/pagedlab").source)


def a_notebook():
    """One without a cell for Colab."""
    cells = [new_markdown_cell("# A title", id="a"), new_markdown_cell("map", id="b"), new_code_cell("x = 1", id="c")]
    return new_notebook(cells=cells)


def test_once_published_a_notebook_has_the_cell_folded_and_after_its_navigation(monkeypatch):
    monkeypatch.setattr(normalise_notebooks, "repository", lambda: "https://github.com/you/pagedlab")
    notebook = normalise_notebooks.with_colab_cell(a_notebook())
    assert [cell.id for cell in notebook.cells] == ["a", "b", "colab", "c"]
    cell = notebook.cells[2]
    assert is_for_colab(cell)
    assert cell.metadata.jupyter.source_hidden
    assert 'repository = "https://github.com/you/pagedlab"' in cell.source
    assert normalise_notebooks.with_colab_cell(copy.deepcopy(notebook)) == notebook


def test_before_that_a_notebook_keeps_what_it_has(monkeypatch):
    monkeypatch.setattr(normalise_notebooks, "repository", str)
    notebook = a_notebook()
    assert not any(map(is_for_colab, normalise_notebooks.with_colab_cell(notebook).cells))
    notebook.cells.insert(1, colab_cell("https://example.org/old"))
    (cell,) = filter(is_for_colab, normalise_notebooks.with_colab_cell(notebook).cells)
    assert cell.source == colab_cell("").source


def test_the_cell_does_not_make_a_notebook_another_one():
    cells = [new_code_cell("x = 1")]
    with_colab = [colab_cell("https://example.org/pagedlab"), *cells]
    assert code_of(new_notebook(cells=cells), "cpu") == code_of(new_notebook(cells=with_colab), "cpu")


def test_committed_notebooks_have_the_cell_once_there_is_an_address():
    for path in (ROOT / "notebooks").glob("[0-9]*.ipynb"):
        found = [cell.source for cell in nbformat.read(path, as_version=4).cells if is_for_colab(cell)]
        if normalise_notebooks.repository() or found:
            assert found == [colab_cell(normalise_notebooks.repository()).source]


@pytest.fixture
def colab(monkeypatch):
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))


def commands(cell, folder, monkeypatch):
    shell = FakeShell()
    monkeypatch.chdir(folder)
    exec(cell, {"get_ipython": lambda: shell})
    return shell.commands


def test_it_does_nothing_outside_colab(cell, tmp_path, monkeypatch):
    assert commands(cell, tmp_path, monkeypatch) == []


def test_in_colab_without_an_address_it_says_what_to_write(colab, cell, tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="Write the address of your copy"):
        commands(cell.replace("https://example.org/pagedlab", ""), tmp_path, monkeypatch)


def test_in_colab_it_runs_once_and_never_installs_torch(colab, cell, tmp_path, monkeypatch):
    first = commands(cell, tmp_path, monkeypatch)
    assert first
    (tmp_path / "data").mkdir()
    (tmp_path / "notebooks").mkdir()
    assert commands(cell, tmp_path / "notebooks", monkeypatch) == []
    for command in first:
        words = shlex.split(command)
        if words[0] != "pip":
            continue
        packages = [word for word in words[2:] if not word.startswith("-")]
        assert packages
        if "--no-deps" in words:
            assert packages == [".."]
            continue
        for package in packages:
            assert not installed_by([package]) & {"torch", "triton"}, package
