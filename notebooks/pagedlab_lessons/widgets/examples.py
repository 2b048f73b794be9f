"""Examples that the block grid plays, and goals to reach on it. Both are data, in examples.json.

The examples are for 64 blocks of 16 tokens. Other pools play them up to an operation that fails.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagedlab_lessons.widgets.operations import operations

_DATA = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
PRESETS = {name: operations(", ".join(lines)) for name, lines in _DATA["presets"].items()}


@dataclass
class Challenge:
    """A goal for the block grid.

    Whether it is reached is read from pool, tables and log; how the reader got there is free.

    Args:
        goal: the task, in words.
        wanted: a fact (see `facts`), its least or its largest value, and what is said of others.
        hint: shown on demand.
        why: what reaching the goal shows.
        solution: operations that reach it.
        tokens: what a sequence needs to count as long.
        num_blocks: of the pool, with 16 slots in a block.
    """

    goal: str
    wanted: list[dict[str, Any]]
    hint: str
    why: str
    solution: str
    tokens: int = 0
    num_blocks: int = 64

    def missing(self, widget: Any) -> list[str]:
        """Return what is missing, in words; nothing means that the goal is reached."""
        known = facts(widget, self.tokens)
        missing = []
        for wanted in self.wanted:
            number = known[wanted["fact"]]
            if not wanted.get("least", 0) <= number <= wanted.get("most", number):
                missing.append(wanted["said"].format(number))
        return missing


def facts(widget: Any, tokens: int) -> dict[str, int]:
    """Return what goals ask about.

    Args:
        widget: a `BlockPoolWidget`.
        tokens: what a sequence needs to count as long.
    """
    tables = widget.reading.tables
    last_blocks = [table.blocks[-1] for table in tables.values() if table.blocks]
    verb, name, n, _ = widget.last.operation
    has_failed = bool(widget.last.error) and (verb, n) == ("append", 1)
    return {
        "long": sum(table.tokens >= tokens for table in tables.values()),
        "own last blocks": sum(last_blocks.count(block_id) == 1 for block_id in last_blocks),
        "copied": widget.copied,
        "shared": widget.reading.shared,
        "used": widget.reading.used,
        "failed with room": int(has_failed and tables[name].tokens % widget.block_size > 0),
    }


CHALLENGES = {name: Challenge(**texts) for name, texts in _DATA["challenges"].items()}
