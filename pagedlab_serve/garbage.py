"""Postpones Python's full garbage collections while requests run.

A full collection visits every object that may hold others. A prefix cache of 300,000 blocks has as
many of them, so one takes 0.15 to 0.2 s, and it would fall between two steps.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

NEVER = 10**9  # collections of the generation before, in place of Python's 10

_lock = threading.Lock()
_num_postponed = 0
_usual = gc.get_threshold()


def postpone_full_collections() -> None:
    """Have Python collect young objects only, until `allow_full_collections` is called as often."""
    global _num_postponed, _usual
    with _lock:
        if _num_postponed == 0:
            _usual = gc.get_threshold()
            gc.set_threshold(*_usual[:2], NEVER)
        _num_postponed += 1


def allow_full_collections() -> None:
    """Undo one `postpone_full_collections`. The last call restores Python's settings."""
    global _num_postponed
    with _lock:
        _num_postponed -= 1
        if _num_postponed == 0:
            gc.set_threshold(*_usual)


@contextmanager
def full_collections_postponed() -> Iterator[None]:
    """Postpone full collections in a `with` block."""
    postpone_full_collections()
    try:
        yield
    finally:
        allow_full_collections()
