"""Checks of notebook 01: the users that fit, the last block, the block size, holes of no use."""

import random
from collections.abc import Sequence

from pagedlab.blocks import blocks_for
from pagedlab_lessons.checks import Wrong, compared, exercise
from pagedlab_lessons.memory import GIB, FirstFit, OutOfMemory


def _why_users(memory: int, weights: int, bytes_per_token: int, max_length: int) -> str:
    free = memory / GIB / 10
    left = memory / GIB - free - weights / GIB
    each = bytes_per_token * max_length / GIB
    return (
        f"A tenth of the memory stays free: {memory / GIB:.2f} - {free:.2f} GiB free - "
        f"{weights / GIB:.2f} GiB of weights = {left:.2f} GiB for KV.\n"
        f"Each user reserves {each:.3f} GiB."
    )


@compared(
    "Right for small and large models. With less memory for each token, or a lower limit, more "
    "users fit.",
    [
        (24 * GIB, GIB, 128 * 1024, 4096),
        (24 * GIB, 14 * GIB, 512 * 1024, 4096),
        (24 * GIB, 988_065_536, 12 * 1024, 16_384),
        (24 * GIB, 20 * GIB, 512 * 1024, 4096),
        (80 * GIB, 2 * GIB, 12 * 1024, 32_768),
        (24 * GIB, 22 * GIB, 512 * 1024, 4096),
    ],
    why=_why_users,
)
def users_that_fit(memory: int, weights: int, bytes_per_token: int, max_length: int) -> int:
    """Requests that fit if each reserves `max_length` tokens and a tenth of memory stays free."""
    for_kv = max(0, memory * 9 // 10 - weights)
    return for_kv // (bytes_per_token * max_length)


def _why_waste(num_tokens: int, block_size: int) -> str:
    num_blocks = blocks_for(num_tokens, block_size)
    slots = num_blocks * block_size
    if slots == num_tokens:
        return f"{num_tokens} tokens fill {slots} slots. A full block wastes nothing."
    return f"Slots: {num_blocks} x {block_size} = {slots}. Tokens: {num_tokens}."


@compared(
    "Right at every fill of the last block, the full one included. Over many lengths it averages "
    "(B - 1) / 2.",
    # A mistake that is not about the full block is shown first.
    [
        *((n, 4) for n in (5, 3, 1, 4, 8)),
        *((n, size) for size in (2, 16, 48, 1) for n in range(1, 3 * size + 2)),
    ],
    why=_why_waste,
)
def last_block_waste(num_tokens: int, block_size: int) -> int:
    """Slots of the last block that `num_tokens` tokens leave empty; a full block wastes none."""
    return -num_tokens % block_size


def _empty_share(lengths: Sequence[int], block_size: int) -> float:
    """Return the share of the allocated slots that is empty with blocks of this size."""
    allocated = sum(blocks_for(length, block_size) * block_size for length in lengths)
    return (allocated - sum(lengths)) / allocated


def _largest(lengths: Sequence[int], limit: float) -> int:
    sizes = [2**exponent for exponent in range(11)]
    return max((size for size in sizes if _empty_share(lengths, size) < limit), default=1)


def _why_largest(lengths: Sequence[int], limit: float) -> str:
    largest = _largest(lengths, limit)
    shares = [
        f"Blocks of {size} leave {_empty_share(lengths, size):.2%} of the slots empty."
        for size in (largest, 2 * largest)
        if size <= 1024
    ]
    return "\n".join([*shares, f"The share must be below {limit:.2%}."])


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
    return _largest(lengths, limit)


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
    try:
        start = memory.allocate(15).start
    except OutOfMemory as error:
        largest = max(hole.size for hole in memory.holes)
        return f"{error}. The largest request that still fits has {largest}."
    message = "15 neighbouring slots are still free."
    got = f"slots {start} to {start + 14}"
    raise Wrong(message, "refused", got, [step, "memory.allocate(15)"])
