"""Runs before fork.py, in the visitor's browser only: it replaces modules that only notebooks need.

The page itself is the other half of the widget, so ipywidgets and IPython are not needed. No picture is stored, so NumPy
and Pillow are not needed either: the page loads 13 MB in place of 31. Block pool, tables and session are untouched.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import traitlets


class OnThePage(traitlets.HasTraits):
    """Takes the place of anywidget's class: front.js sends messages and reads the state."""

    def on_msg(self, receive: Any) -> None:
        """Does nothing: front.js calls `receive` itself."""


for name in ("anywidget", "IPython", "IPython.display", "pagedlab_lessons.widgets.picture"):
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name])["__getattr__"] = lambda _: OnThePage
