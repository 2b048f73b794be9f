"""Whether a recording has the format that recording.py describes.

A recording may be a file from anybody, and the page's script relies on the types of its fields. So
every field is checked before anything is drawn. Each error is one line that names the field.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pagedlab.validation import integer, one_of, shown
from pagedlab.widgets.recording import FORMAT, QUEUES
from pagedlab.widgets.session import MAX_BLOCKS

STATES = (*QUEUES, "stop", "length", "abort", "dropped")
RECORDING_FIELDS = ("format", "model", "block_size", "num_blocks", "drawn", "steps")
STEP_FIELDS = ("step", "used", "cached", "counts", "kept", "copies", "hits", "evicted", "texts")
FIRST_OF_TEXT = ("look", "prompt", "state")  # the first change of a text says these
TEXT_FIELDS = (*FIRST_OF_TEXT, "tokens", "blocks", "words")


def load_recording(source: str | Path | dict[str, Any]) -> dict[str, Any]:
    """Return a recording whose every field has been checked.

    source  a recording, or the path of a JSON file with one
    """
    if isinstance(source, dict):
        return check_recording(source)
    try:
        recording = json.loads(Path(source).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source} is no recording, because it is no JSON: {error}") from None
    return check_recording(recording)


def check_recording(recording: Any) -> dict[str, Any]:
    """Return the recording, or raise `ValueError` for the first field of a wrong type or value."""
    known_format = recording.get("format") if isinstance(recording, dict) else None
    if type(known_format) is not int or known_format != FORMAT:
        raise ValueError(
            f"this is no recording of format {FORMAT}: Stage(llm).save(path) writes one"
        )
    _fields("recording", recording, required=RECORDING_FIELDS, allowed=RECORDING_FIELDS)
    _text("recording.model", recording["model"])
    integer("recording.block_size", recording["block_size"], 1)
    num_blocks = integer("recording.num_blocks", recording["num_blocks"], 1)
    drawn = integer("recording.drawn", recording["drawn"], 1, min(num_blocks, MAX_BLOCKS))
    steps = _list("recording.steps", recording["steps"])
    if not steps:
        raise ValueError("recording.steps must have at least one step, got []")
    checker = _StepChecker(num_blocks, drawn)
    for i, step in enumerate(steps):
        checker.check(f"recording.steps[{i}]", step)
    return recording


class _StepChecker:
    """Checks the steps of a recording in their order, and knows how long each text is by then."""

    def __init__(self, num_blocks: int, drawn: int) -> None:
        self.num_blocks = num_blocks
        self.drawn = drawn
        self._drawn_ids = {str(block_id) for block_id in range(drawn)}
        self.lengths: dict[str, dict[str, int]] = {}  # by the text's name: of its blocks and words

    def check(self, where: str, step: Any) -> None:
        _fields(where, step, required=("step",), allowed=STEP_FIELDS)
        integer(f"{where}.step", step["step"])
        for name in ("used", "cached"):
            integer(f"{where}.{name}", step.get(name, 0), 0, self.num_blocks)
        self._by_block(f"{where}.counts", step.get("counts", {}))
        self._by_block(f"{where}.kept", step.get("kept", {}), most=1)
        for name in ("hits", "evicted"):
            self._blocks(f"{where}.{name}", step.get(name, []))
        for i, copy in enumerate(_list(f"{where}.copies", step.get("copies", []))):
            self._copy(f"{where}.copies[{i}]", copy)
        for name, change in _dict(f"{where}.texts", step.get("texts", {})).items():
            self._change(f"{where}.texts[{shown(name)}]", name, change)

    def _by_block(self, where: str, values: Any, most: float = float("inf")) -> None:
        """A number for each block. JSON makes a text of the block's id."""
        for block_id, number in _dict(where, values).items():
            if type(block_id) not in (int, str) or str(block_id) not in self._drawn_ids:
                raise ValueError(
                    f"{where} must name blocks from 0 to {self.drawn - 1}, got {shown(block_id)}"
                )
            integer(f"{where}[{block_id}]", number, 0, most)

    def _blocks(self, where: str, block_ids: Any) -> None:
        for i, block_id in enumerate(_list(where, block_ids)):
            integer(f"{where}[{i}]", block_id, 0, self.num_blocks - 1)

    def _copy(self, where: str, copy: Any) -> None:
        if len(_list(where, copy)) != 2:
            raise ValueError(f"{where} must be [source, destination], got {shown(copy)}")
        self._blocks(where, copy)

    def _change(self, where: str, name: Any, change: Any) -> None:
        """What changed of a text."""
        _text(f"the name of {where}", name)
        required = () if name in self.lengths else FIRST_OF_TEXT
        _fields(where, change, required=required, allowed=TEXT_FIELDS)
        lengths = self.lengths.setdefault(name, {"blocks": 0, "words": 0})
        for number in ("look", "prompt", "tokens"):
            integer(f"{where}.{number}", change.get(number, 0))
        if "state" in change:
            one_of(f"{where}.state", change["state"], STATES)
        if "blocks" in change:
            block_ids = _replaced(f"{where}.blocks", change["blocks"], lengths, "blocks")
            self._blocks(f"{where}.blocks[1]", block_ids)
        if "words" in change:
            words = _replaced(f"{where}.words", change["words"], lengths, "words")
            for i, word in enumerate(words):
                _text(f"{where}.words[1][{i}]", word)


def _replaced(where: str, change: Any, lengths: dict[str, int], name: str) -> list[Any]:
    """The new items of [n, items], which replace all but the first n; and note the list's new
    length.
    """
    if len(_list(where, change)) != 2:
        raise ValueError(f"{where} must be [items to keep, new items], got {shown(change)}")
    keep = integer(f"{where}[0]", change[0], 0, lengths[name])
    items = _list(f"{where}[1]", change[1])
    lengths[name] = keep + len(items)
    return items


def _fields(where: str, value: Any, required: Collection[str], allowed: Collection[str]) -> None:
    """An object with all of the required fields, and with none but those allowed."""
    names = _dict(where, value).keys()
    for name in required:
        if name not in names:
            raise ValueError(f"{where} must have the field {name}")
    for name in names:
        if name not in allowed:
            raise ValueError(f"{where} may have the fields {', '.join(allowed)}, got {shown(name)}")


def _dict(where: str, value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} must be an object, got {shown(value)}")
    return value


def _list(where: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where} must be a list, got {shown(value)}")
    return value


def _text(where: str, value: Any) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{where} must be a text, got {shown(value)}")
