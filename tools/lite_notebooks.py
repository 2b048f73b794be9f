"""Notebooks for a browser, where there is no PyTorch: what needs it becomes text with the output that was stored.

The second cell says what happens while Python loads. A code cell with the tag "needs-torch" becomes a text cell: a
note, its code, its stored output. The cell that sets up Colab is left out. Links to notebooks that are not part of the
site become plain text. tests/notebooks/test_lite.py finds a cell that lacks the tag.

A file NUMBER_ID.py of tools/lite_cells takes the place of the cell with this id, where a notebook can go on without a
model. It has words for a model's words, and the real pool, cache or scheduler. NUMBER_imports.py has what cells that
become text import and later cells use; it is a cell after the first text.

By hand, because nbconvert removes tagged cells, but has no filter that makes them text with their outputs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from pathlib import Path

import nbformat
from cells import has_tag
from colab_cell import is_for_colab
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

NOTE = (
    "**PyTorch does not run in a browser**, so this cell is text here: its code, and its output from a run elsewhere."
)
STARTS = (
    "**This notebook runs in your browser**: nothing is installed, and nothing leaves this page. The first cell that "
    "you run loads Python and NumPy. The first time this can take twenty seconds or more, and the circle at the top "
    "right turns meanwhile. Later cells are fast."
)
KERNEL = {"display_name": "Python (Pyodide)", "language": "python", "name": "python"}
NEEDS_TORCH = "needs-torch"  # the tag of a cell that needs PyTorch
CELLS = Path(__file__).parent / "lite_cells"
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")  # not to an address with a scheme


def for_browser(notebook: NotebookNode, present: Collection[str], imports: str = "") -> NotebookNode:
    """The notebook for the browser; it is changed in place.

    Args:
        notebook: a notebook of the series.
        present: the files, relative to the notebook, that links may point to.
        imports: the source of a cell after the first one that becomes text.
    """
    cells: list[NotebookNode] = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = LINK.sub(lambda match: match[0] if match[2] in present else match[1], cell.source)
        needs_torch = has_tag(cell, NEEDS_TORCH)
        if not is_for_colab(cell):
            cells.append(_as_text(cell) if needs_torch else cell)
        if needs_torch and imports:
            cells.append(new_code_cell(imports, id="imports"))
            imports = ""
    cells.insert(1, new_markdown_cell(STARTS, id="in-the-browser"))
    notebook.cells = cells
    notebook.metadata = {"kernelspec": KERNEL}
    return notebook


def linked(notebook: NotebookNode) -> set[str]:
    """The relative paths that a notebook's text links to."""
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return {target for _, target, _ in LINK.findall(text)}


def _as_text(cell: NotebookNode) -> NotebookNode:
    """The code cell as text; pictures become attachments, other outputs their plain text."""
    parts, attachments = [NOTE, f"```python\n{cell.source}\n```"], {}
    for i, output in enumerate(cell.outputs):
        data = output.get("data", {})
        if "image/png" in data:
            attachments[f"{i}.png"] = {"image/png": data["image/png"]}
            said = output.metadata.get("image/png", {}).get("alt", "output")
            parts.append(f"![{re.sub(r'[][]', '', said)}](attachment:{i}.png)")
        elif "text/markdown" in data:
            parts.append(data["text/markdown"])
        elif data.get("text/html", "").startswith("<details>"):
            parts.append(data["text/html"])  # the answer to a guess
        elif text := output.get("text") or data.get("text/plain"):
            parts.append(f"```text\n{text.rstrip()}\n```")
    text_cell = new_markdown_cell("\n\n".join(parts), id=cell.id)
    if attachments:
        text_cell.attachments = attachments
    return text_cell


def convert(folder: Path, names: Iterable[str], destination: Path) -> set[str]:
    """Write `names` of `folder` for the browser; returns the relative paths that their links need beside them."""
    notebooks = {name: nbformat.read(folder / name, as_version=4) for name in names}
    targets = {target for book in notebooks.values() for target in linked(book) if (folder / target).is_file()}
    files = {target for target in targets if not target.endswith(".ipynb")}
    destination.mkdir(parents=True, exist_ok=True)
    for name, notebook in notebooks.items():
        instead = {path.stem[3:]: path.read_text(encoding="utf-8").rstrip() for path in CELLS.glob(f"{name[:2]}_*.py")}
        for cell in notebook.cells:
            cell.source = instead.get(cell.id, cell.source)
        # Not nbformat.write, which cuts text into lists of lines: JupyterLite takes them as they are.
        ready = for_browser(notebook, files | set(notebooks), instead.get("imports", ""))
        (destination / name).write_text(json.dumps(ready), encoding="utf-8")
    return files
