"""In a cell that takes its time a bar moves, and nothing of it stays behind. And each cell shows its own figure."""

import base64
import io
import time

import nbformat
import pytest
from nbclient import NotebookClient
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
    """Notes of each cell the longest time between two messages, and how long it ran."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.silence = {}
        self.seconds = {}

    def process_message(self, msg, cell, cell_index):
        self.heard(cell_index)
        return super().process_message(msg, cell, cell_index)

    def heard(self, index):
        now = time.perf_counter()
        self.silence[index] = max(self.silence.get(index, 0.0), now - self.last)
        self.last = now

    async def async_execute_cell(self, cell, cell_index, **options):
        self.last = start = time.perf_counter()
        try:
            return await super().async_execute_cell(cell, cell_index, **options)
        finally:
            self.heard(cell_index)
            self.seconds[cell_index] = time.perf_counter() - start


DRAW = "fig, ax = figure(2, 1)"


@pytest.fixture(scope="module")
def client():
    """One that has run a notebook: a bar, nothing for a second, and figures in two cells."""
    cells = [SLOW, "time.sleep(1)", "from pagedlab_lessons.plots import figure", DRAW, DRAW]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    client = Listener(notebook)
    client.execute()
    return client


def test_a_bar_moves_until_the_cell_ends(client):
    first, second, *_ = client.silence.values()
    assert first < 0.7 * client.seconds[0], "the bar appears after a second, and moves until the cell ends"
    assert second > 0.75, "in the next cell nothing moves any more"
    assert client.nb.cells[0].outputs
    assert not normalised(client.nb).cells[0].outputs


def test_each_cell_shows_its_figure(client):
    drawn = [sum("image/png" in output.get("data", {}) for output in cell.outputs) for cell in client.nb.cells]
    assert drawn[2:] == [0, 1, 1]


def test_a_figure_has_no_ground_so_that_it_reads_well_when_the_theme_changes(client):
    """JupyterLab does not draw it again. One image is shown: Jupyter's own, with its white ground, is not."""
    for cell in client.nb.cells[3:]:
        (output,) = cell.outputs
        with Image.open(io.BytesIO(base64.b64decode(output.data["image/png"]))) as picture:
            assert picture.convert("RGBA").getpixel((0, 0))[3] == 0
            assert output.metadata["image/png"]["width"] == picture.size[0] // 2


@pytest.mark.parametrize(
    "text",
    [
        "width 2:  24%|##4       | 29/120 [00:01<00:03, 28.74it/s]",
        "Loading weights:   0%|          | 0/290 [00:00<?, ?it/s]",
        "steps: 5it [00:01,  4.43it/s]",
        "searching:  50%|#####     | 60/120 [1:02:03<1:02:03, 62.05s/it]",
        "model.safetensors:  10%|#         | 98.8M/988M [00:09<01:21, 10.9MB/s]",
        "0questions [00:00, ?questions/s]",
    ],
)
def test_a_closed_bar_is_not_stored(text):
    bar = {WIDGET_VIEW: {"model_id": "1"}, "text/plain": text}
    outputs = [
        nbformat.v4.new_output("display_data", data=bar),
        nbformat.v4.new_output("stream", name="stderr", text=f"\r{text}"),
        nbformat.v4.new_output("display_data", data=bar | {"text/plain": "HTML(value='http://127.0.0.1:33653')"}),
    ]
    results = [
        nbformat.v4.new_output("stream", name="stdout", text="the search took [00:01], 3 it/s\n"),
        nbformat.v4.new_output("display_data", data=bar | {"text/html": "a twin"}),
    ]
    cell = nbformat.v4.new_code_cell("search()", outputs=[*outputs, *results])
    notebook = nbformat.v4.new_notebook(cells=[cell], metadata={"pagedlab": {"cpu": "1"}})
    clean = normalised(notebook)
    assert [output.output_type for output in clean.cells[0].outputs] == ["stream", "display_data"]
    assert clean.metadata["pagedlab"] == {"cpu": "1"}
    kept(notebook, nbformat.from_dict(notebook))
    assert notebook.cells[0].outputs == results
