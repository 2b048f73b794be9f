"""In a cell that takes its time a bar moves, and nothing of it stays behind."""

import sys
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from normalise_notebooks import normalised  # noqa: E402
from time_notebooks import Timed  # noqa: E402

SLOW = """
import time
from pagedlab.lessons.progress import moving

class Engine:
    def on_step(self, callback):
        self.callback = callback
        return lambda: None

engine = Engine()
with moving(engine, total=16):
    for _ in range(16):
        time.sleep(0.25)
        engine.callback()
"""


def test_a_bar_moves_until_the_cell_ends() -> None:
    cells = [SLOW, "time.sleep(2)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    client = Timed(notebook)
    client.execute()
    first, second = client.silence.values()
    assert first < 0.7 * client.seconds[0], "the cell takes over four seconds, and something moves in between"
    assert second > 1.5, "in the next cell nothing moves any more"
    assert notebook.cells[0].outputs
    assert not normalised(notebook).cells[0].outputs
