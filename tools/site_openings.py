"""What the site's pages need to play the openings that notebooks store, see widgets/opening.py.

docs/conf.py calls it: `with_places` while it reads a notebook, `write` when the pages are there.

By hand, because openings are this series' own media type.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pagedlab_lessons.widgets.assets import script, style
from pagedlab_lessons.widgets.opening import MEDIA_TYPE

ROOT = Path(__file__).resolve().parent.parent
STILL = '<p class="still">This page shows a picture. Run the notebook, and you can click it.</p>'


def with_places(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a cell's outputs with a place after each one that has an opening, and a note after each other widget.

    docs/static/openings.js plays the opening there, and takes away the output before it.

    Args:
        outputs: of a cell, as the notebook's file has them. Their openings are taken out. A widget says what it is in
            "text/plain"; a figure there begins with its name.
    """
    placed = []
    for output in outputs:
        placed.append(output)
        data = output.get("data", {})
        is_figure = "".join(data.get("text/plain", "")).startswith(("Figure", "<Figure"))
        if opening := data.pop(MEDIA_TYPE, None):
            placed.append(shown(f'<div data-opening="../_static/{file_of(opening)}"></div>'))
        elif "image/png" in data and not is_figure:
            placed.append(shown(STILL))
    return placed


def shown(html: str) -> dict[str, Any]:
    """Return an output that is a piece of HTML."""
    return {"output_type": "display_data", "metadata": {}, "data": {"text/html": html}}


def file_of(opening: dict[str, str]) -> str:
    """Return the path of an opening in the folder of static files."""
    name = hashlib.sha256(json.dumps(opening).encode()).hexdigest()[:16]
    return f"openings/{name}.json"


def openings_of(notebook: Path) -> list[dict[str, str]]:
    """Return the openings that a notebook stores."""
    found = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            if MEDIA_TYPE in output.get("data", {}):
                found.append(output["data"][MEDIA_TYPE])
    return found


def write(folder: Path, notebooks: Iterable[Path]) -> None:
    """Write the openings of notebooks, the scripts that play them and their style sheet.

    Args:
        folder: the site's folder of static files.
        notebooks: paths of notebooks.
    """
    (folder / "openings").mkdir(parents=True, exist_ok=True)
    for notebook in notebooks:
        for opening in openings_of(notebook):
            (folder / file_of(opening)).write_text(json.dumps(opening), encoding="utf-8")
    for name in ("explore", "stage"):
        (folder / f"{name}.js").write_text(script(name), encoding="utf-8")
    shutil.copy2(ROOT / "notebooks" / "pagedlab_lessons" / "widgets" / "frames.js", folder)
    (folder / "openings.css").write_text(style("block_grid", "explore", "stage"), encoding="utf-8")
