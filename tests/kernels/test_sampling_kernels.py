"""The drawing kernels against the exact distribution: every draw is the token whose share of it `u` falls into."""

import pytest
import torch

pytest.importorskip("triton")

from pagedlab.kernels.sampling import CHUNK, triton_sample, triton_uniform
from pagedlab.sampling import uniform

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("vocabulary", [1, 5, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 17])
def test_draws_lie_where_u_falls(vocabulary, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = 24
    logits = (torch.randn(rows, vocabulary, generator=generator) * 3).to(dtype)
    logits[:, ::7] = -torch.inf if vocabulary > 1 else 0
    logits[:, vocabulary // 2] = 4
    temperature = torch.tensor([0.0, 0.6, 1.0, 5.0, 1e-300, 0.05] * 4, dtype=torch.float64)
    u = uniform(torch.full((rows,), seed), torch.arange(rows))
    u[:6] = torch.tensor([0.0, 0, 0, 1 - 2**-53, 1 - 2**-53, 1 - 2**-53])
    tokens, logprobs = (x.cpu() for x in triton_sample(*(x.to(DEVICE) for x in (logits, temperature, u))))
    exact = logits.double()
    torch.testing.assert_close(
        logprobs.double(), exact.log_softmax(1).gather(1, tokens[:, None])[:, 0], rtol=1e-4, atol=1e-4
    )
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
    ours = triton_uniform(seeds.to(DEVICE), positions.to(DEVICE)).cpu()
    torch.testing.assert_close(ours, uniform(seeds, positions).float(), rtol=0, atol=0)
    column = torch.stack((positions, seeds), 1).to(DEVICE)[:, 1]
    ours = triton_uniform(column, positions.to(DEVICE), ahead=2).cpu()
    torch.testing.assert_close(ours, uniform(seeds, positions + 2).float(), rtol=0, atol=0)


def test_no_rows_and_a_strided_row():
    empty = torch.zeros(0, dtype=torch.float64, device=DEVICE)
    assert triton_sample(torch.zeros(0, 9, device=DEVICE), empty, empty)[0].shape == (0,)
    logits = torch.randn(3, 20, device=DEVICE)
    zero = torch.zeros(3, dtype=torch.float64, device=DEVICE)
    assert torch.equal(triton_sample(logits[:, ::2], zero, zero)[0], logits[:, ::2].argmax(1))
    assert torch.equal(triton_sample(logits[:, :10], zero, zero)[0], logits[:, :10].argmax(1))
    assert triton_sample(torch.ones(3, 10, device=DEVICE), zero, zero)[0].tolist() == [0, 0, 0]


def test_logits_that_are_not_numbers_draw_a_token_nevertheless(seed):
    """A model in half precision may overflow: what is drawn must not point behind the logits."""
    logits = torch.randn(4, CHUNK + 3, generator=torch.Generator().manual_seed(seed))
    logits[:2], logits[2, 5], logits[3, 7] = torch.nan, torch.nan, torch.inf
    temperature, u = torch.tensor([0.0, 1.0, 0.0, 1.0]), torch.full((4,), 0.5)
    tokens, _ = triton_sample(logits.to(DEVICE), temperature.to(DEVICE), u.to(DEVICE))
    assert all(0 <= token < CHUNK + 3 for token in tokens.tolist())
