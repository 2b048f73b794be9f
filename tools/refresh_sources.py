"""Renew the package's sources that notebooks show, without running the notebooks.

python tools/refresh_sources.py notebooks/*.ipynb

A cell that calls `show_source(Name, Name.attribute, ...)` shows what is in a file. So its output depends on the file
alone, and not on a model or a card. Each stored output of such a call is replaced by what the call shows now.
"""

from __future__ import annotations

import argparse
import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat

from pagedlab.lessons.show import show_source

HEAD = "# pagedlab/"  # what every shown source of the package begins with


def refresh(notebook: nbformat.NotebookNode) -> int:
    """Renew the shown sources of a notebook, and return how many outputs have changed.

    Raises:
        ValueError: For a call of `show_source` whose arguments are not imported from pagedlab by the notebook.
    """
    names: dict[str, Any] = {}
    changed = 0
    for cell in notebook.cells:
        tree = parsed(cell) if cell.cell_type == "code" else None
        if tree is None:
            continue
        names |= imported(tree)
        shown = [output for output in cell.outputs if plain_text(output).startswith(HEAD)]
        if not shown:
            continue
        for output, call in zip(shown, calls(tree), strict=True):
            source = show_source(*[value_of(argument, names) for argument in call.args])
            data = {"text/markdown": source._repr_markdown_(), "text/plain": source.text}
            changed += output.data != data
            output.data = nbformat.from_dict(data)
    return changed


def parsed(cell: nbformat.NotebookNode) -> ast.Module | None:
    """The cell's code as a tree; None for a cell that is not plain Python."""
    try:
        return ast.parse(cell.source)
    except SyntaxError:
        return None


def imported(tree: ast.Module) -> dict[str, Any]:
    """The objects that a cell imports from pagedlab, by the names that it gives them."""
    names: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "pagedlab":
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                value = getattr(module, alias.name, None)
                if value is None:  # a module of that package
                    value = importlib.import_module(f"{node.module}.{alias.name}")
                names[alias.asname or alias.name] = value
    return names


def calls(tree: ast.Module) -> Iterator[ast.Call]:
    """The cell's calls of `show_source`, in the order of the text."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found = [call for call in found if isinstance(call.func, ast.Name) and call.func.id == "show_source"]
    yield from sorted(found, key=lambda call: (call.lineno, call.col_offset))


def value_of(argument: ast.expr, names: dict[str, Any]) -> Any:
    """The object that an argument such as `Scheduler.schedule` names."""
    first, *attributes = ast.unparse(argument).split(".")
    if first not in names:
        raise ValueError(f"show_source({ast.unparse(argument)}): {first} is not imported from pagedlab by the notebook")
    value = names[first]
    for attribute in attributes:
        value = getattr(value, attribute)
    return value


def plain_text(output: nbformat.NotebookNode) -> str:
    return output.get("data", {}).get("text/plain", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="+", type=Path)
    for path in parser.parse_args().notebooks:
        notebook = nbformat.read(path, as_version=4)
        changed = refresh(notebook)
        if changed:
            nbformat.write(notebook, path)
            print(f"{path.name}: {changed} shown sources renewed")


if __name__ == "__main__":
    main()
