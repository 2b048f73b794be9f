"""The opening of a notebook: stored frames, so that a page without a kernel can play a widget.

An opening names the script that plays it and holds, packed, what that script asks its model for.
Of an `Explorer` that is every drawing, of a `Stage` its recording. docs/static/openings.js unpacks
it. Openings are made only where notebooks are executed to be stored, so that no reader waits for
them: tools/time_notebooks.py sets PAGEDLAB_OPENINGS.
"""

import base64
import json
import os
import re
import zlib
from collections.abc import Iterable
from typing import Any

MEDIA_TYPE = "application/vnd.pagedlab.opening+json"
_ELEMENT = re.compile(r"<[^<]*|[^<]+")


def are_stored() -> bool:
    """Return whether the notebook is executed to be stored, openings included."""
    return os.environ.get("PAGEDLAB_OPENINGS") == "1"


def opening(script: str, values: dict[str, Any]) -> dict[str, str]:
    """Return an opening, as a notebook stores it.

    Args:
        script: the name of the script that plays it, "explore" or "stage".
        values: what the script's model holds, as JSON.
    """
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=False)
    packed = zlib.compress(text.encode(), 9)
    return {"script": script, "packed": base64.b64encode(packed).decode()}


def share_parts(drawings: Iterable[str]) -> dict[str, Any]:
    """Return drawings in a form in which no element is written twice.

    Each drawing is a list of runs of parts: the first part's number, how many parts follow one
    another, the next run's first part, and so on. frames.js puts them together again.

    Args:
        drawings: SVG or HTML.

    Returns:
        "parts", and "frames" with the runs of each drawing.
    """
    numbers: dict[str, int] = {}
    frames = []
    for drawing in drawings:
        runs: list[int] = []
        for part in _ELEMENT.findall(drawing):
            number = numbers.setdefault(part, len(numbers))
            if runs and number == runs[-2] + runs[-1]:
                runs[-1] += 1
            else:
                runs += [number, 1]
        frames.append(runs)
    return {"parts": list(numbers), "frames": frames}
