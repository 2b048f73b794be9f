"""Ctrl-C waits until the engine's bookkeeping is whole.

Ctrl-C and the notebook's stop button are a signal, SIGINT. Python raises KeyboardInterrupt wherever
the main thread happens to be: between taking a block and noting whose it is, for one. Inside
`deferred_interrupts` the signal is noted, and raised when the block ends. The forward pass takes
long and changes no bookkeeping: it runs inside `allowed_interrupts`, where the signal is raised at
once.

Pool, table and cache know nothing of this. The engine's own calls are the boundaries: `generate`,
`stream`, `add`, `step` and `abort`.
"""

from __future__ import annotations

import signal

# The signal module wraps these two in conversions to enums, which take ten times as long.
from _signal import getsignal as get_handler
from _signal import signal as set_handler
from collections.abc import Callable
from threading import get_ident, main_thread
from types import SimpleNamespace
from typing import Any

MAIN = main_thread().ident
# Of the main thread, which alone gets signals. handler: the one that was installed before ours.
_main = SimpleNamespace(deferring=False, pending=False, handler=None)


def _note(number: int, frame: Any) -> None:
    """Handle SIGINT: note it while interrupts are deferred, else pass it on."""
    if _main.deferring:
        _main.pending = True
    else:
        # what is raised now passes through code that puts the bookkeeping in order
        _main.deferring = True
        _main.handler(number, frame)
        _main.deferring = False  # it raised nothing


def _raise_pending() -> None:
    if _main.pending:
        _main.pending = False
        _note(signal.SIGINT, None)


class deferred_interrupts:  # noqa: N801 - used as a statement, like contextlib.suppress
    """Note an interrupt, and raise it when the block ends.

    Nothing happens inside another such block, in other threads, and where SIGINT has no handler of
    Python's.

    Args:
        on_interrupt: the block may set it. It is called before the interrupt is raised, if the
            block itself succeeded: the caller never learns what the block returned.
    """

    __slots__ = ("_active", "_outermost", "on_interrupt")

    def __enter__(self) -> deferred_interrupts:
        self.on_interrupt: Callable[[], object] | None = None
        handler = get_handler(signal.SIGINT)
        self._outermost = handler is not _note
        self._active = (
            (self._outermost or not _main.deferring) and get_ident() == MAIN and callable(handler)
        )
        if self._active:
            try:
                if self._outermost:
                    _main.pending, _main.handler = False, handler
                _main.deferring = True
                set_handler(signal.SIGINT, _note)
            except BaseException:  # one came just before
                _main.deferring = False
                raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if not self._active:
            return
        if isinstance(error, KeyboardInterrupt):
            # A model's forty frames say nothing, and IPython takes a second to draw them.
            error.__traceback__ = None
        try:
            # from here on a signal is raised at once, and defers those after it
            _main.deferring = False
            _raise_pending()
            self._restore()
        except BaseException:  # a signal came, before or just now
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
    """Inside `deferred_interrupts`: raise interrupts at once, one that is pending too, until this
    block ends.
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
