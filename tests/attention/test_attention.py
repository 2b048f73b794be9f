"""Every backend against attention written out in fp64, on the inputs that broke others' kernels.

Triton kernels run on a GPU where there is one, else in the interpreter. Fresh memory and unwritten slots hold NaN.
"""

import random
from importlib.util import find_spec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.attention import BACKENDS, fastest_backend, get_backend, paged_attention, paged_decode
from support.attention_cases import (
    DEVICE,
    HEADS,
    KERNEL_DTYPES,
    Case,
    assert_as_close_as_torch,
    assert_close,
    make,
    nan_in_fresh_memory,
    ragged,
    set_scores_of_a_million,
)
from support.refused import refused

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
each_backend = pytest.mark.parametrize("backend", [*BACKENDS, pytest.param("triton", marks=needs_triton)])
each_backend_and_dtype = pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        *((backend, torch.float32) for backend in BACKENDS),
        *(pytest.param("triton", dtype, marks=needs_triton) for dtype in KERNEL_DTYPES),
    ],
    ids=lambda value: str(value).removeprefix("torch."),
)
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # -inf - -inf, in NumPy


@pytest.fixture(autouse=True)
def poison():
    with nan_in_fresh_memory():
        yield


def assert_right(backend, case, out=None, scale=None):
    """The backend's result, or this one, in the tolerance of each backend: the kernels compute in several dtypes."""
    judge = assert_as_close_as_torch if backend == "triton" else assert_close
    judge(case, case.attend(backend, scale) if out is None else out, scale)


@each_backend_and_dtype
@pytest.mark.parametrize(("heads", "dim"), zip(HEADS, [64, 80, 96, 128, 64], strict=True))
def test_head_counts_and_sizes(backend, dtype, heads, dim, seed):
    """Prompts, chunks and new tokens in one batch, then new tokens only."""
    mixed = make(seed, [(1, 37), (9, 13), (3, 20)], heads, dim, dtype=dtype)
    assert_right(backend, mixed)
    decode = make(seed, [(1, 35), (1, 3)], heads, dim, dtype=dtype)
    assert_right(backend, decode)


@each_backend_and_dtype
@pytest.mark.parametrize("block_size", [1, 3, 8, 16, 64, 256])
def test_lengths_around_the_edges_of_blocks_and_tiles(backend, dtype, block_size, seed):
    edges = sorted({1, max(1, block_size - 1), block_size, block_size + 1, 31, 33})
    if block_size <= 16:
        edges.append(2 * block_size)
    decode = make(seed, [(1, length) for length in edges], block_size=block_size, dtype=dtype)
    assert_right(backend, decode)
    lengths = [(min(n, 40), length) for length in edges for n in {1, 2, block_size, length} if n <= length]
    chunks = make(seed, lengths, (2, 1), block_size=block_size, dtype=dtype)
    assert_right(backend, chunks)


@each_backend_and_dtype
def test_sequences_of_very_different_lengths(backend, dtype, seed):
    """Decode and prefill mixed, then new tokens only."""
    mixed = make(seed, [(1, 1), (1, 100), (33, 33), (7, 90), (1, 16), (16, 16), (2, 200)], (8, 2), dtype=dtype)
    assert_right(backend, mixed)
    dice = random.Random(seed)
    decode = make(seed, [(1, length) for length in (1, 300, *(dice.randint(1, 60) for _ in range(6)))], dtype=dtype)
    assert_right(backend, decode)


def insert(case, b, queries, length):
    """The batch with one more sequence before number b. It reads the keys of sequence 0, or none."""
    starts, tables, lengths = case.query_starts, case.block_tables, case.seq_lens
    table = tables[:1] if length else torch.full_like(tables[:1], -1)
    return Case(
        torch.cat([case.q[: starts[b]], queries, case.q[starts[b] :]]),
        case.k_cache,
        case.v_cache,
        torch.cat([tables[:b], table, tables[b:]]),
        torch.cat([lengths[:b], lengths.new_tensor([length]), lengths[b:]]),
        torch.cat([starts[: b + 1], starts[b:] + len(queries)]),
        [],
        [],
    )


@each_backend
@pytest.mark.parametrize("lengths", [[(1, 20), (6, 6), (4, 30)], [(1, 20), (1, 6), (1, 30)]], ids=["ragged", "decode"])
def test_rows_that_see_nothing_are_zero_and_leave_their_neighbours_alone(backend, lengths, seed):
    """A sequence without keys, as long as its neighbour. Then, too, one without queries, and one without both."""
    case = make(seed, lengths)
    alone = case.attend(backend)
    begin, stop = case.query_starts[1:3].tolist()
    n = stop - begin
    no_keys = insert(case, 1, torch.randn(n, 4, 64), 0)
    no_queries = insert(no_keys, 3, torch.empty(0, 4, 64), 20)
    for batch in (no_keys, insert(no_queries, 4, torch.empty(0, 4, 64), 0)):
        out = batch.attend(backend)
        assert torch.equal(out[begin : begin + n], torch.zeros(n, 4, 64))
        others = torch.cat([out[:begin], out[begin + n :]])
        assert torch.equal(others, alone)


@each_backend
def test_more_queries_than_keys_leaves_the_first_rows_zero(backend, seed):
    """Row i of n queries over a sequence of length L is at position L - n + i: before the first token is nothing."""
    case = make(seed, [(5, 3), (1, 9), (40, 20)])
    out = case.attend(backend)
    assert torch.equal(out[:2], torch.zeros(2, 4, 64))
    assert torch.equal(out[6:26], torch.zeros(20, 4, 64))
    assert_right(backend, case, out)


@each_backend
@pytest.mark.parametrize("lengths", [[], [(0, 0)], [(0, 5)]])
def test_a_batch_of_nothing(backend, lengths):
    assert make(0, lengths).attend(backend).shape == (0, 4, 64)


@each_backend
@pytest.mark.parametrize("sign", ["mixed", "negative", "positive"])
@pytest.mark.parametrize("lengths", [[(1, 40), (9, 9), (3, 35)], [(1, 40), (1, 300), (1, 1)]], ids=["ragged", "decode"])
def test_scores_of_a_million(backend, sign, lengths, seed):
    """What is left is the softmax: no overflow, no NaN, no rounding."""
    case = make(seed, lengths)
    set_scores_of_a_million(case, sign, seed)
    largest = max(float((case.q[:, :1] @ keys[:, 0].T).abs().max()) for keys in case.keys)
    assert largest > 1e5
    assert_right(backend, case, scale=1.0)


@each_backend
@pytest.mark.parametrize("order", [1, -1], ids=["last", "first"])
def test_the_largest_score_comes_last_or_first(backend, order):
    """Online softmax corrects the past: scores that rise by 1,000 with every block, and fall likewise."""
    case = make(0, [(1, 48)], (1, 1), block_size=4)
    case.q.fill_(1.0)
    case.set_keys(0, (torch.arange(48).float() // 4 * 1000 * order / 64)[:, None, None].expand(48, 1, 64))
    assert_right(backend, case, scale=1.0)


@each_backend
@pytest.mark.parametrize(
    ("dtype", "heads"), [(torch.float32, (14, 2)), (torch.bfloat16, (4, 4)), (torch.float16, (28, 4))]
)
def test_error_is_at_most_twice_that_of_torch(backend, dtype, heads, seed):
    """In the same dtype, against fp64: root mean square over a batch large enough that it is not a matter of luck."""
    if backend == "triton" and dtype not in KERNEL_DTYPES:
        pytest.skip("the interpreter's tl.dot is wrong in bf16")
    case = make(seed, [(1, 200), (30, 30), (20, 90), *[(1, 50)] * 10], heads, dtype=dtype)
    out, truth = case.attend(backend), case.dense(torch.float64)

    def error(values):
        return float((values.double() - truth).square().mean().sqrt())

    assert out.dtype == dtype
    assert error(out) <= 2 * error(case.dense(dtype))


@each_backend
def test_the_scale_is_one_over_root_d_unless_given(backend, seed):
    case = make(seed, [(2, 20), (1, 30)])
    assert torch.equal(case.attend(backend), case.attend(backend, scale=64**-0.5))
    assert_right(backend, case, scale=0.3)


@each_backend
def test_one_new_token_each(backend, seed):
    case = make(seed, [(1, length) for length in (1, 15, 16, 17, 64)], (14, 2))
    device = DEVICE if backend == "triton" else "cpu"
    out = paged_decode(*case.arguments(device)[:5], backend=backend).cpu()
    assert torch.equal(out, case.attend(backend))
    assert_right(backend, case, out)


@each_backend
def test_inputs_stay_as_they_are(backend, seed):
    case = make(seed, [(1, 20), (6, 6)])
    inputs = case.arguments(DEVICE if backend == "triton" else "cpu")
    before = [tensor.clone() for tensor in inputs]
    paged_attention(*inputs, backend=backend)
    for tensor, old in zip(inputs, before, strict=True):
        torch.testing.assert_close(tensor, old, rtol=0, atol=0, equal_nan=True)


@each_backend
@settings(max_examples=20 if DEVICE == "cpu" else 10)  # a GPU has to compile each shape
@given(shape=ragged(), seed=st.integers(0, 2**31))
def test_any_ragged_batch(backend, shape, seed):
    lengths, heads, dim, block_size = shape
    # torch computes the two in different ways; the kernels have no fp64
    for dtype in (torch.float32,) if backend == "triton" else (torch.float32, torch.float64):
        case = make(seed, lengths, heads, dim, block_size, dtype)
        assert_close(case, case.attend(backend))


# What is refused ------------------------------------------------------------------------------------------------


def test_shapes_that_do_not_fit():
    case = make(0, [(1, 20), (2, 5)])
    names = ("q", "k_cache", "v_cache", "block_tables", "seq_lens", "query_starts")
    good = dict(zip(names, case.arguments(), strict=True))
    paged_attention(**good)
    for name, bad, message in [
        ("q", case.q[0], r"q must be \[T, Hq, D\]"),
        (
            "q",
            case.q[:, :, :32],
            r"^k_cache must be \[num_blocks, block_size, Hkv, D\], got \[6, 16, 2, 64\] after .*'D': 32",
        ),
        ("q", case.q[:, :3], "3 query heads cannot share 2 KV heads"),
        ("k_cache", case.k_cache[0], r"^k_cache must be \[num_blocks, block_size, Hkv, D\], got \[16, 2, 64\]"),
        ("v_cache", case.v_cache[:-1], r"^v_cache must be .*, got \[5, 16, 2, 64\] after .*'num_blocks': 6"),
        ("block_tables", case.block_tables[:1], r"^seq_lens must be \[B\], got \[2\] after .*'B': 1"),
        ("seq_lens", case.seq_lens[:1], r"^seq_lens must be \[B\], got \[1\] after .*'B': 2"),
        ("query_starts", case.query_starts[:2], r"^query_starts must be \[B \+ 1\], got \[2\] after .*'B \+ 1': 3"),
        ("block_tables", case.block_tables[0], r"^block_tables must be \[B, M\], got \[4\]"),
    ]:
        with refused(message):
            paged_attention(**{**good, name: bad})


def test_backends_by_name_and_by_hand():
    assert set(BACKENDS) >= {"concat", "safe", "online", "torch"}
    for name, function in BACKENDS.items():
        assert get_backend(name) is function
    assert get_backend(torch.add) is torch.add
    with refused(r"no attention backend 'flash': choose one of 'auto', 'concat'"):
        get_backend("flash")
    case = make(0, [(1, 3)])
    with refused("no attention backend 'Torch'"):
        case.attend("Torch")


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/kernels asks what it takes on a GPU")
def test_auto_takes_torch_on_a_cpu_and_says_so_once(capsys):
    fastest_backend.cache_clear()
    case = make(0, [(1, 3), (2, 7)])
    outs = [case.attend("auto") for _ in range(2)]
    assert capsys.readouterr().out == "attention: torch (no GPU)\n"
    assert torch.equal(outs[0], case.attend("torch"))
    fastest_backend(torch.device("cpu"), True, True)
    assert capsys.readouterr().out == "attention: torch (no GPU)\n", "of float64 too"


def test_a_function_of_your_own_gets_the_arguments():
    case, seen = make(0, [(1, 3)]), []

    def mine(q, *args):
        seen.extend(args)
        return q

    args = (case.k_cache, case.v_cache, case.block_tables, case.seq_lens, case.query_starts)
    assert paged_attention(case.q, *args, 0.5, backend=mine) is case.q
    assert all(a is b for a, b in zip(seen, (*args, 0.5), strict=True))
