"""Drawing tokens: right in distribution, repeatable, and no matter who else is in the batch."""

from dataclasses import FrozenInstanceError, fields
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

MASK = (1 << 64) - 1


def draws(logits, count, **params):
    """`count` draws from one row of logits, with numbers that lie evenly."""
    numbers = [(i + 0.5) / count for i in range(count)]
    return sample_rows(logits.expand(count, -1), [SamplingParams(**params)] * count, numbers)


LOGITS = torch.tensor([0.3, 2.0, -1.0, 1.5, 0.0, 2.2, -0.5, 1.0])


# The draws themselves -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.5, 1e6])
def test_draws_follow_the_softmax(temperature):
    shares = draws(LOGITS, 2000, temperature=temperature).bincount(minlength=len(LOGITS)).double() / 2000
    torch.testing.assert_close(shares, torch.softmax(LOGITS.double() / temperature, 0), rtol=0, atol=1 / 2000)


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


@pytest.mark.parametrize(
    ("asked", "drawn"),
    [
        *(({"temperature": temperature}, {5}) for temperature in (0, 1e-3, 1e-30, 1e-308, 5e-324)),
        ({"temperature": 1e300, "top_k": 2}, {1, 5}),
        ({"temperature": 1.0, "min_p": 1.0}, {5}),
    ],
    ids=str,
)
def test_extreme_parameters(asked, drawn):
    """And the logits stay as they are."""
    for logits in (LOGITS * 20, LOGITS * 20 - 1e4):
        before = logits.clone()
        assert set(draws(logits, 200, **asked).tolist()) == drawn
        assert torch.equal(logits, before)


def test_temperature_0_takes_the_first_of_equals():
    token = sample_rows(torch.ones(1, 9), [SamplingParams()], [0.9])
    assert (token.item(), token.dtype) == (0, torch.int64)


LIMITS = [
    (0, 1, 0),
    (3, 1, 0),
    (0, 0.5, 0),
    (5, 0.9, 0.1),
    (0, 1, 0.3),
    (0, 0.1, 0),
    (99, 0.99, 0),
]  # top_k, top_p, min_p


@given(data=st.data(), number=st.integers(0, 2**31))
def test_a_draw_does_not_depend_on_its_neighbours(data, number):
    """Any batch, with greedy rows among the others: each row as if it were alone."""
    rng = torch.Generator().manual_seed(number)
    rows = data.draw(st.integers(1, 7))
    logits = torch.randn(rows, 30, generator=rng) * 3
    params = [
        SamplingParams(temperature=data.draw(st.sampled_from([0.0, 0.7, 1.5])), top_k=k, top_p=p, min_p=m)
        for k, p, m in data.draw(st.permutations(LIMITS))[:rows]
    ]
    numbers = torch.rand(rows, generator=rng).tolist()
    together = sample_rows(logits, params, numbers)
    alone = [sample_rows(logits[i : i + 1], params[i : i + 1], numbers[i : i + 1]) for i in range(rows)]
    assert torch.equal(together, torch.cat(alone))


# The random numbers -------------------------------------------------------------------------------------------


def splitmix64(state):
    """One output of splitmix64 in Python's own integers, from the published constants."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_uniform_is_splitmix64_of_seed_and_position():
    """The published first outputs for seed 1234567, and then ours."""
    states = [(1234567 + i * 0x9E3779B97F4A7C15) & MASK for i in range(3)]
    assert [*map(splitmix64, states)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    for seed in (0, 1, 2**62 + 5, 2**70):
        for position in (0, 1, 2**40):
            expected = (splitmix64((splitmix64(seed % 2**63) + position) & MASK) >> 11) * 2.0**-53
            assert uniform(seed, position) == expected


def test_the_whole_vocabulary_can_be_drawn():
    """No index beyond the end, however large the vocabulary and whatever u, and none without a probability."""
    logits = torch.zeros(3, 151_936)
    logits[2, 0] = -torch.inf
    tokens = sample_rows(logits, [SamplingParams(temperature=1.0)] * 3, [0.0, 1 - 2**-53, 0.0])
    assert tokens.tolist() == [0, 151_935, 1]


# Parameters -----------------------------------------------------------------------------------------------------


def test_numbers_of_other_libraries_become_pythons():
    """NumPy's whole numbers overflow where Python's do not."""
    whole, real = np.int8(100), np.float32(0.5)
    params = SamplingParams(whole, real, whole, real, n=whole, seed=np.int64(2**63 - 1), min_p=Fraction(1, 2))
    assert {type(v) for v in (params.max_tokens, params.top_k, params.n, params.seed)} == {int}
    assert {type(v) for v in (params.temperature, params.top_p, params.min_p)} == {float}
    assert (params.seed, params.min_p) == (2**63 - 1, 0.5)


def test_parameters_are_hashable_and_cannot_be_changed():
    one, same, other = (SamplingParams(3, stop=["a"], adjust=Penalties(1.1, bias={1: b})) for b in (2.0, 2.0, 2.5))
    assert one == same != other
    assert len({one, same, other, SamplingParams(), SamplingParams()}) == 3
    with pytest.raises(FrozenInstanceError):
        one.temperature = 1


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
        "max_tokens": 5,
        "temperature": 0.7,
        "top_k": 3,
        "top_p": 0.5,
        "n": 3,
        "stop": "x",
        "ignore_eos": True,
        "seed": 5,
        "adjust": Penalties(1.1, 0.1, 0.1),
    }
    host = [{"logprobs": 0}, {"min_p": 0.1}, {"adjust": Penalties(bias={1: 1.0})}, {"adjust": lambda *row: row[0]}]
    assert {*fast, *(name for one in host for name in one)} == {each.name for each in fields(SamplingParams)}
    assert not wants_host(SamplingParams(**fast))
    assert [wants_host(SamplingParams(**one)) for one in host] == [True] * 4
