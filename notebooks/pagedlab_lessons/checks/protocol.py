"""What all checks share: results, comparison of values, and the search for a counterexample."""

from __future__ import annotations

import ast
import copy
import html
import inspect
import math
import random
import textwrap
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from numbers import Number
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pagedlab_lessons.colors import GREEN, NEUTRAL, VERMILION
from pagedlab_lessons.readers_code import bounded, explain, in_time, text_of

if TYPE_CHECKING:
    import torch

# The notebooks of each module, and its checks. A check imports what it needs itself and no more:
# some modules need torch, which a browser does not have.
TOPICS = {
    # 00, 02, 03
    "blocks": (
        "table_by_hand",
        "block_pool",
        "slot",
        "block_table",
        "broken_pools",
        "copy_on_write",
        "copies_after_forks",
        "truncate",
        "order_of_frees",
    ),
    # 01
    "fragmentation": ("users_that_fit", "last_block_waste", "largest_block", "useless_holes"),
    # 04
    "sharing": ("reorder_beams", "beam_blocks", "saved_prefill"),
    # 05
    "prefix": ("prefix_cache", "leaf_first", "foreign_kv"),
    # 06
    "softmax": ("softmax_step", "merge_halves", "shared_heads"),
    # 07, puzzles 1 to 7
    "kernel": ("weights", "scores", "online_step", "paged_scores", "decode", "grouped", "split"),
    # 07, puzzle 8
    "launched": ("launch",),
    # 08
    "qwen": ("peak_blocks", "attend_one", "mended_pool"),
    # 09
    "scheduling": ("schedule", "must_preempt", "swap_or_recompute", "victim", "patient"),
    # 10
    "speed": ("step_floor", "step_time", "wasted_rows"),
    # 11
    "parallel": ("mlp_part", "heads_of_rank", "wire_bytes"),
    # 12
    "speculative": ("roll_back", "kept_tokens", "acceptance_rule"),
    # 13
    "serving": ("engine_loop", "closed_salt"),
    # 14
    "measuring": ("arrivals", "latencies", "goodput", "fair_ratios"),
    # 15
    "capstone": (
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
TOPIC_OF = {name: topic for topic, names in TOPICS.items() for name in names}

_COLORS = {
    "passed": GREEN,
    "failed": VERMILION,
    "not attempted": NEUTRAL,
    "not finished": NEUTRAL,
}
MAX_TEXT = 1500  # characters of a value, or of another part of a result
_STYLE = "border-left:4px solid {color};padding:2px 0 2px 10px;margin:4px 0;white-space:pre-wrap"
_Function = TypeVar("_Function", bound=Callable[..., Any])


# Results ------------------------------------------------------------------------------------------


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


class Wrong(Exception):
    """The answer is wrong.

    Args:
        message: what is wrong.
        expected: the right result.
        got: the answer's result.
        operations: the few lines of Python that lead there.
        setup: the line that they begin with.
    """

    def __init__(
        self,
        message: str,
        expected: Any = "",
        got: Any = "",
        *operations: str,
        setup: str = "",
    ) -> None:
        super().__init__(message)
        self.expected = expected
        self.got = got
        self.operations = operations
        self.setup = setup


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
    return _register(function.__name__, function)


def exercise_of_methods(*methods: str) -> Callable[[Callable[[Any], str]], Check]:
    """Register a check of a class, as `exercise` does.

    If some of the methods are written, an unfinished class is "not finished" instead of "not
    attempted".

    Args:
        methods: names of the methods that are stubs in the notebook.
    """
    return lambda function: _register(function.__name__, function, methods)


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
        ValueError: If the cases are no list of tuples, or the series has a check of this name.
    """
    is_list = isinstance(cases, (list, tuple))
    if not is_list or not cases or not all(isinstance(case, tuple) for case in cases):
        raise ValueError(
            "compared needs a text and a list of cases, each a tuple of arguments, as in "
            f'@compared("Right for all {{}} cases.", [(5,), (8,)]), got {proves!r} and {cases!r}'
        )

    def register(right: _Function) -> _Function:
        kept = copy.deepcopy(cases)
        compare(right, right, kept, why)

        def compare_all(answer: Any) -> str:
            compare(answer, right, kept, why)
            return proves.replace("{}", str(len(kept)))

        compare_all.__module__ = right.__module__
        called = f"Your function is called like {right.__name__}{inspect.signature(right)}."
        compare_all.__doc__ = f"{inspect.cleandoc(right.__doc__ or '')}\n\n{called}"
        _register(name or right.__name__, compare_all)
        return right

    return register


def _register(name: str, function: Callable[[Any], str], methods: Sequence[str] = ()) -> Check:
    if name in TOPIC_OF and not function.__module__.startswith("pagedlab_lessons.checks."):
        raise ValueError(
            f"the series has a check {name!r}; choose a name that is not in dir(check)"
        )

    def run(answer: Any) -> CheckResult:
        return _judge(name, function, answer, methods)

    run.__name__ = name
    run.__module__ = function.__module__
    wanted = inspect.cleandoc(function.__doc__ or "see the notebook")
    run.__doc__ = f"Check an answer and return a CheckResult.\n\nThe answer: {wanted}"
    REGISTERED[name] = run
    return run


def _judge(
    name: str, function: Callable[[Any], str], answer: Any, methods: Sequence[str]
) -> CheckResult:
    """Run a check on an answer. Nothing but an interrupt leaves this function as an error."""
    try:
        with in_time():
            missing = to_write(answer)
            written = [each for each in methods if hasattr(answer, each) and each not in missing]
            if missing:
                message = f"Still to write: {', '.join(missing)}."
                if not written:
                    return CheckResult("not attempted", message, name=name)
                message = f"Written: {', '.join(written)}. {message}"
                return CheckResult("not finished", message, name=name)
            found = function(answer)
            if isinstance(found, CheckResult):  # another process has judged
                return found
            return CheckResult("passed", found, name=name)
    except KeyboardInterrupt:
        raise
    except NotImplementedError as error:
        message = text_of(error) or "Your code still raises NotImplementedError."
        return CheckResult("not attempted", message, name=name)
    except Wrong as error:
        return _failed(name, error)
    except BaseException as error:
        # The answer has a form that the check did not foresee, or it is exit() and its kin.
        return _failed(name, Wrong("Your answer stops the check.", "no error", explain(error)))


def _failed(name: str, wrong: Wrong) -> CheckResult:
    """Return the result for a wrong answer. Long texts are shortened to where they differ."""
    expected, got = text_of(wrong.expected), text_of(wrong.got)
    start = 0
    if max(len(expected), len(got)) > MAX_TEXT:
        pairs = enumerate(zip(expected, got, strict=False))
        differs = next((i for i, (right, yours) in pairs if right != yours), 0)
        start = max(0, differs - MAX_TEXT // 2)
    operations = tuple(map(_shortened, wrong.operations))
    shown = _shortened(expected, start), _shortened(got, start)
    return CheckResult("failed", _shortened(str(wrong)), wrong.setup, operations, *shown, name)


def _shortened(text: str, start: int = 0) -> str:
    """Return at most `MAX_TEXT` characters of a text from `start` on, and say what is left out."""
    part = text[start : start + MAX_TEXT]
    before = "..." if start else ""
    return text if part == text else f"{before}{part}... ({len(text):,} characters in all)"


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


# Comparing ----------------------------------------------------------------------------------------


@contextmanager
def trying(
    *operations: str,
    message: str = "Your code raises an error.",
    setup: str = "",
    expected: object = "no error",
) -> Iterator[None]:
    """Run a reader's code in this block, with a limit of steps.

    An error of the code becomes `Wrong`. A `Wrong` raised inside gets these operations and this
    setup, unless it has its own.

    Args:
        operations: lines of Python that lead to the error.
        message: what to say about an error.
        setup: the line that the operations begin with.
        expected: what should have come out.
    """
    try:
        with bounded():
            yield
    except NotImplementedError:
        raise
    except Wrong as wrong:
        wrong.setup = wrong.setup or setup
        wrong.operations = wrong.operations or operations
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # exit() and its kin too: the reader gets a verdict
        raise Wrong(message, expected, explain(error), *operations, setup=setup) from None


def compare(
    answer: Callable[..., Any],
    reference: Callable[..., Any],
    cases: Iterable[tuple[Any, ...]],
    why: Callable[..., str] | None = None,
) -> None:
    """Call `answer` and `reference` with each case.

    Args:
        answer: the reader's function.
        reference: a right one.
        cases: arguments to try. Put small ones first: the reader sees the first that differs.
        why: takes the arguments of a case, returns why the right result is right, or "".

    Raises:
        Wrong: For the first case in which the two differ.
    """
    name = getattr(answer, "__name__", "answer")
    for case in cases:
        words = why(*copy.deepcopy(case)) if why else ""
        message = "The smallest case that differs:" + (f"\n{words}" if words else "")
        expected = reference(*copy.deepcopy(case))
        with trying(f"{name}({', '.join(map(repr, case))})", expected=expected):
            got = answer(*copy.deepcopy(case))
            if isinstance(expected, tuple) and isinstance(got, list):
                got = tuple(got)  # a pair may be written as a list
            if got is None:
                message = f"It returns None: is a `return` missing? {message}"
            elif _is_of_another_kind(expected, got):
                message = f"It returns a value of type {type(got).__name__}. {message}"
            agree(expected, got, message)


def _is_of_another_kind(expected: Any, got: Any) -> bool:
    """Return whether a value has another type than the right one; all numbers are one kind."""
    if isinstance(expected, Number):
        return not isinstance(got, Number) and shape(got) != []
    return expected is not None and not isinstance(got, type(expected))


def agree(expected: Any, got: Any, message: str, say: Callable[[Any], str] | None = None) -> None:
    """Compare two values; floats, also in lists and dicts, may differ by one part in 10^9.

    Args:
        expected: the right value.
        got: the answer's value.
        message: what to say if they differ.
        say: puts a value into words; by default `str` for the right one, `repr` for the answer's.

    Raises:
        Wrong: If they differ.
    """
    if not _same(expected, got):
        raise Wrong(message, say(expected) if say else expected, say(got) if say else repr(got))


def _same(expected: Any, got: Any) -> bool:
    """Return whether two values are equal; floats, also in lists and dicts, nearly so."""
    if isinstance(expected, float) and isinstance(got, (int, float)):
        return math.isclose(expected, got, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(expected, (list, tuple)) and type(got) is type(expected):
        return len(got) == len(expected) and all(map(_same, expected, got))
    if isinstance(expected, dict) and isinstance(got, dict):
        return got.keys() == expected.keys() and all(_same(expected[key], got[key]) for key in got)
    try:
        return bool(expected == got)
    except (ValueError, RuntimeError):  # several numbers in an array or a tensor
        return False


def first_wrong(expected: torch.Tensor, got: torch.Tensor, within: float = 1e-9) -> list[int]:
    """Return the indices of the first number of `got` that is too far from the expected one.

    NaN is always too far. Returns [] if every number is right.

    Args:
        expected: the right numbers.
        got: the answer's numbers, of the same shape.
        within: relative and absolute tolerance.
    """
    wrong = ~expected.isclose(got.to(expected.dtype), rtol=within, atol=within)
    return wrong.nonzero()[0].tolist() if wrong.any() else []


def shape(x: Any) -> Any:
    """Return the shape of a tensor, a list of shapes for a list, or the name of another type."""
    if isinstance(x, (list, tuple)):
        return [shape(part) for part in x]
    return list(x.shape) if hasattr(x, "shape") else type(x).__name__


def say(x: Any, digits: int = 5) -> str:
    """Write a number, a list of numbers or a tensor as a person would: [[1, 3.5]].

    Args:
        x: what to write.
        digits: significant digits of each number.
    """
    if isinstance(x, (list, tuple)):
        return f"[{', '.join(say(part, digits) for part in x)}]"
    return f"{x:.{digits}g}" if isinstance(x, (int, float)) else say(x.tolist(), digits)


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
    done: list[str] = []
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


def search(
    starts: Sequence[Callable[[], Trial]],
    *,
    sequences: int = 400,
    walks: int = 48,
    length: int = 24,
) -> None:
    """Search for a counterexample.

    Short sequences are tried first, shortest first, on the first start: what fails there is
    minimal. Then random walks are tried over all starts, and what fails is shrunk by leaving
    operations out. The same answer always gets the same counterexample.

    Args:
        starts: each makes a trial; the first has few choices.
        sequences: number of short sequences.
        walks: number of random walks.
        length: operations of a walk.

    Raises:
        Wrong: With the smallest counterexample that was found.
    """
    queue: deque[tuple[str, ...]] = deque([()])
    for _ in range(sequences):
        prefix = queue.popleft()
        for choice in replay(starts[0], prefix):
            queue.append((*prefix, choice))
    chance = random.Random(0)
    for start in islice(cycle(starts), walks):
        try:
            replay(start, [""] * length, chance)
        except Wrong as wrong:
            raise _shrunk(start, wrong) from None


def _shrunk(start: Callable[[], Trial], wrong: Wrong) -> Wrong:
    """Return a shorter counterexample: operations are left out as long as it still fails."""
    for i in reversed(range(len(wrong.operations))):
        try:
            replay(start, wrong.operations[:i] + wrong.operations[i + 1 :])
        except Wrong as shorter:
            return _shrunk(start, shorter)
    return wrong
