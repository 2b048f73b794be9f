"""Runs before fork.py, in the visitor's browser only: what serves notebooks alone need not be loaded.

The page itself is the other half of the widget, so ipywidgets is not needed, nor the IPython below it; no picture is
stored, so neither are NumPy and Pillow: 14 MB come in place of 31. Block pool, tables and session are untouched.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import traitlets


class OnThePage(traitlets.HasTraits):
    """In the place of anywidget's class: front.js sends messages and reads the state."""

    def on_msg(self, receive: Any) -> None:
        """Nobody else sends any."""


for name in ("anywidget", "IPython", "IPython.display", "pagedlab.widgets.picture"):
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name])["__getattr__"] = lambda _: OnThePage
