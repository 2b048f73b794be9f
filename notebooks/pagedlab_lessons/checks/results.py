"""The result of a check, its errors, and the registry of checks."""

from __future__ import annotations

import ast
import dis
import html
import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pagedlab_lessons.checks.cases import filled, refuse_no_text, try_cases, valid_cases
from pagedlab_lessons.checks.comparing import BrokenCheck, Wrong, compare
from pagedlab_lessons.checks.topics import TOPIC_OF
from pagedlab_lessons.colors import GREEN, NEUTRAL, VERMILION
from pagedlab_lessons.readers_code import explain, in_time, text_of

_COLORS = {
    "passed": GREEN,
    "failed": VERMILION,
    "not attempted": NEUTRAL,
    "not finished": NEUTRAL,
}
MAX_TEXT = 1500  # characters of a value, or of another part of a result
_STYLE = "border-left:4px solid {color};padding:2px 0 2px 10px;margin:4px 0;white-space:pre-wrap"
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class CheckResult:
    """The result of a check.

    Args:
        status: "passed", "failed", "not attempted" or "not finished" (some methods are written).
        message: what the answer proves, or what is wrong with it.
        setup: the line of Python that starts the counterexample.
        operations: the lines of Python that lead to the difference; empty if the check passed.
        expected: the right result of the counterexample.
        got: the answer's result.
        name: name of the check.
    """

    status: Literal["passed", "failed", "not attempted", "not finished"]
    message: str
    setup: str = ""
    operations: tuple[str, ...] = ()
    expected: str = ""
    got: str = ""
    name: str = ""

    def __str__(self) -> str:
        lines = [f"{self.status} · {self.name}", self.message]
        if self.setup:
            lines.append(f"     {self.setup}")
        for number, line in enumerate(self.operations, 1):
            lines.append(f"{number:3}  {line}")
        if self.expected or self.got:
            lines.append(f"expected   {self.expected}")
            lines.append(f"yours      {self.got}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, _, body = str(self).partition("\n")
        color = _COLORS[self.status]
        title = f"<b>{html.escape(head)}</b>"  # in the ink of the page: the colours are too pale
        return f'<pre style="{_STYLE.format(color=color)}">{title}\n{html.escape(body)}</pre>'


Check = Callable[[Any], CheckResult]
REGISTERED: dict[str, Check] = {}  # checks by name, as their modules are imported


def exercise(function: Callable[[Any], str]) -> Check:
    """Register a check under the name of its function.

    Args:
        function: takes an answer, returns what a right one proves, raises `Wrong` for a wrong one.
            Its docstring says what the answer is.

    Returns:
        The check: it takes an answer and returns a `CheckResult`.

    Raises:
        ValueError: If the series has a check of this name.
    """
    _refuse_name_of_series(function.__name__, function)
    return _register(function.__name__, function, _documented(function.__doc__))


def exercise_of_methods(*methods: str) -> Callable[[Callable[[Any], str]], Check]:
    """Register a check of a class, as `exercise` does.

    If some of the methods are written, an unfinished class is "not finished" instead of "not
    attempted".

    Args:
        methods: names of the methods that are stubs in the notebook.

    Raises:
        ValueError: If the series has a check of this name.
    """

    def register(function: Callable[[Any], str]) -> Check:
        _refuse_name_of_series(function.__name__, function)
        doc = _documented(function.__doc__)
        return _register(function.__name__, function, doc, methods)

    return register


def compared(
    proves: str,
    cases: Sequence[tuple[Any, ...]] = (),
    *,
    name: str = "",
    why: Callable[..., str] | None = None,
) -> Callable[[_Function], _Function]:
    """Register a check that compares an answer with the decorated function.

    The function itself stays what it is. It and `why` are called with every case at once, so that
    a mistake in the check is found where it is written.

    Args:
        proves: what a right answer does; `{}` becomes the number of cases.
        cases: a list with a tuple of arguments for each case, small ones first.
        name: the check's name; by default the function's.
        why: takes the arguments of a case, returns why its right result is right.

    Raises:
        TypeError: If the cases are no list of tuples, or do not fit the function.
        ValueError: If there is no case, if the series has a check of this name, or if the function
            raises an error.
    """
    refuse_no_text(proves)
    every = valid_cases(cases)
    proof = filled(proves, len(every))

    def register(right: _Function) -> _Function:
        _refuse_name_of_series(name or right.__name__, right)
        try_cases(right, every, why)

        def compare_all(answer: Any) -> str:
            compare(answer, right, every, why)
            return proof

        compare_all.__module__ = right.__module__
        signature = f"Your function is called like {right.__name__}{inspect.signature(right)}."
        _register(name or right.__name__, compare_all, _documented(right.__doc__, signature))
        return right

    return register


def _refuse_name_of_series(name: str, right: Callable[..., Any]) -> None:
    """Refuse a name that a check of the series has, whether or not its module is imported.

    Raises:
        ValueError: If the series has it and the function is not part of the series.
    """
    if name in TOPIC_OF and not right.__module__.startswith("pagedlab_lessons.checks."):
        raise ValueError(
            f"the series has a check {name!r}; choose a name that is not in dir(check)"
        )


def _register(
    name: str, function: Callable[[Any], str], doc: str, methods: Sequence[str] = ()
) -> Check:
    def run(answer: Any) -> CheckResult:
        return _judge(name, function, answer, methods)

    run.__name__ = name
    run.__qualname__ = f"check.{name}"
    run.__module__ = function.__module__
    run.__doc__ = doc
    REGISTERED[name] = run
    return run


def _documented(wanted: str | None, *more: str) -> str:
    """Return the docstring of a check whose answer is described by `wanted`."""
    paragraphs = [
        "Check an answer to this exercise.",
        f"The answer: {inspect.cleandoc(wanted or 'see the notebook')}",
        *more,
        "Returns:\n    A CheckResult: passed, failed with a counterexample, or not attempted.",
    ]
    return "\n\n".join(paragraphs)


def _judge(
    name: str, function: Callable[[Any], str], answer: Any, methods: Sequence[str]
) -> CheckResult:
    """Run a check on an answer. Nothing but an interrupt leaves this function as an error."""
    try:
        with in_time():
            missing = to_write(answer)
            if missing:
                written = [method for method in methods if hasattr(answer, method)]
                return _unfinished(name, missing, written)
            return CheckResult("passed", function(answer), name=name)
    except KeyboardInterrupt:
        raise
    except NotImplementedError as error:
        message = text_of(error) or "Your code still raises NotImplementedError."
        return CheckResult("not attempted", message, name=name)
    except BrokenCheck as error:
        message = f"The check itself has a mistake, not your answer: {error}"
        return CheckResult("failed", message, name=name)
    except Wrong as error:
        wrong = error
    except BaseException as error:
        # The answer has a form that the check did not foresee, or it is exit() and its kin.
        wrong = Wrong("Your answer stops the check.", "no error", explain(error))
    return _failed(name, wrong)


def _failed(name: str, wrong: Wrong) -> CheckResult:
    """Return the result for a wrong answer. Long texts are shortened to where they differ."""
    expected, got = text_of(wrong.expected), text_of(wrong.got)
    start = 0
    if max(len(expected), len(got)) > MAX_TEXT:
        shorter = min(len(expected), len(got))
        differs = next((i for i in range(shorter) if expected[i] != got[i]), shorter)
        start = max(0, differs - MAX_TEXT // 2)
    operations = tuple(map(_shortened, wrong.operations))
    shown = _shortened(expected, start), _shortened(got, start)
    return CheckResult("failed", _shortened(str(wrong)), wrong.setup, operations, *shown, name)


def _shortened(text: str, start: int = 0) -> str:
    """Return at most `MAX_TEXT` characters of a text from `start` on, and say what is left out."""
    part = text[start : start + MAX_TEXT]
    if len(part) == len(text):
        return text
    before = "..." if start else ""
    after = "..." if start + MAX_TEXT < len(text) else ""
    return f"{before}{part}{after} ({len(text):,} characters in all)"


def _unfinished(name: str, missing: Sequence[str], methods: Sequence[str]) -> CheckResult:
    """Return the result for an answer that still has stubs, here `missing`."""
    written = [method for method in methods if method not in missing]
    message = f"Still to write: {', '.join(missing)}."
    if not written:
        return CheckResult("not attempted", message, name=name)
    return CheckResult("not finished", f"Written: {', '.join(written)}. {message}", name=name)


# Stubs --------------------------------------------------------------------------------------------

_STUB_OPCODES = {
    "RESUME",
    "NOP",
    "LOAD_CONST",
    "RETURN_VALUE",
    "RETURN_CONST",
    "POP_TOP",
    "COPY_FREE_VARS",
}


def to_write(answer: Any) -> list[str]:
    """Return the names of the parts of an answer that are still stubs.

    A stub is `...`, or a function or method with `...` as its body.

    Args:
        answer: a value, a function, a class, or a list or dict of such.
    """
    answer = getattr(answer, "fn", answer)  # the function that a Triton kernel decorates
    if answer is ... or answer is None:
        return ["the answer"]
    if isinstance(answer, dict):
        return [str(key) for key, value in answer.items() if to_write(value)]
    if isinstance(answer, (list, tuple)):
        return ["the answer"] if any(value is ... for value in answer) else []
    if inspect.isclass(answer):
        return _stubs_of_class(answer)
    return [answer.__name__] if _is_stub(answer) else []


def _stubs_of_class(answer: type) -> list[str]:
    """Return the names of a class's stub methods, or its own name if it is empty."""
    members = {name: getattr(value, "fget", value) for name, value in vars(answer).items()}
    is_empty = answer.__base__ is object and not any(map(callable, members.values()))
    if is_empty:
        return [answer.__name__]
    return [name for name, value in members.items() if _is_stub(value)]


def _is_stub(value: Any) -> bool:
    """Return whether this is a function that does nothing, and in whose source nothing is returned.

    `...` and `return None` have the same bytecode; a reader who writes the second has answered.
    """
    if not inspect.isfunction(value) or not all(map(_is_idle, dis.get_instructions(value))):
        return False
    try:
        written = ast.parse(textwrap.dedent(inspect.getsource(value)))
    except (OSError, TypeError, SyntaxError):  # no source, or a lambda in the middle of a line
        return True
    return not any(isinstance(node, ast.Return) for node in ast.walk(written))


def _is_idle(step: dis.Instruction) -> bool:
    """Return whether this instruction can be part of a stub."""
    is_constant = step.opname.endswith("_CONST")
    return step.opname in _STUB_OPCODES and (step.argval is None or not is_constant)
