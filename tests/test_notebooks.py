"""Every notebook as readers use it: they run all cells, move the controls, and run cells again.

In one kernel each, with the tiny model: all cells run from top to bottom. Then every control of every explorer moves.
Then each cell runs twice in a row, so that all have run three times but those in `ONCE`. test_without_triton.py runs 07
and 10 without Triton.
"""

import copy

import nbformat
import pytest
from nbclient import NotebookClient

from support.paths import ROOT, each_notebook

# Cells that compute for two to twenty seconds, and change nothing that an earlier cell made. They make results of their
# own, and engines of their own where they need some.
ONCE = {
    "04": {"count-run", "lineage", "savings"},
    "05": {"policies", "spy-run"},
    "07": {"07-80"},
    "09": {"09-60"},
    "10": {"10-19"},
    "11": {"11-48"},
    "12": {"12-06", "12-25"},
    "13": {"13-34", "13-40"},
    "14": {"14-11"},
}
# The benchmark that 10 starts gets fewer requests: it is a process of its own.
LONG, SHORT = "--requests 40 --shortest 8 --longest 256", "--requests 2 --shortest 2 --longest 5"
# 00 to 09 are about the small module: they run without the houses that are built on it.
ALONE = f"""
import sys
sys.path.insert(0, {str(ROOT / "notebooks")!r})
sys.modules["pagedlab_fast"] = sys.modules["pagedlab_serve"] = None
"""
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
    once = ONCE.get(path.name[:2], set())
    assert once <= {cell.id for cell in cells}
    twice = [copy.deepcopy(cell) for cell in cells if cell.id not in once for _ in range(2)]
    first = [nbformat.v4.new_code_cell(ALONE)] if path.name[:2] < "10" else []
    notebook.cells = [*first, *cells, nbformat.v4.new_code_cell(MOVE), *twice]
    for number, cell in enumerate(notebook.cells):
        cell.id = str(number)
    NotebookClient(notebook, timeout=300).execute(cwd=str(tmp_path))
