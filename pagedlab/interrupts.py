"""An operation on the books happens or does not: an interrupt waits until they are whole.

Ctrl-C and the notebook's stop button are a signal, SIGINT, and Python raises KeyboardInterrupt wherever the main thread
happens to be: between taking a block and noting whose it is, say. Inside `Held` the signal is noted, and raised at the
end. What takes long and changes no books, the model's forward pass, runs inside `LetThrough`.
"""

from __future__ import annotations

import signal
from _signal import getsignal as get_handler  # signal's own two, without their conversions to enums and back,
from _signal import signal as set_handler  # which take ten times as long
from collections.abc import Callable
from functools import partial, wraps
from threading import get_ident, main_thread
from types import SimpleNamespace
from typing import Any, TypeVar

R = TypeVar("R")
MAIN = main_thread().ident
# Of the main thread, which alone gets signals; came: one, while holding; handler: who is in charge of it otherwise.
_main = SimpleNamespace(holding=False, came=False, handler=None)


def _note(number: int, frame: Any) -> None:
    if _main.holding:
        _main.came = True
    else:
        _main.holding = True  # what is raised now passes through code that puts books in order
        _main.handler(number, frame)
        _main.holding = False  # it raised nothing


def _deliver() -> None:
    if _main.came:
        _main.came = False
        _note(signal.SIGINT, None)


class Held:
    """Hold interrupts back until the end, and raise one then if any came.

    Then nobody learns what was done: `undo`, if the body sets it, takes it back. Nothing happens inside another
    `Held`, in other threads, and where SIGINT has no handler of Python's.
    """

    __slots__ = ("_holds", "_outermost", "undo")

    def __enter__(self) -> Held:
        self.undo: Callable[[], object] | None = None
        handler = get_handler(signal.SIGINT)
        self._outermost = handler is not _note
        self._holds = (self._outermost or not _main.holding) and get_ident() == MAIN and callable(handler)
        if self._holds:
            try:
                if self._outermost:
                    _main.came, _main.handler = False, handler
                _main.holding = True
                set_handler(signal.SIGINT, _note)
            except BaseException:  # one came just before
                _main.holding = False
                raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if self._holds:
            if isinstance(error, KeyboardInterrupt):
                # A model's forty frames say nothing, and IPython takes a second to draw them.
                error.__traceback__ = None
            try:
                _main.holding = False  # from here on one is raised at once, and holds back those after it
                _deliver()
                self._let_go()
            except BaseException:  # one came, before or just now
                if self.undo and kind is None:
                    set_handler(signal.SIGINT, _note)
                    _main.holding = True
                    self.undo()
                self._let_go()
                raise

    def _let_go(self) -> None:
        if self._outermost:
            try:
                set_handler(signal.SIGINT, _main.handler)
            finally:
                _main.holding = False


class LetThrough:
    """Inside `Held`: interrupts are raised at once, one that has come already too, until the end of this."""

    __slots__ = ("_lets",)

    def __enter__(self) -> None:
        self._lets = _main.holding and get_ident() == MAIN
        if self._lets:
            _main.holding = False
            _deliver()

    def __exit__(self, *_: object) -> None:
        if self._lets:
            _main.holding = True


def atomic(undo: Callable[[Any, Any], object] | None = None) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Decorate a method that runs inside `Held`.

    If it is interrupted, nobody learns what it returned: undo(self, result) then takes back what that stands for.
    """

    def decorate(method: Callable[..., R]) -> Callable[..., R]:
        @wraps(method)
        def whole(self: Any, *args: Any, **options: Any) -> R:
            if _main.holding or get_ident() != MAIN:  # as it is nearly always; without keywords in half the time
                return method(self, *args, **options) if options else method(self, *args)
            with Held() as hold:
                result = method(self, *args, **options)
                if undo:
                    hold.undo = partial(undo, self, result)
                return result

        return whole

    return decorate
