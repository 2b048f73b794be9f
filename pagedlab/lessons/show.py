"""Show the package's own source in a notebook, so that what is discussed is what runs."""

from __future__ import annotations

import inspect
import textwrap
from difflib import unified_diff
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]


class Source:
    """Python source, or a diff of it, that a notebook displays as highlighted code, and a terminal as text."""

    def __init__(self, text: str, language: str = "python") -> None:
        self.text, self.language = text, language

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        # The font is for nbconvert, which shows code in Markdown outputs in the font of the text around it.
        return f'<div style="font-family: monospace">\n\n```{self.language}\n{self.text}\n```\n\n</div>'


def show_source(*objects: Any) -> Source:
    """The source of classes, functions, methods or Triton kernels, each under the file that it stands in.

    `ValueError` for an object that has no source in a file.
    """
    return Source("\n\n".join(f"# {_place(item)}\n{_source(item)}" for item in objects))


def show_changes(old: Any, new: Any) -> Source:
    """What distinguishes the source of `new` from that of `old`: lines that go with a -, lines that come with a +."""
    lines = unified_diff(_source(old).splitlines(), _source(new).splitlines(), n=0, lineterm="")
    changed = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
    return Source("\n".join([f"# {_place(old)}", f"# {_place(new)}", *changed]), "diff")


def _source(item: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(_function(item))).rstrip()
    except (TypeError, OSError):
        raise ValueError(f"{item!r} has no source to show: give a class, a function or a method") from None


def _place(item: Any) -> str:
    _source(item)
    path = Path(inspect.getsourcefile(_function(item)) or "")
    path = path.relative_to(_ROOT) if path.is_relative_to(_ROOT) else path
    return f"{path.as_posix()}: {_function(item).__qualname__}"


def _function(item: Any) -> Any:
    return getattr(item, "fn", item)  # of a Triton kernel, the Python function that was decorated
