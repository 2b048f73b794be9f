"""The format of a recording. docs/trace.md describes each field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FORMAT = 2
MAX_BLOCKS = 1024  # blocks whose changes are noted one by one; the others are only counted
QUEUES = ("waiting", "running", "swapped")  # the states of a sequence that has not ended


def request_of(name: str) -> str:
    """The request of a sequence: "r3" of "r3.1"."""
    return name.split(".")[0]


def load_recording(source: str | Path | dict[str, Any]) -> dict[str, Any]:
    """Return a recording.

    Args:
        source: a recording, or the path of a JSON file with one.

    Raises:
        ValueError: If it has another format.
    """
    if isinstance(source, dict):
        return check_format(source)
    try:
        recording = json.loads(Path(source).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source} is no recording, because it is no JSON: {error}") from None
    return check_format(recording)


def check_format(recording: Any) -> dict[str, Any]:
    """Return the recording. `ValueError` if it has another format, or no steps."""
    is_one = isinstance(recording, dict) and recording.get("format") == FORMAT
    if not is_one or not recording.get("steps"):
        raise ValueError(
            f"this is no recording of format {FORMAT}: Stage(llm).save(path) writes one"
        )
    return recording
