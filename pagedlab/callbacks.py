"""Callbacks: functions that hear of something and cannot break what they watch."""

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from pagedlab.arguments import a_function


class Callbacks(list[Callable[..., None]]):
    """The functions to call."""

    def subscribe(self, callback: Callable[..., None]) -> Callable[[], None]:
        """Add a function. The function returned removes it; a second call does nothing."""
        self.append(a_function("callback", callback, "to call"))
        subscription = ExitStack()
        subscription.callback(self.remove, callback)
        return subscription.close

    def call(self, *arguments: Any) -> None:
        """Call every function. An error becomes a warning."""
        for callback in tuple(self):
            try:
                callback(*arguments)
            except Exception as error:
                warnings.warn(f"a callback raised {error!r}, with {arguments}", stacklevel=3)
