"""How much code each part of the house has, in tokens, and how much it may have: python tools/measure_code.py

pyproject.toml has the budgets, in [tool.pagedlab.budgets]. A token is one of Python's, without comments, docstrings,
line ends and indentation; in JavaScript, CSS and HTML it is a word, a number, a string or a sign. So to pack lines
changes nothing. Tokens a line are limited, too.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
SUFFIXES = ".py", ".ipynb", ".js", ".css", ".html"
NOT_COUNTED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
HAVE_DOCSTRINGS = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
COMMENT_OF_A_SCRIPT = re.compile(r"/\*.*?\*/|<!--.*?-->|(?<![:\"'])//[^\n]*", re.DOTALL)
TOKEN_OF_A_SCRIPT = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|\w+|[^\s\w]")


@dataclass(frozen=True)
class Size:
    """How many tokens there are, and on how many lines of code."""

    tokens: int
    lines: int

    def __add__(self, other: Size) -> Size:
        return Size(self.tokens + other.tokens, self.lines + other.lines)

    @property
    def per_line(self) -> float:
        return self.tokens / max(self.lines, 1)


@dataclass(frozen=True)
class Budget:
    """What a part may have.

    Args:
        part: the name of the part.
        paths: its files, folders and patterns, below the repository.
        tokens: tokens, at most.
        per_line: tokens a line, at most.
        goal: what `tokens` is to become.
        kernels: those of the paths that hold Triton kernels, whose lines may be long.
    """

    part: str
    paths: list[str]
    tokens: int
    per_line: float
    goal: int
    kernels: list[str] = field(default_factory=list)

    def size(self) -> Size:
        return size_of(files_of(self.paths))

    def tokens_a_line(self) -> float:
        """Tokens a line, Triton kernels left out."""
        return size_of(files_of(self.paths) - files_of(self.kernels)).per_line


def docstring_lines(tree: ast.Module) -> Iterator[int]:
    """The numbers of the lines that docstrings stand on."""
    for node in ast.walk(tree):
        if isinstance(node, HAVE_DOCSTRINGS) and ast.get_docstring(node) is not None:
            first = node.body[0]
            yield from range(first.lineno, first.end_lineno + 1)


def size_of_python(text: str) -> Size:
    documented = set(docstring_lines(ast.parse(text)))
    lines = set()
    tokens = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in NOT_COUNTED or token.start[0] in documented:
            continue
        tokens += 1
        lines.update(range(token.start[0], token.end[0] + 1))
    return Size(tokens, len(lines))


def size_of_script(text: str) -> Size:
    code = COMMENT_OF_A_SCRIPT.sub("", text)
    lines = [line for line in code.splitlines() if line.strip()]
    return Size(len(TOKEN_OF_A_SCRIPT.findall(code)), len(lines))


def size_of_notebook(text: str) -> Size:
    """The size of its code cells. Lines that are IPython's alone, `%` and `!`, are left out."""
    total = Size(0, 0)
    for cell in json.loads(text)["cells"]:
        if cell["cell_type"] == "code":
            lines = "".join(cell["source"]).splitlines()
            code = "\n".join(line for line in lines if line.lstrip()[:1] not in ("%", "!"))
            total += size_of_python(code)
    return total


@cache
def size_of_file(path: Path) -> Size:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return size_of_notebook(text)
    return size_of_python(text) if path.suffix == ".py" else size_of_script(text)


def files_of(paths: list[str]) -> set[Path]:
    """The files with code that these paths name, and those in their folders."""
    named = {path for pattern in paths for path in ROOT.glob(pattern)}
    below = {file for folder in named for file in folder.rglob("*")}
    return {file for file in named | below if file.suffix in SUFFIXES and ".ipynb_checkpoints" not in file.parts}


def size_of(files: set[Path]) -> Size:
    return sum((size_of_file(file) for file in files), Size(0, 0))


def budgets() -> list[Budget]:
    """The budgets of all parts, from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    table = project["tool"]["pagedlab"]["budgets"]
    return [Budget(part, **limits) for part, limits in table.items()]


def main() -> None:
    print(f"{'part':<16}{'tokens':>9}{'budget':>9}{'goal':>9}{'a line':>8}{'at most':>9}")
    for budget in budgets():
        print(
            f"{budget.part:<16}{budget.size().tokens:>9,}{budget.tokens:>9,}{budget.goal:>9,}"
            f"{budget.tokens_a_line():>8.2f}{budget.per_line:>9.1f}"
        )


if __name__ == "__main__":
    main()
