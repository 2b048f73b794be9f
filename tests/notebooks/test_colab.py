"""The cell for Google Colab: it does nothing elsewhere, and in Colab it leaves PyTorch and Triton alone."""

import copy
import shlex
import sys
from types import ModuleType
from unittest.mock import Mock

import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

import normalise_notebooks
from colab_cell import colab_cell, is_for_colab
from time_notebooks import code_of


@pytest.fixture
def cell():
    return TransformerManager().transform_cell(colab_cell("https://example.org/pagedlab").source)


def test_once_published_a_notebook_has_the_cell_after_its_navigation(monkeypatch):
    cells = [new_markdown_cell("# A title"), new_markdown_cell("map"), new_code_cell("x = 1")]
    plain = new_notebook(cells=cells)
    for address in ("", "https://github.com/you/pagedlab"):
        monkeypatch.setattr(normalise_notebooks, "repository", lambda address=address: address)
        notebook = normalise_notebooks.with_colab_cell(copy.deepcopy(plain))
        assert list(map(is_for_colab, notebook.cells)) == [False, False, *[True] * bool(address), False]
        assert normalise_notebooks.with_colab_cell(copy.deepcopy(notebook)) == notebook
        assert code_of(notebook, "cpu") == code_of(plain, "cpu"), "it is the same notebook"


@pytest.fixture
def colab(monkeypatch):
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))


def commands(cell, folder, monkeypatch):
    shell = Mock()
    monkeypatch.chdir(folder)
    exec(cell, {"get_ipython": lambda: shell})
    return [" ".join(call.args) for call in shell.method_calls]


def test_it_does_nothing_outside_colab(cell, tmp_path, monkeypatch):
    assert commands(cell, tmp_path, monkeypatch) == []


def test_in_colab_it_runs_once_and_never_installs_torch(colab, cell, tmp_path, monkeypatch):
    first = commands(cell, tmp_path, monkeypatch)
    assert first
    (tmp_path / "data").mkdir()
    (tmp_path / "notebooks").mkdir()
    assert commands(cell, tmp_path / "notebooks", monkeypatch) == []
    for words in map(shlex.split, first):
        packages = [word for word in words[2:] if not word.startswith("-")]
        if words[0] == "pip" and "--no-deps" not in words:
            assert packages
            assert not any(package.startswith(("torch", "triton")) for package in packages)
