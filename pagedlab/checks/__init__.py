"""The exercises' checks: `check.NAME(answer)` says whether an answer is right, and if not, on what
it fails.

    from pagedlab.checks import check
    check.block_pool(MyBlockPool)

The result shows itself as the last line of a cell. Its status is one of three. "not attempted": the
stub is untouched, that is, the answer is `...`, or a function or method in it has `...` as its body
or raises `NotImplementedError`. "failed": the smallest counterexample that the check found, with
what was expected beside what came out. "passed": what the answer now proves. Nothing that an answer
does, endless loops included, ends in a traceback from in here.

Writing a check. It stands in a module `pagedlab/checks/<topic>.py`, which `check` finds by itself,
under the name of the exercise. Where values can be compared, it is a right answer, with what it
proves and the cases to try:

    @compared("Right at every fill of the last block.", [(1, 4), (4, 4), (5, 4)])
    def waste(num_tokens: int, block_size: int) -> int:
        "Slots of the last block that stay empty."
        return -num_tokens % block_size

Otherwise it is a function of the answer, decorated with `exercise`: it returns what a right one
proves and raises `Wrong` for a wrong one. What runs a reader's code there does so in `trying`. For
classes, `search` runs sequences of operations, short ones first, on the answer beside a reference,
and shrinks what fails: see blocks.py.

In the notebook the exercise is one cell, tagged `exercise`: the stub, then `check.NAME(...)`; of
the cells above it needs imports only. Folded below it are three hints and
`<details><summary>Solution</summary>` with one ```python fence, which takes the stub's place.
tests/checks/wrong_<topic>.py lists wrong answers, three for each check.
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
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial, wraps
from importlib import import_module
from itertools import chain, cycle, islice
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    import torch

# bytecode instructions in loops that an answer may execute in one trial; half a second
MAX_STEPS = 1_000_000

_COLORS = {"passed": "#009E73", "failed": "#D55E00", "not attempted": "#8A8A8A"}
_Function = TypeVar("_Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class CheckResult:
    """What a check found.

    `operations` are the lines of Python that lead to the difference, none when it passed.
    """

    status: Literal["passed", "failed", "not attempted"]
    message: str
    setup: str = ""
    operations: tuple[str, ...] = ()
    expected: str = ""
    got: str = ""
    name: str = ""

    def __str__(self) -> str:
        lines = [
            f"{self.status} · {self.name}",
            self.message,
            *([f"     {self.setup}"] if self.setup else []),
        ]
        lines += [f"{number:3}  {line}" for number, line in enumerate(self.operations, 1)]
        if self.expected or self.got:
            lines += [f"expected   {self.expected}", f"yours      {self.got}"]
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, _, body = str(self).partition("\n")
        color = _COLORS[self.status]
        style = (
            f"border-left:4px solid {color};padding:2px 0 2px 10px;margin:4px "
            "0;white-space:pre-wrap"
        )
        return (
            f'<pre style="{style}"><b '
            f'style="color:{color}">{html.escape(head)}</b>\n{html.escape(body)}</pre>'
        )


class Wrong(Exception):
    """The answer is wrong; `operations` are the few steps that show it, `expected` and `got` where
    they end.
    """

    def __init__(
        self, message: str, expected: Any = "", got: Any = "", *operations: str, setup: str = ""
    ) -> None:
        super().__init__(message)
        self.expected, self.got, self.operations, self.setup = expected, got, operations, setup


class StillRunning(BaseException):
    """An answer would go on for ever, it seems.

    Not an `Exception`, so that `except Exception` lets it by.
    """


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
            return CheckResult(
                "not attempted",
                str(error) or "Your code still raises NotImplementedError.",
                name=name,
            )
        except Wrong as error:
            wrong = error
        except (
            Exception,
            StillRunning,
        ) as error:  # the answer has a shape that the check did not foresee
            wrong = Wrong("Your answer stops the check.", "no error", explain(error))
        said = str(wrong), wrong.setup, wrong.operations, str(wrong.expected), str(wrong.got)
        return CheckResult("failed", *said, name)

    _CHECKS[name] = run
    return run


def compared(
    proves: str, *cases: Iterable[tuple[Any, ...]], name: str = ""
) -> Callable[[_Function], _Function]:
    """Register a check that compares answers with the decorated function, which stays what it is.

    Args:
        proves: what a right answer does, `{}` for the number of cases. name: the check's, unless it
            is the function's.
    """
    every = list(chain(*cases))

    def register(right: _Function) -> _Function:
        def compare_all(answer: Any) -> str:
            compare(answer, right, every)
            return proves.format(len(every))

        compare_all.__name__, compare_all.__doc__ = name or right.__name__, right.__doc__
        exercise(compare_all)
        return right

    return register


@cache
def _checks() -> dict[str, Callable[[Any], CheckResult]]:
    """Every check by its name, from all modules here."""
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return _CHECKS


class Checks:
    """Every check as an attribute.

    The modules of `pagedlab.checks` are imported when the first one is asked for.
    """

    def __getattr__(self, name: str) -> Callable[[Any], CheckResult]:
        if name not in _checks():
            raise AttributeError(
                f"there is no check {name!r}; there are {', '.join(sorted(_checks()))}"
            )
        return _checks()[name]

    def __dir__(self) -> list[str]:
        return sorted(_checks())


check = Checks()

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
    """Names of the parts of an answer that are still stubs: `...`, or functions and methods with
    that body.
    """
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
        return [name for name, value in members.items() if _is_stub(value)]
    return [answer.__name__] if _is_stub(answer) else []


def _is_stub(value: Any) -> bool:
    """Whether it is a function that does nothing but return None."""
    return inspect.isfunction(value) and all(
        step.opname in _STUB_OPCODES and (step.argval is None or not step.opname.endswith("_CONST"))
        for step in dis.get_instructions(value)
    )


# Running what a reader wrote, and comparing -------------------------------------------------------


def _is_theirs(file: str, ours: Path) -> bool:
    """Whether a file is a reader's: not in the folder `ours`, and no library's."""
    path = Path(file)
    library = path.is_relative_to(Path(dis.__file__).parent) or {
        "site-packages",
        "dist-packages",
    } & {*path.parts}
    return not (library or path.is_relative_to(ours))


@contextmanager
def bounded(limit: int = MAX_STEPS) -> Iterator[None]:
    """Raise `StillRunning` in whatever runs inside after `limit` instructions of functions with
    loops.

    Ours and those of libraries are not counted; endless recursion is stopped by Python.
    """
    steps = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal steps
        if event == "call" and not _counts(frame.f_code):
            return None
        # Instructions and not lines: "while True: pass" is one line, which Python reports once.
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        steps += 1
        if steps > limit:
            raise StillRunning(
                f"it is still running after {limit:,} steps: look for a loop that does not end"
            )
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)


@cache
def _counts(code: CodeType) -> bool:
    jumps = {*dis.hasjrel, *dis.hasjabs}
    loops = any(
        step.opcode in jumps and step.argval <= step.offset for step in dis.get_instructions(code)
    )
    return loops and _is_theirs(code.co_filename, Path(__file__).parent)


def explain(error: BaseException) -> str:
    """An error of the reader's code in one line: what it says, and the line that it comes from."""
    kind = "" if isinstance(error, StillRunning) else type(error).__name__
    said = ": ".join(filter(None, (kind, str(error))))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.line]
    own = [frame for frame in frames if _is_theirs(frame.filename, Path(__file__).parents[1])]
    return f"{said} ({own[-1].name}: {own[-1].line})" if own else said


@contextmanager
def trying(
    *operations: str,
    message: str = "Your code raises an error.",
    setup: str = "",
    expected: object = "no error",
) -> Iterator[None]:
    """Run a reader's code inside, bounded.

    What it raises is `Wrong`, and a `Wrong` has these operations before it.
    """
    try:
        with bounded():
            yield
    except NotImplementedError:
        raise
    except Wrong as wrong:
        wrong.setup, wrong.operations = wrong.setup or setup, wrong.operations or operations
        raise
    except (Exception, StillRunning) as error:
        raise Wrong(message, expected, explain(error), *operations, setup=setup) from None


def compare(
    answer: Callable[..., Any], reference: Callable[..., Any], cases: Iterable[tuple[Any, ...]]
) -> None:
    """Call `answer` and `reference` on each case; `Wrong` for the first that differs.

    Put small cases first: the first one found is the counterexample that the reader sees.
    """
    name = getattr(answer, "__name__", "answer")
    for case in cases:
        line = f"{name}({', '.join(map(repr, case))})"
        expected = reference(*copy.deepcopy(case))
        with trying(line, expected=expected):
            got = answer(*copy.deepcopy(case))
            if isinstance(expected, tuple) and isinstance(got, list):
                got = tuple(got)  # a pair may be written as a list
            no_return = "It returns None: is a `return` missing? " if got is None else ""
            agree(expected, got, f"{no_return}The smallest case that differs:")


def agree(expected: Any, got: Any, message: str, say: Callable[[Any], str] | None = None) -> None:
    """`Wrong` with this message unless they are equal, floats within one part in 10^9.

    `say` puts them into words.
    """
    numbers = isinstance(expected, float) and isinstance(got, (int, float))
    if not (
        math.isclose(expected, got, rel_tol=1e-9, abs_tol=1e-12) if numbers else expected == got
    ):
        raise Wrong(message, say(expected) if say else expected, say(got) if say else repr(got))


def normal(seed: int = 0) -> Callable[..., torch.Tensor]:
    """`torch.randn` in fp64, with the same numbers each time that it is made."""
    import torch

    return partial(torch.randn, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def first_wrong(expected: torch.Tensor, got: torch.Tensor, within: float = 1e-9) -> list[int]:
    """The indices of the first number that is not `within` of what it should be, as NaN never is;
    [] if all are.
    """
    wrong = ~expected.isclose(got.to(expected.dtype), rtol=within, atol=within)
    return wrong.nonzero()[0].tolist() if wrong.any() else []


def shape(x: Any) -> Any:
    """Of a tensor, or of each in a list; of anything else its type."""
    if isinstance(x, (list, tuple)):
        return [shape(part) for part in x]
    return list(x.shape) if hasattr(x, "shape") else type(x).__name__


def say(x: Any, digits: int = 5) -> str:
    """Numbers, in lists or a tensor, as a person would write them: [[1, 3.5]]."""
    if isinstance(x, (list, tuple)):
        return f"[{', '.join(say(part, digits) for part in x)}]"
    return f"{x:.{digits}g}" if isinstance(x, (int, float)) else say(x.tolist(), digits)


# Searching for the smallest counterexample --------------------------------------------------------


Trial = Generator[Any, str, None]
"""An answer beside a reference, both fresh. It yields how it was set up, then, again and again, the operations that may
come next, as lines of Python; it is sent one, carries it out on both, and raises `Wrong` where the two differ."""


def replay(
    start: Callable[[], Trial], operations: Sequence[str], chance: random.Random | None = None
) -> Sequence[str]:
    """Carry the operations out in a fresh trial, or with `chance` as many drawn ones; return what
    may come next.

    `Wrong` where the two differ. One that is not among the choices (its table was left out, say)
    ends the trial early.
    """
    setup, done = "", list[str]()
    try:
        with trying():
            trial = start()
            setup = next(trial)
            choices = next(trial)
            for operation in operations:
                done.append(chance.choice(choices) if chance else operation)
                if done[-1] not in choices:
                    return ()
                choices = trial.send(done[-1])
            return choices
    except Wrong as wrong:
        wrong.setup, wrong.operations = setup, tuple(done)
        raise


def search(
    starts: Sequence[Callable[[], Trial]],
    *,
    sequences: int = 400,
    walks: int = 48,
    length: int = 24,
) -> None:
    """Raise `Wrong` with the smallest counterexample that turns up, if one does.

    Tries up to `sequences` short sequences on the first start, shortest first, so that what fails
    there is minimal; then random `walks` of up to `length` operations over all starts, what fails
    shrunk by leaving operations out. Deterministic: the same answer gets the same counterexample.
    """
    queue: deque[tuple[str, ...]] = deque([()])
    for _ in range(sequences):
        prefix = queue.popleft()
        queue.extend((*prefix, choice) for choice in replay(starts[0], prefix))
    chance = random.Random(0)
    for start in islice(cycle(starts), walks):
        try:
            replay(start, [""] * length, chance)
        except Wrong as wrong:
            raise _shrunk(start, wrong) from None


def _shrunk(start: Callable[[], Trial], wrong: Wrong) -> Wrong:
    for i in reversed(range(len(wrong.operations))):
        try:
            replay(start, wrong.operations[:i] + wrong.operations[i + 1 :])
        except Wrong as shorter:
            return _shrunk(start, shorter)
    return wrong
