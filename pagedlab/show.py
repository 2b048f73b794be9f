"""Show the package's own source in a notebook, so that what is discussed is what runs."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent.parent


class Source:
    """Python source that a notebook displays as highlighted code, and a terminal as text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        # The font is for nbconvert, which shows code in Markdown outputs in the font of the text around it.
        return f'<div style="font-family: monospace">\n\n```python\n{self.text}\n```\n\n</div>'


def show_source(*objects: Any) -> Source:
    """The source of classes, functions or methods, each under the file that it stands in.

    `ValueError` for an object that has no source in a file.
    """
    parts = []
    for item in objects:
        try:
            source, path = inspect.getsource(item), Path(inspect.getsourcefile(item) or "")
        except (TypeError, OSError):
            raise ValueError(f"{item!r} has no source to show: give a class, a function or a method") from None
        if path.is_relative_to(_ROOT):
            path = path.relative_to(_ROOT)
        parts.append(f"# {path.as_posix()}: {item.__qualname__}\n{textwrap.dedent(source).rstrip()}")
    return Source("\n\n".join(parts))
