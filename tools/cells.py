"""What several tools ask of a cell: its tags, and which of its outputs are closed progress bars."""

from __future__ import annotations

import re

import nbformat

BAR = re.compile(r"\[(\d+:)?\d\d:\d\d\D.*(\w/s|s/\w)")  # what tqdm writes after its bar: [time<time left, rate]
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def has_tag(cell: nbformat.NotebookNode, tag: str) -> bool:
    return tag in cell.metadata.get("tags", [])


def moved(output: nbformat.NotebookNode) -> bool:
    """Whether this is a closed progress bar of tqdm, or a link to a server that is gone.

    The text of a closed bar is its first state: it would read as a search that has stopped."""
    if output.output_type == "stream":
        return output.name == "stderr" and "\r" in output.text and bool(BAR.search(output.text))
    data = output.get("data", {})
    plain = data.get("text/plain", "")
    gone = bool(BAR.search(plain)) or "http://127.0.0.1:" in plain
    return WIDGET_VIEW in data and data.keys() <= {WIDGET_VIEW, "text/plain"} and gone
