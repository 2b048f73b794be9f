"""Checks of notebook 01: the users that fit, the last block, the block size, holes of no use."""

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


_FULL = [(4, 4), (8, 4)]
_NOT_FULL = [(5, 4), (3, 4), (1, 4)]
_ALL_FILLS = [
    (num_tokens, block_size)
    for block_size in (2, 16, 48, 1)
    for num_tokens in range(1, 3 * block_size + 2)
]


@exercise
def last_block_waste(answer: Callable[[int, int], int]) -> str:
    """Slots of the last block that `num_tokens` tokens leave empty; a full block wastes none."""
    try:
        compare(answer, _waste, _FULL)
    except Wrong as error:
        # A mistake that is not about the full block is shown first.
        compare(answer, _waste, _NOT_FULL)
        message = "4 tokens fill a block of 4. A full block wastes nothing:"
        raise Wrong(message, error.expected, error.got, *error.operations) from None
    compare(answer, _waste, [*_NOT_FULL, *_ALL_FILLS])
    return (
        "Right at every fill of the last block, the full one included. Over many lengths it "
        "averages (B - 1) / 2."
    )


def _waste(num_tokens: int, block_size: int) -> int:
    return -num_tokens % block_size


@compared(
    "Right for long and short requests: which block size is affordable depends on the lengths of "
    "the requests.",
    [([12], 0.25), ([5], 0.4), ([64], 0.04), ([65], 0.04), ([1024, 1], 0.04)],
    [([5, 9], 0.25), ([1, 1, 3], 0.1), ([3072, 1000], 0.25)],
    [
        (random.Random(seed).choices(range(1, 4001), k=30), limit)
        for seed in range(20)
        for limit in (0.01, 0.04, 0.25)
    ],
)
def largest_block(lengths: Sequence[int], limit: float) -> int:
    """The largest power of two, up to 1,024, that wastes less than `limit` of the allocated slots.

    It is 1 if there is none.
    """
    for exponent in range(10, 0, -1):
        size = 2**exponent
        allocated = sum(blocks_for(length, size) * size for length in lengths)
        if allocated - sum(lengths) < limit * allocated:
            return size
    return 1


@exercise
def useless_holes(answer: Sequence[int]) -> str:
    """Which of twenty regions of five slots to free, by number.

    Afterwards 60 slots are free, and no 15 of them are neighbours.
    """
    memory = FirstFit(100)
    regions = [memory.allocate(5) for _ in range(20)]
    freed = list(answer)
    step = f"free({freed})"
    if sorted(set(freed) & set(range(20))) != sorted(freed):
        message = "These are not regions to free."
        raise Wrong(message, "different numbers, each from 0 to 19", freed, step)
    for number in freed:
        memory.release(regions[number])
    if memory.num_free != 60:
        message = "Free 60 of the 100 slots."
        raise Wrong(message, "60 slots free", f"{memory.num_free} slots free", step)
    try:
        start = memory.allocate(15).start
    except OutOfMemory as error:
        largest = max(hole.size for hole in memory.holes)
        return f"{error}. The largest request that still fits has {largest}."
    message = "15 neighbouring slots are still free."
    got = f"slots {start} to {start + 14}"
    raise Wrong(message, "refused", got, step, "memory.allocate(15)")
