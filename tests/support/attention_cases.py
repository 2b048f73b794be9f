"""Ragged batches on pages for attention, with keys and values once more without pages, and how close is close.

Unwritten slots hold NaN, blocks are shuffled, and block tables are padded with ids that do not exist: whatever reads
too much shows.
"""

import random
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st

from pagedlab.attention import paged_attention

HEADS = [  # of queries and of keys, and how large they are
    ((4, 4), 64),
    ((8, 2), 80),
    ((5, 1), 96),
    ((14, 2), 128),
    ((28, 4), 64),
    ((2, 1), 256),
    ((32, 1), 16),
    ((3, 1), 8),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # of the kernels, which run in the interpreter on a CPU
# No bf16 on the CPU: the interpreter's tl.dot is wrong there.
KERNEL_DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * (DEVICE == "cuda")


@dataclass
class Case:
    """A ragged batch on pages, and its keys and values once more without pages."""

    q: torch.Tensor
    k_cache: torch.Tensor
    v_cache: torch.Tensor
    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    query_starts: torch.Tensor
    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    def arguments(self, device: str = "cpu"):
        """What `paged_attention` takes, in its order."""
        tensors = (self.q, self.k_cache, self.v_cache, self.block_tables, self.seq_lens, self.query_starts)
        return [tensor.to(device) for tensor in tensors]

    def attend(self, backend: str, scale: float | None = None):
        """The backend's result, on the CPU."""
        args = self.arguments(DEVICE if backend == "triton" else "cpu")
        return paged_attention(*args, scale, backend=backend).cpu()

    def dense(self, dtype: torch.dtype, scale: float | None = None):
        """Torch's attention in `dtype`, without pages, sequence by sequence. In fp64 it is the truth."""
        out = torch.zeros(self.q.shape, dtype=dtype)
        starts = self.query_starts.tolist()
        for start, stop, *sequence in zip(starts, starts[1:], self.keys, self.values, strict=False):
            seen = len(sequence[0])
            start = max(start, stop - seen)  # rows before the first token see nothing
            if start < stop:
                # Query head h reads KV head h // group: repeated, on purpose.
                head = torch.arange(self.q.shape[1]) // (self.q.shape[1] // self.k_cache.shape[2])
                q = self.q[start:stop].to(dtype).transpose(0, 1)  # [Hq, n, D]
                k, v = (x[:, head].to(dtype).transpose(0, 1) for x in sequence)  # [Hq, seen, D]
                mask = torch.ones(stop - start, seen, dtype=torch.bool).tril(seen - (stop - start))
                out[start:stop] = F.scaled_dot_product_attention(q, k, v, mask, scale=scale).transpose(0, 1)
        return out


def store(cache: torch.Tensor, table: torch.Tensor, new: torch.Tensor):
    """Write a sequence's keys or values to its pages."""
    at, size = torch.arange(len(new)), cache.shape[1]
    cache[table[at // size].long(), at % size] = new


def make(
    seed: int,
    lengths: list[tuple[int, int]],
    heads: tuple[int, int] = (4, 2),
    dim: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
):
    """Sequences of (queries, tokens whose KV is there); a sequence may have none of either."""
    dice, rng = random.Random(seed), torch.Generator().manual_seed(seed)
    needed = [-(-length // block_size) for _, length in lengths]
    num_blocks = sum(needed) + 3
    blocks = dice.sample(range(num_blocks), sum(needed))
    shape = (num_blocks, block_size, heads[1], dim)
    k_cache, v_cache = (torch.full(shape, torch.nan, dtype=dtype) for _ in range(2))
    keys = [torch.randn(length, heads[1], dim, generator=rng).to(dtype) for _, length in lengths]
    values = [torch.randn(length, heads[1], dim, generator=rng).to(dtype) for _, length in lengths]
    tables = torch.empty(len(lengths), max(needed, default=0) + 2, dtype=torch.int32)
    for table, count, k, v in zip(tables, needed, keys, values, strict=True):
        nowhere = dice.choices([-1, num_blocks, 2**31 - 1], k=len(table) - count)
        table[:] = torch.tensor([blocks.pop() for _ in range(count)] + nowhere)
        store(k_cache, table, k)
        store(v_cache, table, v)
    query_starts = torch.tensor([0, *(n for n, _ in lengths)]).cumsum(0).int()
    q = torch.randn(int(query_starts[-1]), heads[0], dim, generator=rng).to(dtype)
    seq_lens = torch.tensor([length for _, length in lengths], dtype=torch.int32)
    return Case(q, k_cache, v_cache, tables, seq_lens, query_starts, keys, values)


@st.composite
def ragged(draw: st.DrawFn):
    """Lengths, also of nothing, of more queries than tokens, of new tokens alone; heads, sizes of heads and blocks."""
    queries = st.just(1) if draw(st.booleans()) else st.integers(0, 40)
    return (
        draw(st.lists(st.tuples(queries, st.integers(0, 40)), max_size=6)),
        draw(st.sampled_from([(1, 1), (4, 2), (6, 3), (7, 1)])),
        draw(st.sampled_from([2, 8, 20])),
        draw(st.integers(1, 20)),
    )


@contextmanager
def nan_in_fresh_memory():
    """Let torch.empty and torch.empty_like return NaN: what a kernel fails to write shows, or reads too early."""
    empty = torch.empty
    empty_like = torch.empty_like

    def filled(tensor: torch.Tensor):
        return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", lambda *args, **options: filled(empty(*args, **options)))
        patch.setattr(torch, "empty_like", lambda *args, **options: filled(empty_like(*args, **options)))
        yield


def assert_close(case: Case, out: torch.Tensor, scale: float | None = None):
    """Right up to rounding: a wrong key gives an error that is far larger."""
    tolerance = {torch.float64: 1e-11, torch.float32: 2e-5}[out.dtype]  # NaN is not close to anything
    torch.testing.assert_close(out, case.dense(torch.float64, scale).to(case.q.dtype), atol=tolerance, rtol=0)


def assert_as_close_as_torch(case: Case, out: torch.Tensor, scale: float | None = None):
    """Error against fp64 at most twice that of torch's attention in the same dtype, and no value far off.

    In a small batch torch's error is a matter of luck. So one rounding of the largest value is allowed in addition in
    fp32, where the roundings of the scores count, and a fiftieth of one in other dtypes.
    """
    assert (out.dtype, out.shape) == (case.q.dtype, case.q.shape)
    assert not out.isnan().any(), "an unwritten slot was read, or a row was not written"
    truth = case.dense(torch.float64, scale)
    rounding = torch.finfo(out.dtype).eps * truth.abs().max()

    def error(values: torch.Tensor):
        return (values.double() - truth).square().mean().sqrt()

    allowed = 2 * error(case.dense(out.dtype, scale)) + rounding * (1 if out.dtype == torch.float32 else 0.02)
    assert error(out) <= allowed, f"error {error(out):.2e}, allowed is {allowed:.2e}"
    assert (out.double() - truth).abs().max() <= 20 * allowed + rounding, "one value is far off"


def set_scores_of_a_million(case: Case, sign: str, seed: int):
    """Make every score a multiple of 64 of up to 2^20 in size: with scale=1.0 all are exact in fp32.

    Scores are equal or far apart. Those a few units apart would be rounded: the kernels multiply them by log2(e).
    """
    rng = torch.Generator().manual_seed(seed)
    queries = {"mixed": (-2, 3), "negative": (-2, 0), "positive": (1, 3)}[sign]
    case.q = 64.0 * torch.randint(*queries, case.q.shape, generator=rng)
    for b, keys in enumerate(case.keys):
        case.keys[b] = torch.randint(-128 if sign == "mixed" else 100, 129, keys.shape, generator=rng).float()
        store(case.k_cache, case.block_tables[b], case.keys[b])
