"""Notebooks for a browser, where there is no PyTorch: what needs it becomes text with the output that was stored.

The second cell says what happens while Python loads. A code cell with the tag "needs-torch" becomes a text cell: a
note, its code, its stored output. Its imports that work without PyTorch stay in a cell of their own, if later cells
use them. Where a notebook can go on without a model, a file of tools/lite_cells takes the place of the cell that has
its number and id: words for a model's words, and the real pool, cache or scheduler. The cell that sets up Colab is left
out. Links to notebooks that are not part of the site become plain text. tests/notebooks/test_lite.py finds a cell that
lacks the tag.

By hand, because nbconvert removes tagged cells, but has no filter that makes them text with their outputs.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import nbformat
from colab_cell import is_for_colab
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

ABSENT = ("torch", "transformers", "triton", "safetensors", "tokenizers")
NOTE = (
    "**PyTorch does not run in a browser**, so this cell is text here: its code, and its output from a run elsewhere."
)
STARTS = (
    "**This notebook runs in your browser**: nothing is installed, and nothing leaves this page. The first cell that "
    "you run loads Python and NumPy. The first time this can take twenty seconds or more, and the circle at the top "
    "right turns meanwhile. Later cells are fast."
)
NEEDS_TORCH = "needs-torch"  # the tag of a cell that needs PyTorch
OWN = "# what the cell above imports and a browser has"
CELLS = Path(__file__).parent / "lite_cells"
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)")  # not to an address with a scheme
Works = Callable[[str], bool]

_TRY_IMPORTS = f"""
import json, sys
sys.modules.update(dict.fromkeys({ABSENT!r}))  # None: importing it raises ImportError
failed = []
for statement in json.load(sys.stdin):
    try:
        exec(statement, {{}})
    except ImportError:
        failed.append(statement)
print(json.dumps(failed))
"""


def imports(source: str) -> list[str]:
    """The import statements at the top level of a cell, one name each."""
    found = []
    for node in ast.parse(plain(source)).body:
        if isinstance(node, ast.Import):
            found += [ast.unparse(ast.Import([alias])) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [ast.unparse(ast.ImportFrom(node.module, [alias], node.level)) for alias in node.names]
    return found


def without_torch(statements: Iterable[str]) -> Works:
    """Whether an import statement works where `ABSENT` cannot be imported; each is tried, in one new process."""
    asked = json.dumps(sorted(set(statements)))
    run = subprocess.run([sys.executable, "-c", _TRY_IMPORTS], input=asked, capture_output=True, text=True, check=True)
    failed = set(json.loads(run.stdout.splitlines()[-1]))
    return lambda statement: statement not in failed


def for_browser(notebook: NotebookNode, works: Works, present: Collection[str]) -> NotebookNode:
    """A copy for the browser.

    Args:
        notebook: a notebook of the series.
        works: whether an import statement works without PyTorch.
        present: the files, relative to the notebook, that links may point to.
    """
    cells: list[NotebookNode] = []
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            cells.append(new_markdown_cell(_links(cell.source, present), id=cell.id))
        elif needs_torch(cell):
            cells.append(_as_text(cell))
            later = "\n".join(after.source for after in notebook.cells[number + 1 :] if runs_in_browser(after))
            kept = [statement for statement in imports(cell.source) if works(statement) and _is_used(statement, later)]
            if kept:
                cells.append(new_code_cell("\n".join([OWN, *kept]), id=f"{cell.id}-own"))
        elif runs_in_browser(cell):
            cells.append(new_code_cell(cell.source, id=cell.id, outputs=cell.outputs, metadata=cell.metadata))
    cells.insert(1, new_markdown_cell(STARTS, id="in-the-browser"))
    kernel = {"display_name": "Python (Pyodide)", "language": "python", "name": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def needs_torch(cell: NotebookNode) -> bool:
    return NEEDS_TORCH in cell.metadata.get("tags", [])


def runs_in_browser(cell: NotebookNode) -> bool:
    """Whether this is a code cell of the notebook for the browser."""
    return cell.cell_type == "code" and not needs_torch(cell) and not is_for_colab(cell)


def _is_used(statement: str, source: str) -> bool:
    """Whether a source has the name that an import statement with one name makes."""
    name = statement.split()[-1].split(".")[0]
    return bool(re.search(rf"\b{name}\b", source))


def linked(notebook: NotebookNode) -> set[str]:
    """The relative paths that a notebook's text links to."""
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return {target for _, target, _ in LINK.findall(text)}


def plain(source: str) -> str:
    """The cell without its magics: lines that begin with % or !, indented or not."""
    return re.sub(r"^(\s*)[%!].*", r"\1pass", source, flags=re.MULTILINE)


def _links(text: str, present: Collection[str]) -> str:
    return LINK.sub(lambda match: match[0] if match[2] in present else match[1], text)


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
    for name, book in notebooks.items():
        for cell in book.cells:
            instead = CELLS / f"{name[:2]}_{cell.id}.py"
            if instead.is_file():
                cell.source = instead.read_text(encoding="utf-8").rstrip()
    sources = [cell.source for book in notebooks.values() for cell in book.cells if cell.cell_type == "code"]
    works = without_torch(statement for source in sources for statement in imports(source))
    targets = {target for book in notebooks.values() for target in linked(book) if (folder / target).is_file()}
    files = {target for target in targets if not target.endswith(".ipynb")}
    destination.mkdir(parents=True, exist_ok=True)
    for name, notebook in notebooks.items():
        # Not nbformat.write, which cuts text into lists of lines: JupyterLite takes them as they are.
        ready = for_browser(notebook, works, files | set(notebooks))
        (destination / name).write_text(json.dumps(ready), encoding="utf-8")
    return files
