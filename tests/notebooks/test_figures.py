"""A notebook shows the figures of every cell, not only of the first one that draws."""

import nbclient
import nbformat

CELLS = [
    "from pagedlab.lessons.plots import figure",
    "fig, ax = figure(2, 1)",
    "fig, ax = figure(2, 1)",
]


def test_each_cell_shows_its_figure():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    nbclient.NotebookClient(notebook, timeout=120).execute()
    drawn = [sum("image/png" in output.get("data", {}) for output in cell.outputs) for cell in notebook.cells]
    assert drawn == [0, 1, 1]
