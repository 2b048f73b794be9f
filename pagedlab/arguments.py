"""Checks of arguments, which run before anything changes.

Each function returns the value in Python's own type. For a bad value it raises a `ValueError` of
one line that names the argument, what is accepted, and the value.
"""

import math
import operator
import re
import sys
import textwrap
from collections.abc import Iterable
from contextlib import suppress
from numbers import Real
from typing import Any, TypeVar

T = TypeVar("T")


def integer(name: str, value: Any, least: int = 0, most: float = math.inf) -> int:
    """Check an integer from `least` to `most`. True and False are not accepted."""
    if type(value) is int and least <= value <= most:  # the usual case, and fast
        return value
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is not None and not isinstance(value, bool) and least <= number <= most:
        return number
    limit = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
    raise ValueError(f"{name} must be a whole number {limit}, got {shown(value)}")


def real(
    name: str, value: Any, least: float, most: float = sys.float_info.max, *, above: bool = False
) -> float:
    """Check a number from `least` to `most`. NaN, infinity, True and False are not accepted.

    Args:
        name: the argument's name.
        value: the argument.
        least: the smallest value.
        most: the largest value.
        above: whether the value must be above `least`.
    """
    number = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):
            number = float(value)
    if least <= number <= most and not (above and number == least):
        return number
    limit = f"above {least:g}" if above else f"of at least {least:g}"
    if most < sys.float_info.max:
        limit += f" and at most {most:g}"
    raise ValueError(f"{name} must be a number {limit}, got {shown(value)}")


def one_of(name: str, value: Any, choices: Iterable[T]) -> T:
    """Check that the value equals one of the choices and has the same type: True is not 1."""
    choices = tuple(choices)
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return choice
    accepted = ", ".join(map(repr, choices))
    raise ValueError(f"{name} must be one of {accepted}, got {shown(value)}")


def optional_integer(name: str, value: Any, least: int = 0) -> int | None:
    """Check an integer of at least `least`, or None."""
    return None if value is None else integer(name, value, least)


def subclass(name: str, value: Any, base: type) -> Any:
    """Check that a value is a class that inherits from `base`."""
    if not isinstance(value, type) or not issubclass(value, base):
        raise ValueError(f"{name} must be a subclass of {base.__name__}, got {shown(value)}")
    return value


def a_function(name: str, value: Any, takes: str) -> Any:
    """Check that a value can be called. `takes` says how, as in "that takes a BlockEvent"."""
    if not callable(value):
        raise ValueError(f"{name} must be a function {takes}, got {shown(value)}")
    return value


def token_id_list(name: str, value: Any, most: int, other: str = "") -> list[int]:
    """Check a list of token ids from 0 to `most`. `other` says what else is accepted, if any."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, set, dict)):
        raise ValueError(f"{name} must be {other}a list of token ids, got {shown(value)}")
    label = f"a token id in {name}"
    return [integer(label, token_id, 0, most) for token_id in value]


def valid_text(name: str, value: Any) -> str | None:
    """Check a string that can be encoded in UTF-8, or None."""
    if value is None:
        return value
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text or None, got {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be valid Unicode, got {shown(value)}") from None
    return value


def shown(value: object) -> str:
    """The `repr` of a value in one line, at most 60 characters long."""
    text = re.sub(r"\s*\n\s*", " ", repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


def counted(count: int, noun: str) -> str:
    """Return the number and the noun, which has an "s" unless the number is 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def in_short(error: BaseException) -> str:
    """The first sentence of an error's message, in one line of at most 200 characters."""
    first_sentence = " ".join(str(error).split()).partition(". ")[0]
    return textwrap.shorten(first_sentence, 200, placeholder=" ...")
