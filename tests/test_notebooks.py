"""Every notebook as readers use it: they run all cells, move the controls, and go back to run cells again.

In one kernel each, with the tiny model: all cells run from top to bottom. Then every control of every explorer moves.
Then all cells run again, the last one first: each twice without the cells above it in between, and after those below
it; in `IN_ORDER`, each twice in a row. test_without_triton.py runs 07 and 10 without Triton, and 10's benchmark.
"""

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell

from support import warm
from support.paths import ROOT, each_notebook
from support.smaller import read_smaller

# A name that a cell sets has another meaning further down.
IN_ORDER = {"11", "13"}
# 00 to 09 are about the small module: they run without the houses that are built on it.
ALONE = f"""
import sys
sys.path.insert(0, {str(ROOT / "notebooks")!r})
sys.modules["pagedlab_fast"] = sys.modules["pagedlab_serve"] = None
"""
# The ranks of 11, too, are copies of the process that has torch already: this kernel is one, and knows it.
# test_first_screens.py starts them from nothing.
WARM_RANKS = """
from multiprocessing import forkserver, get_context
from pagedlab.recipes.ranks import group
forkserver._forkserver.ensure_running = lambda: None
group.context = get_context("forkserver")
"""
MOVE = f"""
import sys
sys.path.append({str(ROOT / "tests")!r})
from support.explorers import move_all
move_all()
"""


@pytest.mark.timeout(900)
@each_notebook
def test_a_notebook_runs_moves_and_runs_again(path, tmp_path, monkeypatch):
    monkeypatch.setattr("jupyter_client.provisioning.local_provisioner.launch_kernel", warm.Kernel)
    notebook = read_smaller(path)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in cells:
        if cell.id == "10-19":
            cell.source = cell.source.partition("with tempfile")[0] + "here = None"
    number = path.name[:2]
    first = ALONE if number < "10" else WARM_RANKS if number == "11" else ""
    # This cell starts other processes, and changes nothing that an earlier cell made.
    again = [cell for cell in cells if cell.id != "11-48"]
    again = [cell for cell in again for _ in range(2)] if number in IN_ORDER else again[::-1]
    every = new_code_cell(first), *cells, new_code_cell(MOVE), *again
    notebook.cells = [new_code_cell(cell.source) for cell in every]
    NotebookClient(notebook, timeout=300).execute(cwd=str(tmp_path))
