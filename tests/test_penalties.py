"""What changes logits before a token is taken: equal to transformers' own processors, and only for who asks."""

import random

import pytest
import torch
from transformers.generation import logits_process as hf

from pagedlab import LLM
from pagedlab.recipes.penalties import Penalties
from support.engines import engine, exactly, output_of

V = 50


def adjusted(logits, prompt, new, **params):
    return Penalties(**params)(logits, prompt, new)


@pytest.fixture
def case(seed):
    rng = random.Random(seed)
    logits = torch.randn(V, generator=torch.Generator().manual_seed(seed)) * 4
    return logits, [rng.randrange(V) for _ in range(12)], [rng.randrange(V // 2) for _ in range(25)]


@pytest.mark.parametrize("penalty", [0.5, 1.3, 2.0])
def test_repetition_penalty(case, penalty):
    logits, prompt, new = case
    expected = hf.RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + new]), logits[None].clone())[0]
    assert torch.equal(adjusted(logits, prompt, new, repetition=penalty), expected)


def test_logit_bias(case):
    logits, prompt, new = case
    bias = {3: 7.5, 0: -100, V - 1: 2}
    processor = hf.SequenceBiasLogitsProcessor({(token,): float(value) for token, value in bias.items()})
    assert torch.equal(adjusted(logits, prompt, new, bias=bias), processor(torch.tensor([prompt]), logits[None])[0])


def test_presence_and_frequency_are_about_the_new_text_alone(case):
    """OpenAI's formula, token by token; transformers has neither."""
    logits, prompt, new = case
    ours = adjusted(logits, prompt, new, presence=0.7, frequency=-0.3)
    expected = [logits[t].item() - (t in new) * 0.7 + new.count(t) * 0.3 for t in range(V)]
    torch.testing.assert_close(ours, torch.tensor(expected))
    assert torch.equal(adjusted(logits, prompt, [], presence=2, frequency=2), logits)


def test_any_function_of_the_logits(tiny):
    """One that allows three tokens, and one that raises: it ends its own request, as logits that are not finite do."""
    seen = []

    def only_three(logits, prompt_ids, output_ids):
        seen.append((prompt_ids, output_ids))
        allowed = torch.full_like(logits, -torch.inf)
        allowed[[5, 6, 7]] = logits[[5, 6, 7]]
        return allowed

    def fails(logits, prompt_ids, output_ids):
        raise ZeroDivisionError

    llm = LLM(tiny, num_blocks=64, verbose=False)
    params = [exactly(4, adjust=only_three), exactly(4, adjust=fails), exactly(4)]
    with pytest.warns(UserWarning, match="adjust of r1 raised ZeroDivisionError"):
        limited, failed, plain = (completion.outputs[0] for completion in llm.generate([[9, 8]] * 3, params))
    assert set(limited.token_ids) <= {5, 6, 7}
    assert seen == [([9, 8], limited.token_ids[:i]) for i in range(4)]
    assert (failed.finish_reason, failed.token_ids) == ("error", [])
    assert len(plain.token_ids) == 4
    assert llm.pool.num_used == 0


def test_a_tiny_repetition_penalty_leaves_a_distribution_to_draw_from(tiny):
    params = exactly(4, temperature=1.0, adjust=Penalties(repetition=1e-213), seed=1)
    assert len(output_of(engine(tiny, 16), "The cat sat", params).token_ids) == 4
