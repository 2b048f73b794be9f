"""Operations, what they did in words, and what they did wrong as far as tables and counts show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from pagedlab.blocks import BlockCopy
from pagedlab.widgets.reading import Reading, TableReading, blocks_text, runs

Verb = Literal["new", "append", "fork", "truncate", "free"]


class Operation(NamedTuple):
    """One step. `n`: tokens to add (new, append) or to keep (truncate). `child`: the name that a fork gets."""

    verb: Verb
    sequence: str
    n: int = 0
    child: str | None = None

    def __str__(self) -> str:
        match self.verb:
            case "new":
                return f"new {self.sequence}"
            case "append":
                return f"append {self.n} to {self.sequence}"
            case "fork":
                return f"fork {self.sequence} into {self.child}"
            case "truncate":
                return f"cut {self.sequence} to {self.n}"
        return f"{self.verb} {self.sequence}"


def operations(text: str) -> tuple[Operation, ...]:
    """Operations as one writes them down: "new s0 20, fork s0 s1, append s1 1, truncate s1 4, free s0"."""
    steps = [step.split() for step in text.split(",")]
    return tuple(
        Operation("fork", name, child=rest[0]) if verb == "fork" else Operation(verb, name, *map(int, rest))  # type: ignore[arg-type]
        for verb, name, *rest in steps
    )


def words_for(op: Operation, before: Reading, after: Reading, copies: Sequence[BlockCopy], freed: Sequence[int]) -> str:
    """What an operation that did not fail has done to which blocks."""
    size = after.block_size
    new = after.tables.get(op.child or op.sequence, TableReading([], 0))
    old = before.tables.get(op.sequence, TableReading([], 0))
    parts = []
    match op.verb:
        case "new" | "append":
            for source, destination in copies:
                shared = before.counts[source] if 0 <= source < len(before.counts) else "?"
                parts.append(f"block {source} is shared by {shared}, copied to {destination}")
            if old.tokens % size and not copies and old.blocks:
                index = len(old.blocks) - 1
                parts.append(f"block {runs(new.blocks[index : index + 1])} now holds {new.fill(index, size)} of {size}")
            if new.blocks[len(old.blocks) :]:
                parts.append(f"takes {blocks_text(new.blocks[len(old.blocks) :])}")
            if op.verb == "new":
                parts.append(f"{new.tokens} tokens" if new.tokens else "empty")
        case "fork":
            if new.blocks == old.blocks:
                parts.append(
                    f"both list {blocks_text(new.blocks)}; nothing is copied" if new.blocks else "both are empty"
                )
            else:
                parts.append(f"{op.child} lists {blocks_text(new.blocks)}, {op.sequence} {blocks_text(old.blocks)}")
        case "truncate" | "free":
            parts.append(f"{blocks_text(freed)} {'is' if len(freed) == 1 else 'are'} free again" if freed else "")
            kept = [b for b in old.blocks if b is not None and b not in freed and b not in new.blocks]
            others = sorted({name for b in kept for name in after.owners(b)})
            if kept and others:
                parts.append(f"{blocks_text(kept)} {'stays' if len(kept) == 1 else 'stay'} with {', '.join(others)}")
    return "; ".join(part for part in parts if part) or "no block changes"


def failure_problems(op: Operation, before: Reading, after: Reading) -> list[str]:
    """What an operation that failed did wrong: it must leave all as it was."""
    if op.verb == "new":  # an empty table more is fine
        tables = {name: table for name, table in after.tables.items() if name != op.sequence or table.blocks}
        same = (after.counts, after.free, tables) == before.state()
    else:
        same = after.state() == before.state()
    return [] if same else [f"{op} failed, but not without a trace: what fails must change nothing"]


def problems_of(
    op: Operation, before: Reading, after: Reading, returned: Any, copies: Sequence[BlockCopy] | None
) -> list[str]:
    """What the operation did against the rules, as far as tables and counts show it."""
    old = before.tables.get(op.sequence, TableReading([], 0))
    new = after.tables.get(op.sequence, TableReading([], 0))
    others = [
        name
        for name in after.tables
        if name not in (op.sequence, op.child) and before.tables.get(name) != after.tables[name]
    ]
    problems = [f"{op} changed the table of {' and '.join(others)} too"] if others else []
    if op.verb == "fork":
        child = after.tables[str(op.child)]
        if child != old:
            problems.append(
                f"{op.child} has {child.tokens} tokens in blocks {child.blocks}, not {old.tokens} in {old.blocks}: "
                "a fork shares its parent's blocks and copies none"
            )
        return problems
    if op.verb not in ("new", "append"):
        return problems
    if copies is None:
        problems.append(f"append returned {returned!r}; expected is a list of (source, destination), often empty")
    if new.tokens != old.tokens + op.n:
        problems.append(f"{op.sequence} holds {new.tokens} tokens; {old.tokens} and {op.n} make {old.tokens + op.n}")
    full = old.tokens // after.block_size
    if new.blocks[:full] != old.blocks[:full]:
        problems.append(f"{op} replaced a full block, which nobody writes again: {blocks_text(old.blocks[:full])}")
    elif len(new.blocks) > full and len(old.blocks) > full:  # the last block was partly filled: it is written now
        was, now = old.blocks[full], new.blocks[full]
        readers = [name for name in before.owners(was) if name != op.sequence] if was is not None else []
        if was == now and readers:
            problems.append(f"{op.sequence} writes into block {was}, which {' and '.join(readers)} reads too")
        if was != now and not readers:
            problems.append(f"block {was} was {op.sequence}'s alone and was copied all the same")
        if was != now and copies is not None and (was, now) not in copies:
            problems.append(f"{op.sequence} moved from block {was} to {now}, but append named no such copy")
    return problems
