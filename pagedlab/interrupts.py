"""Deferred interrupts: Ctrl-C waits until the engine's bookkeeping is consistent.

Ctrl-C and the notebook's stop button send the signal SIGINT. Python then raises KeyboardInterrupt
at the line where the main thread is. A block may just have been allocated, and no table lists it
yet. Inside `deferred_interrupts` the signal is recorded, and raised when the block ends. The
forward pass takes long and changes no bookkeeping. It runs inside `allowed_interrupts`, where the
signal is raised at once.

The pool, the tables and the prefix cache do not know about interrupts. The boundaries are the
engine's own methods: `generate`, `stream`, `add`, `step` and `abort`.
"""

from __future__ import annotations

import signal

# The signal module wraps these two in conversions to enums, which take ten times as long.
from _signal import getsignal as get_handler
from _signal import signal as set_handler
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident, main_thread
from typing import Any

MAIN = main_thread().ident


@dataclass
class _State:
    """The state of the main thread, which alone receives signals.

    Args:
        deferring: whether interrupts are deferred now.
        pending: whether one was deferred and is still to be raised.
        handler: the handler of SIGINT that was installed before ours.
    """

    deferring: bool = False
    pending: bool = False
    handler: Any = None


_main = _State()


def _note(number: int, frame: Any) -> None:
    """Handle SIGINT: record it while interrupts are deferred, else call the previous handler."""
    if _main.deferring:
        _main.pending = True
    else:
        # The exception passes through code that restores the bookkeeping: defer further ones.
        _main.deferring = True
        _main.handler(number, frame)
        _main.deferring = False  # the handler raised nothing


def _raise_pending() -> None:
    if _main.pending:
        _main.pending = False
        _note(signal.SIGINT, None)


class deferred_interrupts:  # noqa: N801 - used as a statement, like contextlib.suppress
    """Record an interrupt, and raise it when the block ends.

    A nested block does nothing. Nor does a block in another thread, or where SIGINT has no handler
    written in Python.

    The block may set `on_interrupt`. If the block succeeds and an interrupt is pending, that
    function is called before the interrupt is raised, because the caller does not get the block's
    result.
    """

    __slots__ = ("_active", "_outermost", "on_interrupt")

    def __enter__(self) -> deferred_interrupts:
        self.on_interrupt: Callable[[], object] | None = None
        handler = get_handler(signal.SIGINT)
        self._outermost = handler is not _note
        may_defer = self._outermost or not _main.deferring
        self._active = may_defer and get_ident() == MAIN and callable(handler)
        if self._active:
            try:
                if self._outermost:
                    _main.pending = False
                    _main.handler = handler
                _main.deferring = True
                set_handler(signal.SIGINT, _note)
            except BaseException:  # an interrupt arrived just before
                _main.deferring = False
                raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if not self._active:
            return
        if isinstance(error, KeyboardInterrupt):
            # The forty frames of a model say nothing, and IPython takes a second to draw them.
            error.__traceback__ = None
        try:
            _main.deferring = False  # from here on a signal is raised at once
            _raise_pending()
            self._restore()
        except BaseException:  # an interrupt was pending, or has just arrived
            if self.on_interrupt and kind is None:
                set_handler(signal.SIGINT, _note)
                _main.deferring = True
                self.on_interrupt()
            self._restore()
            raise

    def _restore(self) -> None:
        if self._outermost:
            try:
                set_handler(signal.SIGINT, _main.handler)
            finally:
                _main.deferring = False


class allowed_interrupts:  # noqa: N801
    """Inside `deferred_interrupts`: raise interrupts at once until this block ends.

    A pending interrupt is raised when the block begins.
    """

    __slots__ = ("_active",)

    def __enter__(self) -> None:
        self._active = _main.deferring and get_ident() == MAIN
        if self._active:
            _main.deferring = False
            _raise_pending()

    def __exit__(self, *_: object) -> None:
        if self._active:
            _main.deferring = True
