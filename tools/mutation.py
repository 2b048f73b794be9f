"""Mutation testing: change one operator, number or statement of a module, and see whether its tests notice.

    pip install cosmic-ray
    python tools/mutation.py blocks

The operators are cosmic-ray's, and one of our own that drops a statement. pytest collects the tests once; then each
mutant has a process forked from that one, in which the module's functions get the mutated code, and runs the tests
until one fails. No file is touched. Tests of planted bugs are left out: they expect a failure, and here any would do.
Survivors are printed as file:line with the change. Not for Windows (it forks).
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import os
import random
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = {
    "blocks": ["test_blocks.py", "test_blocks_worked_numbers.py", "test_prefix.py"],
    "prefix": ["test_prefix.py"],
    "eviction": ["test_prefix.py"],
    "scheduler": ["test_scheduler.py"],
}
NOT_THE_PLANTED = "not finds_the_bug and not notices and not fuzz_catches and not spoils and not notebook"
# Of all pairs of operators those that a test may well confuse: cosmic-ray also has `a ** b` for `a + b`.
PAIRS = {
    "ReplaceComparisonOperator": {
        "Eq": "NotEq",
        "NotEq": "Eq",
        "Lt": "LtE GtE",
        "LtE": "Lt Gt",
        "Gt": "GtE LtE",
        "GtE": "Gt Lt",
        "Is": "IsNot",
        "IsNot": "Is",
    },
    "ReplaceBinaryOperator": {
        "Add": "Sub Mul",
        "Sub": "Add",
        "Mul": "Add FloorDiv",
        "FloorDiv": "Mul Mod",
        "Mod": "FloorDiv Add",
        "BitAnd": "BitOr",
        "BitOr": "BitAnd",
    },
}
OTHERS = [
    *(
        "ReplaceUnaryOperator_USub_UAdd",
        "ReplaceUnaryOperator_Delete_USub",
        "ReplaceUnaryOperator_Delete_Not",
        "AddNot",
    ),
    *("ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd", "AddNot"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "NumberReplacer", "ZeroIterationForLoop"),
]
OPERATORS = [f"{kind}_{a}_{b}" for kind, pairs in PAIRS.items() for a, bs in pairs.items() for b in bs.split()] + OTHERS


class WithoutAnnotations(ast.NodeTransformer):
    """Types and docstrings do nothing when the program runs: a change in them is no mutant."""

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        self.generic_visit(node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if isinstance(node.value, ast.Constant) else node


def meaning(source: str) -> str:
    return ast.dump(WithoutAnnotations().visit(ast.parse(source)))


def without_a_statement(source: str) -> Iterator[str]:
    """The source with one statement replaced by `pass`, for each in turn."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr, ast.Raise, ast.Return, ast.Delete)):
            first, last = node.lineno - 1, node.end_lineno or node.lineno
            head = lines[first][: node.col_offset]
            yield "".join([*lines[:first], head + "pass\n", *lines[last:]]) if not head.strip() else source


def mutants(source: str) -> Iterator[tuple[str, str]]:
    """(name of the operator, mutated source), no two alike and none like the source."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    seen = {meaning(source)}

    def new(mutated: str) -> bool:
        try:
            what = meaning(mutated)
        except SyntaxError:
            return False
        fresh = what not in seen
        seen.add(what)
        return fresh

    for name in OPERATORS:
        operator, occurrence = get_operator(f"core/{name}")(), 0
        while (mutated := mutate_code(source, operator, occurrence)) is not None:
            if new(mutated):
                yield name, mutated
            occurrence += 1
    for mutated in without_a_statement(source):
        if new(mutated):
            yield "DropStatement", mutated


def functions(namespace: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, FunctionType]]:
    """Every function of a module and of its classes, properties included, by qualified name."""
    for name, value in namespace.items():
        if isinstance(value, type) and value.__module__ == namespace.get("__name__", value.__module__):
            yield from functions(dict(vars(value)), f"{prefix}{name}.")
        value = value.fget if isinstance(value, property) else value
        if isinstance(value, FunctionType):
            yield prefix + name, inspect.unwrap(value)  # a decorated one keeps its wrapper, and that the same function


def put_in_place(module: ModuleType, source: str) -> None:
    """Give the functions of an imported module the code of `source`; whoever holds a function or class keeps it."""
    mutated = dict(vars(module))
    exec(compile(source, str(module.__file__), "exec"), mutated)  # noqa: S102 - our own module, mutated
    new = dict(functions(mutated))
    for name, old in functions(vars(module)):
        if name in new and new[name] is not old:
            old.__code__, old.__defaults__, old.__kwdefaults__ = (
                getattr(new[name], part) for part in ("__code__", "__defaults__", "__kwdefaults__")
            )
            for cell, other, variable in zip(
                old.__closure__ or (), new[name].__closure__ or (), old.__code__.co_freevars, strict=True
            ):
                if variable != "__class__":  # a dataclass keeps its defaults in cells
                    cell.cell_contents = other.cell_contents
    for name, value in mutated.items():
        if not isinstance(value, (type, FunctionType)):
            setattr(module, name, value)


class Mutation:
    """A pytest plugin that runs the collected tests once as they are and once for every mutant."""

    def __init__(self, module: str, only: str, sample: int | None) -> None:
        self.module, self.only, self.sample = module, only, sample
        self.mutants = self.survived = 0

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        module = importlib.import_module(f"pagedlab.{self.module}")
        source = Path(str(module.__file__)).read_text()
        start = time.process_time()
        passed = self.passes(module, source, 600)
        if passed is None:
            return None  # in the child, pytest goes on with the tests
        if not passed:
            sys.exit(f"the tests of {self.module} fail as it is")
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        limit = 10 + 5 * round(used.ru_utime + time.process_time() - start)
        chosen = []
        for name, mutated in mutants(source):
            what = change(source, mutated)
            # Classes stay the objects they are, so a change of a decorator would have no effect.
            if self.only in what and not what.partition(": ")[2].startswith("@"):
                chosen.append((name, mutated))
        total = len(chosen)
        random.Random(0).shuffle(chosen)
        for name, mutated in chosen[: self.sample]:
            passed = self.passes(module, mutated, limit)
            if passed is None:
                return None
            self.mutants += 1
            self.survived += passed
            if passed:
                print(f"{self.module}.py:{change(source, mutated)}  ({name})", flush=True)
        print(f"{self.module}: {self.mutants} of {total} mutants, {self.survived} survived", flush=True)
        return True

    def passes(self, module: ModuleType, source: str, limit: int) -> bool | None:
        """Whether the tests pass in `limit` seconds of CPU; None in the child, which is to run them."""
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        try:
            put_in_place(module, source)
        except BaseException:  # it cannot even be imported: noticed
            os._exit(1)
        return None


def change(before: str, after: str) -> str:
    """The first line that differs, as `number: old -> new`."""
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    number, (old, new) = next((i, pair) for i, pair in enumerate(pairs, 1) if pair[0] != pair[1])
    return f"{number}: {old.strip()}  ->  {new.strip()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", choices=list(TESTS))
    parser.add_argument("--only", default="", help="only mutants whose changed line, as printed, contains this")
    parser.add_argument("--sample", type=int, help="so many mutants, drawn at random, in place of all")
    args = parser.parse_args()
    os.environ.setdefault("PAGEDLAB_OPERATIONS", "5000")  # survivors cost the most time
    os.environ |= {"PAGEDLAB_SEED": "0", "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    sys.path.insert(0, str(ROOT))
    options = ["-x", "-q", "-s", "-k", NOT_THE_PLANTED, "-o", "timeout=0"]
    options += [f"-p{plugin}" for plugin in ("no:cacheprovider", "_hypothesis_pytestplugin", "pytest_timeout")]
    options += ["--hypothesis-profile=mutants", "--hypothesis-seed=0"]
    tests = [str(ROOT / "tests" / test) for test in TESTS[args.module]]
    os._exit(int(pytest.main([*options, *tests], plugins=[Mutation(args.module, args.only, args.sample)])))


if __name__ == "__main__":
    main()
