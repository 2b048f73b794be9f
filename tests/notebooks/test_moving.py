"""In a cell that takes its time a bar moves, and nothing of it stays behind."""

import time

import nbformat
import pytest
from nbclient import NotebookClient

from normalise_notebooks import WIDGET_VIEW, normalised
from time_notebooks import kept

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


def test_a_bar_moves_until_the_cell_ends():
    cells = [SLOW, "time.sleep(2)"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    client = Listener(notebook)
    client.execute()
    first, second = client.silence.values()
    assert first < 0.7 * client.seconds[0], "the cell takes over four seconds, and something moves in between"
    assert second > 1.5, "in the next cell nothing moves any more"
    assert notebook.cells[0].outputs
    assert not normalised(notebook).cells[0].outputs


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
