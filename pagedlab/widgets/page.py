"""Scripts and styles of the widgets, as their pages get them."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).parent


def script(*names: str) -> str:
    """One module out of page.js and the scripts of that name, one after the other; the last one exports."""
    return "".join((_HERE / f"{name}.js").read_text(encoding="utf-8") for name in ("page", *names))


def style(*names: str) -> str:
    """The style sheets of that name, one after the other."""
    return "".join((_HERE / f"{name}.css").read_text(encoding="utf-8") for name in names)
