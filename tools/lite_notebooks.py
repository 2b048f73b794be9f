"""Notebooks for a browser, where there is no PyTorch: what needs it becomes text with the output that was stored.

A code cell needs PyTorch if it imports something that does not import without it, or uses a name that such a cell
made. It becomes a text cell: a note, its code, its stored output. Its other imports, functions and classes stay
runnable in a cell of their own, if later cells rely on them. Where a notebook can go on without a model, a file of
tools/lite_cells takes the place of the cell that has its number and id: words for a model's words, and the real
pool, cache or scheduler. Links to notebooks that do not come along become plain text.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import symtable
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell

ABSENT = ("torch", "transformers", "triton", "safetensors", "tokenizers")
NOTE = (
    "**PyTorch does not run in a browser**, so this cell is text here: its code, and its output from a run elsewhere."
)
OWN = "# what the cell above imports or defines and a browser has"
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
    for node in ast.parse(_plain(source)).body:
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
    """A copy for the browser. `present`: the files, relative to the notebook, that links may point to."""
    cells: list[NotebookNode] = []
    missing: set[str] = set()  # names that only exist where PyTorch does
    needed: set[str] = set()  # names that the cells which stay runnable use
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cells.append(new_markdown_cell(_links(cell.source, present), id=cell.id))
            continue
        statements = imports(cell.source)
        good = [statement for statement in statements if works(statement)]
        made, used = _names(_plain(cell.source))
        if len(good) == len(statements) and not missing & used:
            missing -= made
            needed |= used
            cells.append(new_code_cell(cell.source, id=cell.id, outputs=cell.outputs, metadata=cell.metadata))
            continue
        here = _definitions(cell.source, missing | made, good)
        missing |= made
        for statement in here:
            missing -= _names(statement)[0]
        cells.append(_as_text(cell))
        cells.append(new_code_cell("\n".join([OWN, *here]), id=f"{cell.id}-own", metadata={"statements": here}))
    for cell in reversed([cell for cell in cells if "statements" in cell.metadata]):
        wanted: list[str] = []
        for statement in reversed(cell.metadata.pop("statements")):
            made, used = _names(statement)
            if made & needed:
                wanted.insert(0, statement)
                needed |= used
        cell.source = "\n".join([OWN, *wanted])
        if not wanted:
            cells.remove(cell)
    kernel = {"display_name": "Python (Pyodide)", "language": "python", "name": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def linked(notebook: NotebookNode) -> set[str]:
    """The relative paths that a notebook's text links to."""
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return {target for _, target, _ in LINK.findall(text)}


def _definitions(source: str, missing: Collection[str], imports: list[str]) -> list[str]:
    """What can be had of a cell where `missing` are not: those imports, and functions and classes that rest on them."""
    found, absent = [*imports], set(missing) - _names("\n".join(imports))[0]
    for node in ast.parse(source := _plain(source)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            absent.discard(node.name)
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]) - 1
            if _names(text := "\n".join(source.splitlines()[first : node.end_lineno]))[1] & absent:
                absent.add(node.name)
            else:
                found.append(text)
    return found


def _plain(source: str) -> str:
    """The cell without its magics: lines that begin with % or !, indented or not."""
    return re.sub(r"^(\s*)[%!].*", r"\1pass", source, flags=re.MULTILINE)


def _names(source: str) -> tuple[set[str], set[str]]:
    """The global names that a cell makes, and those that it uses and does not make."""
    top = symtable.symtable(source, "cell", "exec")
    made = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    used = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
    inner = list(top.get_children())
    while inner:
        scope = inner.pop()
        inner += scope.get_children()
        used |= {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global()}
    return made, used - made


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
            if (instead := CELLS / f"{name[:2]}_{cell.id}.py").is_file():
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
