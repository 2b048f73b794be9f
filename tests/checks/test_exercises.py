"""Every exercise of every notebook: its stub is "not attempted", its folded solution passes, wrong answers fail.

What a notebook has to look like for this is in the docstring of pagedlab/checks.py. A kernel that is wrong may never
end, and only the interpreter stops it: on a machine with a GPU the answers are tried in a process that sees none.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import pytest

from pagedlab.checks import check
from pagedlab.kernels.runtime import INTERPRETED

HERE = Path(__file__).parent
NOTEBOOKS = sorted((HERE.parents[1] / "notebooks").glob("[0-9]*.ipynb"))
SOLUTION = re.compile(r"<summary>\s*Solution\s*</summary>.*?```python\n(.*?)```", re.DOTALL)
HINT = re.compile(r"<summary>\s*Hint \d\s*</summary>")


class Exercise(NamedTuple):
    notebook: str
    name: str  # of its check
    imports: str  # of the cells above it
    stub: str
    call: str  # "check.NAME(answer)"
    help: str  # the Markdown below, up to the next exercise


def exercises(path: Path) -> list[Exercise]:
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


def is_check(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "check"
    )


def imports_of(source: str) -> list[str]:
    lines = [line for line in source.splitlines() if not line.lstrip().startswith(("%", "!"))]
    return [ast.unparse(n) for n in ast.parse("\n".join(lines)).body if isinstance(n, (ast.Import, ast.ImportFrom))]


EXERCISES = [exercise for path in NOTEBOOKS for exercise in exercises(path)]
WRONG: dict[str, list[Any]] = {}
RIGHT: dict[str, list[Any]] = {}
for module in map(import_module, sorted(path.stem for path in HERE.glob("wrong_*.py"))):
    WRONG |= module.WRONG
    RIGHT |= getattr(module, "RIGHT", {})


def named(answer: Any) -> str:
    """The same in every process that collects: no addresses."""
    if isinstance(answer, dict):  # several functions, as puzzle 7 takes them
        return "-".join(named(part) for part in answer.values())
    return getattr(answer, "__name__", str(answer))


def of_each(answers: dict[str, list[Any]]) -> Any:
    cases = [(name, answer) for name, listed in answers.items() for answer in listed]
    return pytest.mark.parametrize(("name", "answer"), cases, ids=[f"{name}-{named(answer)}" for name, answer in cases])


interpreted = pytest.mark.skipif(not INTERPRETED, reason="in another process, where there is a GPU")
of_each_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=[f"{e.notebook}-{e.name}" for e in EXERCISES])


@interpreted
@of_each_exercise
def test_stub_is_not_attempted_and_the_folded_solution_passes(exercise: Exercise) -> None:
    names: dict[str, Any] = {"__name__": "notebook"}
    exec(exercise.imports, names)
    exec(exercise.stub, names)
    assert eval(exercise.call, names).status == "not attempted"
    solutions = SOLUTION.findall(exercise.help)
    assert len(solutions) == 1, f"{exercise.name} needs one folded solution, it has {len(solutions)}"
    exec(solutions[0], names)
    result = eval(exercise.call, names)
    assert result.status == "passed", str(result)


@of_each_exercise
def test_three_hints_and_a_word_on_why(exercise: Exercise) -> None:
    assert len(HINT.findall(exercise.help)) >= 3
    why = re.sub(r"<[^>]+>", "", SOLUTION.split(exercise.help)[-1])
    assert len(why.split()) >= 15, f"{exercise.name}: say after the solution why it is right"


@pytest.mark.parametrize("name", dir(check))
def test_every_check_has_three_wrong_answers(name: str) -> None:
    assert len(WRONG.get(name, [])) >= 3, f"list wrong answers for check.{name} in tests/checks/wrong_<topic>.py"


@interpreted
@of_each(WRONG)
def test_wrong_answer_fails_with_a_small_counterexample(name: str, answer: Any) -> None:
    result = getattr(check, name)(answer)
    assert result.status == "failed", str(result)
    assert result.name == name
    assert result.expected != result.got
    assert result.got, "a failed check shows what came out"
    assert len(result.operations) <= 6, str(result)


@interpreted
@of_each(RIGHT)
def test_other_right_answers_pass(name: str, answer: Any) -> None:
    result = getattr(check, name)(answer)
    assert result.status == "passed", str(result)


@pytest.mark.skipif(INTERPRETED, reason="tried in this process")
def test_answers_where_there_is_a_gpu() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "pytest", __file__, "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("name", ["01_fragmentation", "02_block_pool"])
def test_the_first_notebooks_do_without_torch(name: str) -> None:
    cells = nbformat.read(HERE.parents[1] / "notebooks" / f"{name}.ipynb", 4).cells
    imports = [line for cell in cells if cell.cell_type == "code" for line in imports_of(cell.source)]
    assert imports
    code = "\n".join([*imports, "import sys", "sys.exit('torch' in sys.modules)"])
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
