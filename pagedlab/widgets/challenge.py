"""Goals on the block grid. Whether one is reached is read from pool, tables and log, whatever way led there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pagedlab.widgets.session import Session
from pagedlab.widgets.words import Operation, operations


@dataclass(frozen=True)
class Challenge:
    """A goal. `missing` returns what is not there yet, in words; nothing missing means reached."""

    goal: str
    missing: Callable[[Session], list[str]]
    hint: str
    why: str  # what reaching it shows
    solution: tuple[Operation, ...]
    start: tuple[Operation, ...] = ()  # done before the reader begins
    num_blocks: int = 64
    block_size: int = 16


def _one_copy(session: Session) -> list[str]:
    if session.copied > 1:
        return [f"{session.copied} blocks were copied: go back, or reset"]
    return [] if session.copied else ["no block was copied yet"]


def _four_in_eight(session: Session) -> list[str]:
    long = [name for name, table in session.reading.tables.items() if table.tokens >= 74]
    missing = [] if len(long) >= 4 else [f"{len(long)} of 4 sequences have 74 tokens"]
    if session.reading.used > 8:
        missing.append(f"{session.reading.used} blocks are in use, 8 are allowed")
    return missing


def _fork_without_copy(session: Session) -> list[str]:
    reading = session.reading
    longest = [name for name, table in reading.tables.items() if table.tokens >= 40]
    missing = [] if len(longest) >= 2 else [f"{len(longest)} of 2 sequences have 40 tokens"]
    if not reading.shared:
        missing.append("no block is shared")
    if session.copied:
        missing.append(f"{session.copied} copied: go back, or reset")
    return missing


def _prompt_last(session: Session) -> list[str]:
    if session.reading.used:
        return [f"{session.reading.used} blocks are in use"]
    prompt = {b for entry in session.log[: session.floor][:1] for b in entry.taken}
    gone = set(session.last.freed) if session.last else set()
    return [] if gone == prompt else ["all are free, but the last free gave back more than the prompt: go back"]


def _full_for_one(session: Session) -> list[str]:
    last = session.last
    if last is None or last.error is None:
        return ["no append has failed yet"]
    if last.operation.verb != "append" or last.operation.n != 1:
        return ["it must be an append of one token that fails"]
    table = session.reading.tables[last.operation.sequence]
    room = table.tokens % session.block_size
    return [] if room else [f"the last block of {last.operation.sequence} is full, so it needed a new one anyway"]


CHALLENGES: dict[str, Challenge] = {
    "one_copy": Challenge(
        goal="Cause exactly one copy.",
        missing=_one_copy,
        hint="A block is copied when somebody writes to it while another sequence reads it too. Who makes sharers?",
        why="The fork copied nothing. One block was copied, when somebody wrote, however long the prompt is.",
        solution=operations("new s0 20, fork s0 s1, append s1 1"),
    ),
    "four_in_eight": Challenge(
        goal="Reach 4 sequences of at least 74 tokens each, in no more than 8 blocks.",
        missing=_four_in_eight,
        hint="74 tokens alone fill 5 blocks, so four sequences must share. 64 tokens fill 4 blocks exactly.",
        why="Four beams of ten tokens over a prompt of 64: 4 + 4 x 1 = 8 blocks. Copies would take 4 x 5 = 20.",
        solution=operations(
            "new s0 64, fork s0 s1, fork s0 s2, fork s0 s3, append s0 10, append s1 10, append s2 10, append s3 10"
        ),
    ),
    "fork_without_copy": Challenge(
        goal="Two sequences share blocks, both reach 40 tokens, and nothing is ever copied.",
        missing=_fork_without_copy,
        hint="Only a block that is partly filled can be written. When does a prompt end without one?",
        why="Full blocks are never written again. A fork at the edge of a block shares all and copies nothing.",
        solution=operations("new s0 32, fork s0 s1, append s0 8, append s1 8"),
    ),
    "prompt_last": Challenge(
        goal="Free everything, so that the last free gives back the prompt's blocks and no other.",
        missing=_prompt_last,
        hint="A block goes when its count reaches 0. Which sequence lists the prompt's blocks and nothing else?",
        why="The order of frees is yours: a count per block gives each back with its last reader, in any order.",
        start=operations("new prompt 48, fork prompt s1, append s1 20, fork prompt s2, append s2 8"),
        solution=operations("free s1, free s2, free prompt"),
    ),
    "full_for_one": Challenge(
        goal="Make an append of one token fail, although the sequence's last block still has room.",
        missing=_full_for_one,
        hint="Fill the four blocks, but for a token or more. When does a write take a fresh block?",
        why="A write to a shared block needs a free block for the copy. An engine must count it before it starts.",
        solution=operations("new s0 60, fork s0 s1, append s1 1"),
        num_blocks=4,
    ),
}
