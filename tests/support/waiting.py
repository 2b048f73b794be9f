"""Waiting for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def until(condition: Callable[[], Found], seconds: float = 20, why: str = "the condition does not hold") -> Found:
    """Ask until the answer is true, and return it. It is an error if that takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"after {seconds} seconds: {why}"
        time.sleep(0.01)
    return found
