"""Examples that the widget plays, and goals to reach on it. What they say stands in examples.json.

The operations of an example fit any pool: "2.25b" are as many tokens as fill 2.25 blocks, rounded
up; {quarter} are a quarter of the pool's blocks, and {rest} is what three of them leave.
"""

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pagedlab.widgets.session import Operation, Session, operations

_SAID = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
PRESETS = {name: ", ".join(preset["operations"]) for name, preset in _SAID["presets"].items()}


def example(preset: str, num_blocks: int, block_size: int) -> tuple[Operation, ...]:
    """The operations of an example on a pool of this size."""
    quarter = max(1, num_blocks // 4)
    in_blocks = preset.format(quarter=quarter, rest=max(0, num_blocks - 3 * quarter))
    return operations(
        re.sub(r"([\d.]+)b", lambda n: str(math.ceil(float(n[1]) * block_size)), in_blocks)
    )


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
    num_blocks: int = 64
    block_size: int = 16


def _missing(goal: str, session: Session) -> list[str]:
    used, copied, last = session.reading.used, session.copied, session.last
    failed = last.operation if last and last.error else None
    one = failed and (failed.verb, failed.n) == ("append", 1)
    tables = session.reading.tables
    room = failed and one and tables[failed.sequence].tokens % session.block_size

    last_blocks = [table.blocks[-1] for table in tables.values() if table.blocks]
    own = sum(last_blocks.count(block) == 1 for block in last_blocks)

    def long(many: int, tokens: int) -> tuple[object, str]:
        there = sum(table.tokens >= tokens for table in tables.values())
        return there >= many, f"{there} of {many} sequences have {tokens} tokens"

    conditions: dict[str, list[tuple[object, str]]] = {
        "one_copy": [
            (copied, "no block was copied yet"),
            (copied < 2, f"{copied} blocks were copied: go back, or reset"),
        ],
        "four_in_eleven": [
            long(4, 74),
            (own >= 4, f"{own} of 4 sequences have a last block that no other one lists"),
            (copied, "no block was copied yet: let the prompt end inside a block"),
            (used <= 11, f"{used} blocks are in use, 11 are allowed"),
        ],
        "fork_without_copy": [
            long(2, 40),
            (session.reading.shared, "no block is shared"),
            (not copied, f"{copied} copied: go back, or reset"),
        ],
        "full_for_one": [
            (failed, "no append has failed yet"),
            (one or not failed, "it must be an append of one token that fails"),
            (
                room or not one,
                f"the last block of {failed and failed.sequence} is full, so it needed a new one "
                "anyway",
            ),
        ],
    }
    return [said for met, said in conditions[goal] if not met]


CHALLENGES = {
    name: Challenge(
        missing=partial(_missing, name), **said | {"solution": operations(said["solution"])}
    )
    for name, said in _SAID["challenges"].items()
}
