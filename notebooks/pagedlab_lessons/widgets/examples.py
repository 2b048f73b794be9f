"""Examples that the block grid plays, and goals to reach on it. Their words are in examples.json.

The operations of an example fit any pool: "2.25b" are as many tokens as fill 2.25 blocks, rounded
up; {quarter} is a quarter of the pool's blocks, and {rest} is what three quarters leave.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pagedlab_lessons.widgets.operations import Operation, operations
from pagedlab_lessons.widgets.session import Session

_TEXTS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
PRESETS = {name: ", ".join(lines) for name, lines in _TEXTS["presets"].items()}


def example(preset: str, num_blocks: int, block_size: int) -> tuple[Operation, ...]:
    """Return the operations of an example on a pool of this size.

    Args:
        preset: one of the values of `PRESETS`.
        num_blocks: of the pool.
        block_size: of the pool.
    """

    def tokens(blocks: re.Match[str]) -> str:
        return str(math.ceil(float(blocks[1]) * block_size))

    quarter = max(1, num_blocks // 4)
    in_blocks = preset.format(quarter=quarter, rest=max(0, num_blocks - 3 * quarter))
    return operations(re.sub(r"([\d.]+)b", tokens, in_blocks))


@dataclass(frozen=True)
class Challenge:
    """A goal for the block grid.

    Whether it is reached is read from pool, tables and log; how the reader got there is free.

    Args:
        goal: the task, in words.
        missing: takes the session and returns what is missing, in words; nothing means reached.
        hint: shown on demand.
        why: what reaching the goal shows.
        solution: operations that reach it, e.g. `operations("new s0 20, fork s0 s1")`.
        num_blocks: of the pool, with 16 slots in a block.
    """

    goal: str
    missing: Callable[[Session], list[str]]
    hint: str
    why: str
    solution: tuple[Operation, ...]
    num_blocks: int = 64


def _missing_tokens(session: Session, sequences: int, tokens: int) -> Iterator[str]:
    """Say whether fewer sequences than asked for have that many tokens."""
    tables = session.reading.tables.values()
    found = sum(table.tokens >= tokens for table in tables)
    if found < sequences:
        yield f"{found} of {sequences} sequences have {tokens} tokens"


def _one_copy(session: Session) -> Iterator[str]:
    if not session.copied:
        yield "no block was copied yet"
    if session.copied > 1:
        yield f"{session.copied} blocks were copied: go back, or reset"


def _four_in_eleven(session: Session) -> Iterator[str]:
    yield from _missing_tokens(session, 4, 74)
    tables = session.reading.tables.values()
    last_blocks = [table.blocks[-1] for table in tables if table.blocks]
    own = sum(last_blocks.count(block) == 1 for block in last_blocks)
    if own < 4:
        yield f"{own} of 4 sequences have a last block that no other one lists"
    if not session.copied:
        yield "no block was copied yet: let the prompt end inside a block"
    used = session.reading.used
    if used > 11:
        yield f"{used} blocks are in use, 11 are allowed"


def _fork_without_copy(session: Session) -> Iterator[str]:
    yield from _missing_tokens(session, 2, 40)
    if not session.reading.shared:
        yield "no block is shared"
    if session.copied:
        yield f"{session.copied} copied: go back, or reset"


def _full_for_one(session: Session) -> Iterator[str]:
    last = session.last
    if not last or not last.error:
        yield "no append has failed yet"
        return
    operation = last.operation
    if operation.verb != "append" or operation.n != 1:
        yield "it must be an append of one token that fails"
        return
    table = session.reading.tables[operation.sequence]
    if table.tokens % session.block_size == 0:
        yield f"the last block of {operation.sequence} is full, so it needed a new one anyway"


_MISSING: dict[str, Callable[[Session], Iterator[str]]] = {
    "one_copy": _one_copy,
    "four_in_eleven": _four_in_eleven,
    "fork_without_copy": _fork_without_copy,
    "full_for_one": _full_for_one,
}


def _challenge(name: str) -> Challenge:
    texts = dict(_TEXTS["challenges"][name])
    solution = operations(texts.pop("solution"))

    def missing(session: Session) -> list[str]:
        return list(_MISSING[name](session))

    return Challenge(missing=missing, solution=solution, **texts)


CHALLENGES = {name: _challenge(name) for name in _MISSING}
