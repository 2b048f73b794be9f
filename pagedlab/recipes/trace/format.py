"""The format of a recording, and whether a recording has it. docs/trace.md describes each field.

A recording may be a file from an unknown source, and the page's script relies on the types of its
fields. So every field is checked before anything is drawn. Each error is one line that names the
field.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from pagedlab.arguments import integer, one_of, real, shown

FORMAT = 2  # what a recorder writes
FORMATS = (1, 2)  # what can be read; 2 adds fields, and all of them are optional
MAX_BLOCKS = 1024  # blocks whose changes are noted one by one; the others are only counted
MAX_NESTING = 8  # lists in lists of a reading

QUEUES = ("waiting", "running", "swapped")
ENDS = ("stop", "length", "abort", "error")
STATES = (*QUEUES, *ENDS, "dropped")
HOW = ("recompute", "swap")

RECORDING_FIELDS = ("format", "model", "block_size", "num_blocks", "drawn", "steps")
POOL_FIELDS = ("step", "used", "cached", "counts", "kept", "copies", "hits", "evicted", "texts")
RUN_FIELDS = ("computed", "admitted", "preempted", "resumed", "drafts", "held", "likely")
STEP_FIELDS = {1: POOL_FIELDS, 2: (*POOL_FIELDS, *RUN_FIELDS, "readings")}
FIRST_OF_TEXT = ("look", "prompt", "state")  # the first change of a sequence has these
TEXT_FIELDS_1 = (*FIRST_OF_TEXT, "tokens", "blocks", "words")
TEXT_FIELDS = {1: TEXT_FIELDS_1, 2: (*TEXT_FIELDS_1, "ids", "length")}
DRAFT_FIELDS = ("position", "tokens", "accepted")
LIKELY_FIELDS = ("of", "tokens")

Check = Callable[[str, Any], Any]


def request_of(name: str) -> str:
    """The request of a sequence: "r3" of "r3.1"."""
    return name.split(".")[0]


def load_recording(source: str | Path | dict[str, Any]) -> dict[str, Any]:
    """Return a recording whose every field has been checked.

    Args:
        source: a recording, or the path of a JSON file with one.

    Raises:
        ValueError: Names the first field that is wrong.
    """
    if isinstance(source, dict):
        return check_recording(source)
    try:
        recording = json.loads(Path(source).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source} is no recording, because it is no JSON: {error}") from None
    return check_recording(recording)


def check_recording(recording: Any) -> dict[str, Any]:
    """Return the recording if every field has the right type and value.

    Raises:
        ValueError: Names the first field that is wrong.
    """
    number = check_format(recording)
    _fields("recording", recording, required=RECORDING_FIELDS, allowed=RECORDING_FIELDS)
    _text("recording.model", recording["model"])
    integer("recording.block_size", recording["block_size"], 1)
    num_blocks = integer("recording.num_blocks", recording["num_blocks"], 1)
    drawn = integer("recording.drawn", recording["drawn"], 1, min(num_blocks, MAX_BLOCKS))
    steps = _list("recording.steps", recording["steps"])
    if not steps:
        raise ValueError("recording.steps must have at least one step, got []")
    checker = _StepChecker(number, num_blocks, drawn)
    for i, step in enumerate(steps):
        checker.check(f"recording.steps[{i}]", step)
    return recording


def check_format(recording: Any) -> int:
    """Return the number of the recording's format, 1 or 2.

    Raises:
        ValueError: If it has another, or none.
    """
    number = recording.get("format") if isinstance(recording, dict) else None
    if type(number) is not int or number not in FORMATS:
        raise ValueError("this is no recording of format 1 or 2: Stage(llm).save(path) writes one")
    return number


class _StepChecker:
    """Checks the steps of a recording in order, and knows how long each sequence is by then."""

    def __init__(self, number: int, num_blocks: int, drawn: int) -> None:
        self.num_blocks = num_blocks
        self.drawn = drawn
        self._step_fields = STEP_FIELDS[number]
        self._text_fields = TEXT_FIELDS[number]
        self._drawn_ids = {str(block_id) for block_id in range(drawn)}
        # by the sequence's name: the lengths of its blocks, words and ids
        self.lengths: dict[str, dict[str, int]] = {}

    def check(self, where: str, step: Any) -> None:
        _fields(where, step, required=("step",), allowed=self._step_fields)
        self._check_pool(where, step)
        self._check_run(where, step)
        for name, change in _dict(f"{where}.texts", step.get("texts", {})).items():
            self._change(f"{where}.texts[{shown(name)}]", name, change)

    def _check_pool(self, where: str, step: dict[str, Any]) -> None:
        integer(f"{where}.step", step["step"])
        for name in ("used", "cached"):
            integer(f"{where}.{name}", step.get(name, 0), 0, self.num_blocks)
        self._by_block(f"{where}.counts", step.get("counts", {}))
        self._by_block(f"{where}.kept", step.get("kept", {}), most=1)
        for name in ("hits", "evicted"):
            self._blocks(f"{where}.{name}", step.get(name, []))
        for i, copy in enumerate(_list(f"{where}.copies", step.get("copies", []))):
            self._copy(f"{where}.copies[{i}]", copy)

    def _check_run(self, where: str, step: dict[str, Any]) -> None:
        """The work of the engine in the step, and its reasons."""
        checks: dict[str, Check] = {
            "computed": _range,
            "admitted": integer,
            "preempted": _how,
            "drafts": _draft,
            "held": self._blocks,
            "likely": _likely,
            "readings": _numbers,
        }
        for field, check in checks.items():
            _by_name(f"{where}.{field}", step.get(field, {}), check)
        for i, name in enumerate(_list(f"{where}.resumed", step.get("resumed", []))):
            _text(f"{where}.resumed[{i}]", name)

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
        """What changed of a sequence."""
        _text(f"the name of {where}", name)
        required = () if name in self.lengths else FIRST_OF_TEXT
        _fields(where, change, required=required, allowed=self._text_fields)
        lengths = self.lengths.setdefault(name, {"blocks": 0, "words": 0, "ids": 0})
        for number in ("look", "prompt", "tokens", "length"):
            integer(f"{where}.{number}", change.get(number, 0))
        if "state" in change:
            one_of(f"{where}.state", change["state"], STATES)
        if "blocks" in change:
            block_ids = _replaced(f"{where}.blocks", change["blocks"], lengths, "blocks")
            self._blocks(f"{where}.blocks[1]", block_ids)
        if "words" in change:
            words = _replaced(f"{where}.words", change["words"], lengths, "words")
            _each(f"{where}.words[1]", words, _text)
        if "ids" in change:
            ids = _replaced(f"{where}.ids", change["ids"], lengths, "ids")
            _each(f"{where}.ids[1]", ids, integer)


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


# What one value of a field may be -----------------------------------------------------------------


def _range(where: str, value: Any) -> None:
    """The tokens [start, stop] that were computed of a sequence."""
    if len(_list(where, value)) != 2:
        raise ValueError(f"{where} must be [start, stop], got {shown(value)}")
    start = integer(f"{where}[0]", value[0])
    integer(f"{where}[1]", value[1], start)


def _how(where: str, value: Any) -> None:
    one_of(where, value, HOW)


def _draft(where: str, value: Any) -> None:
    """A draft that was checked, and how many of its tokens were accepted."""
    _fields(where, value, required=DRAFT_FIELDS, allowed=(*DRAFT_FIELDS, "words"))
    integer(f"{where}.position", value["position"])
    tokens = integer(f"{where}.tokens", value["tokens"])
    integer(f"{where}.accepted", value["accepted"], 0, tokens)
    words = _list(f"{where}.words", value.get("words", []))
    if "words" in value and len(words) != tokens:
        raise ValueError(f"{where}.words must have {tokens} words, got {len(words)}")
    _each(f"{where}.words", words, _text)


def _likely(where: str, value: Any) -> None:
    """The sampled token and the likeliest others: [token id, text, probability] each."""
    _fields(where, value, required=LIKELY_FIELDS, allowed=LIKELY_FIELDS)
    integer(f"{where}.of", value["of"], 1)
    for i, token in enumerate(_list(f"{where}.tokens", value["tokens"])):
        here = f"{where}.tokens[{i}]"
        if len(_list(here, token)) != 3:
            raise ValueError(f"{here} must be [token id, text, probability], got {shown(token)}")
        integer(f"{here}[0]", token[0])
        _text(f"{here}[1]", token[1])
        real(f"{here}[2]", token[2], 0, 1)


def _numbers(where: str, value: Any, depth: int = 0) -> None:
    """A number, null, or lists of them in lists."""
    if isinstance(value, list) and depth < MAX_NESTING:
        for i, item in enumerate(value):
            _numbers(f"{where}[{i}]", item, depth + 1)
        return
    if value is not None:
        real(where, value, -sys.float_info.max)


# What JSON is made of -----------------------------------------------------------------------------


def _by_name(where: str, values: Any, check: Check) -> None:
    """An object whose keys are names and whose values pass the check."""
    for name, value in _dict(where, values).items():
        here = f"{where}[{shown(name)}]"
        _text(f"the name of {here}", name)
        check(here, value)


def _each(where: str, values: list[Any], check: Check) -> None:
    for i, value in enumerate(values):
        check(f"{where}[{i}]", value)


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
