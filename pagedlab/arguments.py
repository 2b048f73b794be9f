"""Checks of arguments, which run before anything changes.

Each function returns the value in Python's own type. For a bad value it raises a `ValueError` of
one line that names the argument, what is accepted, and the value.
"""

import math
import operator
import os
import re
import sys
from collections.abc import Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

from pagedlab.shipped import DEFAULT_MODEL

MODELS = f"a folder, a .gguf file or a hub id like {DEFAULT_MODEL}"  # what names a model
HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")  # an owner and a name; of a few, a name
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
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
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if is_number and least <= value <= most and not (above and value == least):
        return float(value)
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


def token_id_list(name: str, value: Any, most: float = math.inf) -> list[int]:
    """Check a list of token ids from 0 to `most`."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, set, Mapping)):
        raise ValueError(f"{name} must be a list of token ids, got {shown(value)}")
    ids = list(value)
    is_plain = [*map(type, ids)].count(int) == len(ids)  # the usual case, and fast
    if is_plain and (not ids or (min(ids) >= 0 and max(ids) <= most)):
        return ids
    return [integer("a token id in " + name, token_id, 0, most) for token_id in ids]


def with_methods(name: str, value: Any, methods: Iterable[str]) -> Any:
    """Check that a class or an object has all these methods or attributes."""
    lacking = [method for method in methods if not hasattr(value, method)]
    if lacking:
        cls = value if isinstance(value, type) else type(value)
        raise ValueError(
            f"{name} must have the methods {', '.join(methods)}, and {cls.__name__} lacks "
            f"{', '.join(lacking)}"
        )
    return value


def valid_text(name: str, value: Any) -> str | None:
    """Check a string that can be encoded in UTF-8, or None."""
    if value is None:
        return value
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text or None, got {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        # Python reads a byte that is not UTF-8 as one of these characters.
        is_byte = 0xDC80 <= ord(value[error.start]) <= 0xDCFF
        fault = "a byte that is not UTF-8" if is_byte else "half a surrogate pair"
        raise ValueError(f"{name} must be valid Unicode, and {shown(value)} has {fault}") from None
    return value


def visible(text: str, kept: str = "\n\t") -> str:
    r"""Return the text with control characters written out, for instance as \x1b.

    A terminal would obey them: it would clear the screen, or fill the clipboard.

    Args:
        text: from a model, a file's name or a user.
        kept: control characters that stay.
    """
    return CONTROL.sub(
        lambda found: found[0] if found[0] in kept else f"\\x{ord(found[0]):02x}", text
    )


def model_name(source: str) -> str:
    """Check the name of a checkpoint: a folder or .gguf file that exists, or perhaps a hub id."""
    path = Path(os.path.expanduser(source))
    is_gguf = path.suffix == ".gguf"
    is_file = os.path.isfile(path)
    if os.path.isdir(path) and not is_gguf:  # `path.is_dir` raises if the name is too long
        return source
    if is_file and not is_gguf:
        raise ValueError(f"{source!r} is not a .gguf file: name {MODELS}")
    is_path = source.count("/") > 1 or source.startswith((".", "/", "~"))
    if (is_path or is_gguf) and not is_file:
        raise ValueError(f"there is no {source!r}: name {MODELS}")
    return source


def hub_id(name: str) -> str:
    """Check the form of a hub id. Whether the hub has such a model is not asked."""
    if not HUB_ID.fullmatch(name):
        raise ValueError(f"a hub id is like {DEFAULT_MODEL}, got {shown(name)}")
    return name


def shown(value: object) -> str:
    """The `repr` of a value in one line, at most 60 characters long."""
    text = re.sub(r"\s*\n\s*", " ", repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


def counted(count: int, noun: str) -> str:
    """Return the number and the noun, which has an "s" unless the number is 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def in_short(error: BaseException) -> str:
    """The first sentence of an error's message, in one line of at most 200 characters."""
    message = str(getattr(error, "strerror", None) or error)
    first_sentence = " ".join(message.split()).partition(". ")[0]
    return first_sentence[:200]
