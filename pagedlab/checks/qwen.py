"""Checks of notebook 08: the bytes of paged chats, the rows that speak, attention over one sequence's blocks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

from pagedlab.blocks import blocks_for
from pagedlab.checks import Wrong, compare, exercise, trying


@exercise
def paged_bytes(answer: Callable[[list[int], int, int], int]) -> str:
    """KV bytes of sequences of these lengths in whole blocks."""

    def reference(lengths: list[int], block_size: int, bytes_per_token: int) -> int:
        return sum(blocks_for(length, block_size) for length in lengths) * block_size * bytes_per_token

    cases = [([1], 16, 1), ([16], 16, 2), ([17], 16, 2), ([36, 8], 16, 12_288), ([], 16, 1), ([20, 8, 12], 4, 3)]
    compare(answer, reference, cases)
    return (
        "Every chat pays for whole blocks: at most block_size - 1 empty slots each, however long the longest chat is."
    )


@exercise
def last_rows(answer: Callable[[list[int]], list[int]]) -> str:
    """The last row of each sequence of a ragged batch."""
    lengths = [[1], [3], [1, 1], [5, 1, 2], [1] * 6, [17, 4, 1, 9]]
    cases = [(list(accumulate(case, initial=0)),) for case in lengths]
    compare(answer, lambda starts: [start - 1 for start in starts[1:]], cases)
    return "One row a sequence, prefill and decode alike: the model's output layer runs on those rows only."


@exercise
def attend_one(answer: Callable[..., Any]) -> str:
    """Causal attention of a sequence's last n queries over its blocks, unused slots full of NaN."""
    import torch

    from pagedlab.attention.reference import concat_attention

    generator = torch.Generator().manual_seed(0)
    head_dim, scale = 4, 0.5
    for block_size, length, n in [(4, 1, 1), (4, 4, 1), (4, 5, 1), (4, 6, 6), (4, 6, 3), (2, 9, 4), (8, 30, 30)]:
        block_ids = torch.randperm(-(-length // block_size) + 2, generator=generator).tolist()[2:]
        caches = torch.full((2, len(block_ids) + 2, block_size, head_dim), float("nan"), dtype=torch.float64)
        for position in range(length):
            caches[:, block_ids[position // block_size], position % block_size] = torch.randn(
                2, head_dim, dtype=torch.float64, generator=generator
            )
        q = torch.randn(n, head_dim, dtype=torch.float64, generator=generator)
        k, v = caches
        expected = concat_attention(q[:, None], k[:, :, None], v[:, :, None], block_ids, length, scale)[:, 0]
        setup = f"block_size {block_size}, block_ids {block_ids}, length {length}, the last {n} queries"
        with trying(setup=setup):
            got = answer(q, k, v, list(block_ids), length, scale)
            if not isinstance(got, torch.Tensor) or got.shape != q.shape:
                shape = list(got.shape) if isinstance(got, torch.Tensor) else type(got).__name__
                raise Wrong("The result has another shape.", list(q.shape), shape)
            wrong = ((got - expected).abs() > 1e-9) | got.isnan()
            if wrong.any():
                row = int(wrong.any(dim=1).nonzero()[0])
                right, yours = ([round(x, 4) for x in rows[row].tolist()] for rows in (expected, got))
                raise Wrong(f"The query at position {length - n + row} gets another value.", right, yours)
    return "Right at every block boundary, with one query and with many, and no unused slot is ever read."
