"""07 and 10 where Triton is not installed, as on macOS and Windows: what does not need it runs, what does says so.

In an empty folder: what they read, they find through the package.
"""

import os
import subprocess
import sys

import nbclient
import nbformat
import pytest
from jupyter_client import KernelManager
from pagedlab_lessons.kernels07.without_triton import SKIPPED

from support.exercises import imports_of
from support.paths import ROOT
from support.smaller import read_smaller

# As if it were not installed: no finder finds it.
BLOCK = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = classmethod(lambda cls, name, *rest: None if name[:6] == "triton" else find(name, *rest))
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """One kernel in an empty folder, for one notebook after the other. 07 is the last: it changes the kernel."""
    blocked = tmp_path_factory.mktemp("blocked")
    (blocked / "sitecustomize.py").write_text(BLOCK)
    path = os.pathsep.join([str(blocked), str(ROOT), str(ROOT / "notebooks")])
    env = os.environ | {"PYTHONPATH": path, "PAGEDLAB_MODEL": str(ROOT / "data" / "tiny-qwen2")}
    manager = KernelManager()
    manager.start_kernel(env=env, cwd=str(tmp_path_factory.mktemp("empty")))
    yield manager
    manager.shutdown_kernel(now=True)


@pytest.mark.parametrize(("name", "at_most"), [("10_serving_qwen", 0), ("07_the_paged_kernel", 20)])
def test_it_runs_to_the_end(name, at_most, kernel):
    """The notebook and the benchmark that 10 starts, which gets fewer requests."""
    notebook = read_smaller(ROOT / "notebooks" / f"{name}.ipynb")
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
    nbclient.NotebookClient(notebook, timeout=240, km=kernel).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    printed = ["".join(output.get("text", "") for output in cell.outputs) for cell in cells]
    skipped = sum(SKIPPED in text for text in printed)
    assert skipped <= at_most
    assert bool(skipped) == bool(at_most)
    assert not any("The benchmark failed" in text for text in printed)


def test_07_imports_triton_through_the_package():
    """So the package chooses Triton's interpreter where there is no GPU."""
    cells = nbformat.read(ROOT / "notebooks" / "07_the_paged_kernel.ipynb", 4).cells
    sources = [cell.source for cell in cells if cell.cell_type == "code"]
    (at,) = (i for i, source in enumerate(sources) if "from pagedlab.kernels.runtime import" in source)
    before = [line for source in sources[: at + 1] for line in imports_of(source)]
    code = "\n".join([*before, "import sys", "sys.exit('triton' in sys.modules)"])
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
