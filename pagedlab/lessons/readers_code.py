"""Run code that a reader wrote: stop endless loops, and put its errors into one line."""

from __future__ import annotations

import dis
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

# Bytecode instructions in loops that an answer may execute in one trial. This is half a second.
MAX_STEPS = 1_000_000
PACKAGE = Path(__file__).parents[1]
CHECKS = PACKAGE / "checks"
STANDARD_LIBRARY = Path(dis.__file__).parent


class StillRunning(BaseException):
    """A reader's code would probably never end.

    It is not an `Exception`, so a reader's `except Exception` does not catch it.
    """


@contextmanager
def bounded(limit: int = MAX_STEPS) -> Iterator[None]:
    """Raise `StillRunning` inside the block after too many instructions.

    Only instructions of functions with loops count. The checks and installed libraries do not
    count. Python itself stops endless recursion.

    Args:
        limit: number of bytecode instructions that may run.
    """
    steps = 0

    def count(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal steps
        if event == "call" and not _counts(frame.f_code):
            return None
        # Count instructions, not lines: Python reports the one line of "while True: pass" once.
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        steps += 1
        if steps > limit:
            raise StillRunning(
                f"it is still running after {limit:,} steps: look for a loop that does not end"
            )
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)


@cache
def _counts(code: CodeType) -> bool:
    """Return whether this code has a loop and a reader wrote it."""
    jumps = {*dis.hasjrel, *dis.hasjabs}
    has_loop = any(
        step.opcode in jumps and step.argval <= step.offset for step in dis.get_instructions(code)
    )
    return has_loop and _is_readers(code.co_filename, ours=CHECKS)


def explain(error: BaseException) -> str:
    """Describe an error of the reader's code in one line: its message and the line that raised it.

    Args:
        error: what the reader's code raised.
    """
    parts = [str(error)]
    if not isinstance(error, StillRunning):
        parts.insert(0, type(error).__name__)
    message = ": ".join(part for part in parts if part)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.line and _is_readers(frame.filename, ours=PACKAGE):
            return f"{message} ({frame.name}: {frame.line})"
    return message


def _is_readers(file: str, ours: Path) -> bool:
    """Return whether a reader wrote this file: it is neither in `ours` nor in a library."""
    path = Path(file)
    if path.is_relative_to(STANDARD_LIBRARY) or path.is_relative_to(ours):
        return False
    return not {"site-packages", "dist-packages"} & set(path.parts)
