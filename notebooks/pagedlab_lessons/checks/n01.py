"""Checks of notebook 01: the users that fit, the last block, the block size, holes of no use."""

import random
from collections.abc import Sequence

from pagedlab.blocks import blocks_for
from pagedlab_lessons.checks.protocol import Wrong, compared, exercise
from pagedlab_lessons.memory import GIB, FirstFit


@compared(
    "Right for small and large models. With less memory for each token, or a lower limit, more "
    "users fit.",
    [
        (24 * GIB, GIB, 131_072, 4096),
        (24 * GIB, 20 * GIB, 524_288, 4096),
        (24 * GIB, 988_065_536, 12_288, 16_384),
        (24 * GIB, 22 * GIB, 524_288, 4096),
    ],
    why="A tenth of the memory stays free, {1:,} bytes are weights, and each user reserves {3:,} "
    "tokens of {2:,} bytes.",
)
def users_that_fit(memory: int, weights: int, bytes_per_token: int, max_length: int) -> int:
    """Requests that fit if each reserves `max_length` tokens and a tenth of memory stays free."""
    for_kv = max(0, memory * 9 // 10 - weights)
    return for_kv // (bytes_per_token * max_length)


@compared(
    "Right at every fill of the last block, the full one included. Over many lengths it averages "
    "(B - 1) / 2.",
    # A mistake that is not about the full block is shown first.
    [
        *((n, 4) for n in (5, 3, 1, 4, 8)),
        *((n, size) for size in (2, 16, 48, 1) for n in range(1, 3 * size + 2)),
    ],
    why="Blocks have {1} slots, and all but the last are full. A full block wastes nothing.",
)
def last_block_waste(num_tokens: int, block_size: int) -> int:
    """Slots of the last block that `num_tokens` tokens leave empty; a full block wastes none."""
    return -num_tokens % block_size


def _empty_share(lengths: Sequence[int], block_size: int) -> float:
    """Return the share of the allocated slots that is empty with blocks of this size."""
    allocated = sum(blocks_for(length, block_size) * block_size for length in lengths)
    return (allocated - sum(lengths)) / allocated


def _why_largest(lengths: Sequence[int], limit: float) -> str:
    shares = ", ".join(f"{_empty_share(lengths, 2**exponent):.2%}" for exponent in range(11))
    return f"Blocks of 1, 2, 4, ... leave empty {shares}. It must be below {limit:.2%}."


@compared(
    "Right for long and short requests: which block size is affordable depends on the lengths of "
    "the requests.",
    [
        ([12], 0.25),
        ([5], 0.4),
        ([64], 0.04),
        ([5, 9], 0.25),
        ([1, 1, 3], 0.1),
        *(
            (random.Random(seed).choices(range(1, 4001), k=30), limit)
            for seed in range(20)
            for limit in (0.01, 0.04, 0.25)
        ),
    ],
    why=_why_largest,
)
def largest_block(lengths: Sequence[int], limit: float) -> int:
    """The largest power of two, up to 1,024, that wastes less than `limit` of the allocated slots.

    It is 1 if there is none.
    """
    sizes = [2**exponent for exponent in range(11)]
    return max((size for size in sizes if _empty_share(lengths, size) < limit), default=1)


@exercise
def useless_holes(answer: Sequence[int]) -> str:
    """Which of twenty regions of five slots to free, by number.

    Afterwards 60 slots are free, and no 15 of them are neighbours.
    """
    memory = FirstFit(100)
    regions = [memory.allocate(5) for _ in range(20)]
    freed = list(answer)
    step = f"free({freed})"
    if len({*freed} & {*range(20)}) != 12 or len(freed) != 12:
        message = "Free 60 of the 100 slots."
        raise Wrong(message, "12 different numbers, each from 0 to 19", freed, [step])
    for number in freed:
        memory.release(regions[number])
    largest = max(hole.size for hole in memory.holes)
    if largest >= 15:
        message = "15 neighbouring slots are still free."
        raise Wrong(message, "holes of 10 slots at most", f"a hole of {largest}", [step])
    return f"60 slots are free, and no request for 15 fits. The largest that fits has {largest}."
