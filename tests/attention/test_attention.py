"""Every backend against attention written out in fp64, on the inputs that broke others' kernels.

Slots nobody has written hold NaN, blocks are shuffled, and block tables are padded with ids that do not
exist: whatever reads too much shows.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.attention import BACKENDS, fastest_backend, get_backend, paged_attention, paged_decode

HEADS = [(4, 4), (8, 2), (5, 1), (14, 2), (28, 4)]
each_backend = pytest.mark.parametrize("backend", BACKENDS)


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

    def attend(self, backend: str, scale: float | None = None) -> torch.Tensor:
        return paged_attention(
            self.q,
            self.k_cache,
            self.v_cache,
            self.block_tables,
            self.seq_lens,
            self.query_starts,
            scale,
            backend=backend,
        )

    def dense(self, dtype: torch.dtype, scale: float | None = None) -> torch.Tensor:
        """Attention without pages in `dtype`, row by row: fp64 is the truth, others are what torch makes of it."""
        out = torch.zeros(self.q.shape, dtype=dtype)
        starts = self.query_starts.tolist()
        for b, (k, v) in enumerate(zip(self.keys, self.values, strict=True)):
            n, group = starts[b + 1] - starts[b], self.q.shape[1] // k.shape[1]
            for i in range(n):
                seen = len(k) - n + i + 1
                if seen < 1:
                    continue
                row = self.q[starts[b] + i].to(dtype)[:, None]  # [Hq, 1, D]
                # Query head h reads KV head h // group: written out, and repeated, on purpose.
                head = torch.arange(self.q.shape[1]) // group
                ks, vs = (x[:seen].to(dtype)[:, head].transpose(0, 1) for x in (k, v))  # [Hq, seen, D]
                if dtype == torch.float64:
                    scores = (row * ks).sum(2) * (self.q.shape[2] ** -0.5 if scale is None else scale)
                    out[starts[b] + i] = (torch.softmax(scores, 1)[:, :, None] * vs).sum(1)
                else:
                    out[starts[b] + i] = F.scaled_dot_product_attention(row, ks, vs, scale=scale)[:, 0]
        return out


def make(
    seed: int,
    lengths: list[tuple[int, int]],
    heads: tuple[int, int] = (4, 2),
    dim: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """Sequences of (queries, tokens whose KV is there); a sequence may have none of either."""
    dice, rng = random.Random(seed), torch.Generator().manual_seed(seed)
    needed = [-(-length // block_size) for _, length in lengths]
    num_blocks = sum(needed) + 3
    blocks = dice.sample(range(num_blocks), sum(needed))
    shape = (num_blocks, block_size, heads[1], dim)
    k_cache, v_cache = (torch.full(shape, torch.nan, dtype=dtype) for _ in range(2))
    tables = torch.empty(len(lengths), max(needed, default=0) + 2, dtype=torch.int32)
    keys, values = [], []
    for b, (_, length) in enumerate(lengths):
        mine = [blocks.pop() for _ in range(needed[b])]
        tables[b] = torch.tensor(
            mine + [dice.choice([-1, num_blocks, 2**31 - 1]) for _ in range(len(tables[b]) - len(mine))]
        )
        k, v = torch.randn(2, length, heads[1], dim, generator=rng).to(dtype)
        for position in range(length):
            k_cache[mine[position // block_size], position % block_size] = k[position]
            v_cache[mine[position // block_size], position % block_size] = v[position]
        keys.append(k)
        values.append(v)
    query_starts = torch.tensor([0, *(n for n, _ in lengths)]).cumsum(0).int()
    q = torch.randn(int(query_starts[-1]), heads[0], dim, generator=rng).to(dtype)
    seq_lens = torch.tensor([length for _, length in lengths], dtype=torch.int32)
    return Case(q, k_cache, v_cache, tables, seq_lens, query_starts, keys, values)


def assert_close(case: Case, out: torch.Tensor, scale: float | None = None) -> None:
    """Right up to rounding: whatever reads a wrong key is off by far more. Precision has a test of its own."""
    assert out.dtype == case.q.dtype
    assert out.shape == case.q.shape
    assert not out.isnan().any(), "something was read that nobody has written"
    tolerance = {torch.float64: 1e-11, torch.float32: 2e-5}[out.dtype]
    torch.testing.assert_close(out.double(), case.dense(torch.float64, scale), atol=tolerance, rtol=0)


@each_backend
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dim", [64, 80, 96, 128])
def test_head_counts_and_sizes(backend: str, heads: tuple[int, int], dim: int, seed: int) -> None:
    case = make(seed, [(1, 37), (5, 5), (3, 20)], heads, dim)
    assert_close(case, case.attend(backend))


@each_backend
@pytest.mark.parametrize("heads", [(8, 2), (14, 2), (5, 1)])
def test_each_query_head_reads_its_own_kv_head(backend: str, heads: tuple[int, int], seed: int) -> None:
    """V holds the number of its head, so the output says which head was read, whatever the scores are."""
    case = make(seed, [(1, 20), (4, 9)], heads)
    tags = torch.arange(heads[1], dtype=torch.float32)[:, None].expand(-1, 64)
    case.v_cache[~case.v_cache.isnan()] = tags.expand(case.v_cache.shape)[~case.v_cache.isnan()]
    out = case.attend(backend)
    expected = (torch.arange(heads[0]) // (heads[0] // heads[1])).float()
    torch.testing.assert_close(out, expected[None, :, None].expand(out.shape))


@each_backend
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_lengths_around_block_edges(backend: str, block_size: int, seed: int) -> None:
    edges = sorted({1, max(1, block_size - 1), block_size, block_size + 1, 2 * block_size})
    decode = make(seed, [(1, length) for length in edges], block_size=block_size)
    assert_close(decode, decode.attend(backend))
    prefill = make(seed, [(length, length) for length in edges], block_size=block_size)
    assert_close(prefill, prefill.attend(backend))
    chunks = make(seed, [(n, length) for length in edges for n in edges if n <= length], block_size=block_size)
    assert_close(chunks, chunks.attend(backend))


@each_backend
def test_chunked_prefill_gives_the_rows_of_the_whole(backend: str, seed: int) -> None:
    """37 queries at once, or in chunks of 1, 16, 17 and 3, each over all the keys so far."""
    whole = make(seed, [(37, 37)])
    expected = whole.attend(backend)
    begin = 0
    for n in (1, 16, 17, 3):
        part = Case(
            whole.q[begin : begin + n],
            whole.k_cache,
            whole.v_cache,
            whole.block_tables,
            torch.tensor([begin + n], dtype=torch.int32),
            torch.tensor([0, n], dtype=torch.int32),
            [],
            [],
        )
        torch.testing.assert_close(part.attend(backend), expected[begin : begin + n], atol=2e-6, rtol=1e-5)
        begin += n
    assert begin == 37


@each_backend
def test_a_sequence_alone_is_a_sequence_in_a_crowd(backend: str, seed: int) -> None:
    """Decode and prefill mixed: prompts, chunks, single tokens, and sequences of very different lengths."""
    case = make(seed, [(1, 1), (1, 100), (33, 33), (7, 90), (1, 16), (16, 16), (2, 200)], (8, 2))
    assert_close(case, case.attend(backend))


@each_backend
def test_rows_that_see_nothing_are_zero_and_leave_their_neighbours_alone(backend: str, seed: int) -> None:
    lengths = [(1, 20), (6, 6), (4, 30)]
    case = make(seed, lengths)
    expected = case.attend(backend)
    starts = case.query_starts.tolist()
    # The same batch with three sequences put between: one without keys, one without queries, one without both.
    empty, silent = torch.randn(2, 4, 64), torch.empty(0, 4, 64)
    table = case.block_tables
    garbage = torch.full_like(table[:1], -1)
    mixed = Case(
        torch.cat([case.q[: starts[1]], empty, case.q[starts[1] : starts[2]], silent, case.q[starts[2] :]]),
        case.k_cache,
        case.v_cache,
        torch.cat([table[:1], garbage, table[1:2], table[:1], garbage, table[2:]]),
        torch.tensor([20, 0, 6, 20, 0, 30], dtype=torch.int32),
        torch.tensor([0, 1, 3, 9, 9, 9, 13], dtype=torch.int32),
        [],
        [],
    )
    out = mixed.attend(backend)
    assert torch.equal(out[1:3], torch.zeros(2, 4, 64))
    assert torch.equal(torch.cat([out[:1], out[3:]]), expected)


@each_backend
def test_more_queries_than_keys_leaves_the_first_rows_zero(backend: str, seed: int) -> None:
    """Row i of n queries over a sequence of length L stands at L - n + i: before the first token there is nothing."""
    case = make(seed, [(5, 3), (1, 9)])
    out = case.attend(backend)
    assert torch.equal(out[:2], torch.zeros(2, 4, 64))
    assert_close(case, out)


@each_backend
def test_a_batch_of_nothing(backend: str) -> None:
    for lengths in ([], [(0, 0)], [(0, 5)]):
        case = make(0, lengths)
        assert case.attend(backend).shape == (0, 4, 64)


@each_backend
@pytest.mark.parametrize("sign", ["mixed", "negative", "positive"])
def test_scores_of_a_million(backend: str, sign: str, seed: int) -> None:
    """Whole numbers up to 2^20 in size are exact in fp32, so what is left is the softmax: no overflow, no NaN."""
    case = make(seed, [(1, 40), (9, 9), (3, 35)])
    rng = torch.Generator().manual_seed(seed)
    low, high = {"mixed": (-128, 129), "negative": (100, 129), "positive": (100, 129)}[sign]

    def integer(shape: torch.Size) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=rng).float()

    case.q = integer(case.q.shape) * (-1 if sign == "negative" else 1)
    for b, length in enumerate(case.seq_lens.tolist()):
        case.keys[b] = integer(case.keys[b].shape)
        for position in range(length):
            case.k_cache[case.block_tables[b, position // 16], position % 16] = case.keys[b][position]
    largest = max(float((case.q[:, :1] @ k[:, 0].T).abs().max()) for k in case.keys)
    assert largest > 1e5
    assert_close(case, case.attend(backend, scale=1.0), scale=1.0)


@each_backend
def test_the_largest_score_comes_last_or_first(backend: str) -> None:
    """Online softmax corrects the past: scores that rise by 1,000 with every block, and fall likewise."""
    for order in (1, -1):
        case = make(0, [(1, 48)], (1, 1), block_size=4)
        case.q.fill_(1.0)
        case.keys[0] = (torch.arange(48).float() // 4 * 1000 * order / 64)[:, None, None].expand(48, 1, 64).clone()
        for position in range(48):
            case.k_cache[case.block_tables[0, position // 4], position % 4] = case.keys[0][position]
        assert_close(case, case.attend(backend, scale=1.0), scale=1.0)


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("heads", [(14, 2), (4, 4), (28, 4)])
def test_error_is_at_most_twice_that_of_torch(
    backend: str, dtype: torch.dtype, heads: tuple[int, int], seed: int
) -> None:
    """In the same dtype, against fp64: root mean square over a batch large enough that it is not a matter of luck."""
    case = make(seed, [(1, 200), (30, 30), (20, 90), *[(1, 50)] * 10], heads, dtype=dtype)
    out, truth = case.attend(backend), case.dense(torch.float64)

    def error(values: torch.Tensor) -> float:
        return float((values.double() - truth).square().mean().sqrt())

    assert out.dtype == dtype
    assert error(out) <= 2 * error(case.dense(dtype))


@each_backend
def test_the_scale_is_one_over_root_d_unless_given(backend: str, seed: int) -> None:
    case = make(seed, [(2, 20)])
    assert torch.equal(case.attend(backend), case.attend(backend, scale=64**-0.5))
    assert_close(case, case.attend(backend, scale=0.3), scale=0.3)


@each_backend
def test_one_new_token_each(backend: str, seed: int) -> None:
    case = make(seed, [(1, length) for length in (1, 15, 16, 17, 64)], (14, 2))
    args = (case.q, case.k_cache, case.v_cache, case.block_tables, case.seq_lens)
    out = paged_decode(*args, backend=backend)
    assert torch.equal(out, case.attend(backend))
    assert_close(case, out)


@each_backend
def test_inputs_stay_as_they_are(backend: str, seed: int) -> None:
    case = make(seed, [(1, 20), (6, 6)])
    before = [x.clone() for x in (case.q, case.k_cache, case.v_cache, case.block_tables)]
    case.attend(backend)
    for tensor, old in zip((case.q, case.k_cache, case.v_cache, case.block_tables), before, strict=True):
        torch.testing.assert_close(tensor, old, rtol=0, atol=0, equal_nan=True)


@st.composite
def ragged(draw: st.DrawFn) -> tuple[list[tuple[int, int]], tuple[int, int], int, int]:
    pair = st.integers(0, 40).flatmap(lambda length: st.tuples(st.integers(0, length), st.just(length)))
    return (
        draw(st.lists(pair, min_size=1, max_size=6)),
        draw(st.sampled_from([(1, 1), (4, 2), (6, 3), (7, 1)])),
        draw(st.sampled_from([2, 8, 20])),
        draw(st.integers(1, 20)),
    )


@each_backend
@settings(max_examples=40)
@given(shape=ragged(), seed=st.integers(0, 2**31))
def test_any_ragged_batch(
    backend: str, shape: tuple[list[tuple[int, int]], tuple[int, int], int, int], seed: int
) -> None:
    lengths, heads, dim, block_size = shape
    for dtype in (torch.float32, torch.float64):  # torch takes different ways for the two
        case = make(seed, lengths, heads, dim, block_size, dtype)
        assert_close(case, case.attend(backend))


# What is refused ------------------------------------------------------------------------------------------------


def test_shapes_that_do_not_fit() -> None:
    case = make(0, [(1, 20), (2, 5)])
    good = {
        "q": case.q,
        "k_cache": case.k_cache,
        "v_cache": case.v_cache,
        "block_tables": case.block_tables,
        "seq_lens": case.seq_lens,
        "query_starts": case.query_starts,
    }
    paged_attention(**good)
    for name, bad, message in [
        ("q", case.q[0], r"q must be \[T, Hq, D\]"),
        ("q", case.q[:, :, :32], "with the same D"),
        ("q", case.q[:, :3], "3 query heads cannot share 2 KV heads"),
        ("k_cache", case.k_cache[0], "both caches"),
        ("v_cache", case.v_cache[:-1], "both caches"),
        ("block_tables", case.block_tables[:1], "B tables, B lengths and B . 1 query starts, got 1, 2 and 3"),
        ("seq_lens", case.seq_lens[:1], "got 2, 1 and 3"),
        ("query_starts", case.query_starts[:2], "got 2, 2 and 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            paged_attention(**{**good, name: bad})


def test_backends_by_name_and_by_hand() -> None:
    assert set(BACKENDS) >= {"concat", "safe", "online", "torch"}
    for name, function in BACKENDS.items():
        assert get_backend(name) is function
    assert get_backend(torch.add) is torch.add
    with pytest.raises(ValueError, match=r"no attention backend 'flash': choose one of 'auto', 'concat'"):
        get_backend("flash")
    case = make(0, [(1, 3)])
    with pytest.raises(ValueError, match="no attention backend 'Torch'"):
        case.attend("Torch")


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/kernels asks what it takes on a GPU")
def test_auto_takes_torch_on_a_cpu_and_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    fastest_backend.cache_clear()
    case = make(0, [(1, 3), (2, 7)])
    outs = [case.attend("auto") for _ in range(2)]
    assert capsys.readouterr().out == "attention: torch (no GPU)\n"
    assert torch.equal(outs[0], case.attend("torch"))


def test_a_function_of_your_own_gets_the_arguments() -> None:
    case, seen = make(0, [(1, 3)]), []

    def mine(q: torch.Tensor, *args: object) -> torch.Tensor:
        seen.extend(args)
        return q

    args = (case.k_cache, case.v_cache, case.block_tables, case.seq_lens, case.query_starts)
    assert paged_attention(case.q, *args, 0.5, backend=mine) is case.q
    assert all(a is b for a, b in zip(seen, (*args, 0.5), strict=True))
