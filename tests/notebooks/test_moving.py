"""In a cell that takes its time a bar moves, and nothing of it stays behind. And each cell shows its own figure."""

import base64
import io
import time
from itertools import pairwise

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook, new_output
from PIL import Image

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
    """Notes for each cell that ran the longest time between two messages, and its seconds."""

    times = ()

    def process_message(self, msg, cell, cell_index):
        self.heard.append(time.perf_counter())
        return super().process_message(msg, cell, cell_index)

    async def async_execute_cell(self, cell, cell_index, **options):
        self.heard = [time.perf_counter()]
        try:
            return await super().async_execute_cell(cell, cell_index, **options)
        finally:
            self.heard.append(time.perf_counter())
            silence = max(later - earlier for earlier, later in pairwise(self.heard))
            self.times += ((silence, self.heard[-1] - self.heard[0]),)


DRAW = "fig, ax = figure(2, 1)"


@pytest.fixture(scope="module")
def client():
    """One that has run a notebook: a bar, nothing for a second, and figures in two cells."""
    cells = [SLOW, "time.sleep(1)", "from pagedlab_lessons.plots import figure", DRAW, DRAW]
    notebook = new_notebook(cells=[new_code_cell(source) for source in cells])
    client = Listener(notebook)
    client.execute()
    return client


def test_a_bar_moves_until_the_cell_ends(client):
    (first, seconds), (second, _), *_ = client.times
    assert first < 0.7 * seconds, "the bar appears after a second, and moves until the cell ends"
    assert second > 0.75, "in the next cell nothing moves any more"
    assert client.nb.cells[0].outputs
    assert not normalised(client.nb).cells[0].outputs


def test_each_cell_shows_its_figure_once_without_a_ground(client):
    """JupyterLab does not draw it again when the theme changes."""
    for cell in client.nb.cells[3:]:
        (output,) = cell.outputs
        with Image.open(io.BytesIO(base64.b64decode(output.data["image/png"]))) as picture:
            assert picture.convert("RGBA").getpixel((0, 0))[3] == 0
            assert output.metadata["image/png"]["width"] == picture.size[0] // 2


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
