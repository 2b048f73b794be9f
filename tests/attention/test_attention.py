"""Every backend against torch's attention in fp64, without pages, on the inputs that broke others' kernels.

Triton kernels run on a GPU where there is one, else in the interpreter. Fresh memory and unwritten slots hold NaN.
"""

from importlib.util import find_spec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.attention import BACKENDS, fastest_backend, paged_attention, paged_decode
from support.attention_cases import (
    DEVICE,
    HEADS,
    KERNEL_DTYPES,
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
        *((backend, dtype) for backend in BACKENDS for dtype in (torch.float32, torch.bfloat16)),
        *(pytest.param("triton", dtype, marks=needs_triton) for dtype in KERNEL_DTYPES),
    ],
    ids=lambda value: str(value).removeprefix("torch."),
)
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # -inf - -inf, in NumPy
RAGGED_AND_DECODE = [[(1, 40), (9, 9), (3, 35)], [(1, 40), (1, 300), (1, 1)]]


@pytest.fixture(autouse=True)
def poison():
    with nan_in_fresh_memory():
        yield


@each_backend_and_dtype
@pytest.mark.parametrize(("heads", "dim"), HEADS)
def test_head_counts_and_sizes(backend, dtype, heads, dim, seed):
    """Prompts, chunks and new tokens in one batch, then new tokens only."""
    for lengths in ([(1, 37), (9, 13), (3, 20), (30, 90)], [(1, 35), (1, 3), (1, 300)]):
        case = make(seed, lengths, heads, dim, dtype=dtype)
        assert_as_close_as_torch(case, case.attend(backend))


@each_backend_and_dtype
@pytest.mark.parametrize("block_size", [1, 3, 8, 16, 64, 256])
def test_lengths_around_the_edges_of_blocks_and_tiles(backend, dtype, block_size, seed):
    edges = sorted({1, max(1, block_size - 1), block_size, block_size + 1, 31, 33, min(2 * block_size, 32)})
    chunks = [(min(n, 40), length) for length in edges for n in {1, 2, block_size, length} if n <= length]
    for lengths in ([(1, length) for length in edges], chunks):
        case = make(seed, lengths, block_size=block_size, dtype=dtype)
        assert_as_close_as_torch(case, case.attend(backend))


@each_backend
@pytest.mark.parametrize("sign", ["mixed", "negative", "positive"])
@pytest.mark.parametrize("lengths", RAGGED_AND_DECODE, ids=["ragged", "decode"])
def test_scores_of_a_million(backend, sign, lengths, seed):
    """What is left is the softmax: no overflow, no NaN, no rounding."""
    case = make(seed, lengths)
    set_scores_of_a_million(case, sign, seed)
    assert_close(case, case.attend(backend, scale=1.0), scale=1.0)


@each_backend
def test_one_new_token_each(backend, seed):
    """And the inputs stay as they are."""
    case = make(seed, [(1, length) for length in (1, 15, 16, 17, 64)], (14, 2))
    inputs = case.arguments(DEVICE if backend == "triton" else "cpu")
    before = [tensor.clone() for tensor in inputs]
    out = paged_decode(*inputs[:5], backend=backend)
    assert torch.equal(out, paged_attention(*inputs, backend=backend))
    for tensor, old in zip(inputs, before, strict=True):
        torch.testing.assert_close(tensor, old, rtol=0, atol=0, equal_nan=True)


@each_backend
@settings(max_examples=40 if DEVICE == "cpu" else 10)  # a GPU has to compile each shape
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
    for name, bad in [
        ("q", case.q[0]),
        ("q", case.q[:, :3]),
        ("v_cache", case.v_cache[:-1]),
        ("block_tables", case.block_tables[0]),
        ("seq_lens", case.seq_lens[:1]),
        ("query_starts", case.query_starts[:2]),
    ]:
        with refused(r"^the shapes must be q \[T, Hq, D\], .* they are \[\["):
            paged_attention(**{**good, name: bad})


def test_a_backend_has_a_name_or_is_a_function_that_gets_the_arguments():
    case = make(0, [(1, 3)])
    with refused("an attention backend that is no function must be one of 'auto', 'concat'"):
        case.attend("Torch")
    args = case.arguments()
    assert all(a is b for a, b in zip(paged_attention(*args, 0.5, backend=lambda *got: got), [*args, 0.5], strict=True))


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/kernels asks what it takes on a GPU")
def test_auto_takes_torch_on_a_cpu_and_says_so_once(capsys):
    fastest_backend.cache_clear()
    case = make(0, [(1, 3), (2, 7)])
    outs = [case.attend("auto") for _ in range(2)]
    assert capsys.readouterr().out == "attention: torch (no GPU)\n"
    assert torch.equal(outs[0], case.attend("torch"))
