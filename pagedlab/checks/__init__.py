"""The exercises' checks: `check.NAME(answer)` says whether an answer is right, and if not, on what it fails.

    from pagedlab.checks import check
    check.block_pool(MyBlockPool)

The result shows itself as the last line of a cell. Its status is one of three. "not attempted": the stub is
untouched, that is, the answer is `...`, or a function or method in it has `...` as its body or raises
`NotImplementedError`. "failed": the smallest counterexample that the check found, with what was expected
beside what came out. "passed": what the answer now proves. Nothing that an answer does, endless loops
included, ends in a traceback from in here.

Writing a check. A check is a function in a module `pagedlab/checks/<topic>.py`; its name is the exercise's. It
returns what a right answer proves, and raises `Wrong` for a wrong one:

    @exercise
    def waste(answer: Callable[[int, int], int]) -> str:
        "Slots of the last block that n tokens leave empty."
        compare(answer, lambda n, block_size: -n % block_size, [(1, 4), (4, 4), (5, 4)])
        return "Right at every fill of the last block."

`exercise` registers it and answers for untouched stubs before it is called. `check` imports these modules when
it meets a name that it does not know, so there is no list to keep. What else runs a reader's code does so in
`trying`. For classes, `search` runs sequences of operations, short ones first, on the answer beside a reference,
and shrinks what fails: see blocks.py.

In the notebook the exercise is one cell, tagged `exercise`: the stub, then `check.NAME(...)`; of the cells above
it needs imports only. Folded below it are three hints and `<details><summary>Solution</summary>` with one
```python fence, which takes the stub's place. tests/checks/wrong_<topic>.py lists wrong answers, three for each check.
"""

from __future__ import annotations

import copy
import dis
import html
import inspect
import math
import pkgutil
import random
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, wraps
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any, Literal, Protocol

MAX_STEPS = 1_000_000  # bytecode instructions in loops that an answer may execute in one trial; half a second

_COLORS = {"passed": "#009E73", "failed": "#D55E00", "not attempted": "#8A8A8A"}


@dataclass(frozen=True)
class CheckResult:
    """What a check found. `operations` are the lines of Python that lead to the difference, none when it passed."""

    status: Literal["passed", "failed", "not attempted"]
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
        lines += [f"{number:3}  {line}" for number, line in enumerate(self.operations, 1)]
        if self.expected or self.got:
            lines += [f"expected   {self.expected}", f"yours      {self.got}"]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, _, body = str(self).partition("\n")
        color = _COLORS[self.status]
        return (
            f'<pre style="border-left:4px solid {color};padding:2px 0 2px 10px;margin:4px 0;white-space:pre-wrap">'
            f'<b style="color:{color}">{html.escape(head)}</b>\n{html.escape(body)}</pre>'
        )


class Wrong(Exception):
    """The answer is wrong; `operations` are the few steps that show it, `expected` and `got` where they end."""

    def __init__(
        self, message: str, expected: object = "", got: object = "", *, setup: str = "", operations: Iterable[str] = ()
    ) -> None:
        super().__init__(message)
        self.expected, self.got = expected, got
        self.setup, self.operations = setup, tuple(operations)


class StillRunning(BaseException):
    """An answer executed too many steps. Not an `Exception`, so that `except Exception` lets it by."""


# Registration -------------------------------------------------------------------------------------------------

_CHECKS: dict[str, Callable[[Any], CheckResult]] = {}


def exercise(function: Callable[[Any], str]) -> Callable[[Any], CheckResult]:
    """Register a check under its function's name; see the module's docstring."""
    name = function.__name__

    @wraps(function)
    def run(answer: Any) -> CheckResult:
        if missing := to_write(answer):
            return CheckResult("not attempted", f"Still to write: {', '.join(missing)}.", name=name)
        try:
            return CheckResult("passed", function(answer), name=name)
        except NotImplementedError as error:
            said = str(error) or "Your code still raises NotImplementedError."
            return CheckResult("not attempted", said, name=name)
        except Wrong as error:
            wrong = error
        except (Exception, StillRunning) as error:  # the answer has a shape that the check did not foresee
            wrong = Wrong("Your answer stops the check.", "no error", explain(error))
        expected, got = str(wrong.expected), str(wrong.got)
        return CheckResult("failed", str(wrong), wrong.setup, wrong.operations, expected, got, name)

    _CHECKS[name] = run
    return run


class Checks:
    """Every registered check as an attribute. Modules of `pagedlab.checks` are imported when one is asked for."""

    def __getattr__(self, name: str) -> Callable[[Any], CheckResult]:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in _CHECKS:
            _import_checks()
        if name not in _CHECKS:
            raise AttributeError(f"there is no check {name!r}; there are {', '.join(sorted(_CHECKS))}")
        return _CHECKS[name]

    def __dir__(self) -> list[str]:
        _import_checks()
        return sorted(_CHECKS)


check = Checks()


@cache
def _import_checks() -> None:
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")


# Stubs --------------------------------------------------------------------------------------------------------

_STUB_OPCODES = {"RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST", "POP_TOP", "COPY_FREE_VARS"}


def to_write(answer: Any) -> list[str]:
    """Names of the parts of an answer that are still stubs: `...`, or functions and methods with that body."""
    answer = getattr(answer, "fn", answer)  # of a Triton kernel, the function that was decorated
    if answer is ... or answer is None:
        return ["the answer"]
    if isinstance(answer, dict):
        return [str(key) for key, value in answer.items() if to_write(value)]
    if isinstance(answer, (list, tuple)):
        return ["the answer"] if any(value is ... for value in answer) else []
    if inspect.isclass(answer):
        members = {name: getattr(value, "fget", value) for name, value in vars(answer).items()}
        if answer.__base__ is object and not any(map(callable, members.values())):
            return [answer.__name__]
        return [name for name, value in members.items() if inspect.isfunction(value) and _is_stub(value)]
    return [answer.__name__] if inspect.isfunction(answer) and _is_stub(answer) else []


def _is_stub(function: Any) -> bool:
    code = list(dis.get_instructions(function))
    return all(step.opname in _STUB_OPCODES for step in code) and all(
        step.argval is None for step in code if step.opname in ("LOAD_CONST", "RETURN_CONST")
    )


# Running what a reader wrote ----------------------------------------------------------------------------------


@contextmanager
def bounded(limit: int = MAX_STEPS, counts: Callable[[CodeType], bool] | None = None) -> Iterator[None]:
    """Raise `StillRunning` in whatever runs inside after `limit` instructions of functions that `counts` says count.

    Unless it is given, all functions with loops do, but for ours; endless recursion is stopped by Python.
    """
    steps, counts = 0, counts or _loops_of_theirs

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps > limit:
            raise StillRunning(f"it is still running after {limit:,} steps: look for a loop that does not end")
        return count

    def enter(frame: Any, event: str, argument: Any) -> Any:
        if not counts(frame.f_code):
            return None
        # Instructions and not lines: "while True: pass" is one line, which Python reports once.
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return count

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)


@cache
def _loops_of_theirs(code: CodeType) -> bool:
    jumps = {*dis.hasjrel, *dis.hasjabs}
    ours = Path(__file__).parent in Path(code.co_filename).parents
    return not ours and any(s.opcode in jumps and s.argval <= s.offset for s in dis.get_instructions(code))


def explain(error: BaseException) -> str:
    """An error of the reader's code in one line: what it says, and the line that it comes from."""
    kind = "" if isinstance(error, StillRunning) else type(error).__name__
    said = ": ".join(filter(None, (kind, str(error))))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.line]
    own = [frame for frame in frames if Path(__file__).parents[1] not in Path(frame.filename).parents]
    return f"{said} ({own[-1].name}: {own[-1].line})" if own else said


@contextmanager
def trying(
    *operations: str, message: str = "Your code raises an error.", setup: str = "", expected: object = "no error"
) -> Iterator[None]:
    """Run a reader's code inside, bounded. What it raises is `Wrong`, and a `Wrong` has these operations before it."""
    try:
        with bounded():
            yield
    except NotImplementedError:
        raise
    except Wrong as wrong:
        wrong.setup, wrong.operations = wrong.setup or setup, wrong.operations or operations
        raise
    except (Exception, StillRunning) as error:
        raise Wrong(message, expected, explain(error), setup=setup, operations=operations) from None


def compare(answer: Callable[..., Any], reference: Callable[..., Any], cases: Iterable[tuple[Any, ...]]) -> None:
    """Call `answer` and `reference` on each case; `Wrong` for the first that differs.

    Put small cases first: the first one found is the counterexample that the reader sees. Floats are equal when
    they are within one part in 10^9.
    """
    name = getattr(answer, "__name__", "answer")
    for case in cases:
        line = f"{name}({', '.join(map(repr, case))})"
        expected = reference(*copy.deepcopy(case))
        with trying(line, expected=expected):
            got = answer(*copy.deepcopy(case))
            if not same(expected, got):
                no_return = "It returns None: is a `return` missing? "
                raise Wrong((no_return if got is None else "") + "The smallest case that differs:", expected, repr(got))


def same(expected: Any, got: Any) -> bool:
    """Equality, within one part in 10^9 for floats."""
    if isinstance(expected, float) and isinstance(got, (int, float)):
        return math.isclose(expected, got, rel_tol=1e-9, abs_tol=1e-12)
    return bool(expected == got)


# Searching for the smallest counterexample --------------------------------------------------------------------


class Trial(Protocol):
    """An answer beside a reference, both fresh; `do` carries one operation out on both and compares them."""

    setup: str

    def choices(self) -> Sequence[str]:
        """Operations, as lines of Python, that may come next."""

    def do(self, operation: str) -> None:
        """Carry the operation out; raise `Wrong` when the two differ."""


@cache
def _compiled(line: str) -> Any:
    return compile(f"_ = {line}", "<operation>", "exec")


def attempt(line: str, names: dict[str, Any]) -> tuple[Any, Exception | None]:
    """Execute a line of Python among `names`: its value, or the exception that it raised."""
    try:
        exec(_compiled(line), names)  # noqa: S102 - a line that the check put together
    except NotImplementedError:
        raise
    except Exception as error:
        return None, error
    return names["_"], None


def run(
    start: Callable[[], Trial], pick: Callable[[int, Sequence[str]], str | None]
) -> tuple[Wrong | None, Sequence[str]]:
    """Run one fresh trial: its first difference, if any, and what may come next.

    `pick(step, choices)` names each operation, None ends the run. One that is not among the choices (it needs a
    table that was left out, say) ends it too, with no difference and nothing next.
    """
    trial = None
    done: list[str] = []
    try:
        with trying():
            trial = start()
            while (operation := pick(len(done), choices := trial.choices())) is not None:
                if operation not in choices:
                    return None, ()
                done.append(operation)
                trial.do(operation)
            return None, choices
    except Wrong as wrong:
        wrong.setup, wrong.operations = trial.setup if trial else "", tuple(done)
        return wrong, ()


def replay(start: Callable[[], Trial], operations: Sequence[str]) -> tuple[Wrong | None, Sequence[str]]:
    """`run` with the operations given."""
    return run(start, lambda step, _: operations[step] if step < len(operations) else None)


def search(starts: Sequence[Callable[[], Trial]], *, sequences: int = 400, walks: int = 48, length: int = 24) -> None:
    """Raise `Wrong` with the smallest counterexample that turns up, if one does.

    Tries up to `sequences` short sequences on the first start, shortest first, so that what fails there is
    minimal; then random `walks` of up to `length` operations over all starts, what fails shrunk by leaving
    operations out. Deterministic: the same answer gets the same counterexample.
    """
    queue: deque[tuple[str, ...]] = deque([()])
    for _ in range(sequences):
        prefix = queue.popleft()
        wrong, choices = replay(starts[0], prefix)
        if wrong:
            raise wrong
        queue.extend((*prefix, choice) for choice in choices)
    chance = random.Random(0)
    for walk in range(walks):
        start = starts[walk % len(starts)]
        wrong, _ = run(start, lambda step, choices: chance.choice(choices) if step < length else None)
        if wrong:
            raise _shrink(start, wrong)


def _shrink(start: Callable[[], Trial], wrong: Wrong) -> Wrong:
    operations = wrong.operations
    for i in reversed(range(len(operations))):
        shorter, _ = replay(start, operations[:i] + operations[i + 1 :])
        if shorter:
            return _shrink(start, shorter)
    return wrong
