"""Renew the package's sources that notebooks show, without running the notebooks.

python tools/notebook_sources.py notebooks/*.ipynb
A cell that calls `show_source(Name, Name.attribute, ...)` shows what is in a file, so its output depends on the file
alone. Each stored output of such a call is replaced by what the call shows now.

By hand, because only this series has `show_source`.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections.abc import Iterable
from typing import Any

import nbformat
from pagedlab_lessons.show import show_source

MAGIC = re.compile(r"^(\s*)[%!].*", re.MULTILINE)
PACKAGES = {"pagedlab", "pagedlab_fast", "pagedlab_serve", "pagedlab_lessons"}
HEAD = "# pagedlab"  # the beginning of every shown source of the package


def parsed(cell: nbformat.NotebookNode) -> ast.Module:
    """The code of a cell as a tree, without its magics; an empty tree for a cell without code."""
    source = cell.source if cell.cell_type == "code" else ""
    return ast.parse(MAGIC.sub(r"\1pass", source))


def imports(tree: ast.Module) -> Iterable[tuple[str, ast.alias]]:
    """The module and the name of each import from the package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PACKAGES:
            for alias in node.names:
                yield node.module, alias


def item_of(module: str, name: str) -> Any:
    """What `from module import name` imports, which may be a module."""
    parent = importlib.import_module(module)
    return getattr(parent, name) if hasattr(parent, name) else importlib.import_module(f"{module}.{name}")


def refresh(notebook: nbformat.NotebookNode) -> int:
    """Renew the shown sources of a notebook, and return how many outputs have changed.

    Raises:
        NameError: For a call of `show_source` whose arguments are not imported from pagedlab by the notebook.
    """
    names: dict[str, Any] = {}
    changed = 0
    for cell in notebook.cells:
        tree = parsed(cell)
        names |= {alias.asname or alias.name: item_of(module, alias.name) for module, alias in imports(tree)}
        texts = [(output, output.get("data", {}).get("text/plain", "")) for output in cell.get("outputs", [])]
        shown = [output for output, text in texts if text.startswith(HEAD)]
        if not shown:
            continue
        for output, call in zip(shown, calls(tree), strict=True):
            source = shown_by(call, names)
            data = {"text/markdown": source._repr_markdown_(), "text/plain": source.text}
            changed += output.data != data
            output.data = nbformat.from_dict(data)
    return changed


def shown_by(call: ast.Call, names: dict[str, Any]) -> Any:
    """What a call of `show_source` returns. It is evaluated, since its arguments may be attributes of names."""
    return eval(ast.unparse(call), {"show_source": show_source}, names)  # noqa: S307 - a cell of our own notebook


def calls(tree: ast.Module) -> list[ast.Call]:
    """The cell's calls of `show_source`, in the order of the text."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found = [call for call in found if isinstance(call.func, ast.Name) and call.func.id == "show_source"]
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))


def main() -> None:
    for path in sys.argv[1:]:
        notebook = nbformat.read(path, as_version=4)
        changed = refresh(notebook)
        if changed:
            nbformat.write(notebook, path)
            print(f"{path}: {changed} shown sources renewed")


if __name__ == "__main__":
    main()
