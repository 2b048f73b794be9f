"""Notebook 15's workbench: parts of an engine that a reader has written, and the file they make.

A part that is missing is pagedlab's, so the engine runs from the first cell on.
"""

import ast
import inspect
import linecache
from pathlib import Path
from typing import Any

from pagedlab import LLM
from pagedlab_lessons.checks import CheckResult

# The argument of `LLM` that takes a part, by the name of its check. Two parts are no arguments.
OPTIONS = {
    "my_pool": "block_pool",
    "my_table": "block_table",
    "my_cache": "prefix_caching",
    "my_attention": "attention_backend",
    "my_scheduler": "scheduler",
    "my_sample": "sample_rows",
    "my_step": "LLM",
}
FILE = "my_engine.py"
WRITTEN = ast.Import, ast.ImportFrom, ast.Assign, ast.FunctionDef, ast.ClassDef
HEAD = '''"""My engine: a language model with a paged KV cache. What is missing is pagedlab's."""

import sys

from pagedlab import LLM
'''
ENGINE = """
def engine(model=None):
    llm = {kind}(model{options})
    {sample}return llm


if __name__ == "__main__":
    chat = [{{"role": "user", "content": " ".join(sys.argv[1:])}}]
    print(engine().generate(chat)[0].outputs[0].text)
"""


class Workbench:
    """The parts that have passed their checks."""

    def __init__(self) -> None:
        self.parts: dict[str, Any] = {}  # by the name of their check

    def keep(self, answer: Any, result: CheckResult) -> CheckResult:
        """Keep a part if its check has passed, and write the file. Return the check's result."""
        if result.status == "passed":
            self.parts[result.name] = answer
            Path(FILE).write_text(self.source(), encoding="utf-8")
        return result

    def engine(self, model: Any = None, **options: Any) -> LLM:
        """Make an engine of the reader's parts, and of pagedlab's for the rest.

        Args:
            model: as for `LLM`.
            options: those of `LLM`.
        """
        mine = {OPTIONS[name]: part for name, part in self.parts.items()}
        kind = mine.pop("LLM", LLM)
        sample = mine.pop("sample_rows", None)
        llm = kind(model, **mine | options)
        if sample is not None:
            llm.sample_rows = sample
        return llm

    def source(self) -> str:
        """The text of my_engine.py."""
        names = {OPTIONS[check]: part.__name__ for check, part in self.parts.items()}
        kind = names.pop("LLM", "LLM")
        sample = names.pop("sample_rows", None)
        options = "".join(f", {option}={name}" for option, name in names.items())
        set_sample = f"llm.sample_rows = {sample}\n    " if sample else ""
        texts = dict.fromkeys([HEAD, *map(source_of, self.parts.values())])
        return "\n\n".join([*texts, ENGINE.format(kind=kind, options=options, sample=set_sample)])

    def __repr__(self) -> str:
        mine = [check.removeprefix("my_") for check in OPTIONS if check in self.parts]
        ours = [check.removeprefix("my_") for check in OPTIONS if check not in self.parts]
        return (
            f"yours: {len(mine)} of {len(OPTIONS)}"
            + (f" ({', '.join(mine)})" if mine else "")
            + (f"; still pagedlab's: {', '.join(ours)}" if ours else "")
        )


mine = Workbench()


def source_of(answer: Any) -> str:
    """The imports, names, functions and classes of the cell in which a part was written."""
    members = vars(answer).values() if inspect.isclass(answer) else [answer]
    functions = [getattr(member, "fget", member) for member in members]
    code = next(each.__code__ for each in functions if inspect.isfunction(each))
    lines = linecache.getlines(code.co_filename)
    kept = []
    for node in ast.parse("".join(lines)).body:
        if not isinstance(node, WRITTEN):
            continue
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(each.lineno for each in decorators)])
        text = "".join(lines[first - 1 : node.end_lineno])
        if "pagedlab_lessons" not in text and "check." not in text and "mine." not in text:
            kept.append(text)
    return "\n".join(kept)
