"""The sampling kernels against the exact distribution: every sample is the token whose share of it `u` falls into."""

import random

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pagedlab import SamplingParams

pytest.importorskip("triton")

from pagedlab.kernels.runtime import tl, triton
from pagedlab.recipes import penalties as recipe
from pagedlab.sampling import probabilities, uniform
from pagedlab_fast.asked import MAX_TOP_K
from pagedlab_fast.kernels.penalties import Penalties
from pagedlab_fast.kernels.sampling import CHUNK, GROUP, triton_sample
from pagedlab_fast.kernels.sampling import uniform as kernel_uniform

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture
def generator(seed):
    return torch.Generator().manual_seed(seed)


@triton.jit
def uniform_kernel(seeds, positions, out):
    row = tl.program_id(0)
    tl.store(out + row, kernel_uniform(tl.load(seeds + row), tl.load(positions + row)))


def on_the_device(seeds, positions):
    """What the kernels compute of each pair, fp32."""
    out = torch.empty(len(seeds), device=DEVICE)
    uniform_kernel[(len(seeds),)](seeds.to(DEVICE), positions.to(DEVICE), out)
    return out.cpu()


def numbers(seeds, positions):
    """`uniform` of each pair, float64."""
    pairs = zip(seeds.tolist(), positions.tolist(), strict=True)
    return torch.tensor([uniform(*pair) for pair in pairs], dtype=torch.float64)


def sampled(logits, temperature, u, top_k=0, top_p=1.0, min_p=None, penalties=None):
    """`triton_sample` on the device, its tokens on the host. A limit may be that of every row."""
    rows = len(logits)

    def column(value):
        return torch.as_tensor(value, device=DEVICE).expand(rows).contiguous()

    least = None if min_p is None else column(min_p)
    columns = map(column, (temperature, top_k, top_p, u))
    return triton_sample(logits.to(DEVICE), *columns, penalties, least).cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("vocabulary", [1, 5, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17])
def test_draws_lie_where_u_falls(vocabulary, dtype, generator):
    rows = 24
    logits = (torch.randn(rows, vocabulary, generator=generator) * 3).to(dtype)
    logits[:, ::7] = -torch.inf if vocabulary > 1 else 0
    logits[:, vocabulary // 2] = 4
    temperature = torch.tensor([0.0, 0.6, 1.0, 5.0, 1e-300, 0.05, 1e300, 9.0] * 3, dtype=torch.float64)
    u = torch.rand(rows, generator=generator, dtype=torch.float64)
    u[:6] = torch.tensor([0.0, 0, 0, 1 - 2**-53, 1 - 2**-53, 1 - 2**-53])
    tokens = sampled(logits, temperature, u)
    drawn = logits.gather(1, tokens[:, None])
    assert drawn.isfinite().all(), "a token was drawn that has no probability"
    probs = (logits.double() / temperature.clamp(min=1e-300)[:, None]).softmax(1)
    upto = probs.cumsum(1).gather(1, tokens[:, None])[:, 0]
    share = probs.gather(1, tokens[:, None])[:, 0]
    is_greedy = temperature < 1e-30
    assert torch.equal(tokens[is_greedy], logits[is_greedy].float().argmax(1))
    assert (is_greedy | (upto - share - 1e-5 <= u) & (u <= upto + 1e-5)).all()


def test_uniform_is_the_same_hash(generator):
    seeds = torch.randint(2**63 - 1, (40,), generator=generator)
    positions = torch.randint(2**31, (40,), generator=generator)
    assert torch.equal(on_the_device(seeds, positions), numbers(seeds, positions).float())
    logits, one = torch.randn(40, 50, generator=generator).to(DEVICE), torch.ones(40, device=DEVICE)
    spread = torch.stack((positions, seeds), 1).to(DEVICE)[:, 1]
    own = triton_sample(logits, one, one * 0, one, None, seeds=spread, positions=positions.to(DEVICE))
    assert torch.equal(own.cpu(), sampled(logits, 1.0, on_the_device(seeds, positions + 1).to(DEVICE)))


def test_no_draw_is_rounded_up_to_1():
    """Then the last token would be taken, however unlikely it is. The exact draw here is 1 - 4.6e-9."""
    seeds, positions = torch.zeros(1, dtype=torch.int64), torch.tensor([34731482])
    assert numbers(seeds, positions).float().item() == 1
    assert on_the_device(seeds, positions).item() == 1 - 2**-24


def test_no_rows_and_a_strided_row(generator):
    assert sampled(torch.zeros(0, 9), 0.0, 0.0).shape == (0,)
    logits = torch.randn(3, 20, generator=generator).to(DEVICE)
    for strided in (logits[:, ::2], logits[:, :10]):
        assert torch.equal(sampled(strided, 0.0, 0.0), strided.argmax(1).cpu())


def assert_each_kept_token_has_its_share(logits, temperature=1.0, **limits):
    """A `u` at the start of a kept token's share samples that token, and so does one at the end of the next one's.

    A token too many would move the shares behind it, and a token too few has none.
    """
    probs = probabilities(logits[None], [SamplingParams(temperature=temperature, **limits)])[0]
    kept = probs.nonzero()[:, 0]
    shares = probs[kept]
    kept, ends, shares = (values[shares > 1e-5] for values in (kept, shares.cumsum(0), shares))
    u = ends - shares * torch.tensor([0.97, 0.03]).repeat(len(kept))[: len(kept)]
    limits["top_k"] = min(limits.get("top_k", 0), MAX_TOP_K)
    rows = logits.expand(len(u), -1)
    assert sampled(rows, temperature, u, **limits).tolist() == kept.tolist(), limits


INF = float("inf")
VALUES = [
    [1.0],
    [-0.0, 0.0],
    [-3.0, -3.5, -1.0],
    [1 + i / 128 for i in range(-4, 12)],  # nearly all numbers of bf16 in this range
    [-INF, *(i * 0.37 % 5 for i in range(30))],
]


@settings(max_examples=60, phases=[Phase.generate])  # in the interpreter, shrinking takes minutes
@given(data=st.data())
def test_limits_keep_what_they_keep_in_torch(data):
    """Many logits are equal, or neighbours in bf16, also at the cut. Likely ones lie in several chunks."""
    size = data.draw(st.sampled_from([5, 40, 3 * CHUNK, 2 * GROUP * CHUNK - 3]))
    logits = torch.full((size,), data.draw(st.sampled_from([-50.0, -INF])))
    likely = data.draw(st.lists(st.tuples(st.integers(0, size - 1), st.integers(0, 29)), min_size=1, max_size=40))
    values = data.draw(st.sampled_from(VALUES))
    for at, i in likely:
        logits[at] = values[i % len(values)]
    logits[likely[0][0]] = values[-1]
    limits = {
        "temperature": data.draw(st.sampled_from([1.0, 0.4, 3.0, 1e300])),
        "top_k": data.draw(st.sampled_from([0, 1, 3, 7, 30, 2**31])),
        "top_p": data.draw(st.sampled_from([1.0, 0.618, 0.973, 1e-300])),
        "min_p": data.draw(st.sampled_from([0.0, 0.0, 0.57, 1.0])),
    }
    for dtype in (torch.float32, torch.bfloat16):
        assert_each_kept_token_has_its_share(logits.to(dtype), **limits)


@pytest.mark.parametrize(
    ("logits", "limits"),
    [
        # In fp32, kept / tokens * tokens is above `kept`: rounding keeps no token too many.
        *(([1.0] * tokens, {"top_p": kept / tokens}) for kept, tokens in ((7, 13), (15, 19), (11, 39))),
        ([2.5] * 30 + [2.0] * 7, {"top_p": 0.99, "min_p": 1.0}),
    ],
)
def test_limits_of_equal_logits(logits, limits):
    assert_each_kept_token_has_its_share(torch.tensor(logits), **limits)


def test_no_excluded_token_is_drawn_where_two_chunks_meet(generator):
    """Sums are rounded, so `u` may fall between the last token of a chunk and the first likely one of the next."""
    logits = torch.randn(GROUP + 2, CHUNK, generator=generator)
    logits[:, :100] = -torch.inf
    probs = logits.flatten().double().softmax(0)
    bounds = probs.view(-1, CHUNK).sum(1).cumsum(0)[:-1].float()
    u = torch.cat([bounds + step * bounds * 2**-24 for step in range(-4, 5)])
    tokens = sampled(logits.view(1, -1).expand(len(u), -1), 1.0, u)
    assert (probs[tokens] > 0).all()


def penalties_of(counts, rows, columns):
    return Penalties(*(torch.as_tensor(values).contiguous().to(DEVICE) for values in (counts, rows, columns)))


@pytest.mark.parametrize("vocabulary", [5, GROUP * CHUNK + 3])
@pytest.mark.parametrize("penalised", [False, True])
def test_a_row_that_is_not_finite_is_marked(vocabulary, penalised, generator):
    """A model in half precision may overflow. Its row gets -1, and the rows beside it get a token."""
    logits = torch.randn(7, vocabulary, generator=generator)
    logits[0], logits[1, 1], logits[2, -1] = torch.nan, torch.nan, torch.inf
    logits[3] = -torch.inf
    logits[4], logits[4, -1] = -torch.inf, torch.nan
    logits[5, 1:] = -torch.inf
    counts = torch.ones(7, vocabulary, dtype=torch.int32)
    penalties = penalties_of(counts, range(7), [[1.5] * 7, [0.5] * 7, [0.5] * 7]) if penalised else None
    for limits in ({}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}, {"top_k": 4, "top_p": 0.9, "min_p": 0.1}):
        for temperature in (0.0, 1.0):
            tokens = sampled(logits, temperature, 0.5, penalties=penalties, **limits)
            assert tokens[:6].tolist() == [-1] * 5 + [0]
            assert 0 <= tokens[6] < vocabulary


@pytest.mark.parametrize("limits", [{}, {"top_k": 20, "top_p": 0.9}, {"top_p": 0.8}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_penalised_rows_are_sampled_as_the_adjusted_logits(limits, dtype, generator, seed):
    """Beside rows without penalties; slots are in another order."""
    rng, rows, vocabulary = random.Random(seed), 8, CHUNK + 90
    logits = (torch.randn(rows, vocabulary, generator=generator) * 3).to(dtype)
    kinds = [(1.3, 0.0, 0.0), (1.0, 1.5, 0.5), (1e-38, 0.0, -0.5), (1.0, 0.0, 0.0)] * 2
    slots = torch.tensor([-1 if row % 4 == 3 else rows - 1 - row for row in range(rows)])
    counts = torch.full((rows, vocabulary), 99, dtype=torch.int32)
    exact = logits.to(torch.float32, copy=True)
    for row, (kind, slot) in enumerate(zip(kinds, slots, strict=True)):
        likely = exact[row].topk(40).indices.tolist()
        prompt, new = rng.choices(likely, k=30), rng.choices(likely, k=25)
        exact[row] = recipe.Penalties(*kind)(exact[row], prompt, new)
        if slot >= 0:
            counts[slot] = 2 * torch.bincount(torch.tensor(new), minlength=vocabulary).int()
            counts[slot, prompt] += 1
    penalties = penalties_of(counts, slots, torch.tensor(kinds).t())
    spread = penalties.counts_rows.repeat_interleave(8)[::8]  # as a column of a wider table
    for temperature in (0.0, 0.7):
        u = torch.rand(rows, generator=generator)
        tokens = sampled(logits, temperature, u, penalties=penalties._replace(counts_rows=spread), **limits)
        assert torch.equal(tokens, sampled(exact, temperature, u, **limits))
