"""Checks of notebook 08: the bytes of paged chats, attention over one sequence's blocks."""

from collections.abc import Callable
from typing import Any

from pagedlab.attention.reference import concat_attention
from pagedlab.blocks import blocks_for
from pagedlab.checks import (
    Wrong,
    agree,
    compared,
    exercise,
    first_wrong,
    say,
    shape,
    trying,
)
from pagedlab.checks.tensors import normal
from pagedlab.lessons.puzzles import pages_of


@compared(
    "Every chat pays for whole blocks: at most block_size - 1 empty slots each, however long the "
    "longest chat is.",
    [
        ([1], 16, 1),
        ([16], 16, 2),
        ([17], 16, 2),
        ([36, 8], 16, 12_288),
        ([], 16, 1),
        ([20, 8, 12], 4, 3),
    ],
)
def paged_bytes(lengths: list[int], block_size: int, bytes_per_token: int) -> int:
    """KV bytes of sequences of these lengths in whole blocks."""
    num_blocks = sum(blocks_for(length, block_size) for length in lengths)
    return num_blocks * block_size * bytes_per_token


# Block size, length of the sequence, queries.
_SEQUENCES = [
    (4, 1, 1),
    (4, 4, 1),
    (4, 5, 1),
    (4, 6, 6),
    (4, 6, 3),
    (2, 9, 4),
    (8, 30, 30),
]


@exercise
def attend_one(answer: Callable[..., Any]) -> str:
    """attend(q, k_cache, v_cache, block_ids, length, scale) for one head.

    Causal attention of a sequence's last queries over its blocks. Unused slots hold NaN.
    """
    for block_size, length, n in _SEQUENCES:
        k, v, tables = pages_of([length], block_size, 1, 4)
        k = k.double()
        v = v.double()
        block_ids = tables[0].tolist()
        q = normal(1)(n, 4)
        expected = concat_attention(q[:, None], k, v, block_ids, length, 0.5)[:, 0]
        setup = (
            f"block_size {block_size}, block_ids {block_ids}, length {length}, the last {n} queries"
        )
        with trying(setup=setup):
            got = answer(q, k[:, :, 0], v[:, :, 0], list(block_ids), length, 0.5)
            agree(shape(q), shape(got), "The result has another shape.", str)
            at = first_wrong(expected, got)
            if at:
                message = f"The query at position {length - n + at[0]} gets another value."
                if got[at[0]].isnan().any():
                    message = (
                        "NaN comes out: an unused slot was read. Cut keys and values at `length` "
                        "before the products;\n0 x NaN is NaN, so masking the scores is not enough."
                    )
                raise Wrong(message, say(expected[at[0]]), say(got[at[0]]))
    return (
        "Right at every block boundary, with one query and with many, and no unused slot is ever "
        "read."
    )
