"""FP8 keys and values: how far rounding goes, and that nobody notices it but the model."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.fp8 import FP8, LARGEST, SMALLEST_SCALE, Quantised, dequantise, quantise, write

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
finite = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)


@st.composite
def vectors(draw):
    """A few vectors of one size, of numbers that may be as different as floats are."""
    dim = draw(st.integers(1, 12))
    rows = draw(st.lists(st.lists(finite, min_size=dim, max_size=dim), min_size=1, max_size=4))
    return torch.tensor(rows, dtype=torch.float32)


@given(vectors())
def test_a_number_moves_by_a_sixteenth_of_itself_or_by_a_thousandth_of_the_scale(x):
    stored = quantise(x)
    error = (dequantise(stored, torch.float64) - x.double()).abs()
    scale = stored.scales.double()[:, None]
    allowed = torch.maximum(x.double().abs() / 16, scale / 1024)
    assert (error <= allowed * (1 + 1e-5)).all()


@given(vectors())
def test_the_scale_takes_the_largest_number_to_the_largest_of_e4m3(x):
    stored = quantise(x)
    largest = x.abs().amax(dim=1)
    torch.testing.assert_close(stored.scales, (largest / LARGEST).clamp(min=SMALLEST_SCALE))
    assert (stored.values.float().abs().amax(dim=1)[largest > 1e-25] == LARGEST).all()


@given(vectors(), st.integers(-20, 20))
def test_a_power_of_two_changes_the_scale_alone(x, power):
    x = x.clamp(-1e20, 1e20)
    x[x.abs() < 1e-20] = 0
    if (x == 0).all():
        return
    few = x[x.abs().amax(dim=1) > 0]
    one, other = quantise(few), quantise(few * 2.0**power)
    assert torch.equal(one.values.view(torch.uint8), other.values.view(torch.uint8))
    assert torch.equal(one.scales * 2.0**power, other.scales)


@given(vectors())
def test_rounding_twice_is_rounding_once(x):
    once = dequantise(quantise(x), torch.float64)
    twice = dequantise(quantise(once), torch.float64)
    torch.testing.assert_close(twice, once, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_and_tiny_numbers_stay_finite(dtype):
    x = torch.tensor([[0.0, 0.0], [torch.finfo(dtype).smallest_normal, 0.0], [-0.0, 1.0]], dtype=dtype)
    back = dequantise(quantise(x), dtype)
    assert back.dtype == dtype
    assert back.isfinite().all()
    torch.testing.assert_close(back[[0, 2]], x[[0, 2]], rtol=1e-6, atol=0)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_a_number_that_is_not_finite_becomes_nan_and_leaves_other_vectors_alone(bad):
    back = dequantise(quantise(torch.tensor([[1.0, bad], [3.0, 1.5]])), torch.float32)
    assert back[0, 1].isnan()
    torch.testing.assert_close(back[1], torch.tensor([3.0, 1.5]))


def test_both_kinds_of_cache_are_written_and_indexed_alike():
    x = torch.randn(3, 2, 8)
    plain = torch.zeros(5, 2, 8)
    packed = Quantised(torch.zeros(5, 2, 8).to(FP8), torch.ones(5, 2))
    index = torch.tensor([4, 0, 2])
    write(plain, index, x)
    write(packed, index, x)
    assert torch.equal(plain[index], x)
    assert torch.equal(packed[index], dequantise(quantise(x), torch.float32))
    assert torch.equal(packed[[1, 3]], torch.zeros(2, 2, 8))
    assert torch.equal(packed[4, :1], dequantise(quantise(x[0, :1]), torch.float32))
