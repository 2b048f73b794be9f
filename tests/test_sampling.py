"""Drawing tokens: right in distribution, repeatable, and no matter who else is in the batch."""

import math
from dataclasses import FrozenInstanceError, fields, replace
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from pagedlab import SamplingParams
from pagedlab.recipes.penalties import Penalties
from pagedlab.sampling import probabilities, sample_rows, uniform
from pagedlab.sampling_params import request_seed
from pagedlab_fast.asked import wants_host
from support.refused import refused

MASK = (1 << 64) - 1


def draws(logits, count, seed, **params):
    """`count` draws from one row of logits, at as many positions."""
    rows = logits.expand(count, -1)
    return sample_rows(rows, [SamplingParams(**params)] * count, [uniform(seed, i) for i in range(count)])


def assert_distributed(tokens, probs):
    """Pearson's chi-square. Its bound is passed by chance less than once in a million runs."""
    expected = probs * len(tokens)
    counts = torch.bincount(tokens, minlength=len(probs)).double()
    assert counts[probs == 0].sum() == 0, "a token was drawn that has no probability"
    possible = probs > 0
    statistic = float(((counts - expected)[possible] ** 2 / expected[possible]).sum())
    freedom = int(possible.sum()) - 1
    # Wilson and Hilferty (1931): the cube root of chi-square over its freedom is nearly normal, and 4.9 sigma rare.
    bound = freedom * (1 - 2 / (9 * freedom) + 4.9 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < bound, f"chi-square {statistic:.1f} is above {bound:.1f} at {freedom} degrees of freedom"


LOGITS = torch.tensor([0.3, 2.0, -1.0, 1.5, 0.0, 2.2, -0.5, 1.0])


# The draws themselves -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_draws_follow_the_softmax(temperature, seed):
    probs = torch.softmax(LOGITS.double() / temperature, 0)
    assert_distributed(draws(LOGITS, 20_000, seed, temperature=temperature), probs)


@pytest.mark.parametrize(("top_p", "kept"), [(0.1, 1), (0.7, 7), (0.8, 8), (0.9, 9), (0.95, 10)])
def test_top_p_keeps_no_equal_token_too_many(top_p, kept):
    """Sums of ten times 0.1 are not exact in float64."""
    probs = probabilities(torch.zeros(1, 10), [SamplingParams(temperature=1.0, top_p=top_p)])[0]
    assert int((probs > 0).sum()) == kept


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_the_limits_together_keep_what_transformers_keeps(temperature, seed):
    """In its order: temperature, top_k, top_p, min_p."""
    logits = torch.randn(60, generator=torch.Generator().manual_seed(seed)) * 3
    for top_k, top_p, min_p in product((0, 1, 5, 30), (0.3, 0.9, 0.99, 1.0), (0.0, 0.01, 0.05, 0.3, 1.0)):
        scores = logits[None].double() / temperature
        if top_k:
            scores = hf.TopKLogitsWarper(top_k)(None, scores)
        if top_p < 1:
            scores = hf.TopPLogitsWarper(top_p)(None, scores)
        if min_p:
            scores = hf.MinPLogitsWarper(min_p)(None, scores)
        asked = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        torch.testing.assert_close(probabilities(logits[None], [asked]), scores.softmax(1))


def test_min_p_leaves_neighbours_and_the_likeliest_token_alone(seed):
    logits = torch.randn(3, 20, generator=torch.Generator().manual_seed(seed))
    params = [SamplingParams(temperature=t, min_p=min_p, seed=0) for t, min_p in ((1.0, 0.0), (0.0, 0.5), (1.0, 1.0))]
    tokens = sample_rows(logits, params, [0.3, 0.5, 0.7])
    plain = sample_rows(logits[:1], params[:1], [0.3])
    assert tokens.tolist() == [int(plain), *logits[1:].argmax(1).tolist()]


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-308, 5e-324])
def test_next_to_no_temperature_is_the_likeliest(temperature, seed):
    assert set(draws(LOGITS * 20, 200, seed, temperature=temperature).tolist()) == {5}
    assert set(draws(LOGITS * 20 - 1e4, 200, seed, temperature=temperature).tolist()) == {5}


def test_temperature_0_is_the_likeliest_and_the_first_of_equals(seed):
    logits = torch.randn(40, 50, generator=torch.Generator().manual_seed(seed))
    greedy = [SamplingParams()] * 40
    tokens = sample_rows(logits, greedy, [0.5] * 40)
    assert torch.equal(tokens, logits.argmax(1))
    assert tokens.dtype == torch.int64
    assert sample_rows(torch.ones(1, 9), greedy[:1], [0.9]).item() == 0


def test_huge_temperature_is_uniform_and_keeps_to_top_k(seed):
    assert_distributed(draws(LOGITS, 20_000, seed, temperature=1e6), torch.full((8,), 1 / 8, dtype=torch.float64))
    assert set(draws(LOGITS, 500, seed, temperature=1e300, top_k=2).tolist()) == {1, 5}


def test_logits_stay_as_they_are(seed):
    logits = torch.randn(4, 20)
    before = logits.clone()
    sample_rows(logits, [SamplingParams(temperature=1.0, top_k=3)] * 4, [uniform(seed, i) for i in range(4)])
    assert torch.equal(logits, before)


@given(data=st.data(), number=st.integers(0, 2**31))
def test_a_draw_does_not_depend_on_its_neighbours(data, number):
    """Any batch, in any order, with greedy rows among the others: each row as if it were alone."""
    rng = torch.Generator().manual_seed(number)
    rows = data.draw(st.integers(1, 8))
    logits = torch.randn(rows, 30, generator=rng) * 3
    params = [
        SamplingParams(temperature=data.draw(st.sampled_from([0.0, 0.7, 1.5])), top_k=k, top_p=p)
        for k, p in zip([0, 3, 0, 5, 1, 0, 30, 99][:rows], [1.0, 1.0, 0.5, 0.9, 1.0, 0.1, 1.0, 0.99], strict=False)
    ]
    numbers = torch.rand(rows, generator=rng).tolist()
    together = sample_rows(logits, params, numbers)
    alone = [sample_rows(logits[i : i + 1], params[i : i + 1], numbers[i : i + 1]) for i in range(rows)]
    assert torch.equal(together, torch.cat(alone))
    order = data.draw(st.permutations(range(rows)))
    shuffled = sample_rows(logits[order], [params[i] for i in order], [numbers[i] for i in order])
    assert torch.equal(shuffled, together[order])


# The random numbers -------------------------------------------------------------------------------------------


def splitmix64(state):
    """One output of splitmix64 in Python's own integers, from the published constants."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_splitmix64_gives_its_published_first_outputs():
    """The first outputs for seed 1234567 in the reference implementation's well-known test."""
    state, outputs = 1234567, []
    for _ in range(3):
        outputs.append(splitmix64(state))
        state = (state + 0x9E3779B97F4A7C15) & MASK
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@given(st.integers(0, 2**70), st.integers(0, 2**40))
def test_uniform_is_splitmix64_of_seed_and_position(seed, position):
    expected = (splitmix64((splitmix64(seed % 2**63) + position) & MASK) >> 11) * 2.0**-53
    assert uniform(seed, position) == expected


def test_the_whole_vocabulary_can_be_drawn(seed):
    """No index beyond the end, however large the vocabulary and whatever u."""
    logits = torch.zeros(151_936)
    tokens = draws(logits, 40, seed, temperature=1.0)
    assert tokens.min() >= 0
    assert tokens.max() < len(logits)
    assert tokens.max() - tokens.min() > 75_000


# What is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("temperature", 10**309),
        *(("seed", bad) for bad in (-1, 1.5, "7", True)),
        *(("stop", bad) for bad in ("", ("a", ""), (1,), 5, b"end", [b"end"])),
    ],
)
def test_bad_parameters_are_named(name, bad):
    """tests/test_arguments.py has the other parameters."""
    with refused(name):
        SamplingParams(**{name: bad})


def test_several_texts_at_temperature_0_make_no_sense():
    with refused("would all be the same: set a temperature above 0"):
        SamplingParams(n=2)


def test_numbers_of_other_libraries_become_pythons():
    """NumPy's whole numbers overflow where Python's do not."""
    whole, real = np.int8(100), np.float32(0.5)
    params = SamplingParams(whole, real, whole, real, n=whole, seed=np.int64(2**63 - 1), min_p=Fraction(1, 2))
    assert {type(v) for v in (params.max_tokens, params.top_k, params.n, params.seed)} == {int}
    assert {type(v) for v in (params.temperature, params.top_p, params.min_p)} == {float}
    assert (params.seed, params.min_p) == (2**63 - 1, 0.5)


def test_parameters_are_hashable():
    one, same, other = (SamplingParams(3, stop=["a"], adjust=Penalties(1.1, bias={1: b})) for b in (2.0, 2.0, 2.5))
    assert one == same != other
    assert hash(one) == hash(same)
    assert len({one, same, other, SamplingParams(), SamplingParams()}) == 3


def test_no_two_engines_and_requests_draw_with_the_same_seed():
    engine_seeds = [*range(40), *(1 << k for k in range(6, 70)), *(k + (1 << 23) for k in range(40))]
    seeds = [request_seed(seed, request_id) for seed in {*engine_seeds} for request_id in range(200)]
    assert len({*seeds}) == len(seeds)
    assert all(0 <= seed < 1 << 63 for seed in seeds)
    assert not {*seeds} & {i << 20 for i in range(200)}, "a request without a seed draws like one with a round seed"
    far = sorted(seeds)
    assert min(b - a for a, b in pairwise(far)) > 1_000, "sample i of a request draws with seed + i"


def test_what_the_host_must_sample():
    fast = {
        "max_tokens": 5, "temperature": 0.7, "top_k": 3, "top_p": 0.5, "n": 3, "stop": "x", "ignore_eos": True,
        "seed": 5, "adjust": Penalties(1.1, 0.1, 0.1),
    }  # fmt: skip
    host = [{"logprobs": 0}, {"min_p": 0.1}, {"adjust": Penalties(bias={1: 1.0})}, {"adjust": lambda *row: row[0]}]
    assert {*fast, *(name for one in host for name in one)} == {each.name for each in fields(SamplingParams)}
    assert not wants_host(SamplingParams(**fast))
    assert [wants_host(SamplingParams(**one)) for one in host] == [True] * 4


def test_parameters_cannot_be_changed():
    params = SamplingParams(stop="end")
    with pytest.raises(FrozenInstanceError):
        params.temperature = 1
    assert replace(params, temperature=1) == SamplingParams(temperature=1, stop="end")
