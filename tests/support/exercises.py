"""The exercises of all notebooks, each with the imports above it and the help below it, and answers to them."""

import ast
import linecache
import re
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import nbformat

from support.paths import NOTEBOOKS

# what kernels of 07 use
BROUGHT = "import torch\nfrom pagedlab_lessons.kernels07.ladder import attend, rows_at, slots_at, take\n"
SOLUTION = re.compile(r"<summary>\s*Solution\s*</summary>.*?```python\n(.*?)```", re.DOTALL)


class Exercise(NamedTuple):
    """An exercise cell of a notebook."""

    notebook: str
    name: str  # of its check
    imports: str  # of the cells above it
    stub: str
    call: str  # "check.NAME(answer)"
    help: str  # the Markdown below, up to the next exercise


def exercises(path: Path):
    """Return the exercises of a notebook, in order."""
    found: list[Exercise] = []
    imports: list[str] = []
    for cell in nbformat.read(path, 4).cells:
        if cell.cell_type == "code" and "exercise" in cell.metadata.get("tags", []):
            calls = [node for node in ast.walk(ast.parse(cell.source)) if is_check(node)]
            assert len(calls) == 1, f"{path.name}: an exercise cell calls one check, this one {len(calls)}"
            call = ast.unparse(calls[0])
            found.append(Exercise(path.name, calls[0].func.attr, "\n".join(imports), cell.source, call, ""))
        if cell.cell_type == "code":
            imports += imports_of(cell.source)
        elif found:
            found[-1] = found[-1]._replace(help=found[-1].help + "\n" + cell.source)
    return found


def is_check(node: ast.AST):
    """Whether it is a call `check.NAME(...)`."""
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "check"
    )


def imports_of(source: str):
    """Return the import statements at the top level of a cell."""
    lines = [line for line in source.splitlines() if not line.lstrip().startswith(("%", "!"))]
    return [ast.unparse(n) for n in ast.parse("\n".join(lines)).body if isinstance(n, (ast.Import, ast.ImportFrom))]


EXERCISES = [exercise for path in NOTEBOOKS for exercise in exercises(path)]


_cells = count()


def run_cell(source: str, names):
    """Run code as IPython runs a cell: `inspect` finds its source."""
    file = f"<cell {next(_cells)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), names)


def solution_of(exercise: Exercise):
    """The folded solution, of which there is one."""
    solutions = SOLUTION.findall(exercise.help)
    assert len(solutions) == 1, f"{exercise.name} needs one folded solution, it has {len(solutions)}"
    return solutions[0]


def argument_of(exercise: Exercise):
    """The source of what the exercise's cell hands to its check."""
    (call,) = ast.parse(exercise.call).body
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    return ast.unparse(call.value.args[0])


def edited_answer(name: str, old: str = "", new: str = ""):
    """The folded solution, or the same with a text in it changed, as the check of that name takes it."""
    (exercise,) = (exercise for exercise in EXERCISES if exercise.name == name)
    solution = solution_of(exercise)
    assert old in solution, f"{name}: the solution has no {old!r}"
    solution = solution.replace(old, new)
    names: dict[str, Any] = {"__name__": "notebook"}
    if exercise.notebook.startswith("07"):  # kernels, whose source Triton looks up
        from pagedlab_lessons.kernels07.watch import define

        names = define(BROUGHT + solution)
    else:
        exec("\n".join([exercise.imports, *imports_of(exercise.stub)]), names)
        run_cell(solution, names)
    return eval(argument_of(exercise), names)
