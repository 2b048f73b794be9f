"""Compare what an answer returns with what is right, and say where the two differ."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from numbers import Number
from typing import TYPE_CHECKING, Any

from pagedlab_lessons.checks.cases import call_of
from pagedlab_lessons.readers_code import bounded, explain

if TYPE_CHECKING:
    import torch


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
        self, message: str, expected: Any = "", got: Any = "", *operations: str, setup: str = ""
    ) -> None:
        super().__init__(message)
        self.expected = expected
        self.got = got
        self.operations = operations
        self.setup = setup


class BrokenCheck(Exception):
    """The check itself has a mistake, so it says nothing about the answer."""


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
        BrokenCheck: If `reference` or `why` raises an error.
    """
    name = getattr(answer, "__name__", "answer")
    for case in cases:
        line = call_of(name, case)
        expected = _of_check(reference, case)
        words = _of_check(why, case) if why else ""
        reason = f"\n{words}" if words else ""
        with trying(line, expected=expected):
            got = answer(*copy.deepcopy(case))
            if isinstance(expected, tuple) and isinstance(got, list):
                got = tuple(got)  # a pair may be written as a list
            message = f"The smallest case that differs:{reason}"
            if got is None:
                message = "It returns None: is a `return` missing? The smallest case that differs:"
            elif _is_of_another_kind(expected, got):
                message = f"It returns a value of type {type(got).__name__}. {message}"
            agree(expected, got, message)


def _is_of_another_kind(expected: Any, got: Any) -> bool:
    """Return whether a value has another type than the right one; all numbers are one kind."""
    if isinstance(expected, Number):
        return not isinstance(got, Number) and shape(got) != []
    return expected is not None and not isinstance(got, type(expected))


def _of_check(function: Callable[..., Any], case: tuple[Any, ...]) -> Any:
    """Return what a function of the check returns for a copy of the case.

    Raises:
        BrokenCheck: If it raises an error.
    """
    try:
        return function(*copy.deepcopy(case))
    except Exception as error:
        raise BrokenCheck(explain(error)) from error


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
