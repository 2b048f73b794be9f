"""A function that raises at one of its calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any


class Fault(Exception):
    """Not an error that the engine knows."""


def raising_at(call: int, function: Callable[..., Any], error=Fault) -> Callable[..., Any]:
    """The function, but its call number `call`, counted from 0, raises."""
    calls = itertools.count()

    def wrapped(*arguments, **options):
        if next(calls) == call:
            raise error
        return function(*arguments, **options)

    return wrapped
