"""The Triton kernels against attention written out in fp64, on a GPU where there is one, else in the interpreter.

Inputs are test_attention's: unwritten slots hold NaN, tables are padded with ids that do not exist. Here the
memory that a kernel is given for its output holds NaN too. No bf16 on the CPU: the interpreter's tl.dot is
wrong there.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from test_attention import HEADS, Case, make, ragged

from pagedlab.attention import BACKENDS, fastest_backend, get_backend, paged_decode

if find_spec("triton") is None:  # not importorskip: pagedlab chooses the interpreter before it imports triton
    pytest.skip("triton is not installed", allow_module_level=True)

from pagedlab.kernels import attention
from pagedlab.kernels.cache import copy_blocks, write_kv
from pagedlab.kernels.plan import Plan, launch_plan
from pagedlab.lessons import ladder

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.float16] + [torch.bfloat16] * (DEVICE == "cuda")
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # -inf - -inf, in NumPy


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    """Fresh memory holds NaN: what a kernel fails to write shows, and so does what it reads too early."""
    with pytest.MonkeyPatch.context() as patch:
        empty, empty_like = torch.empty, torch.empty_like

        def filled(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

        patch.setattr(attention.torch, "empty", lambda *args, **how: filled(empty(*args, **how)))
        patch.setattr(attention.torch, "empty_like", lambda *args, **how: filled(empty_like(*args, **how)))
        yield


def assert_close(case: Case, out: torch.Tensor, scale: float | None = None) -> None:
    """Error against fp64 at most twice that of torch's attention in the same dtype, and no value far off.

    On top, for batches so small that torch's error is a matter of luck: in fp32, where the roundings of the
    scores are what counts, one rounding of the largest value, in others a fiftieth of one.
    """
    assert out.dtype == case.q.dtype
    assert out.shape == case.q.shape
    assert not out.isnan().any(), "something was read that nobody has written, or not written at all"
    truth = case.dense(torch.float64, scale)
    if not out.numel():
        return
    rounding = torch.finfo(out.dtype).eps * truth.abs().max()

    def error(values: torch.Tensor) -> torch.Tensor:
        return (values.double() - truth).square().mean().sqrt()

    allowed = 2 * error(case.dense(out.dtype, scale)) + rounding * (1 if out.dtype == torch.float32 else 0.02)
    assert error(out) <= allowed, f"error {error(out):.2e}, allowed is {allowed:.2e}"
    assert (out.double() - truth).abs().max() <= 20 * allowed + rounding, "one value is far off"


def arguments(case: Case) -> list[torch.Tensor]:
    tensors = (case.q, case.k_cache, case.v_cache, case.block_tables, case.seq_lens, case.query_starts)
    return [tensor.to(DEVICE) for tensor in tensors]


def attend(case: Case, scale: float | None = None, **changes: Any) -> torch.Tensor:
    """The kernels' result on the CPU; `changes` are made to the plan that they would choose."""
    args = arguments(case)
    plan = launch_plan(args[0], args[1], args[3])._replace(**changes) if changes else None
    return attention.triton_attention(*args, scale, plan=plan).cpu()


@each_dtype
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("dim", [64, 80, 96, 128])
def test_head_counts_and_sizes(heads: tuple[int, int], dim: int, dtype: torch.dtype, seed: int) -> None:
    """Prompts, chunks and new tokens in one launch, then new tokens only."""
    mixed = make(seed, [(1, 35), (9, 13)], heads, dim, dtype=dtype)
    assert_close(mixed, attend(mixed))
    decode = make(seed, [(1, 35), (1, 3)], heads, dim, dtype=dtype)
    assert_close(decode, attend(decode))


@pytest.mark.parametrize(("heads", "dim"), [((2, 1), 256), ((32, 1), 16), ((3, 1), 8)])
def test_other_head_counts_and_sizes(heads: tuple[int, int], dim: int, seed: int) -> None:
    mixed = make(seed, [(1, 37), (11, 19)], heads, dim, dtype=torch.float16)
    assert_close(mixed, attend(mixed))
    decode = make(seed, [(1, 37), (1, 3)], heads, dim, dtype=torch.float16)
    assert_close(decode, attend(decode))


@each_dtype
@pytest.mark.parametrize("heads", [(8, 2), (14, 2), (5, 1)])
def test_each_query_head_reads_its_own_kv_head(heads: tuple[int, int], dtype: torch.dtype, seed: int) -> None:
    """V holds the number of its head, so the output says which head was read, whatever the scores are."""
    for lengths in ([(1, 20), (4, 9)], [(1, 20), (1, 9)]):
        case = make(seed, lengths, heads, dtype=dtype)
        tags = torch.arange(heads[1], dtype=dtype)[:, None].expand(case.v_cache.shape)
        case.v_cache = torch.where(case.v_cache.isnan(), case.v_cache, tags)
        expected = (torch.arange(heads[0]) // (heads[0] // heads[1])).to(dtype)
        tolerance = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(
            attend(case), expected[None, :, None].expand(case.q.shape), atol=tolerance, rtol=tolerance
        )


@each_dtype
@pytest.mark.parametrize("block_size", [8, 16, 64, 256])
def test_lengths_around_the_edges_of_blocks_and_tiles(block_size: int, dtype: torch.dtype, seed: int) -> None:
    edges = sorted({1, block_size - 1, block_size, block_size + 1, 31, 33} - {0})
    decode = make(seed, [(1, length) for length in edges], block_size=block_size, dtype=dtype)
    assert_close(decode, attend(decode))
    chunks = make(seed, [(min(n, 40), length) for length in edges for n in (2, length)], (2, 1), 64, block_size, dtype)
    assert_close(chunks, attend(chunks))


@each_dtype
@pytest.mark.parametrize("splits", [1, 2, 3, 8])
def test_splits_add_up(splits: int, dtype: torch.dtype, seed: int) -> None:
    """However often keys may be split: sequences of one split, of all of them, of any number between, and of none."""
    lengths = [(1, length) for length in (1, 0, 128, 255, 256, 300, 520)]
    case = make(seed, lengths, (4, 2), 64, dtype=dtype)
    assert_close(case, attend(case, splits=splits))


@pytest.mark.parametrize("splits", [1, 4])
def test_new_tokens_are_split_among_prompts_too(splits: int, seed: int) -> None:
    case = make(seed, [(1, 400), (20, 20), (2, 300), (0, 300), (1, 0), (1, 150)], (4, 2), 64)
    assert_close(case, attend(case, splits=splits))


@each_dtype
def test_skewed_and_random_lengths(dtype: torch.dtype, seed: int) -> None:
    dice = random.Random(seed)
    lengths = [1, 300, *(dice.randint(1, 60) for _ in range(6))]
    decode = make(seed, [(1, length) for length in lengths], dtype=dtype)
    assert_close(decode, attend(decode))
    mixed = make(seed, [(dice.choice([1, 1, dice.randint(1, length)]), length) for length in lengths[2:]], dtype=dtype)
    assert_close(mixed, attend(mixed))


def test_as_many_tokens_as_sequences_but_not_one_each(seed: int) -> None:
    """The shapes are those of a batch of decodes, and the host must not look at values to find out."""
    for lengths in ([(2, 5), (0, 40), (1, 70)], [(3, 3), (0, 0), (0, 9)], [(20, 33), *[(0, 2)] * 19]):
        case = make(seed, lengths)
        assert_close(case, attend(case))
        assert_close(case, attend(case, splits=3))


def test_tiles_of_queries_that_start_anywhere(seed: int) -> None:
    """Sequences shorter and longer than a tile of queries, so that tiles begin before, at and behind a boundary."""
    case = make(seed, [(n, n + extra) for n, extra in ((7, 0), (8, 9), (9, 40), (16, 0), (1, 50), (33, 3), (0, 4))])
    assert_close(case, attend(case))
    group = case.q.shape[1] // case.k_cache.shape[2]
    few = launch_plan(case.q, case.k_cache, case.block_tables).few
    for rows in (group, 4 * group, 32 * group):  # 1, 4 and 32 queries a tile
        assert_close(case, attend(case, many=few._replace(rows=max(16, rows))))


def test_more_sequences_than_one_look_at_query_starts_takes(seed: int) -> None:
    """find_sequence reads 256 of them at a time."""
    dice = random.Random(seed)
    lengths = [(3, 3), *((n, n) for n in (dice.choice([0, 0, 1]) for _ in range(270))), (2, 9)]
    case = make(seed, lengths, (1, 1), 16)
    assert len(case.q) != len(lengths)
    assert_close(case, attend(case))


def test_rows_that_see_nothing_are_zero_and_leave_their_neighbours_alone(seed: int) -> None:
    for lengths in ([(1, 20), (6, 6), (4, 30)], [(1, 20), (1, 6), (1, 30)]):
        case = make(seed, lengths)
        alone, starts, at = attend(case), case.query_starts.tolist(), case.block_tables
        # A sequence without keys, as long as its neighbour, before the second.
        n = starts[2] - starts[1]
        case.q = torch.cat([case.q[: starts[1]], torch.randn(n, 4, 64), case.q[starts[1] :]])
        case.block_tables = torch.cat([at[:1], torch.full_like(at[:1], -1), at[1:]])
        case.seq_lens = torch.tensor([lengths[0][1], 0, lengths[1][1], lengths[2][1]], dtype=torch.int32)
        case.query_starts = torch.tensor([0, starts[1], starts[1] + n, starts[2] + n, starts[3] + n]).int()
        out = attend(case)
        assert torch.equal(out[starts[1] : starts[1] + n], torch.zeros(n, 4, 64))
        assert torch.equal(torch.cat([out[: starts[1]], out[starts[1] + n :]]), alone)


def test_more_queries_than_keys_leaves_the_first_rows_zero(seed: int) -> None:
    case = make(seed, [(5, 3), (1, 9), (40, 20)])
    out = attend(case)
    assert torch.equal(out[:2], torch.zeros(2, 4, 64))
    assert torch.equal(out[6:26], torch.zeros(20, 4, 64))
    assert_close(case, out)


def test_a_batch_of_nothing() -> None:
    for lengths in ([], [(0, 0)], [(0, 5)]):
        assert attend(make(0, lengths)).shape == (0, 4, 64)


@pytest.mark.parametrize("sign", [1, -1])
def test_scores_of_a_million(sign: int, seed: int) -> None:
    """Multiples of 64 up to 2^20 are exact in fp32, and either equal or far apart: no overflow, no NaN, no rounding.

    (Scores of that size that lie a few units apart would be rounded: the kernels work with score x log2(e).)
    """
    for lengths in ([(1, 40), (9, 9), (3, 35)], [(1, 40), (1, 300), (1, 1)]):
        case = make(seed, lengths)
        rng = torch.Generator().manual_seed(seed)
        case.q = sign * 64.0 * torch.randint(1, 3, case.q.shape, generator=rng)
        for b, length in enumerate(case.seq_lens.tolist()):
            case.keys[b] = torch.randint(100, 129, case.keys[b].shape, generator=rng).float()
            for position in range(length):
                case.k_cache[case.block_tables[b, position // 16], position % 16] = case.keys[b][position]
        for splits in (1, 2, 3):
            assert_close(case, attend(case, scale=1.0, splits=splits), scale=1.0)


def test_the_largest_score_comes_last_or_first() -> None:
    for order in (1, -1):
        case = make(0, [(1, 48)], (1, 1), block_size=8)
        case.q.fill_(1.0)
        case.keys[0] = (torch.arange(48).float() // 8 * 1000 * order / 64)[:, None, None].expand(48, 1, 64).clone()
        for position in range(48):
            case.k_cache[case.block_tables[0, position // 8], position % 8] = case.keys[0][position]
        assert_close(case, attend(case, scale=1.0), scale=1.0)


def test_the_scale_is_one_over_root_d_unless_given(seed: int) -> None:
    case = make(seed, [(2, 20)])
    assert torch.equal(attend(case), attend(case, scale=64**-0.5))
    assert_close(case, attend(case, scale=0.3), scale=0.3)


def test_inputs_with_strides(seed: int) -> None:
    """Queries as a model's hook hands them over, heads before tokens, and a table cut out of a wider one."""
    case = make(seed, [(1, 20), (6, 6)])
    q, k, v, tables, lens, starts = arguments(case)
    strided = q.transpose(0, 1).contiguous().transpose(0, 1)
    wide = torch.cat([tables, torch.full_like(tables, -1)], 1)[:, : tables.shape[1]]
    assert not strided.is_contiguous()
    assert not wide.is_contiguous()
    out = attention.triton_attention(strided, k, v, wide, lens.long(), starts.long())
    assert out.is_contiguous()
    assert torch.equal(out.cpu(), attend(case))


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=ragged())
def test_any_ragged_batch(shape: tuple[list[tuple[int, int]], tuple[int, int], int, int], seed: int) -> None:
    lengths, heads, dim, block_size = shape
    case = make(seed, lengths, heads, dim, block_size)
    # Of a handful of numbers torch may get all right by luck, so this is no question of errors but of bugs.
    torch.testing.assert_close(attend(case).double(), case.dense(torch.float64), atol=2e-5, rtol=2e-5)


# Plans, names and what is refused -------------------------------------------------------------------------------


def test_plans_depend_on_shapes_and_stay_within_bounds() -> None:
    k_cache = torch.empty(1, 16, 2, 64)
    for batch in (1, 2, 7, 64, 300):
        for pages in (1, 16, 1000):
            tables = torch.empty(batch, pages, dtype=torch.int32)
            decode = launch_plan(torch.empty(batch, 14, 64), k_cache, tables)
            assert decode.many is None
            assert 1 <= decode.splits <= 64
            assert decode.splits == 1 or (decode.splits - 1) * 128 < pages * 16
            ragged_plan = launch_plan(torch.empty(batch + 100, 14, 64), k_cache, tables)
            assert ragged_plan.many is not None
            assert ragged_plan.splits <= decode.splits


def test_triton_by_name() -> None:
    assert get_backend("triton") is attention.triton_attention
    fastest = fastest_backend(torch.device(DEVICE), verbose=False)
    assert fastest is (BACKENDS["torch"] if DEVICE == "cpu" else attention.triton_attention)


def test_one_new_token_each_by_name(seed: int) -> None:
    case = make(seed, [(1, length) for length in (1, 15, 16, 17, 64)], (14, 2))
    q, k, v, tables, lens, _ = arguments(case)
    assert_close(case, paged_decode(q, k, v, tables, lens, backend="triton").cpu())


def test_what_the_kernels_refuse() -> None:
    case = make(0, [(1, 20), (2, 5)])
    q, k, v, tables, lens, starts = arguments(case)
    run = attention.triton_attention
    with pytest.raises(ValueError, match=r"one dtype, float32, float16 or bfloat16, got torch\.float64"):
        run(q.double(), k.double(), v.double(), tables, lens, starts)
    with pytest.raises(ValueError, match=r"one dtype.*got torch\.float32, torch\.float32 and torch\.float16"):
        run(q, k, v.half(), tables, lens, starts)
    with pytest.raises(ValueError, match="contiguous caches"):
        run(q, k[:, ::2], v[:, ::2], tables, lens, starts)
    for scale in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="scale must be positive"):
            run(q, k, v, tables, lens, starts, scale)


def test_triton_is_imported_when_asked_for_and_compiled_kernels_name_the_way_out() -> None:
    code = """if True:
        import os, sys, torch
        import pagedlab.attention as attention
        assert "triton" not in sys.modules
        os.environ["TRITON_INTERPRET"] = "0"
        t = torch.zeros(1, 1, 16)
        cache, table = torch.zeros(1, 16, 1, 16), torch.zeros(1, 1, dtype=torch.int32)
        try:
            attention.paged_decode(t, cache, cache, table, torch.ones(1, dtype=torch.int32), backend="triton")
        except ValueError as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "set TRITON_INTERPRET=1" in done.stdout


# Writing and moving KV ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("heads", "dim"), [(2, 64), (3, 80), (1, 8)])
def test_write_by_slot(heads: int, dim: int) -> None:
    k, v = torch.randn(2, heads, 5, dim, device=DEVICE).transpose(1, 2)  # as a model's hook hands them over
    caches = [torch.full((4, 8, heads, dim), torch.nan, device=DEVICE) for _ in range(2)]
    slots = torch.tensor([3, -1, 31, 0, 9], device=DEVICE)
    write_kv(k, v, *caches, slots)
    for cache, new in zip(caches, (k, v), strict=True):
        expected = torch.full((32, heads, dim), torch.nan, device=DEVICE)
        expected[[3, 31, 0, 9]] = new[[0, 2, 3, 4]]
        torch.testing.assert_close(cache.flatten(0, 1), expected, rtol=0, atol=0, equal_nan=True)
    write_kv(k[:0], v[:0], *caches, slots[:0])
    with pytest.raises(ValueError, match=r"slots \[T\]"):
        write_kv(k, v, *caches, slots[:3])
    with pytest.raises(ValueError, match="contiguous caches"):
        write_kv(k, v, *(cache[:, ::2] for cache in caches), slots)


@pytest.mark.parametrize("shape", [(2, 6, 8, 3, 80), (1, 6, 16, 2, 64)])
def test_copy_blocks_in_every_layer(shape: tuple[int, ...]) -> None:
    """One source may serve many, as in copy-on-write, and all other blocks stay as they are."""
    cache = torch.randn(2, *shape, device=DEVICE)
    expected = cache.clone()
    expected[:, :, [1, 2, 4]] = cache[:, :, [0, 0, 5]]
    copy_blocks(*cache, [0, 0, 5], [1, 2, 4])
    assert torch.equal(cache, expected)
    copy_blocks(*cache, [], [])
    assert torch.equal(cache, expected)


def test_copies_that_are_refused_change_nothing() -> None:
    cache = torch.randn(2, 1, 4, 8, 1, 16, device=DEVICE)
    before = cache.clone()
    for source, destination, message in (
        ([0, 1], [1, 2], r"blocks \[1\] would be read and written at once"),
        ([0, 1], [2, 2], "different destinations"),
        ([0], [1, 2], "1 blocks need as many"),
        ([0], [4], r"there are 4 blocks, and \[4\] are not among them"),
        ([-1], [2], "there are 4 blocks"),
    ):
        with pytest.raises(ValueError, match=message):
            copy_blocks(*cache, source, destination)
    for keys, values in ((cache[0, :, ::2], cache[1]), (cache[0], cache[1, :, ::2])):
        with pytest.raises(ValueError, match="contiguous caches"):
            copy_blocks(keys, values, [0], [1])
    assert torch.equal(cache, before)


# The ladder of notebook 07 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rung", ladder.RUNGS)
@pytest.mark.parametrize("heads", [(4, 2), (7, 1)])
def test_every_rung_gives_attention(rung: str, heads: tuple[int, int], seed: int) -> None:
    case = make(seed, [(1, length) for length in (1, 16, 37, 300)], heads, 64)
    q, k, v, tables, lens, _ = arguments(case)
    assert_close(case, ladder.RUNGS[rung](q, k, v, tables, lens).cpu())


def test_rungs_say_what_they_leave_out() -> None:
    case = make(0, [(1, 20)], (4, 2), 80)
    q, k, v, tables, lens, _ = arguments(case)
    with pytest.raises(ValueError, match="powers of two, got head_dim 80"):
        ladder.RUNGS["rung 1, one page at a time"](q, k, v, tables, lens)


def test_plan_is_what_notebooks_change() -> None:
    case = make(0, [(1, 600)], (4, 2), 64)
    q, k, _, tables, *_ = arguments(case)
    plan = launch_plan(q, k, tables)
    assert isinstance(plan, Plan)
    assert plan._replace(splits=2).splits == 2
