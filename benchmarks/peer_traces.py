"""How long the card computes, from the traces that torch's profiler has written into a folder."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

ON_THE_CARD = ("kernel", "gpu_memcpy", "gpu_memset")


def take_traces(folder: Path) -> list[dict[str, Any]]:
    """Return what ran on the card, by the traces in the folder, and remove them."""
    events = []
    for path in folder.rglob("*.json*"):
        content = path.read_bytes()
        trace = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
        events += [event for event in trace["traceEvents"] if event.get("cat") in ON_THE_CARD]
        path.unlink()
    return events


def busy_seconds(events: list[dict[str, Any]]) -> float:
    """How long at least one of these events lasted. A trace is in microseconds."""
    busy = 0.0
    end = 0.0
    for event in sorted(events, key=lambda event: event["ts"]):
        stop = event["ts"] + event["dur"]
        busy += max(0.0, stop - max(end, event["ts"]))
        end = max(end, stop)
    return busy / 1e6
