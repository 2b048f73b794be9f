"""What code here never does, and ruff's rules do not see: load pickles in any form, or run a hub's code."""

import ast
import re

import pytest

from support.paths import ROOT

SOURCES = sorted(
    path
    for folder in ("pagedlab", "pagedlab_fast", "pagedlab_serve", "notebooks", "tools", "benchmarks", "data")
    for path in (ROOT / folder).rglob("*.py")
)
MODULES = {"pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle"}


def findings(source):
    """Everything in a Python file that should not be there."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from {alias.name for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            yield node.module
        elif isinstance(node, ast.Call):
            if ast.unparse(node.func) == "torch.load":
                yield "torch.load"
            trusts = [ast.unparse(word.value) for word in node.keywords if word.arg == "trust_remote_code"]
            yield from (f"trust_remote_code={value}" for value in trusts if value != "False")
            if re.search(r"(?i)auto.*\.from_pretrained$", ast.unparse(node.func)) and not trusts:
                yield "from_pretrained without trust_remote_code=False"  # transformers may ask on stdin


def test_nothing_dangerous():
    found = {path.relative_to(ROOT).as_posix(): set(findings(path.read_text())) for path in SOURCES}
    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("import pickle", "pickle"),
        ("from pickle import loads", "pickle"),
        ("torch.load(path)", "torch.load"),
        ("AutoModel.from_pretrained(name, trust_remote_code=flag)", "trust_remote_code=flag"),
        ("AutoModel.from_pretrained(name)", "from_pretrained without trust_remote_code=False"),
    ],
)
def test_the_lint_sees_it(line, found):
    assert found in set(findings(line))
