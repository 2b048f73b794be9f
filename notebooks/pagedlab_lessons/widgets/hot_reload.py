"""Scripts and styles that follow their files while these are edited.

anywidget reloads a widget when the file that its `_esm` or `_css` names changes. Ours are joined
from several files, so a thread joins them again whenever one of them changes.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path


def in_development() -> bool:
    """Whether anywidget's hot reload is switched on."""
    return os.environ.get("ANYWIDGET_HMR") == "1"


def follow(name: str, join: Callable[[], str], sources: Sequence[Path]) -> Path:
    """A file that has what `join` makes of the sources, now and after each change.

    Args:
        name: of the file; its folder is a new one.
        join: reads the sources and returns the text of the file.
        sources: files to watch.

    Returns:
        The path of the file.
    """
    target = Path(tempfile.mkdtemp(prefix="pagedlab-")) / name
    target.write_text(join(), encoding="utf-8")
    watcher = threading.Thread(target=_keep_joined, args=(target, join, sources), daemon=True)
    watcher.start()
    return target


def _keep_joined(target: Path, join: Callable[[], str], sources: Sequence[Path]) -> None:
    from watchfiles import watch  # installed for development only

    for _ in watch(*sources):
        target.write_text(join(), encoding="utf-8")
