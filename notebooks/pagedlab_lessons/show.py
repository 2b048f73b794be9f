"""Show the package's own source in a notebook, so that what is discussed is what runs."""

import inspect
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REFERENCE = re.compile(r'\n\n *(Args|Returns|Raises):.*?\s*(?=""")', re.DOTALL)


@dataclass
class Source:
    """Python source that a notebook displays as highlighted code, and a terminal as text."""

    text: str

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        # JupyterLab shows the first line of an output that is folded: the place of the source.
        place, _, code = self.text.removeprefix("# ").partition("\n")
        # The font is for nbconvert, which shows code in Markdown outputs in the font of the text
        # around it.
        source = f'<div style="font-family: monospace">\n\n```python\n{code}\n```\n\n</div>'
        return f"`{place}`\n\n{source}"


def show_source(*objects: Any) -> Source:
    """Return the source of classes, functions, methods or Triton kernels, each with its file.

    The lists of arguments, results and errors are left out, so that the code stands out.

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
        source = REFERENCE.sub("", inspect.getsource(item))
        file = Path(inspect.getsourcefile(item) or "")
    except (TypeError, OSError):
        raise ValueError(
            f"{item!r} has no source to show: give a class, a function or a method"
        ) from None
    return f"# {_shown(file)}: {item.__qualname__}\n{textwrap.dedent(source).rstrip()}"


def _shown(file: Path) -> str:
    """A file's path from the folder of its package on."""
    outside = next(folder for folder in file.parents if not (folder / "__init__.py").exists())
    return file.relative_to(outside).as_posix()
