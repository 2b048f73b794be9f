"""07 and 10 where Triton is not installed, as on macOS and Windows: what does not need it runs, what does says so.

Each alone in an empty folder: what they read, they find through the package.
"""

import os
import shutil
import subprocess
import sys

import nbformat
import pytest

from pagedlab.lessons.without_triton import SKIPPED
from support.paths import ROOT

# As if it were not installed: no finder finds it.
BLOCK = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = classmethod(lambda cls, name, *rest: None if name[:6] == "triton" else find(name, *rest))
"""
RUN = """
import sys, nbformat, nbclient
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=240).execute()
nbformat.write(notebook, sys.argv[1])
"""


@pytest.mark.parametrize(("name", "at_most"), [("07_the_paged_kernel", 15), ("10_serving_qwen", 0)])
def test_it_runs_to_the_end(name, at_most, tmp_path):
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "sitecustomize.py").write_text(BLOCK)
    shutil.copy2(ROOT / "notebooks" / f"{name}.ipynb", tmp_path)
    path = os.pathsep.join([str(tmp_path / "blocked"), str(ROOT)])
    env = os.environ | {"PYTHONPATH": path, "PAGEDLAB_MODEL": str(ROOT / "data" / "tiny-qwen2")}
    command = [sys.executable, "-c", RUN, f"{name}.ipynb"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    cells = [cell for cell in nbformat.read(tmp_path / f"{name}.ipynb", 4).cells if cell.cell_type == "code"]
    skipped = [cell for cell in cells if any(SKIPPED in output.get("text", "") for output in cell.outputs)]
    assert len(skipped) <= at_most
    assert bool(skipped) == bool(at_most)
