"""A notebook copied alone into an empty folder runs: what it reads it finds through the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
# A string that is, or an open() or Path() of, a path beside or above the notebook.
OUTSIDE = re.compile(r"""["']\.\.?/|(?:open|Path)\(["'](?!/|~)[\w.-]+/""")


RUN = "import sys, nbformat, nbclient; nbclient.NotebookClient(nbformat.read(sys.argv[1], 4), timeout=240).execute()"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_cell_reads_a_file_beside_the_notebook(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    cells = [cell for cell in cells if "colab" not in cell.metadata.get("tags", [])]
    found = [cell.source for cell in cells if OUTSIDE.search(cell.source)]
    assert not found, f"ask pagedlab.shipped (results, data_folder, benchmark) for it:\n{found}"


def test_a_notebook_runs_from_an_empty_folder(tmp_path: Path) -> None:
    """11, which reads recorded results and loads the shipped model, and takes few seconds."""
    shutil.copy2(ROOT / "notebooks" / "11_two_devices.ipynb", tmp_path)
    env = os.environ | {"PAGEDLAB_MODEL": str(ROOT / "data" / "tiny-qwen2")}
    command = [sys.executable, "-c", RUN, "11_two_devices.ipynb"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
