"""Checks of notebook 08: the bytes of paged chats, attention over one sequence's blocks."""

from collections.abc import Callable
from typing import Any

from pagedlab.blocks import blocks_for
from pagedlab.checks import (
    Wrong,
    agree,
    compared,
    exercise,
    first_wrong,
    normal,
    say,
    shape,
    trying,
)


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
    return sum(blocks_for(length, block_size) for length in lengths) * block_size * bytes_per_token


@exercise
def attend_one(answer: Callable[..., Any]) -> str:
    """Causal attention of a sequence's last n queries over its blocks, unused slots full of NaN."""
    from pagedlab.attention.reference import concat_attention  # not before: they take torch
    from pagedlab.lessons.puzzles import pages_of

    for size, length, n in [
        (4, 1, 1),
        (4, 4, 1),
        (4, 5, 1),
        (4, 6, 6),
        (4, 6, 3),
        (2, 9, 4),
        (8, 30, 30),
    ]:
        *caches, tables = pages_of([length], size, 1, 4)
        k, v = (cache.double() for cache in caches)
        q, block_ids = normal(1)(n, 4), tables[0].tolist()
        expected = concat_attention(q[:, None], k, v, block_ids, length, 0.5)[:, 0]
        with trying(
            setup=f"block_size {size}, block_ids {block_ids}, length {length}, the last {n} queries"
        ):
            got = answer(q, k[:, :, 0], v[:, :, 0], list(block_ids), length, 0.5)
            agree(shape(q), shape(got), "The result has another shape.", str)
            if at := first_wrong(expected, got):
                message = f"The query at position {length - n + at[0]} gets another value."
                if got.isnan().any():
                    message = (
                        "NaN comes out: an unused slot was read. Cut keys and values at `length` before "
                        "the products;\n0 x NaN is NaN, so masking the scores is not enough."
                    )
                raise Wrong(message, say(expected[at[0]]), say(got[at[0]]))
    return (
        "Right at every block boundary, with one query and with many, and no unused slot is ever "
        "read."
    )
