"""What all checks share: results, stubs, comparison of values, and the search for a counterexample.

Four kinds of checks use it:

    cases    `compared`: a right function, and the arguments to try
    walk     `search` in an `exercise`: sequences of operations on an answer beside a reference
    kernel   kernels.py: launches whose loads and stores are watched
    verdict  any other `exercise`: a function that judges an answer
"""

from __future__ import annotations

import ast
import copy
import html
import inspect
import math
import random
import textwrap
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice, product
from numbers import Number
from typing import Any, Literal, TypeVar

from pagedlab_lessons.colors import GREEN, NEUTRAL, VERMILION
from pagedlab_lessons.readers_code import StillRunning, bounded, explain, in_time, text_of

# The checks of each notebook's module. A module imports what its checks need and no more: some need
# torch, which a browser does not have.
NAMES = {
    "n00": ("table_by_hand",),
    "n01": ("users_that_fit", "last_block_waste", "largest_block", "useless_holes"),
    "n02": ("slot", "block_pool", "block_table", "broken_pools"),
    "n03": ("copy_on_write", "copies_after_forks", "truncate", "order_of_frees"),
    "n04": ("reorder_beams", "beam_blocks", "saved_prefill"),
    "n05": ("prefix_cache", "leaf_first", "foreign_kv"),
    "n06": ("softmax_step", "merge_halves", "shared_heads"),
    "n07": (
        "weights",
        "scores",
        "online_step",
        "paged_scores",
        "decode",
        "grouped",
        "split",
        "launch",
    ),
    "n08": ("peak_blocks", "attend_one", "mended_pool"),
    "n09": ("schedule", "must_preempt", "swap_or_recompute", "victim", "patient"),
    "n10": ("step_floor", "step_time", "wasted_rows"),
    "n11": ("mlp_part", "heads_of_rank", "wire_bytes"),
    "n12": ("kept_tokens", "roll_back", "acceptance_rule"),
    "n13": ("engine_loop", "closed_salt"),
    "n14": ("arrivals", "latencies", "goodput", "fair_ratios"),
    "n15": (
        "my_pool",
        "my_table",
        "my_cache",
        "my_attention",
        "my_scheduler",
        "my_sample",
        "my_step",
        "my_engine",
    ),
}
MODULE_OF = {name: module for module, names in NAMES.items() for name in names}

_COLORS = {"passed": GREEN, "failed": VERMILION}
SEQUENCES = 400  # short sequences of operations that a search tries
WALKS = 60  # random ones
LENGTH = 24  # operations of each of these
MAX_TEXT = 1500  # characters of a value, or of another part of a result
_STYLE = "border-left:4px solid {};padding:2px 0 2px 10px;margin:4px 0;white-space:pre-wrap"
Function = Callable[..., Any]
Case = tuple[Any, ...]  # the arguments of a call
Told = Callable[..., str] | str  # said of a case: a text with its arguments, or a function of them
_Right = TypeVar("_Right", bound=Function)


# Results ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckResult:
    """The result of a check.

    Args:
        status: "passed", "failed" or "not attempted" (a part is still a stub).
        message: what the answer proves, or what is wrong with it.
        setup: the line of Python that starts the counterexample.
        operations: the lines of Python that lead to the difference; empty if the check passed.
        expected: the right result of the counterexample.
        got: the answer's result.
        name: name of the check.
    """

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
        style = _STYLE.format(_COLORS.get(self.status, NEUTRAL))
        title = f"<b>{html.escape(head)}</b>"  # in the ink of the page: the colours are too pale
        return f'<pre style="{style}">{title}\n{html.escape(body)}</pre>'


@dataclass(eq=False)
class Wrong(Exception):
    """The answer is wrong.

    Args:
        message: what is wrong.
        expected: the right result.
        got: the answer's result.
        operations: the few lines of Python that lead there.
        setup: the line that they begin with.
    """

    message: str
    expected: Any = ""
    got: Any = ""
    operations: Sequence[str] = ()
    setup: str = ""


# Registering --------------------------------------------------------------------------------------


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
    return register(function.__name__, function, function)


def register(name: str, described: Function, judge: Function) -> Check:
    """Register a check.

    Args:
        name: of the check.
        described: its docstring says what the answer is.
        judge: as the function of `exercise`.
    """
    if name in MODULE_OF and not described.__module__.startswith("pagedlab_lessons.checks."):
        raise ValueError(
            f"the series has a check {name!r}; choose a name that is not in dir(check)"
        )

    def run(answer: Any) -> CheckResult:
        return replace(_judge(judge, answer), name=name)

    run.__name__ = name
    run.__module__ = described.__module__
    wanted = inspect.cleandoc(described.__doc__ or "see the notebook")
    run.__doc__ = f"Check an answer and return a CheckResult.\n\nThe answer: {wanted}"
    REGISTERED[name] = run
    return run


def compared(
    proves: str,
    cases: Sequence[Case],
    *,
    name: str = "",
    **options: Any,
) -> Callable[[_Right], _Right]:
    """Register a check that compares an answer with the decorated function.

    The function itself stays what it is. It is called with every case at once, and so is `why`: a
    mistake in the check is found where it is written.

    Args:
        proves: what a right answer does; `{}` becomes the number of cases.
        cases: a list with a tuple of arguments for each case, small ones first.
        name: the check's name; by default the function's.
        options: of `compare`, such as `why`.

    Raises:
        ValueError: If the series has a check of this name.
    """

    def registered(right: _Right) -> _Right:
        compare(right, right, cases, **options)

        def compare_all(answer: Any) -> str:
            compare(answer, right, cases, **options)
            return proves.replace("{}", str(len(cases)))

        register(name or right.__name__, right, compare_all)
        return right

    return registered


def _judge(function: Function, answer: Any) -> CheckResult:
    """Run a check on an answer. Nothing but an interrupt leaves this function as an error."""
    try:
        with in_time():
            missing = to_write(answer)
            if missing:
                return CheckResult("not attempted", f"Still to write: {', '.join(missing)}.")
            found = function(answer)
            # Another check may have judged.
            return found if isinstance(found, CheckResult) else CheckResult("passed", found)
    except KeyboardInterrupt:
        raise
    except NotImplementedError as error:
        message = text_of(error) or "Your code still raises NotImplementedError."
        return CheckResult("not attempted", message)
    except Wrong as wrong:
        return _failed(wrong)
    except BaseException as error:
        # The answer has a form that the check did not foresee, or it is exit() and its kin.
        return _failed(Wrong("Your answer stops the check.", "no error", explain(error)))


def _failed(wrong: Wrong) -> CheckResult:
    """Return the result for a wrong answer. Long texts are shortened."""
    return CheckResult(
        "failed",
        _shortened(wrong.message),
        _shortened(wrong.setup),
        tuple(map(_shortened, wrong.operations)),
        _shortened(wrong.expected),
        _shortened(wrong.got),
    )


def _shortened(value: Any) -> str:
    """Return at most `MAX_TEXT` characters of a value's text, and say how many there are."""
    text = text_of(value)
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}... ({len(text):,} characters in all)"


# Stubs --------------------------------------------------------------------------------------------


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
    if answer.__base__ is object and not any(map(callable, members.values())):
        return [answer.__name__]
    return [name for name, value in members.items() if _is_stub(value)]


def _is_stub(value: Any) -> bool:
    """Return whether nothing but `...`, `pass` or a docstring is in the source of a function."""
    if not inspect.isfunction(value):
        return False
    try:
        (written,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    except (OSError, SyntaxError):  # no source, or a lambda in the middle of a line
        return False
    return isinstance(written, ast.FunctionDef) and all(map(_is_idle, written.body))


def _is_idle(statement: ast.stmt) -> bool:
    constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return constant or isinstance(statement, ast.Pass)


# Cases --------------------------------------------------------------------------------------------


@contextmanager
def trying(
    *operations: str,
    message: str = "Your code raises an error.",
    expected: object = "no error",
) -> Iterator[None]:
    """Run a reader's code in this block, with a limit of steps.

    An error of the code becomes `Wrong`. A `Wrong` raised inside gets these operations, unless it
    has its own.

    Args:
        operations: lines of Python that lead to the error.
        message: what to say about an error.
        expected: what should have come out.
    """
    try:
        with bounded():
            yield
    except (NotImplementedError, KeyboardInterrupt):
        raise
    except Wrong as wrong:
        wrong.operations = wrong.operations or operations
        raise
    except BaseException as error:  # exit() and its kin too: the reader gets a verdict
        if isinstance(error, StillRunning):
            message = "Your code does not end."
        raise Wrong(message, expected, explain(error), operations) from None


def compare(
    answer: Function,
    right: Function,
    cases: Sequence[Case],
    why: Told = "",
    *,
    through: Function | None = None,
    told: Told = "",
    mistakes: Mapping[str, Function] | None = None,
    within: float = 1e-9,
) -> None:
    """Call `answer` and `right` with each case.

    Args:
        answer: the reader's function.
        right: a right one.
        cases: arguments to try. Put small ones first: the reader sees the first that differs.
        why: why the right result of a case is right: a text with `{0}` for its first argument, or
            a function of its arguments.
        through: takes a function and the arguments of a case, returns what is compared; by default
            the function's result.
        told: the lines of Python that the reader sees, also as a text or a function; by default
            the call.
        mistakes: by what is said of it, a function with a known mistake.
        within: how far numbers may be off, relative and absolute.

    Raises:
        Wrong: For the first case in which the two differ.
    """
    name = getattr(answer, "__name__", "answer")

    def result(function: Function, case: Case) -> Any:
        given = copy.deepcopy(case)
        return through(function, *given) if through else function(*given)

    for case in cases:
        call = f"{name}({', '.join(map(_written, case))})"
        lines = (_said(told, case) or call).splitlines()
        words = _said(why, case)
        expected = result(right, case)
        with trying(*lines, expected=_written(expected)):
            got = result(answer, case)
            if isinstance(expected, tuple) and isinstance(got, list):
                got = tuple(got)  # a pair may be written as a list
            if same(expected, got, within):
                continue
            said = ""
            for mistake, function in (mistakes or {}).items():
                if same(result(function, case), got, within):
                    said = mistake
            if isinstance(expected, dict) and isinstance(got, dict) and [*expected] == [*got]:
                key = next(key for key in got if not same(expected[key], got[key], within))
                expected, got = expected[key], got[key]
                said = said or f"{key} differs. {_what_differs(expected, got)}"
            said = said or _what_differs(expected, got)
            raise Wrong("\n".join(filter(None, [said, words])), *shown(expected, got, within))


def _said(told: Told, case: Case) -> str:
    """Return what is said of a case."""
    return told.format(*case) if isinstance(told, str) else told(*case)


def _what_differs(expected: Any, got: Any) -> str:
    """Return the first sentence about a value that is not the expected one."""
    said = "The smallest case that differs:"
    if got is None:
        return f"It returns None: is a `return` missing? {said}"
    numbers = isinstance(expected, Number) and isinstance(got, Number)
    if expected is not None and not numbers and not isinstance(got, type(expected)):
        return f"It returns a value of type {type(got).__name__}. {said}"
    if is_tensor(expected) and shape(got) != shape(expected):
        return f"It returns a tensor of another shape. {said}"
    return said


def agree(expected: Any, got: Any, message: str) -> None:
    """Raise `Wrong` with this message if two values differ; floats may differ by one part in 10^9.

    Args:
        expected: the right value; a string is shown without quotes.
        got: the answer's value.
        message: what to say if they differ.
    """
    if not same(expected, got):
        raise Wrong(message, expected, got if isinstance(got, str) else repr(got))


def same(expected: Any, got: Any, within: float = 1e-9) -> bool:
    """Return whether two values are equal; floats, also in lists, dicts and tensors, nearly so.

    Args:
        expected: the right value.
        got: the answer's value.
        within: how far numbers may be off, relative and absolute. NaN is always too far off.
    """
    if is_tensor(expected):
        return is_tensor(got) and same(expected.tolist(), got.tolist(), within)
    if isinstance(expected, float) and isinstance(got, (int, float)):
        return math.isclose(expected, got, rel_tol=within, abs_tol=within)
    if isinstance(expected, (list, tuple)) and type(got) is type(expected):
        return len(got) == len(expected) and all(
            same(right, yours, within) for right, yours in zip(expected, got, strict=True)
        )
    if isinstance(expected, dict) and isinstance(got, dict):
        return got.keys() == expected.keys() and all(
            same(expected[key], got[key], within) for key in got
        )
    try:
        return bool(expected == got)
    except (ValueError, RuntimeError):  # several numbers in an array or a tensor
        return False


# Tensors ------------------------------------------------------------------------------------------


def is_tensor(x: Any) -> bool:
    """Return whether a value is a tensor. Torch is not imported for it: a browser has none."""
    return type(x).__name__ == "Tensor"


def normal(seed: int = 0) -> Function:
    """Return `torch.randn` in fp64, which gives the same numbers each time it is made.

    Args:
        seed: another one gives other numbers.
    """
    import torch  # noqa: PLC0415 - a browser has none

    generator = torch.Generator().manual_seed(seed)
    return partial(torch.randn, dtype=torch.float64, generator=generator)


def shape(x: Any) -> Any:
    """Return the shape of a tensor, a list of shapes for a list, or the name of another type."""
    if isinstance(x, (list, tuple)):
        return [shape(part) for part in x]
    return list(x.shape) if hasattr(x, "shape") else type(x).__name__


def shown(expected: Any, got: Any, within: float = 1e-9) -> tuple[str, str]:
    """Return both values in words; of large tensors, the first row that differs."""
    if not is_tensor(expected) or shape(got) != shape(expected) or expected.numel() <= 8:
        return _written(expected), _written(got)
    rows = product(*map(range, expected.shape[:-1]))
    row = next(at for at in rows if not same(expected[at], got[at], within))
    right, yours = (f"{say(x[row])} at {[*row]}" for x in (expected, got))
    return right, yours


def _written(x: Any) -> str:
    """Return a value as text: small tensors as lists, the shapes of large ones."""
    if is_tensor(x):
        return say(x) if x.numel() <= 8 else f"a tensor {shape(x)}"
    if isinstance(x, tuple) and any(map(is_tensor, x)):
        return f"({', '.join(map(_written, x))})"
    return repr(x)


def say(x: Any) -> str:
    """Write a tensor with five digits a number: [[1, 3.5]]."""
    if is_tensor(x):
        return say(x.tolist())
    return f"[{', '.join(map(say, x))}]" if isinstance(x, list) else f"{x:.5g}"


# Searching ----------------------------------------------------------------------------------------

Trial = Generator[Any, str, None]
"""An answer beside a reference, both fresh.

A trial first yields how it was set up. Then it yields the operations that may come next, as lines
of Python, again and again. It is sent one of them, carries it out on both sides, and raises `Wrong`
where the two differ.
"""


def replay(
    start: Callable[[], Trial], operations: Sequence[str], chance: random.Random | None = None
) -> Sequence[str]:
    """Carry out operations in a fresh trial.

    A shrunk sequence can contain an operation whose table no longer exists. It ends the trial.

    Args:
        start: makes the trial.
        operations: lines of Python; with `chance` only their number counts.
        chance: draws each operation from the choices.

    Returns:
        The operations that may come next.

    Raises:
        Wrong: Where answer and reference differ; it carries the operations done so far.
    """
    setup = ""
    done = []
    try:
        with trying():
            trial = start()
            setup = next(trial)
            choices = next(trial)
            for operation in operations:
                if chance:
                    operation = chance.choice(choices)
                done.append(operation)
                if operation not in choices:
                    return ()
                choices = trial.send(operation)
            return choices
    except Wrong as wrong:
        wrong.setup = setup
        wrong.operations = tuple(done)
        raise


def search(starts: Sequence[Callable[[], Trial]]) -> None:
    """Search for a counterexample.

    Short sequences are tried first, shortest first, on the first start: what fails there is
    minimal. Then random walks are tried over all starts, and what fails is shrunk by leaving
    operations out. The same answer always gets the same counterexample.

    Args:
        starts: each makes a trial; the first has few choices.

    Raises:
        Wrong: With the smallest counterexample that was found.
    """
    queue: deque[tuple[str, ...]] = deque([()])
    for _ in range(SEQUENCES):
        prefix = queue.popleft()
        for choice in replay(starts[0], prefix):
            queue.append((*prefix, choice))
    chance = random.Random(0)
    for start in islice(cycle(starts), WALKS):
        try:
            replay(start, [""] * LENGTH, chance)
        except Wrong as wrong:
            raise _shrunk(start, wrong) from None


def _shrunk(start: Callable[[], Trial], wrong: Wrong) -> Wrong:
    """Return a shorter counterexample: operations are left out as long as it still fails."""
    for i in reversed(range(len(wrong.operations))):
        try:
            replay(start, [*wrong.operations[:i], *wrong.operations[i + 1 :]])
        except Wrong as shorter:
            return _shrunk(start, shorter)
    return wrong
