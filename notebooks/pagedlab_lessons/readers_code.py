"""Run code that a reader wrote: stop endless loops, and put its errors into one line."""

import dis
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pagedlab

# Calls, and lines and instructions in loops, that an answer may execute in one trial. This is
# half a second.
MAX_STEPS = 1_000_000
HAS_ALARM = os.name == "posix" and sys.platform != "emscripten"  # a browser has none
MAX_SECONDS = 60  # that a check may take
# The lessons, pagedlab, and Python's own library.
NOT_READERS = [Path(file).parent for file in (__file__, pagedlab.__file__, dis.__file__)]


class StillRunning(BaseException):
    """A reader's code would probably never end.

    It is not an `Exception`, so a reader's `except Exception` does not catch it.
    """


@contextmanager
def bounded(limit: int = MAX_STEPS) -> Iterator[None]:
    """Raise `StillRunning` inside the block after too many steps.

    A step is a call, or a line or bytecode instruction of a function with a loop. pagedlab and
    other libraries do not count.

    Args:
        limit: number of steps.
    """
    steps = 0

    def count(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal steps
        is_call = event == "call"
        if is_call and not _is_readers(frame.f_code.co_filename):
            return None
        steps += 1
        # No `except:` in a loop catches what is raised where it jumps back. A far jump may be
        # reported at another offset: then an error is raised anywhere, some steps later.
        if steps > limit + 9999 or (steps > limit and frame.f_lasti in _jumps(frame.f_code)):
            raise StillRunning(
                f"it is still running after {limit:,} steps: look for a loop that does not end, or "
                "for a function that calls itself without end"
            )
        if is_call and not _jumps(frame.f_code):
            return None
        # Up to Python 3.11, the one line of "while True: pass" is reported once. From 3.12 on,
        # instructions are reported only beside lines.
        frame.f_trace_opcodes = True
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def in_time() -> Iterator[None]:
    """Raise `StillRunning` inside the block after `MAX_SECONDS`, also out of a sleep.

    This takes an alarm, which Windows and browsers do not have, and only the main thread hears.
    Elsewhere `bounded` alone stops a reader's code.
    """
    if not HAS_ALARM or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise StillRunning(f"it is still running after {MAX_SECONDS} seconds")

    handler = signal.signal(signal.SIGALRM, ring)
    # It rings again: an `except:` of the reader may have caught the first one.
    timer = signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS, 2)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


@cache
def _jumps(code: CodeType) -> set[int]:
    """Return the offsets at which this code jumps back."""
    jumps = dis.hasjrel + dis.hasjabs
    steps = dis.get_instructions(code)
    return {each.offset for each in steps if each.opcode in jumps and each.argval <= each.offset}


def explain(error: BaseException) -> str:
    """Describe an error of the reader's code in one line: its message and the line that raised it.

    Args:
        error: what the reader's code raised.
    """
    name = "" if isinstance(error, StillRunning) else type(error).__name__
    message = ": ".join(filter(None, (name, text_of(error))))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.line and _is_readers(frame.filename):
            return f"{message} ({frame.name}: {frame.line})"
    return message


def text_of(value: object) -> str:
    """Return the text of a reader's value, or say which error `str` raises."""
    try:
        return str(value)
    except Exception as error:
        # The text of this error may raise one too.
        return f"its text raises {type(error).__name__}"


@cache
def _is_readers(file: str) -> bool:
    """Return whether a reader wrote this file: it is neither ours nor a library's."""
    path = Path(file)
    if any(path.is_relative_to(folder) for folder in NOT_READERS):
        return False
    if file.startswith("<frozen"):  # of the standard library, too: what `import` runs, for instance
        return False
    return not {"site-packages", "dist-packages"} & set(path.parts)
