"""What changes logits before a token is taken: equal to transformers' own processors, and only for who asks."""

import random
from types import SimpleNamespace

import pytest
import torch
from transformers.generation import logits_process as hf

from pagedlab import LLM, SamplingParams
from pagedlab.logits import adjust
from pagedlab.speculative import PromptLookup
from support.engines import all_ids_of, exactly, output_of, plain_logits
from support.refused import refused

V = 50


def adjusted(logits, prompt, new, **params):
    text = SimpleNamespace(token_ids=prompt + new, output_ids=new, num_outputs=len(new))
    return adjust(logits[None], [(SamplingParams(**params), text)])[0]


@pytest.fixture
def case(seed):
    rng = random.Random(seed)
    logits = torch.randn(V, generator=torch.Generator().manual_seed(seed)) * 4
    return logits, [rng.randrange(V) for _ in range(12)], [rng.randrange(V // 2) for _ in range(25)]


@pytest.mark.parametrize("penalty", [0.5, 1.3, 2.0])
def test_repetition_penalty(case, penalty):
    logits, prompt, new = case
    expected = hf.RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([prompt + new]), logits[None].clone())[0]
    assert torch.equal(adjusted(logits, prompt, new, repetition_penalty=penalty), expected)


def test_logit_bias(case):
    logits, prompt, new = case
    bias = {3: 7.5, 0: -100, V - 1: 2}
    processor = hf.SequenceBiasLogitsProcessor({(token,): float(value) for token, value in bias.items()})
    assert torch.equal(
        adjusted(logits, prompt, new, logit_bias=bias), processor(torch.tensor([prompt]), logits[None])[0]
    )


def test_presence_and_frequency_are_about_the_new_text_alone(case):
    """OpenAI's formula, token by token; transformers has neither."""
    logits, prompt, new = case
    ours = adjusted(logits, prompt, new, presence_penalty=0.7, frequency_penalty=-0.3)
    expected = [logits[t].item() - (t in new) * 0.7 + new.count(t) * 0.3 for t in range(V)]
    torch.testing.assert_close(ours, torch.tensor(expected))
    assert torch.equal(adjusted(logits, prompt, [], presence_penalty=2, frequency_penalty=2), logits)


def test_nobody_asks_nothing_changes(case):
    logits = case[0]
    assert adjust(logits[None], [(SamplingParams(temperature=1.0), SimpleNamespace())]).data_ptr() == logits.data_ptr()


ASKED = [
    {"repetition_penalty": 1.3},
    {"presence_penalty": 1.5, "frequency_penalty": 0.5},
    {"logit_bias": {13: -100, 261: 5}},
    {"min_p": 0.3, "temperature": 1.5, "seed": 3},
    {"repetition_penalty": 1.2, "temperature": 0.9, "seed": 4, "n": 2},
    {},
]


@pytest.mark.parametrize("options", [{}, {"num_blocks": 20, "block_size": 4}, {"speculative": PromptLookup(k=3)}])
def test_neighbours_keep_their_texts_and_logprobs_are_the_models_own(tiny, options, seed):
    """All in one batch as each alone; greedy with a penalty as transformers' `generate`."""
    llm = LLM(tiny, verbose=False, **{"num_blocks": 128, **options})
    prompt = tiny.encode("Once upon a time, there was a")
    params = [exactly(16, logprobs=0, **asked) for asked in ASKED]
    done = llm.generate([prompt] * len(params), params)
    for completion, p in zip(done, params, strict=True):
        (alone,) = LLM(tiny, num_blocks=128, verbose=False).generate([prompt], p)
        assert all_ids_of([completion]) == all_ids_of([alone])
        for output in completion.outputs:
            logits = plain_logits(tiny, prompt + output.token_ids)[len(prompt) - 1 : -1]
            said = torch.tensor([t.logprob for t in output.logprobs or []])
            plain = torch.log_softmax(logits, 1).gather(1, torch.tensor(output.token_ids)[:, None])[:, 0]
            torch.testing.assert_close(said, plain, atol=1e-4, rtol=1e-5)
            assert abs(output.cumulative_logprob - plain.sum().item()) < 1e-3
    assert 13 not in done[2].outputs[0].token_ids
    with tiny.stock_attention() as module, torch.inference_mode():
        ids, plain = torch.tensor([prompt]), {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        out = module.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, repetition_penalty=1.3, **plain
        )
    assert done[0].outputs[0].token_ids == out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_stop_token_ids(tiny, ignore_eos):
    llm = LLM(tiny, num_blocks=64, verbose=False)
    story = "Once upon a time, there was a"
    plain = output_of(llm, story, exactly(12)).token_ids
    stops = SamplingParams(max_tokens=12, stop_token_ids=[plain[5]], ignore_eos=ignore_eos)
    output = output_of(llm, story, stops)
    assert output.token_ids == plain[: plain.index(plain[5]) + 1]
    assert output.finish_reason == "stop"
    assert "".join(llm.stream(story, stops)) == output.text == llm.decode(output.token_ids)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *(("min_p", bad) for bad in (-0.1, 1.1, "x", True)),
        *(("repetition_penalty", bad) for bad in (0, -1, 101, None)),
        *((name, bad) for name in ("presence_penalty", "frequency_penalty") for bad in (-2.1, 3, float("nan"))),
        *(("logit_bias", bad) for bad in (5, {1: 101}, {-1: 3}, {"a": 1}, {1.5: 1}, [3], "ab")),
        *(("stop_token_ids", bad) for bad in (-1, [1.5], "7", "", b"7", {})),
    ],
)
def test_bad_values_are_named(name, bad):
    with refused(name):
        SamplingParams(**{name: bad})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"logit_bias": {"a": 1}}, r"a key of .* must be a token id \(a whole number of at least 0\), got 'a'$"),
        ({"logit_bias": [3]}, r"logit_bias must be a dict from token ids to numbers, got \[3\]$"),
        ({"stop": 3}, "stop must be strings with at least one character, got 3$"),
        ({"stop_token_ids": 3}, "stop_token_ids must be a list of token ids, got 3$"),
    ],
)
def test_a_bad_value_is_shown_as_it_was_given(given, said):
    with refused(said):
        SamplingParams(**given)


def test_none_is_none():
    assert SamplingParams(stop=None, stop_token_ids=None, logit_bias=None) == SamplingParams()


def test_what_cannot_be(tiny):
    llm = LLM(tiny, num_blocks=16, verbose=False)
    with refused("a token id in logit_bias must be a whole number from 0 to 4095"):
        llm.generate("Once", SamplingParams(logit_bias={5000: 1.0}))
    with refused("a token id in stop_token_ids must be a whole number from 0 to 4095, got 4096"):
        llm.generate("Once", SamplingParams(stop_token_ids=[3, 4096]))
    with refused("1 prompt and 2 SamplingParams: give one for all, or one each"):
        llm.generate("Once", [SamplingParams()] * 2)
    assert (llm.num_unfinished, llm.pool.num_free) == (0, 16)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_tiny_repetition_penalty_leaves_a_distribution_to_draw_from(tiny, temperature):
    params = exactly(4, temperature=temperature, repetition_penalty=1e-213, seed=1)
    (done,) = LLM(tiny, num_blocks=16, verbose=False).generate("The cat sat", params)
    assert all(0 <= token < 4096 for token in done.outputs[0].token_ids)
