"""Show the package's own source in a notebook, so that what is discussed is what runs."""

import inspect
import textwrap
from pathlib import Path
from typing import Any


class Source:
    """Python source that a notebook displays as highlighted code, and a terminal as text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        # The font is for nbconvert, which shows code in Markdown outputs in the font of the text
        # around it.
        return f'<div style="font-family: monospace">\n\n```python\n{self.text}\n```\n\n</div>'


def show_source(*objects: Any) -> Source:
    """Return the source of classes, functions, methods or Triton kernels, each with its file.

    Raises:
        ValueError: For an object that has no source in a file.
    """
    return Source("\n\n".join(map(_read, objects)))


def _read(item: Any) -> str:
    """Return the place of an object, as a comment, and its source."""
    if isinstance(item, property):
        item = item.fget
    # what was decorated: of a Triton kernel, the Python function
    item = inspect.unwrap(getattr(item, "fn", item))
    try:
        source, file = inspect.getsource(item), Path(inspect.getsourcefile(item) or "")
    except (TypeError, OSError):
        raise ValueError(
            f"{item!r} has no source to show: give a class, a function or a method"
        ) from None
    return f"# {_shown(file)}: {item.__qualname__}\n{textwrap.dedent(source).rstrip()}"


def _shown(file: Path) -> str:
    """A file's path from the folder of its package on; the whole path if it is in no package."""
    package = file.parent
    while (package.parent / "__init__.py").exists():
        package = package.parent
    if (package / "__init__.py").exists():
        file = file.relative_to(package.parent)
    return file.as_posix()
