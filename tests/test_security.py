"""What code here never does: load pickles, run a hub's code, build shell lines, listen to the whole network."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    path for folder in ("pagedlab", "tools", "benchmarks", "data") for path in (ROOT / folder).rglob("*.py")
)
CALLS = {"eval", "exec", "compile", "os.system", "os.popen", "torch.load", "pickle.load", "pickle.loads", "yaml.load"}
MODULES = {"pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"}
# Whose input is the program's own or the reader's, who runs it in a notebook of theirs anyway.
ALLOWED = {
    "pagedlab/attention/tracer.py": {"pickle", "pickle.loads"},  # to and from a child process that it starts itself
    "pagedlab/checks.py": {"compile", "exec"},  # lines of operations that the check has put together
    "pagedlab/checks_blocks.py": {"exec"},  # likewise
    "pagedlab/checks_prefix.py": {"eval"},
    "pagedlab/checks_scheduling.py": {"eval"},
    "tools/mutation.py": {"compile", "exec"},  # our own modules, mutated
}


def findings(source: str) -> Iterator[str]:
    """Everything in a Python file that should not be there."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            yield node.module
        elif isinstance(node, ast.Call):
            if ast.unparse(node.func) in CALLS:
                yield ast.unparse(node.func)
            for keyword in node.keywords:
                named = ast.unparse(keyword.value)
                if keyword.arg == "trust_remote_code" or (keyword.arg == "shell" and named != "False"):
                    yield f"{keyword.arg}={named}"
        elif isinstance(node, ast.Constant) and node.value in ("0.0.0.0", "::"):
            yield node.value


def test_nothing_dangerous_but_what_is_argued_for() -> None:
    found = {path.relative_to(ROOT).as_posix(): set(findings(path.read_text())) for path in SOURCES}
    assert {name: what for name, what in found.items() if what} == ALLOWED


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import pickle", "pickle"),
        ("from pickle import loads", "pickle"),
        ("torch.load(path)", "torch.load"),
        ("AutoModel.from_pretrained(name, trust_remote_code=flag)", "trust_remote_code=flag"),
        ("subprocess.run(line, shell=True)", "shell=True"),
        ("uvicorn.run(app, host='0.0.0.0')", "0.0.0.0"),
        ("eval(text)", "eval"),
    ],
)
def test_the_lint_sees_it(line: str, found: str) -> None:
    assert found in set(findings(line))
