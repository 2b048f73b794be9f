"""Examples that the widget plays, and goals to reach on it. What they say stands in examples.json.

Operations are written down as in operations.py. Those of an example fit any pool: "2.25b" are as many tokens as fill
2.25 blocks, rounded up; three quarters of the pool's blocks are three times {quarter}, and {rest} is what they leave.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pagedlab.widgets.operations import Operation, operations
from pagedlab.widgets.session import Session

_SAID = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
PRESETS = {name: ", ".join(preset["operations"]) for name, preset in _SAID["presets"].items()}


def example(preset: str, num_blocks: int, block_size: int) -> tuple[Operation, ...]:
    """The operations of an example on a pool of this size."""
    quarter = max(1, num_blocks // 4)
    in_blocks = preset.format(quarter=quarter, rest=max(0, num_blocks - 3 * quarter))
    return operations(re.sub(r"([\d.]+)b", lambda n: str(math.ceil(float(n[1]) * block_size)), in_blocks))


@dataclass(frozen=True)
class Challenge:
    """A goal. `missing` returns what is not there yet, in words; nothing missing means reached.

    Whether it is reached is read from pool, tables and log, whatever way led there.
    """

    goal: str
    missing: Callable[[Session], list[str]]
    hint: str
    why: str  # what reaching it shows
    solution: tuple[Operation, ...]
    start: tuple[Operation, ...] = ()  # done before the reader begins
    num_blocks: int = 64
    block_size: int = 16


CHALLENGES: dict[str, Challenge] = {}


def _challenge(missing: Callable[[Session], list[str]]) -> Callable[[Session], list[str]]:
    """Make the goal that is named as the function."""
    said = _SAID["challenges"][missing.__name__]
    steps = {key: operations(said[key]) for key in ("start", "solution") if key in said}
    CHALLENGES[missing.__name__] = Challenge(missing=missing, **{**said, **steps})
    return missing


def _unmet(*conditions: tuple[object, str]) -> list[str]:
    return [said for met, said in conditions if not met]


def _long(session: Session, many: int, tokens: int) -> tuple[object, str]:
    there = sum(table.tokens >= tokens for table in session.reading.tables.values())
    return there >= many, f"{there} of {many} sequences have {tokens} tokens"


@_challenge
def one_copy(session: Session) -> list[str]:
    copied = session.copied
    return _unmet((copied, "no block was copied yet"), (copied < 2, f"{copied} blocks were copied: go back, or reset"))


@_challenge
def four_in_eight(session: Session) -> list[str]:
    used = session.reading.used
    return _unmet(_long(session, 4, 74), (used <= 8, f"{used} blocks are in use, 8 are allowed"))


@_challenge
def fork_without_copy(session: Session) -> list[str]:
    shared, copied = session.reading.shared, session.copied
    no_copy = not copied, f"{copied} copied: go back, or reset"
    return _unmet(_long(session, 2, 40), (shared, "no block is shared"), no_copy)


@_challenge
def prompt_last(session: Session) -> list[str]:
    used, gone = session.reading.used, session.last.freed if session.last else ()
    at_last = used or set(gone) == set(session.log[0].taken)
    too_much = "all are free, but the last free gave back more than the prompt: go back"
    return _unmet((not used, f"{used} blocks are in use"), (at_last, too_much))


@_challenge
def full_for_one(session: Session) -> list[str]:
    last = session.last
    if last is None or last.error is None:
        return ["no append has failed yet"]
    if last.operation.verb != "append" or last.operation.n != 1:
        return ["it must be an append of one token that fails"]
    table = session.reading.tables[last.operation.sequence]
    room = table.tokens % session.block_size
    return [] if room else [f"the last block of {last.operation.sequence} is full, so it needed a new one anyway"]
