"""Refuse a mistake in a check when it is written, so that no reader is blamed for it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from pagedlab_lessons.readers_code import explain

_Case = tuple[Any, ...]


def call_of(name: str, case: _Case) -> str:
    """Return the line of Python that calls a function with the arguments of a case."""
    return f"{name}({', '.join(map(repr, case))})"


def refuse_no_text(proves: Any) -> None:
    """Refuse something else in place of the text, such as the function itself.

    Raises:
        TypeError: If it is no text.
    """
    if not isinstance(proves, str):
        raise TypeError(
            "compared needs a text and the cases, "
            f'as in @compared("Right for all {{}} cases.", [(1, 4), (4, 4)]), got {proves!r}'
        )


def filled(proves: str, num_cases: int) -> str:
    """Return what a right answer proves, with the number of cases in place of `{}`.

    Raises:
        ValueError: If it has other braces.
    """
    try:
        return proves.format(num_cases)
    except (ValueError, LookupError, AttributeError):
        raise ValueError(
            "in the text of a check {} becomes the number of cases, and other braces are written "
            f"twice, got {proves!r}"
        ) from None


def valid_cases(cases: Any) -> list[_Case]:
    """Return a copy of the cases.

    Raises:
        TypeError: If they are no list of tuples.
        ValueError: If there are none.
    """
    if not isinstance(cases, (list, tuple)):
        raise TypeError(f"cases must be a list of tuples, got {cases!r}")
    if not cases:
        raise ValueError("compared needs a case at least: a list of tuples after the text")
    for number, case in enumerate(cases, 1):
        if not isinstance(case, tuple):
            raise TypeError(
                f"case {number} must be a tuple of arguments, also for one argument: (5,), "
                f"got {case!r}"
            )
    return copy.deepcopy(list(cases))


def try_cases(
    right: Callable[..., Any], cases: Sequence[_Case], why: Callable[..., str] | None
) -> None:
    """Call the right answer and `why` with every case.

    Raises:
        TypeError: If a case does not fit one of them, or `why` returns no text.
        ValueError: If one of them raises an error.
    """
    if why is not None and not callable(why):
        raise TypeError(f"why must be a function of a case's arguments, got {why!r}")
    for case in cases:
        _called(right, right.__name__, case)
        if why is None:
            continue
        reason = _called(why, "why", case)
        if not isinstance(reason, str):
            raise TypeError(f"{call_of('why', case)} must return a str, got {reason!r}")


def _called(function: Callable[..., Any], name: str, case: _Case) -> Any:
    """Return what a function of the check returns for a case."""
    signature = inspect.signature(function)
    try:
        signature.bind(*case)
    except TypeError as error:
        raise TypeError(f"the case {case!r} does not fit {name}{signature}: {error}") from None
    try:
        return function(*copy.deepcopy(case))
    except Exception as error:
        raise ValueError(
            f"{call_of(name, case)} raises an error, and it must work for every case: "
            f"{explain(error)}"
        ) from error
