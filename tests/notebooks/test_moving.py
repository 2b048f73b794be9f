"""In a cell that takes its time a bar moves, and nothing of it stays behind. And each cell shows its own figure."""

import re
from collections import defaultdict

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook, new_output

from normalise_notebooks import WIDGET_VIEW, normalised
from time_notebooks import kept

SLOW = """
import time
from pagedlab_lessons.progress import moving

class Engine:
    def on_step(self, callback):
        self.callback = callback
        return lambda: None

engine = Engine()
with moving(engine):
    for _ in range(10):
        time.sleep(0.25)
        engine.callback()
"""


class Listener(NotebookClient):
    """Notes what widgets show of the steps, by cell."""

    def process_message(self, msg, cell, cell_index):
        shown = re.findall(r"(\d+)/\?", str(msg["content"]))
        self.heard[cell_index] += map(int, shown)
        return super().process_message(msg, cell, cell_index)


DRAW = "fig, ax = figure(2, 1)"


@pytest.fixture(scope="module")
def client():
    """One that has run a notebook: a bar, nothing for a second, and figures in two cells."""
    cells = [SLOW, "time.sleep(1)", "from pagedlab_lessons.plots import figure", DRAW, DRAW]
    notebook = new_notebook(cells=[new_code_cell(source) for source in cells])
    client = Listener(notebook)
    client.heard = defaultdict(list)
    client.execute()
    return client


def test_a_bar_moves_until_the_cell_ends(client):
    first, second, *_ = client.heard.values()
    assert first[-1] > first[0], "the bar appears after a second, and moves"
    assert not second, "in the next cell nothing moves any more"
    assert client.nb.cells[0].outputs
    assert not normalised(client.nb).cells[0].outputs


def test_each_cell_shows_its_figure_once(client):
    """test_plots.py looks at the figure."""
    assert ["image/png" in output.data for cell in client.nb.cells[3:] for output in cell.outputs] == [True, True]


@pytest.mark.parametrize(
    "text",
    [
        "width 2:  24%|##4       | 29/120 [00:01<00:03, 28.74it/s]",
        "steps: 5it [00:01,  4.43it/s]",
        "model.safetensors:  10%|#         | 98.8M/988M [00:09<01:21, 10.9MB/s]",
        "0questions [00:00, ?questions/s]",
    ],
)
def test_a_closed_bar_is_not_stored(text):
    bar = {WIDGET_VIEW: {"model_id": "1"}, "text/plain": text}
    bars = [new_output("display_data", bar), new_output("stream", name="stderr", text=f"\r{text}")]
    results = [
        new_output("stream", name="stdout", text="the search took [00:01], 3 it/s\n"),
        new_output("display_data", bar | {"text/html": "a twin"}),
    ]
    notebook = new_notebook(cells=[new_code_cell("search()", outputs=bars + results)])
    clean = normalised(notebook)
    assert [output.output_type for output in clean.cells[0].outputs] == ["stream", "display_data"]
    kept(notebook, nbformat.from_dict(notebook))
    assert notebook.cells[0].outputs == results
