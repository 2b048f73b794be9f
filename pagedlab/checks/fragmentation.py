"""Checks of notebook 01: the users that fit, the last block's waste, the block size that keeps it
small, holes that are no use.
"""

import random
from collections.abc import Callable, Sequence

from pagedlab.blocks import blocks_for
from pagedlab.checks import Wrong, compare, compared, exercise
from pagedlab.lessons.memory import GIB, FirstFit, OutOfMemory


@compared(
    "Right for small and large models. With less memory for each token, or a lower limit, more "
    "users fit.",
    [(24 * GIB, GIB, 128 * 1024, 4096), (24 * GIB, 14 * GIB, 512 * 1024, 4096)],
    [(24 * GIB, 1_192_099_840, 112 * 1024, 16_384), (24 * GIB, 988_065_536, 12 * 1024, 16_384)],
    [(16 * GIB, 15 * GIB, 128 * 1024, 2048), (80 * GIB, 2 * GIB, 12 * 1024, 32_768)],
)
def users_that_fit(memory: int, weights: int, bytes_per_token: int, max_length: int) -> int:
    """Requests that fit if each reserves `max_length` tokens and a tenth of memory stays free."""
    for_kv = max(0, memory * 9 // 10 - weights)
    return for_kv // (bytes_per_token * max_length)


def _waste(num_tokens: int, block_size: int) -> int:
    return -num_tokens % block_size


@exercise
def last_block_waste(answer: Callable[[int, int], int]) -> str:
    """Slots of the last block that `num_tokens` tokens leave empty."""
    cases = [(5, 4), (3, 4), (1, 4)]
    cases += [
        (n, block_size) for block_size in (2, 16, 48, 1) for n in range(1, 3 * block_size + 2)
    ]
    try:
        compare(answer, _waste, [(4, 4), (8, 4)])
    except Wrong as error:
        compare(answer, _waste, cases[:3])  # an error that is not about the full block comes first
        message = "4 tokens fill a block of 4. A full block wastes nothing:"
        raise Wrong(message, error.expected, error.got, *error.operations) from None
    compare(answer, _waste, cases)
    return (
        "Right at every fill of the last block, the full one included. Over many lengths it "
        "averages (B - 1) / 2."
    )


@compared(
    (
        "Right for long and short requests: what block size is affordable depends on how long the "
        "requests are."
    ),
    [([12], 0.25), ([5], 0.4), ([64], 0.04), ([65], 0.04), ([1024, 1], 0.04)],
    [([5, 9], 0.25), ([1, 1, 3], 0.1), ([3072, 1000], 0.25)],
    [
        (random.Random(seed).choices(range(1, 4001), k=30), limit)
        for seed in range(20)
        for limit in (0.01, 0.04, 0.25)
    ],
)
def largest_block(lengths: Sequence[int], limit: float) -> int:
    """The largest power of two, up to 1,024, whose empty slots are below `limit` of the slots
    allocated; else 1.
    """
    for size in (1 << e for e in range(10, 0, -1)):
        allocated = sum(blocks_for(n, size) * size for n in lengths)
        if allocated - sum(lengths) < limit * allocated:
            return size
    return 1


@exercise
def useless_holes(answer: Sequence[int]) -> str:
    """Which of twenty regions of five slots to free so that 60 slots are free and 15 neighbours are
    not to be had.
    """
    memory, freed = FirstFit(100), list(answer)
    regions = [memory.allocate(5) for _ in range(20)]
    step = f"free({freed})"
    if sorted(set(freed) & set(range(20))) != sorted(freed):
        raise Wrong(
            "These are not regions to free.", "different numbers, each from 0 to 19", freed, step
        )
    for i in freed:
        memory.release(regions[i])
    if memory.num_free != 60:
        raise Wrong(
            "Free 60 of the 100 slots.", "60 slots free", f"{memory.num_free} slots free", step
        )
    try:
        start = memory.allocate(15).start
    except OutOfMemory as error:
        return (
            f"{error}. The largest request that still fits has {max(h.size for h in memory.holes)}."
        )
    got = f"slots {start} to {start + 14}"
    raise Wrong(
        "15 neighbouring slots are still free.", "refused", got, step, "memory.allocate(15)"
    )
