"""Checks of notebook 04: reordering beams by numbers alone, blocks of beams, prefill that samples save."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pagedlab.blocks import BlockEvent, BlockPool, BlockTable, InvariantError
from pagedlab.checks import Wrong, compare, exercise, trying
from pagedlab.prefix import PrefixCache

Tables = list[BlockTable]

# Parents of one step after the other, the smallest first; a beam that is not among them is dropped.
_HISTORIES = [
    [[0]],
    [[0, 1]],
    [[1, 0]],
    [[0, 0]],
    [[1, 1], [0, 0], [1, 0]],
    [[0, 0, 2, 2], [1, 2, 3, 0]],
    [[3, 3, 3, 3], [3, 1, 1, 0], [0, 1, 2, 3], [2, 2, 0, 0]],
]


@exercise
def reorder_beams(answer: Callable[[Tables, list[int]], Tables]) -> str:
    """The tables of the beams that go on, without a block taken or copied, and the dropped ones freed."""
    for size, prompt in ((4, 6), (4, 8), (16, 3), (1, 2)):
        for history in _HISTORIES:
            pool = BlockPool(128, size)
            table = BlockTable(pool)
            table.append(prompt)
            tables = [table, *(table.fork() for _ in history[0][1:])]
            done = [f"beams over a prompt of {prompt} tokens: a, then {len(tables) - 1} forks of it"]
            for parents in history:
                for beam in tables:
                    beam.append(1)
                done.append(f"every beam appends a token; tables = my_reorder(tables, {parents})")
                with trying(*done, setup=f"pool = BlockPool(128, {size})"):
                    tables = _reordered(answer, pool, tables, parents)
    return (
        "Beams are dropped, kept and doubled by counting up and down. No block is taken and none is copied: what a\n"
        "step of beam search costs does not depend on how long the texts are, except for the lists of numbers."
    )


def _reordered(
    answer: Callable[[Tables, list[int]], Tables], pool: BlockPool, tables: Tables, parents: list[int]
) -> Tables:
    """The new tables, if they are right."""
    before = [list(table.block_ids) for table in tables]
    expected = [before[parent] for parent in parents]
    lengths = [tables[0].num_tokens] * len(parents)
    events: list[BlockEvent] = []
    stop = pool.subscribe(events.append)
    new = answer(list(tables), list(parents))
    stop()
    if not isinstance(new, list) or not all(isinstance(table, BlockTable) for table in new):
        message = "Return a list of block tables, one for each parent."
        raise Wrong(message, f"{len(parents)} tables", repr(new)[:80])
    if taken := [f"{event.kind} {event.block_id}" for event in events if event.kind in ("allocate", "copy")]:
        message = "Nothing may be taken or copied: every block that is needed exists."
        raise Wrong(message, "none", ", ".join(taken))
    got = [list(table.block_ids) for table in new]
    if got != expected:
        raise Wrong("The new beams do not hold their parents' blocks.", expected, got)
    if len({id(table) for table in new}) < len(new) or len({id(table.block_ids) for table in new}) < len(new):
        raise Wrong("Two beams are one and the same table: what one appends, the other has too.", "tables apart", got)
    if (has := [table.num_tokens for table in new]) != lengths:
        raise Wrong("num_tokens differs.", lengths, has)
    try:
        pool.check(new)
    except InvariantError as error:
        message = "The counts do not match the beams that go on."
        raise Wrong(message, "a count for each table that maps it", error) from None
    return new


@exercise
def beam_blocks(answer: Callable[[int, int, int, int], int]) -> str:
    """Blocks of `width` beams that part at the first of `new_tokens` tokens and stay apart."""

    def count(prompt_tokens: int, width: int, new_tokens: int, block_size: int) -> int:
        pool = BlockPool(2048, block_size)
        table = BlockTable(pool)
        table.append(prompt_tokens)
        for beam in [table, *(table.fork() for _ in range(width - 1))]:
            beam.append(new_tokens)
        return pool.num_used

    shapes = [(4, 1), (4, 2), (8, 2), (7, 3), (64, 4), (60, 4), (1, 6), (256, 4)]
    cases = [(prompt, width, new, 4) for prompt, width in shapes[:4] for new in (1, 0, 4, 5)]
    cases += [(prompt, width, new, 16) for prompt, width in shapes for new in (10, 1, 0, 16, 40)]
    compare(answer, count, cases)
    return (
        f"The same as counting the pool in all {len(cases)} cases, among them 8 blocks for the prompt of 64 tokens\n"
        "and 11 for the one of 60: full prompt blocks once, everything behind them once a beam."
    )


@exercise
def saved_prefill(answer: Callable[[int, int, int], tuple[int, int]]) -> str:
    """Prompt tokens that n samples need not compute: as forks, and as n requests over a prefix cache."""

    def count(prompt_tokens: int, n: int, block_size: int) -> tuple[int, int]:
        pool = BlockPool(1024, block_size)
        cache, first = PrefixCache(pool), BlockTable(pool)
        first.append(prompt_tokens)
        cache.insert(first, list(range(prompt_tokens)))
        found: list[Any] = [cache.match(list(range(prompt_tokens)), leave=1) for _ in range(n - 1)]
        return (n - 1) * prompt_tokens, sum(table.num_tokens for table in found)

    cases = [(tokens, n, 4) for n in (2, 1, 3) for tokens in (3, 4, 5, 8, 11)]
    cases += [(tokens, n, 16) for tokens in (64, 60, 17, 160) for n in (4, 8)]

    @wraps(answer)
    def paired(*case: int) -> Any:  # a pair may be written as a list
        return tuple(pair) if isinstance(pair := answer(*case), list) else pair

    compare(paired, count, cases)
    return (
        f"Right in all {len(cases)} cases, counted with the real prefix cache: it finds full blocks only, and leaves\n"
        "at least one token to compute, since there would be no logits to draw from."
    )
