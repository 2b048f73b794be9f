"""A function that raises at one of its calls."""

import itertools


class Fault(Exception):
    """Not an error that the engine knows."""


def raising_at(call: int, function, error=Fault):
    """The function, but its call number `call`, counted from 0, raises."""
    calls = itertools.count()

    def wrapped(*arguments, **options):
        if next(calls) == call:
            raise error
        return function(*arguments, **options)

    return wrapped
