"""While a notebook's first cell imports torch and transformers something moves, and nothing of it stays behind."""

import subprocess
import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from normalise_notebooks import normalised  # noqa: E402
from time_notebooks import Timed  # noqa: E402


def test_a_bar_moves_until_the_cell_ends() -> None:
    cells = ["import time, pagedlab\ntime.sleep(4)", "time.sleep(2)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    client = Timed(notebook)
    client.execute()
    first, second = client.silence.values()
    assert first < 0.7 * client.seconds[0], "the cell takes over four seconds, and something moves in between"
    assert second > 1.5, "in the next cell nothing moves any more"
    assert notebook.cells[0].outputs
    assert not normalised(notebook).cells[0].outputs


def test_a_command_line_imports_no_bar() -> None:
    code = "import sys, pagedlab; assert 'tqdm' not in sys.modules and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
