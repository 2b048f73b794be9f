"""Every notebook as readers use it: they run all cells, move the controls, and run cells again.

In one kernel each: first from top to bottom. Then every control of every explorer moves. Then each cell runs twice in
a row, so that all cells have run three times. `make test-main` runs this file beside the other tests, with the tiny
model.
"""

import copy

import nbformat
import pytest
from nbclient import NotebookClient

from support.paths import ROOT, each_notebook

# The benchmark that 10 starts gets fewer requests: it is a process of its own, and changes nothing in the notebook.
LONG, SHORT = "--requests 40 --shortest 8 --longest 256", "--requests 2 --shortest 2 --longest 5"
MOVE = f"""
import sys
sys.path.append({str(ROOT / "tests")!r})
from support.explorers import move_all
move_all()
"""


@pytest.mark.timeout(900)
@each_notebook
def test_a_notebook_runs_moves_and_runs_again(path, tmp_path):
    source = path.read_text(encoding="utf-8")
    assert (LONG in source) == path.name.startswith("10")
    notebook = nbformat.reads(source.replace(LONG, SHORT), 4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    twice = [copy.deepcopy(cell) for cell in cells for _ in range(2)]
    notebook.cells = [*cells, nbformat.v4.new_code_cell(MOVE), *twice]
    for number, cell in enumerate(notebook.cells):
        cell.id = str(number)
    NotebookClient(notebook, timeout=300).execute(cwd=str(tmp_path))
