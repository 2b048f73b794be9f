"""What only Triton's kernels have: plans, splits, tiles, strides and refusals.

tests/attention compares every backend on the same batches, the kernels among them.
"""

import math
import os
import random
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from support.attention_cases import DEVICE, KERNEL_DTYPES, make, nan_in_fresh_memory
from support.attention_cases import assert_as_close_as_torch as assert_close
from support.refused import refused

if find_spec("triton") is None:  # not importorskip: pagedlab chooses the interpreter before it imports triton
    pytest.skip("triton is not installed", allow_module_level=True)

from pagedlab_lessons.kernels07 import ladder

from pagedlab.kernels import attention
from pagedlab.kernels.plan import launch_plan

each_dtype = pytest.mark.parametrize("dtype", KERNEL_DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # -inf - -inf, in NumPy


@pytest.fixture(autouse=True)
def poison():
    with nan_in_fresh_memory():
        yield


def attend(case, scale=None, **changes):
    """The kernels' result on the CPU; `changes` are made to the plan that they would choose."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "launch_plan", lambda *shapes: launch_plan(*shapes)._replace(**changes))
        return attention.triton_attention(*case.arguments(DEVICE), scale).cpu()


def check(case, scale=None, **changes):
    assert_close(case, attend(case, scale, **changes), scale)


DECODES = [(1, length) for length in (1, 0, 128, 255, 256, 300, 520)]
MIXED = [(1, 400), (20, 20), (2, 300), (0, 300), (1, 0), (1, 255), (1, 256)]


@each_dtype
@pytest.mark.parametrize("splits", [1, 2, 3, 8])
@pytest.mark.parametrize("lengths", [DECODES, MIXED], ids=["decode", "mixed"])
def test_splits_add_up(splits, lengths, dtype, seed):
    """However often keys may be split: sequences of one split, of all of them, of any number between, and of none."""
    check(make(seed, lengths, dtype=dtype), splits=splits)


@pytest.mark.parametrize("lengths", [[(2, 5), (0, 40), (1, 70)], [(3, 3), (0, 0), (0, 9)], [(20, 33), *[(0, 2)] * 19]])
def test_as_many_tokens_as_sequences_but_not_one_each(lengths, seed):
    """The shapes are those of a batch of decodes, and the host must not look at values to find out."""
    case = make(seed, lengths)
    check(case)
    check(case, splits=3)


def test_tiles_of_queries_that_start_anywhere(seed):
    """Sequences shorter and longer than a tile of queries, so that tiles begin before, at and behind a boundary."""
    case = make(seed, [(n, n + extra) for n, extra in ((7, 0), (8, 9), (9, 40), (16, 0), (1, 50), (33, 3), (0, 4))])
    check(case)
    group = case.q.shape[1] // case.k_cache.shape[2]
    few = launch_plan(case.q, case.k_cache, case.block_tables).few
    for rows in (group, 4 * group, 32 * group):  # 1, 4 and 32 queries a tile
        check(case, many=few._replace(rows=max(16, rows)))


def test_more_sequences_than_one_look_at_query_starts_takes(seed):
    """find_sequence reads 256 of them at a time."""
    dice = random.Random(seed)
    lengths = [(3, 3), *((n, n) for n in (dice.choice([0, 0, 1]) for _ in range(270))), (2, 9)]
    check(make(seed, lengths, (1, 1), 16))


def test_inputs_with_strides(seed):
    """Queries as a model's hook hands them over, heads before tokens, and a table cut out of a wider one."""
    case = make(seed, [(1, 20), (6, 6)])
    q, k, v, tables, lens, starts = case.arguments(DEVICE)
    strided = q.transpose(0, 1).contiguous().transpose(0, 1)
    wide = torch.cat([tables, torch.full_like(tables, -1)], 1)[:, : tables.shape[1]]
    out = attention.triton_attention(strided, k, v, wide, lens.long(), starts.long())
    assert out.is_contiguous()
    assert torch.equal(out.cpu(), attend(case))


# Plans, names and what is refused -------------------------------------------------------------------------------


def plan_of(queries, batch, pages):
    return launch_plan(torch.empty(queries, 14, 64), torch.empty(1, 16, 2, 64), torch.empty(batch, pages).int())


@pytest.mark.parametrize("pages", [1, 16, 1000])
def test_plans_stay_within_bounds(pages):
    for batch in (1, 2, 7, 64, 300):
        decode, ragged = plan_of(batch, batch, pages), plan_of(batch + 100, batch, pages)
        assert (decode.many is None, ragged.many is None) == (True, False)
        assert 1 <= ragged.splits <= decode.splits <= 64
        assert (decode.splits - 1) * decode.min_split < pages * 16


@pytest.mark.parametrize(("heads", "dtype"), zip([(14, 2), (6, 2), (6, 2)], KERNEL_DTYPES, strict=False))
def test_only_long_sequences_are_split_where_programs_fill_the_card(heads, dtype, seed):
    """At the bound of two splits, beyond the largest number of splits, and idle rows. Splits are short, to be quick."""
    case = make(seed, [(1, length) for length in (1, 511, 512, 513, 1300)], heads, 80, dtype=dtype)
    plan = launch_plan(case.q, case.k_cache, case.block_tables)._replace(splits=4, min_split=256)
    assert plan.splits_long_only
    check(case, splits=4, min_split=256)


def test_what_the_kernels_refuse():
    q, k, v, *rest = make(0, [(1, 20), (2, 5)]).arguments(DEVICE)
    for args, message in [
        ((q.double(), k.double(), v.double(), *rest), r"one dtype, float32, float16 or bfloat16, got torch\.float64"),
        ((q, k, v.half(), *rest), "one dtype"),
        ((q, k[:, ::2], v[:, ::2], *rest), "contiguous caches"),
        *(((q, k, v, *rest, scale), "scale must be positive") for scale in (0.0, -1.0, math.nan)),
    ]:
        with refused(message):
            attention.triton_attention(*args)


def test_triton_is_imported_when_asked_for_and_compiled_kernels_name_the_way_out():
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here")
def test_without_a_gpu_kernels_are_interpreted_though_transformers_imports_triton_first():
    code = """if True:
        import sys, torch
        from pagedlab import LLM
        from pagedlab.attention import paged_decode
        LLM(verbose=False)
        assert "triton" in sys.modules
        cache, one = torch.zeros(1, 16, 1, 16), torch.ones(1, 1, dtype=torch.int32)
        paged_decode(cache[:, 0], cache, cache, one - 1, one[0], backend="triton")
    """
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)


# The ladder of notebook 07 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rung", ladder.RUNGS)
def test_every_rung_gives_attention(rung, seed):
    for heads in ((4, 2), (7, 1)):
        case = make(seed, [(1, length) for length in (1, 16, 37, 300)], heads)
        assert_close(case, ladder.RUNGS[rung](*case.arguments(DEVICE)[:5]).cpu())
