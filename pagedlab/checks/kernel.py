"""Checks of notebook 07: the page look-up, a kernel with three bugs, the number of splits.

Kernels run in Triton's interpreter, or on the GPU where Triton compiles. Triton is imported when one is checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pagedlab.blocks import blocks_for
from pagedlab.checks import StillRunning, Wrong, bounded, compared, exercise, explain, first_wrong, normal, say
from pagedlab.checks.blocks import slot

if TYPE_CHECKING:
    import torch


def paged(lengths: Sequence[int], kv_heads: int = 1, size: int = 4, dim: int = 4) -> tuple[torch.Tensor, ...]:
    """K and V [pages, size, kv_heads, dim] of sequences of these lengths, and their tables [sequences, most pages].

    Pages are not in order, the first is nobody's, and a slot that nobody has written holds NaN.
    """
    import torch

    randn, pages = normal(), [blocks_for(length, size) for length in lengths]
    k, v = caches = torch.full((2, sum(pages) + 1, size, kv_heads, dim), torch.nan, dtype=torch.float64)
    tables, ids = torch.zeros(len(lengths), max(pages), dtype=torch.int32), list(range(sum(pages) + 1))
    for table, n, length in zip(tables, pages, lengths, strict=True):
        table[:n] = torch.tensor([ids.pop() for _ in range(n)])
        slots = [slot(table.tolist(), position, size) for position in range(length)]
        caches.flatten(1, 2)[:, slots] = randn(2, length, kv_heads, dim)
    return k, v, tables


@contextmanager
def _launching(expected: object = "attention", setup: str = "") -> Iterator[str]:
    """The device to launch on; what the kernel raises is `Wrong`. The interpreter's warnings are held back."""
    import numpy as np

    from pagedlab.kernels.runtime import INTERPRETED

    try:
        with bounded(100_000), np.errstate(all="ignore"):  # of its own; rung 1 needs a fifth
            yield "cpu" if INTERPRETED else "cuda"
    except (Exception, StillRunning) as error:
        said = explain(error.__cause__ or error)  # Triton's interpreter wraps what went wrong
        raise Wrong("Your kernel raises an error.", expected, said, setup=setup) from None


@exercise
def page_lookup(answer: Any) -> str:
    """A kernel (out, table, positions, BLOCK_SIZE, TILE) that stores the slot of each of TILE positions."""
    import torch

    positions = [0, 1, 15, 16, 17, 31, 32, 34]
    for table, size in [([5, 12, 3], 16), ([4, 1, 0, 7, 2], 8), ([3, 2**28, 2**27 + 5], 16)]:  # the last behind 2**31
        expected = [slot(table, position, size) for position in positions]
        setup = f"table = {table}, BLOCK_SIZE = {size}, TILE = {len(positions)}"
        with _launching(expected, setup) as device:
            args = [torch.tensor(numbers, dtype=torch.int32, device=device) for numbers in (table, positions)]
            out = torch.full_like(args[1], -1, dtype=torch.int64)
            answer[(1,)](out, *args, size, len(positions))
        for position, right, got in zip(positions, expected, out.tolist(), strict=True):
            if right != got:
                wide = "This slot does not fit into 32 bits, and the page's id must not be multiplied in them:"
                message = wide if right >= 2**31 else "The first slot that differs:"
                raise Wrong(message, right, got, f"position {position}", setup=setup)
    return "Right in pages of 16 and of 8, and behind slot 2**31, where a large GPU's cache ends up."


def _batch(lengths: list[int], heads: int = 1, kv_heads: int = 1, loudest: int = -1) -> tuple[torch.Tensor, ...]:
    """q, K, V, tables and lengths in pages of four. loudest: the position with the largest score, of one sequence."""
    import torch

    k, v, tables = paged(lengths, kv_heads)
    q = normal(1)(len(lengths), heads, 4)
    if loudest >= 0:
        k[tables[0, loudest // 4], loudest % 4] = 3 * q[0]
    return q.float(), k.float(), v.float(), tables, torch.tensor(lengths, dtype=torch.int32)


def _compare(kernel: Any, said: str, batch: tuple[torch.Tensor, ...]) -> None:
    """Launch a kernel with the parameters of `ladder.one_page_kernel`; `Wrong` unless it computes attention."""
    import torch

    from pagedlab.lessons.ladder import spec_paged

    expected = spec_paged(*batch)
    with _launching() as device:
        q, k, v, tables, lengths = (tensor.to(device) for tensor in batch)
        (_, size, kv_heads, dim), out = k.shape, torch.full_like(q, torch.nan)
        known = size, q.shape[1] // kv_heads, kv_heads, dim
        kernel[q.shape[:2]](out, q, k, v, tables, lengths, tables.stride(0), dim**-0.5, *known)
    if at := first_wrong(expected, got := out.cpu(), within=2e-5):
        b, _, i = at
        raise Wrong(f"{said}:", say(expected[b, :, i], 6), say(got[b, :, i], 6), f"out[{b}, :, {i}]")


@exercise
def mended_kernel(answer: Any) -> str:
    """A kernel with the parameters of `ladder.one_page_kernel`. One with all three bugs counts as untouched."""
    shared = _batch([4], heads=4, kv_heads=2)
    shared[2][:] = shared[2].new_tensor([[0.0], [1.0]])
    evidence = [  # in each only one of the bugs shows
        ("slots that nobody wrote", "6 tokens in two pages of 4; the slots behind hold NaN", _batch([6], loudest=0)),
        ("heads that share", "Four query heads share two KV heads, every value is the number of its KV head", shared),
        ("a late large score", "8 tokens in two full pages; the last one scores highest", _batch([8], loudest=7)),
    ]
    wrong: dict[str, Wrong] = {}
    for name, said, batch in evidence:
        try:
            _compare(answer, said, batch)
        except Wrong as error:
            wrong[name] = error
    if len(wrong) == len(evidence) and wrong["heads that share"].got == "[0, 1, 0, 1]":  # as the planted bug deals them
        lines = [f"  {name}: expected {found.expected}, it gives {found.got}" for name, found in wrong.items()]
        raise NotImplementedError("\n".join(["It has three bugs, and shows all of them:", *lines]))
    for first in wrong.values():
        raise first
    _compare(answer, "Four sequences, six query heads on two KV heads", _batch([1, 9, 4, 7], heads=6, kv_heads=2))
    return (
        "All three are mended: what nobody wrote changes nothing, every head finds its keys, and a larger\n"
        "score corrects the past."
    )


@compared(
    "Right in all {} cases. On 132 multiprocessors, one sequence of 16,384 with 8 KV heads gets 49\n"
    "splits, and 256 sequences with 2 KV heads get 1: they fill the card by themselves.",
    [(1, 8, 16_384, 132), (256, 2, 1_024, 132), (1, 2, 100, 132), (1, 2, 255, 132)],
    [(32, 8, 4_096, 132), (7, 4, 4_096, 132), (1, 1, 131_072, 108), (200, 2, 512, 108), (1, 2, 256, 132)],
    [(batch, heads, tokens, 132) for batch in (1, 2, 5, 48, 50) for heads in (1, 2, 8) for tokens in (1, 700)],
    name="splits",
)
def _splits(batch: int, kv_heads: int, tokens: int, processors: int) -> int:
    """Splits of each sequence: three programs a multiprocessor at most, pieces of 128 keys, below 256 keys one."""
    return max(1, min(3 * processors // (batch * kv_heads), -(-tokens // 128))) if tokens >= 256 else 1
