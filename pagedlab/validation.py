"""What an argument must be, asked in one way everywhere, before anything changes.

Each function returns the value in Python's own type, or raises `ValueError`: one line that names
the argument, says what would do, and what came.
"""

import math
import operator
import sys
from collections.abc import Iterable
from contextlib import suppress
from numbers import Real
from typing import Any, TypeVar

T = TypeVar("T")


def integer(name: str, value: Any, least: int = 0, most: float = math.inf) -> int:
    """A whole number from `least` to `most`; True is none."""
    if type(value) is int and least <= value <= most:
        return value  # as it is nearly always, and fast
    with suppress(TypeError):
        if not isinstance(value, bool) and least <= (number := operator.index(value)) <= most:
            return number
    limit = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
    raise ValueError(f"{name} must be a whole number {limit}, got {shown(value)}")


def real(
    name: str, value: Any, least: float, most: float = sys.float_info.max, *, above: bool = False
) -> float:
    """A number from `least` to `most`, or `above` the one and up to the other; NaN, infinity and
    True are none.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if is_number and least <= value <= most and not (above and value == least):
        return float(value)
    limit = (
        f"above {least:g}" if above else f"of at least {least:g}"
    ) + f" and at most {most:g}" * (most < 1e300)
    raise ValueError(f"{name} must be a number {limit}, got {shown(value)}")


def one_of(name: str, value: Any, choices: Iterable[T]) -> T:
    """The choice that equals the value, of the same kind: True is not 1."""
    for choice in (known := tuple(choices)):
        if type(value) is type(choice) and value == choice:
            return choice
    raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {shown(value)}")


def with_methods(name: str, value: Any, verbs: Iterable[str]) -> Any:
    """A class or an object that has all of these attributes."""
    if lacking := [verb for verb in verbs if not hasattr(value, verb)]:
        who = (value if isinstance(value, type) else type(value)).__name__
        raise ValueError(
            f"{name} must have the verbs {', '.join(verbs)}, and {who} lacks {', '.join(lacking)}"
        )
    return value


def valid_text(name: str, value: Any) -> str | None:
    """A text that can be encoded, or None."""
    try:
        if value is None or (isinstance(value, str) and value.encode() is not None):
            return value
    except UnicodeEncodeError:
        raise ValueError(
            f"{name} must be valid Unicode, and {value[:60]!r} has half a surrogate pair"
        ) from None
    raise ValueError(f"{name} must be a text or None, got {shown(value)}")


def shown(value: object) -> str:
    """What came, short enough for one line."""
    said = repr(value)
    return said if len(said) <= 60 else f"{said[:57]}..."


def in_short(error: BaseException) -> str:
    """What an error says, in a line."""
    return " ".join(str(getattr(error, "strerror", None) or error).split()).partition(". ")[0][:200]
