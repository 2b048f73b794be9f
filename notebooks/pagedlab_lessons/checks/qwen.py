"""Checks of notebook 08: blocks at the peak, attention over blocks, a repaired pool."""

from functools import partial
from typing import Any

from pagedlab.attention.reference import concat_attention
from pagedlab.blocks import blocks_for
from pagedlab_lessons.broken import SuspectPool
from pagedlab_lessons.checks.blocks import pool_trial
from pagedlab_lessons.checks.protocol import (
    Wrong,
    compared,
    exercise,
    first_wrong,
    say,
    search,
    shape,
    trying,
)
from pagedlab_lessons.checks.tensors import check_shapes, normal
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
        ([35, 34, 36, 35, 34, 36, 35, 75], [14, 14, 11, 14, 14, 14, 14, 6], 16),
        *(([16, 1, 5], [2, 40, 20], size) for size in (1, 2, 16)),
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
    peak = 0
    for step in range(max(answers, default=0)):
        held = 0
        for prompt, answer in zip(prompts, answers, strict=True):
            if step < answer:
                held += blocks_for(prompt + step, block_size)
        peak = max(peak, held)
    return peak


_POOL = ("__init__", "num_free", "allocate", "share", "release", "refcount")


@exercise
def mended_pool(answer: type) -> str:
    """A block pool without the mistake of `SuspectPool`."""
    is_unchanged = all(getattr(answer, name, None) is getattr(SuspectPool, name) for name in _POOL)
    if is_unchanged and answer is not SuspectPool:
        raise NotImplementedError("Still to write: the method that is wrong.")
    search([partial(pool_trial, answer, n, unknown_ids=False, mistakes=False) for n in (3, 2, 8)])
    return (
        "Your pool does what a plain list of counts says: a block is free when its last holder has "
        "released it,\nand it is then on the free list once."
    )


# Block size, length of the sequence, queries, scale.
_SEQUENCES = [
    (4, 1, 1, 0.5),
    (4, 4, 1, 0.5),
    (4, 5, 1, 0.5),
    (4, 6, 6, 0.5),
    (4, 6, 3, 0.5),
    (2, 9, 4, 0.5),
    (8, 30, 30, 0.25),
    (4, 6, 3, 2000.0),  # scores so large that exp of them is infinite
]


@exercise
def attend_one(answer: Any) -> str:
    """attend(q, k_cache, v_cache, block_ids, length, scale) for one head.

    Causal attention of a sequence's last queries over its blocks. Unused slots hold NaN.
    """
    for block_size, length, n, scale in _SEQUENCES:
        k, v, tables = pages_of([length], block_size, 1, 4)
        k = k.double()
        v = v.double()
        block_ids = tables[0].tolist()
        q = normal(1)(n, 4)
        expected = concat_attention(q[:, None], k, v, block_ids, length, scale)[:, 0]
        setup = (
            f"block_size {block_size}, block_ids {block_ids}, length {length}, the last {n} "
            f"queries, scale {scale}"
        )
        with trying(setup=setup):
            got = answer(q, k[:, :, 0], v[:, :, 0], list(block_ids), length, scale)
            check_shapes(shape(q), got, "The result has another shape.")
            at = first_wrong(expected, got)
            if at:
                message = f"The query at position {length - n + at[0]} gets another value."
                if got[at[0]].isnan().any():
                    message = (
                        "NaN comes out: an unused slot was read. Cut keys and values at `length` "
                        "before the products;\n0 x NaN is NaN, so masking the scores is not enough."
                    )
                    if scale > 1:
                        message = (
                            "NaN comes out: exp of a score near 1,000 is infinite. softmax "
                            "subtracts the largest first."
                        )
                raise Wrong(message, say(expected[at[0]]), say(got[at[0]]))
    return (
        "Right at every block boundary, with one query and with many, and no unused slot is ever "
        "read."
    )
