"""Checks of notebook 07: the page look-up, a kernel with three bugs, the number of splits.

Kernels run in Triton's interpreter, or on the GPU where Triton compiles. Triton is imported when one is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from traceback import extract_tb
from types import CodeType
from typing import TYPE_CHECKING, Any

from pagedlab.checks import StillRunning, Wrong, bounded, compare, exercise, explain

if TYPE_CHECKING:
    import torch

MAX_STEPS = 100_000  # instructions of its own that a kernel may execute in one launch; rung 1 needs a fifth at most


@contextmanager
def _launching(kernel: Any, expected: object = "attention", setup: str = "") -> Iterator[str]:
    """The device to launch on; what the kernel raises is `Wrong`. In the interpreter its own instructions are counted.

    All that the interpreter executes for each of them would be a hundred times more. NumPy's warnings are held back.
    """
    import numpy as np

    from pagedlab.kernels.runtime import INTERPRETED

    own = getattr(getattr(kernel, "fn", kernel), "__code__", None)

    def is_own(code: CodeType) -> bool:
        # The interpreter compiles a kernel again, under the same name.
        return own is not None and (code.co_filename, code.co_name) == (own.co_filename, own.co_name)

    try:
        if not INTERPRETED:
            yield "cuda"
            return
        with bounded(MAX_STEPS, is_own), np.errstate(all="ignore"):
            yield "cpu"
    except (Exception, StillRunning) as error:
        # Triton's interpreter wraps what went wrong; the last line of the kernel's own says where.
        cause = error.__cause__ or error
        lines = [f.line for f in extract_tb(cause.__traceback__) if own is not None and f.filename == own.co_filename]
        said = f"{type(cause).__name__}: {cause} (in {lines[-1]!r})" if cause is not error and lines else explain(error)
        raise Wrong("Your kernel raises an error.", expected, said, setup=setup) from None


_POSITIONS = [0, 1, 15, 16, 17, 31, 32, 34]
_TABLES = [([5, 12, 3], 16), ([4, 1, 0, 7, 2], 8), ([3, 2**28, 2**27 + 5], 16)]  # the last: slots behind 2**31


@exercise
def page_lookup(answer: Any) -> str:
    """A kernel (out, table, positions, BLOCK_SIZE, TILE) that stores the slot of each of TILE positions."""
    import torch

    for table, block_size in _TABLES:
        expected = [table[position // block_size] * block_size + position % block_size for position in _POSITIONS]
        setup = f"table = {table}, BLOCK_SIZE = {block_size}, TILE = {len(_POSITIONS)}"
        out = torch.full((len(_POSITIONS),), -1, dtype=torch.int64)
        with _launching(answer, expected, setup) as device:
            out = out.to(device)
            args = [torch.tensor(numbers, dtype=torch.int32, device=device) for numbers in (table, _POSITIONS)]
            answer[(1,)](out, *args, block_size, len(_POSITIONS))
        for position, right, got in zip(_POSITIONS, expected, out.tolist(), strict=True):
            if right != got:
                message = "The first slot that differs:"
                if right >= 2**31:
                    message = "This slot does not fit into 32 bits, and the page's id must not be multiplied in them:"
                raise Wrong(message, right, got, setup=setup, operations=[f"position {position}"])
    return "Right in pages of 16 and of 8, and behind slot 2**31, where a large GPU's cache ends up."


def _attend(kernel: Any, *tensors: torch.Tensor) -> torch.Tensor:
    """Launch a kernel with the parameters of `ladder.one_page_kernel` for q, both caches, tables and lengths."""
    import torch

    with _launching(kernel) as device:
        q, k, v, tables, lengths = (tensor.to(device) for tensor in tensors)
        _, size, kv_heads, dim = k.shape
        out = torch.full_like(q, torch.nan)
        kernel[q.shape[:2]](
            out, q, k, v, tables, lengths, tables.stride(0), dim**-0.5, size, q.shape[1] // kv_heads, kv_heads, dim
        )
    return out.cpu()


def _batch(
    lengths: Sequence[int], heads: tuple[int, int] = (1, 1), size: int = 4, dim: int = 4
) -> tuple[torch.Tensor, ...]:
    """Sequences in pages that are not in order; every slot that nobody has written holds NaN."""
    import torch

    generator = torch.Generator().manual_seed(0)
    pages = [-(-length // size) for length in lengths]
    k, v = torch.full((2, sum(pages) + 1, size, heads[1], dim), torch.nan)
    ids = iter(reversed(range(1, sum(pages) + 1)))
    tables = torch.zeros(len(lengths), max(pages), dtype=torch.int32)
    for b, length in enumerate(lengths):
        tables[b, : pages[b]] = torch.tensor([next(ids) for _ in range(pages[b])])
        for position in range(length):
            place = tables[b, position // size], position % size
            k[place], v[place] = torch.randn(2, heads[1], dim, generator=generator)
    q = torch.randn(len(lengths), heads[0], dim, generator=generator)
    return q, k, v, tables, torch.tensor(lengths, dtype=torch.int32)


def _slots_nobody_wrote(kernel: Any) -> None:
    """Six tokens in pages of 4, one head, the largest score first: nothing else can go wrong."""
    q, k, v, tables, lengths = _batch([6])
    k[tables[0, 0], 0] = 3 * q[0]
    _compare(kernel, (q, k, v, tables, lengths), "6 tokens in two pages of 4; the two slots behind hold NaN")


def _heads_that_share(kernel: Any) -> None:
    """One full page. V says the number of its KV head, so the output does too."""
    q, k, v, tables, lengths = _batch([4], heads=(4, 2))
    v[tables[0, 0]] = v.new_tensor([[0.0], [1.0]])
    got = _attend(kernel, q, k, v, tables, lengths)[0, :, 0]
    if not (got - got.new_tensor([0, 0, 1, 1])).abs().max() < 1e-4:
        message = "Four query heads share two KV heads, and every value is the number of its KV head."
        said = ", ".join(f"{x:.3g}" for x in got.tolist())
        raise Wrong(message, "0, 0, 1, 1", said, operations=["out[0, :, 0]"])


def _late_large_scores(kernel: Any) -> None:
    """Two full pages, one head; the largest score comes last."""
    q, k, v, tables, lengths = _batch([8])
    k[tables[0, 1], 3] = 3 * q[0]
    _compare(kernel, (q, k, v, tables, lengths), "8 tokens in two full pages; the last one scores highest")


def _compare(kernel: Any, tensors: tuple[torch.Tensor, ...], said: str) -> None:
    from pagedlab.lessons.ladder import spec_paged

    right = spec_paged(*tensors)
    got = _attend(kernel, *tensors)
    wrong = ~((got - right).abs() < 1e-4)  # NaN is wrong too
    if wrong.any():
        b, h, i = wrong.nonzero()[0].tolist()
        where = f"out[{b}, {h}, {i}]"
        raise Wrong(f"{said}:", f"{right[b, h, i]:.6f}", f"{got[b, h, i]:.6f}", operations=[where])


_PLANTED = "0, 1, 0, 1"  # how the planted bug deals out the heads
_EVIDENCE: dict[str, Callable[[Any], None]] = {
    "slots that nobody wrote": _slots_nobody_wrote,
    "heads that share": _heads_that_share,
    "a late large score": _late_large_scores,
}


@exercise
def mended_kernel(answer: Any) -> str:
    """A kernel with the parameters of `ladder.one_page_kernel`. One with all three bugs counts as untouched."""
    wrong: dict[str, Wrong] = {}
    for name, evidence in _EVIDENCE.items():
        try:
            evidence(answer)
        except Wrong as error:
            wrong[name] = error
    if len(wrong) == len(_EVIDENCE) and wrong["heads that share"].got == _PLANTED:
        lines = [f"  {name}: expected {found.expected}, it gives {found.got}" for name, found in wrong.items()]
        raise NotImplementedError("\n".join(["It has three bugs, and shows all of them:", *lines]))
    for first in wrong.values():
        raise first
    _compare(answer, _batch([1, 9, 4, 7], heads=(6, 2)), "Four sequences, six query heads on two KV heads")
    return (
        "All three are mended: what nobody wrote changes nothing, every head finds its keys, and a larger\n"
        "score corrects the past."
    )


def _splits(batch: int, kv_heads: int, tokens: int, processors: int) -> int:
    return max(1, min(3 * processors // (batch * kv_heads), -(-tokens // 128))) if tokens >= 256 else 1


@exercise
def splits(answer: Callable[[int, int, int, int], int]) -> str:
    """Splits of each sequence: three programs a multiprocessor at most, pieces of 128 keys, below 256 keys one."""
    cases = [(1, 8, 16_384, 132), (256, 2, 1_024, 132), (1, 2, 100, 132), (1, 2, 255, 132)]
    cases += [(32, 8, 4_096, 132), (7, 4, 4_096, 132), (1, 1, 131_072, 108), (200, 2, 512, 108), (1, 2, 256, 132)]
    cases += [(batch, heads, tokens, 132) for batch in (1, 2, 5, 48, 50) for heads in (1, 2, 8) for tokens in (1, 700)]
    compare(answer, _splits, cases)
    return (
        f"Right in all {len(cases)} cases. On 132 multiprocessors, one sequence of 16,384 with 8 KV heads gets "
        f"{_splits(1, 8, 16_384, 132)}\nsplits, and 256 sequences with 2 KV heads get {_splits(256, 2, 1_024, 132)}: "
        "they fill the card by themselves."
    )
