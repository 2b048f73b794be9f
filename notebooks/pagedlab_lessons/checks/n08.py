"""Checks of notebook 08: blocks at the peak, attention over blocks, a repaired pool."""

from functools import partial
from typing import Any

from torch import Tensor

from pagedlab.attention.reference import concat_attention
from pagedlab.blocks import blocks_for
from pagedlab_lessons.checks import (
    Function,
    Wrong,
    compared,
    exercise,
    normal,
    say,
    search,
)
from pagedlab_lessons.checks.n02 import pool_trial
from pagedlab_lessons.kernels07.puzzles import pages_of


@compared(
    "Right at every block boundary. The peak is not the sum of each chat's own peak: a chat that "
    "ends makes room\nfor the others.",
    [
        ([], [], 16),
        *(([prompt], [answer], 4) for prompt in (1, 4, 3) for answer in (1, 2)),
        ([4, 4], [1, 1], 4),
        ([8, 1], [1, 9], 4),
        ([8, 1], [5, 9], 4),
        ([16, 1, 5], [2, 40, 20], 16),
    ],
)
def peak_blocks(prompts: list[int], answers: list[int], block_size: int) -> int:
    """The largest number of blocks that chats hold in any step, if all begin in step 0.

    In step s a chat has stored its prompt and s tokens of its answer. An answer of n tokens takes
    the steps 0 to n - 1; then the chat's blocks are free.

    Args:
        prompts: tokens of each chat's prompt.
        answers: tokens of each chat's answer, at least 1.
        block_size: tokens of a block.
    """
    chats = list(zip(prompts, answers, strict=True))
    held = [
        sum(blocks_for(prompt + step, block_size) for prompt, answer in chats if step < answer)
        for step in range(max(answers, default=0))
    ]
    return max(held, default=0)


@exercise
def mended_pool(answer: type) -> str:
    """A block pool without the mistake of `SuspectPool`."""
    if isinstance(answer, type) and not any(map(callable, vars(answer).values())):
        raise NotImplementedError("Still to write: the method that is wrong.")
    search([partial(pool_trial, answer, num_blocks, mistakes=False) for num_blocks in (3, 2, 8)])
    return (
        "Your pool does what a plain list of counts says: a block is free when its last holder has "
        "released it,\nand it is then on the free list once."
    )


def _attended(attend: Function, length: int, n: int, size: int, scale: float) -> Any:
    """Return the attention of a sequence's last n queries; unused slots hold NaN."""
    k, v, tables = pages_of([length], size, 1, 4)
    caches = k[:, :, 0].double(), v[:, :, 0].double()
    got = attend(normal(1)(n, 4), *caches, tables[0].tolist(), length, scale)
    if isinstance(got, Tensor) and got.isnan().any():
        message = (
            "NaN comes out. Cut keys and values at `length` before the products: unused slots hold "
            "NaN, and 0 x NaN is NaN.\nexp of a score near 1,000 is infinite: softmax subtracts "
            "the largest first. A query attends to itself, too."
        )
        raise Wrong(message, "numbers", say(got))
    return got


@compared(
    "Right at every block boundary, with one query and with many, and no unused slot is ever read.",
    [
        (1, 1, 4, 0.5),
        (4, 1, 4, 0.5),
        (5, 1, 4, 0.5),
        (6, 3, 4, 0.5),
        (30, 30, 8, 0.25),
        (6, 3, 4, 2000.0),  # scores so large that exp of them is infinite
    ],
    through=_attended,
    why=lambda length, n, size, scale: (
        f"Query i stands at position {length - n} + i, and attends to all positions up to its own."
    ),
    told="attend(q, k, v, block_ids, {0}, {3})  # blocks of {2}, the last {1} queries",
)
def attend_one(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_ids: list[int], length: int, scale: float
) -> Tensor:
    """Causal attention of a sequence's last queries over its blocks, for one head.

    Unused slots hold NaN.
    """
    heads = q[:, None], k_cache[:, :, None], v_cache[:, :, None]
    return concat_attention(*heads, block_ids, length, scale)[:, 0]
