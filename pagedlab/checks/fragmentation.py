"""Checks of notebook 01: the last block's waste, the block size that keeps it small, holes that are no use."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from pagedlab.blocks import blocks_for
from pagedlab.checks import Wrong, compare, exercise
from pagedlab.lessons.memory import FirstFit, OutOfMemory


@exercise
def last_block_waste(answer: Callable[[int, int], int]) -> str:
    """Slots of the last block that `num_tokens` tokens leave empty: (num_tokens, block_size) -> slots."""
    cases = [(n, block_size) for block_size in (1, 2, 4, 16, 48) for n in range(1, 3 * block_size + 2)]
    compare(answer, lambda n, block_size: -n % block_size, cases)
    return "Right at every fill of the last block, the full one included. Over many lengths it averages (B - 1) / 2."


def _largest_block(lengths: Sequence[int], limit: float) -> int:
    """The largest power of two, up to 1,024, whose empty slots are below `limit` of the slots allocated; else 1."""
    for size in (1 << e for e in range(10, 0, -1)):
        allocated = sum(blocks_for(n, size) * size for n in lengths)
        if allocated - sum(lengths) < limit * allocated:
            return size
    return 1


@exercise
def largest_block(answer: Callable[[list[int], float], int]) -> str:
    """The largest power of two up to 1,024 that wastes less than `limit`: (lengths, limit) -> block size."""
    chance = random.Random(1)
    drawn = [[chance.randint(1, 4000) for _ in range(30)] for _ in range(20)]
    cases = [([12], 0.25), ([5], 0.4), ([64], 0.04), ([65], 0.04), ([1024, 1], 0.04)]
    cases += [([5, 9], 0.25), ([1, 1, 3], 0.1), ([3072, 1000], 0.25)]
    cases += [(lengths, limit) for lengths in drawn for limit in (0.01, 0.04, 0.25)]
    compare(answer, _largest_block, cases)
    return "Right for long and short requests: what block size is affordable depends on how long the requests are."


@exercise
def useless_holes(answer: Sequence[int]) -> str:
    """Which of twenty regions of five slots to free so that 60 slots are free and 15 neighbours are not to be had."""
    memory, freed = FirstFit(100), list(answer)
    regions = [memory.allocate(5) for _ in range(20)]
    steps = [f"free({freed})"]
    if sorted(set(freed) & set(range(20))) != sorted(freed):
        raise Wrong("These are not regions to free.", "different numbers, each from 0 to 19", freed, operations=steps)
    for i in freed:
        memory.release(regions[i])
    if memory.num_free != 60:
        raise Wrong("Free 60 of the 100 slots.", "60 slots free", f"{memory.num_free} slots free", operations=steps)
    try:
        start = memory.allocate(15).start
    except OutOfMemory as error:
        return f"{error}. The largest request that still fits has {max(h.size for h in memory.holes)}."
    got, steps = f"slots {start} to {start + 14}", [*steps, "memory.allocate(15)"]
    raise Wrong("15 neighbouring slots are still free.", "refused", got, operations=steps)
