"""The sampling kernels against the exact distribution: every sample is the token whose share of it `u` falls into."""

import random
from types import SimpleNamespace

import pytest
import torch

from pagedlab import SamplingParams

pytest.importorskip("triton")

from pagedlab.kernels.runtime import power_of_two, tl, triton
from pagedlab.recipes import penalties as recipe
from pagedlab.sampling import probabilities, uniform
from pagedlab_fast.asked import MAX_TOP_K
from pagedlab_fast.kernels.limits import SKIPPED_BITS, cut_kernel
from pagedlab_fast.kernels.penalties import Penalties
from pagedlab_fast.kernels.sampling import CHUNK, COLDEST, GROUP, chunk_kernel, triton_sample
from pagedlab_fast.kernels.sampling import uniform as kernel_uniform

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


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
    """`triton_sample` on the device, its tokens on the host. Limits are those of every row."""
    rows = len(logits)
    columns = (temperature, torch.full((rows,), top_k), torch.full((rows,), top_p), u)
    least = None if min_p is None else torch.full((rows,), min_p, device=DEVICE)
    on_device = [column.to(DEVICE) for column in columns]
    return triton_sample(logits.to(DEVICE), *on_device, penalties, least).cpu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("vocabulary", [1, 5, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17])
def test_draws_lie_where_u_falls(vocabulary, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = 24
    logits = (torch.randn(rows, vocabulary, generator=generator) * 3).to(dtype)
    logits[:, ::7] = -torch.inf if vocabulary > 1 else 0
    logits[:, vocabulary // 2] = 4
    temperature = torch.tensor([0.0, 0.6, 1.0, 5.0, 1e-300, 0.05, 1e300, 9.0] * 3, dtype=torch.float64)
    u = numbers(torch.full((rows,), seed), torch.arange(rows))
    u[:6] = torch.tensor([0.0, 0, 0, 1 - 2**-53, 1 - 2**-53, 1 - 2**-53])
    tokens = sampled(logits, temperature, u)
    exact = logits.double()
    for row in range(rows):
        token = int(tokens[row])
        assert exact[row, token] > -torch.inf, "a token was drawn that has no probability"
        if temperature[row] < 1e-30:
            assert token == int(exact[row].argmax())
            continue
        probs = (exact[row] / temperature[row]).softmax(0)
        upto = float(probs[: token + 1].sum())
        assert upto - float(probs[token]) - 1e-5 <= float(u[row]) <= upto + 1e-5


def test_uniform_is_the_same_hash(seed):
    generator = torch.Generator().manual_seed(seed)
    seeds = torch.randint(2**63 - 1, (300,), generator=generator)
    positions = torch.randint(2**31, (300,), generator=generator)
    torch.testing.assert_close(on_the_device(seeds, positions), numbers(seeds, positions).float(), rtol=0, atol=0)
    logits, one = torch.randn(300, 50, generator=generator).to(DEVICE), torch.ones(300, device=DEVICE)
    spread = torch.stack((positions, seeds), 1).to(DEVICE)[:, 1]
    given = triton_sample(logits, one, one * 0, one, on_the_device(seeds, positions + 1).to(DEVICE))
    own = triton_sample(logits, one, one * 0, one, None, seeds=spread, positions=positions.to(DEVICE))
    assert own.tolist() == given.tolist()


def test_no_draw_is_rounded_up_to_1():
    """Then the last token would be taken, however unlikely it is. The exact draw here is 1 - 4.6e-9."""
    seeds, positions = torch.zeros(1, dtype=torch.int64), torch.tensor([34731482])
    assert numbers(seeds, positions).float().item() == 1
    assert on_the_device(seeds, positions).item() == 1 - 2**-24


def test_no_rows_and_a_strided_row():
    assert sampled(torch.zeros(0, 9), torch.zeros(0), torch.zeros(0)).shape == (0,)
    logits = torch.randn(3, 20)
    zero = torch.zeros(3, dtype=torch.float64)
    assert torch.equal(sampled(logits.to(DEVICE)[:, ::2], zero, zero), logits[:, ::2].argmax(1))
    assert torch.equal(sampled(logits.to(DEVICE)[:, :10], zero, zero), logits[:, :10].argmax(1))
    assert sampled(torch.ones(3, 10), zero, zero).tolist() == [0, 0, 0]


def assert_keeps_what_the_limits_keep(logits, **limits):
    """The cut keeps the tokens that the exact distribution keeps, and the chunks' sums are those of the kept tokens."""
    params = SamplingParams(**limits)
    exact = probabilities(logits[None], [params])[0]
    chunks = -(-len(logits) // CHUNK)
    rows = torch.stack([logits.flip(0), logits]).to(DEVICE)  # the second row is looked at
    asked = params.temperature, min(params.top_k, MAX_TOP_K), params.top_p, params.min_p
    columns = torch.tensor([asked, asked], dtype=torch.float32, device=DEVICE).t().contiguous()
    temperature, *limit_columns = columns
    cuts = torch.full((2,), torch.nan, device=DEVICE)
    largest = torch.full((2, chunks), torch.nan, device=DEVICE)
    sums = torch.full_like(largest, torch.nan)
    last_ties = torch.full((2,), -9, dtype=torch.int32, device=DEVICE)
    place = torch.zeros_like(largest, dtype=torch.int32)
    listed = torch.zeros_like(place)
    sizes = (*Penalties.arguments(None), len(logits), len(logits), chunks, COLDEST, CHUNK)
    chunk_kernel[(2, -(-chunks // GROUP))](rows, temperature, largest, place, sums, *sizes, GROUP)
    more = (power_of_two(chunks), SKIPPED_BITS.get(logits.dtype, 0))
    if not params.min_p:
        limit_columns[-1] = None
    cut_kernel[(2,)](rows, temperature, *limit_columns, largest, sums, listed, cuts, last_ties, *sizes, *more)
    cut, last, sums, largest = (of_rows[1].cpu() for of_rows in (cuts, last_ties, sums, largest))
    is_tie = (logits == cut) & (torch.arange(len(logits)) <= last)
    kept = ((logits > cut) | is_tie) & (logits > -torch.inf)
    assert torch.equal(kept, exact > 0), limits
    below = torch.where(kept, logits.double() - logits.max(), -torch.inf) / params.temperature
    weights = torch.zeros(chunks * CHUNK, dtype=torch.float64)
    weights[: len(logits)] = below.exp()
    sums_of_kept = sums * ((largest - logits.max()).double() / params.temperature).exp()
    torch.testing.assert_close(sums_of_kept, weights.view(chunks, CHUNK).sum(1), rtol=1e-4, atol=1e-30)


LIMITS = [
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 2**31},
    {"top_p": 0.5},
    {"top_p": 0.97, "temperature": 3.0},
    {"top_p": 1e-300},
    {"top_p": 0.5, "temperature": 1e300},
    {"top_k": 20, "top_p": 0.8, "temperature": 0.7},
    {"top_k": 9, "top_p": 0.999, "temperature": 1e300},
    {"min_p": 0.05},
    {"min_p": 1.0, "temperature": 0.4},
    {"min_p": 0.05, "top_p": 0.9},
    {"min_p": 0.3, "top_p": 0.9, "temperature": 2.5},
    {"min_p": 0.02, "top_k": 20, "top_p": 0.8, "temperature": 3.0},
    {"min_p": 0.2, "top_k": 3},
]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_limits_keep_what_they_keep_in_torch(dtype, limits, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(40, generator=generator) * 4
    logits[::7] = -torch.inf
    assert_keeps_what_the_limits_keep(logits.to(dtype), **{"temperature": 1.0} | limits)


NEIGHBOURS = [1 + i / 128 for i in range(-4, 12)]  # nearly all numbers of bf16 in this range


@pytest.mark.parametrize("limits", [{"top_k": 5}, {"top_p": 0.6}, {"top_k": 30, "top_p": 0.5}], ids=str)
@pytest.mark.parametrize("values", [[1.0], [-0.0], [0.0, -0.0], [2.5, 2.0], NEIGHBOURS, [-3.0, -3.5, -1.0]], ids=str)
def test_of_equal_logits_the_first_are_kept(values, limits, seed):
    """Many logits are equal, among them the one at the cut."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.tensor(values)[torch.randint(len(values), (37,), generator=generator)]
    assert_keeps_what_the_limits_keep(logits, temperature=1.0, **limits)
    assert_keeps_what_the_limits_keep(logits.bfloat16(), temperature=1.0, **limits)


@pytest.mark.parametrize(("kept", "tokens"), [(7, 13), (15, 19), (11, 39)])
def test_rounding_keeps_no_token_too_many(kept, tokens):
    """In fp32, kept / tokens * tokens is above `kept`."""
    assert_keeps_what_the_limits_keep(torch.ones(tokens), temperature=1.0, top_p=kept / tokens)


@pytest.mark.parametrize(
    "limits",
    [{"top_k": 3}, {"top_p": 0.6}, {"top_k": 40, "top_p": 0.9}, {"min_p": 0.6}, {"top_p": 0.6, "min_p": 0.5}],
    ids=str,
)
def test_limits_over_several_chunks(limits, seed):
    """The kept tokens lie in several chunks, of more than one group. Some chunks have none that could be kept."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2 * GROUP * CHUNK - 3, generator=generator) - 30
    logits[torch.randint(GROUP * CHUNK, (60,), generator=generator)] += 31 + torch.rand(60, generator=generator)
    logits[-1] = logits.max()
    assert_keeps_what_the_limits_keep(logits, temperature=1.0, **limits)


@pytest.mark.parametrize("limits", [{"top_k": 3}, {"top_k": 4}, {"top_p": 0.65}], ids=str)
@pytest.mark.parametrize("levels", [(2.0, 2.0, 2.0), (2.0, 2.015625, 2.03125)], ids=str)
def test_a_cut_among_equal_or_neighbouring_logits_of_three_chunks(levels, limits):
    """Six tokens are likely, two in each chunk. The logits of a chunk are equal, or next to another chunk's in bf16."""
    logits = torch.full((3, CHUNK), -50.0)
    logits[:, [3, CHUNK - 1]] = torch.tensor(levels)[:, None]
    assert_keeps_what_the_limits_keep(logits.flatten().bfloat16(), temperature=1.0, **limits)


@pytest.mark.parametrize("limits", [{"top_k": 4}, {"top_p": 0.7}, {"min_p": 0.2}, {"min_p": 0.2, "top_k": 9}], ids=str)
def test_samples_under_limits_lie_where_u_falls(limits, seed):
    """A `u` in the middle of each kept token's share samples that token."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(30, generator=generator)
    params = SamplingParams(temperature=0.9, **limits)
    probs = probabilities(logits[None], [params])[0]
    kept = probs.nonzero().squeeze(1)
    u = (probs.cumsum(0) - probs / 2)[kept]
    rows = logits.expand(len(kept), -1)
    tokens = sampled(rows, torch.full((len(kept),), params.temperature), u, **limits)
    assert tokens.tolist() == kept.tolist()


def test_rows_with_and_without_limits(seed):
    """Each row follows its own limits, and a greedy row ignores them."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, 50, generator=generator).expand(4, -1)
    temperature = torch.tensor([1.0, 1.0, 0.0, 1.0])
    top_k, top_p = torch.tensor([0, 1, 3, 0]), torch.tensor([1.0, 1.0, 0.5, 1e-9])
    u = torch.full((4,), 0.999)
    columns = (x.to(DEVICE) for x in (logits, temperature, top_k, top_p, u))
    tokens = triton_sample(*columns).tolist()
    last = int((logits[0].softmax(0).cumsum(0) > 0.999).nonzero()[0])
    assert tokens == [last, *[int(logits[0].argmax())] * 3]


def test_no_excluded_token_is_drawn_where_two_chunks_meet(seed):
    """Sums are rounded, so `u` may fall between the last token of a chunk and the first likely one of the next."""
    generator = torch.Generator().manual_seed(seed)
    chunks = 20
    logits = torch.randn(chunks, CHUNK, generator=generator)
    logits[:, :100] = -torch.inf
    probs = logits.flatten().double().softmax(0)
    bounds = probs.view(chunks, CHUNK).sum(1).cumsum(0)[:-1].float()
    u = torch.cat([bounds + step * bounds * 2**-24 for step in range(-4, 5)])
    tokens = sampled(logits.view(1, -1).expand(len(u), -1), torch.ones(len(u)), u)
    assert (probs[tokens] > 0).all()


@pytest.mark.parametrize("vocabulary", [5, CHUNK, GROUP * CHUNK + 3])
@pytest.mark.parametrize("penalised", [False, True])
def test_a_row_that_is_not_finite_is_marked(vocabulary, penalised, seed):
    """A model in half precision may overflow. Its row gets -1, and the rows beside it get a token."""
    logits = torch.randn(7, vocabulary, generator=torch.Generator().manual_seed(seed))
    logits[0], logits[1, 1], logits[2, -1] = torch.nan, torch.nan, torch.inf
    logits[3] = -torch.inf
    logits[4], logits[4, -1] = -torch.inf, torch.nan
    logits[5, 1:] = -torch.inf
    penalties = None
    if penalised:
        counts = torch.ones(7, vocabulary, dtype=torch.int32, device=DEVICE)
        columns = torch.tensor([[1.5], [0.5], [0.5]]).expand(3, 7).contiguous().to(DEVICE)
        penalties = Penalties(counts, torch.arange(7, device=DEVICE), columns)
    for limits in ({}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}, {"top_k": 4, "top_p": 0.9, "min_p": 0.1}):
        for temperature in (0.0, 1.0):
            heat, u = torch.full((7,), temperature), torch.full((7,), 0.5)
            tokens = sampled(logits, heat, u, penalties=penalties, **limits)
            assert tokens[:5].tolist() == [-1] * 5
            assert tokens[5] == 0
            assert 0 <= tokens[6] < vocabulary


@pytest.mark.parametrize(
    ("dtype", "limits"),
    [
        (torch.float32, (0, 1.0)),
        (torch.float32, (20, 0.9)),
        (torch.bfloat16, (7, 1.0)),
        (torch.bfloat16, (0, 0.8)),
    ],
)
def test_penalised_rows_are_sampled_as_the_adjusted_logits(limits, dtype, seed):
    """Beside rows without penalties; slots are in another order."""
    rng = random.Random(seed)
    rows, vocabulary = 40, CHUNK + 90
    logits = (torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)
    kinds = [(1.3, 0.0, 0.0), (1.0, 1.5, 0.5), (1e-38, 0.0, -0.5), (1.0, 0.0, 0.0)] * 10
    asked = [recipe.Penalties(*kind) for kind in kinds]
    texts = []
    for row in range(rows):
        likely = logits[row].float().topk(40).indices.tolist()
        prompt, new = rng.choices(likely, k=30), rng.choices(likely, k=25)
        texts.append(SimpleNamespace(token_ids=prompt + new, output_ids=new, num_outputs=len(new)))
    slots = [-1 if row % 4 == 3 else rows - 1 - row for row in range(rows)]
    counts = torch.full((rows, vocabulary), 99, dtype=torch.int32)
    for slot, text in zip(slots, texts, strict=True):
        if slot >= 0:
            new = torch.bincount(torch.tensor(text.output_ids), minlength=vocabulary)
            old = torch.bincount(torch.tensor(text.token_ids[:30]), minlength=vocabulary)
            counts[slot] = (2 * new + (old > 0)).int()
    spread = torch.full((rows, 8), -1).index_fill_(1, torch.tensor(7), 0)
    spread[:, 7] = torch.tensor(slots)
    penalties = Penalties(counts.to(DEVICE), spread.to(DEVICE)[:, 7], torch.tensor(kinds).t().contiguous().to(DEVICE))
    top_k, top_p = limits
    limit_columns = torch.full((rows,), top_k).to(DEVICE), torch.full((rows,), top_p).to(DEVICE)
    exact = torch.stack(
        [
            each(row.float(), text.token_ids[:30], text.output_ids)
            for each, row, text in zip(asked, logits, texts, strict=True)
        ]
    )
    for temperature in (0.0, 0.7):
        u = numbers(torch.full((rows,), seed), torch.arange(rows)).float().to(DEVICE)
        heat = torch.full((rows,), temperature).to(DEVICE)
        tokens = triton_sample(logits.to(DEVICE), heat, *limit_columns, u, penalties)
        expected = triton_sample(exact.to(DEVICE), heat, *limit_columns, u)
        assert tokens.tolist() == expected.tolist()
