"""Rows of logits that are not finite: they end their own request with a reason, and their neighbours go on.

The model breaks behind one token: its embedding is NaN. `tests/accelerate/test_run_ahead.py` has windows of steps.
"""

import json
import math
import random

import httpx
import pytest
import torch
from rich.console import Console

import pagedlab_fast
from pagedlab import LLM, SamplingParams
from pagedlab.outputs import NOT_FINITE
from pagedlab.recipes.logprobs import score
from pagedlab.recipes.penalties import Penalties
from pagedlab.recipes.speculative import DraftModel, SpeculativeLLM
from pagedlab.sampling import NO_TOKEN, sample_rows
from pagedlab_serve.cli.chat import converse
from pagedlab_serve.cli.main import main
from support.drafters import Recalls
from support.engines import assert_idle, breaking_at, broken_by, engine, exactly, output_of, prompts_of, texts_of
from support.served import serving

LENGTHS = [20, 33, 7]
NEW = 12


@pytest.fixture(scope="module")
def prompts(tiny):
    return prompts_of(tiny, LENGTHS)


@pytest.fixture(scope="module")
def answers(tiny, prompts):
    return [done.outputs[0].token_ids for done in engine(tiny).generate(prompts, exactly(NEW))]


@pytest.fixture(scope="module")
def place(prompts, answers):
    """The first place in the first answer that has a token which nobody else has."""
    others = {token for ids in (*prompts, *answers[1:]) for token in ids}
    return next(i for i, token in enumerate(answers[0]) if i and token not in {*others, *answers[0][:i]})


@pytest.fixture(scope="module")
def breaking(tiny, answers, place):
    """The tiny model, which breaks in the middle of the first answer."""
    return breaking_at(tiny, answers[0][place])


INF, NAN = torch.inf, torch.nan
SPOILT = [[1, NAN, 2], [1, 2, INF], [-INF] * 3, [NAN] * 3, [-INF, NAN, -INF]]


@pytest.mark.parametrize("asked", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.2}], ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_sampler_marks_a_row(asked, temperature):
    """A row with some -inf is none of them."""
    logits = torch.tensor([*SPOILT, [1.0, -INF, 2.0]])
    params = [SamplingParams(temperature=temperature, **asked)] * len(logits)
    tokens = sample_rows(logits, params, [0.5] * len(logits)).tolist()
    assert [token == NO_TOKEN for token in tokens] == [True] * len(SPOILT) + [False]


DRAFTERS = {
    "none": lambda tiny, texts: None,
    "right": lambda tiny, texts: Recalls(3, texts, 0.0, random.Random(0)),
    "model": lambda tiny, texts: DraftModel(tiny, k=3),
}
ASKED = {
    "greedy": {},
    "sampled": {"temperature": 1e-6},
    "logprobs": {"logprobs": 2},
    "penalty": {"adjust": Penalties(repetition=1 + 1e-9), "logprobs": 0},
    "min_p": {"temperature": 1e-6, "min_p": 0.1},
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_it_ends_its_own_request(tiny, breaking, prompts, answers, place, drafter, asked):
    texts = dict(zip(map(tuple, prompts), answers, strict=True))
    llm = engine(breaking, kind=SpeculativeLLM, drafter=DRAFTERS[drafter](tiny, texts))
    (first,), *others = [done.outputs for done in llm.generate(prompts, exactly(NEW, **asked))]
    assert (first.finish_reason, first.error) == ("error", NOT_FINITE)
    # Attention multiplies what a row does not see by 0, and 0 * NaN is NaN. So a draft with the token breaks the row
    # before it, too.
    assert first.token_ids in [
        answers[0][:end] for end in range(1 if drafter in ("right", "model") else place + 1, place + 2)
    ]
    assert first.text == tiny.decode(first.token_ids)
    for (output,), answer in zip(others, answers[1:], strict=True):
        assert (output.token_ids, output.finish_reason, output.error) == (answer, "length", None)
    for outputs in ([first], *others):
        for output in outputs:
            assert len(output.logprobs or output.token_ids) == len(output.token_ids)
            assert all(math.isfinite(each.logprob) for each in output.logprobs or [])
    assert_idle(llm)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_that_breaks_ends_its_drafts_alone(tiny, breaking, prompts, answers, temperature):
    llm = engine(tiny, kind=SpeculativeLLM, drafter=DraftModel(breaking, k=3))
    params = exactly(NEW, temperature=temperature, top_k=1)
    assert [done.outputs[0].token_ids for done in llm.generate(prompts, params)] == answers
    assert_idle(llm)


def test_of_n_samples_the_others_go_on(tiny, breaking, prompts, answers, place):
    params = exactly(NEW, temperature=0.8, n=6, seed=2)
    (whole,), done = (engine(model).generate(prompts[:1], params) for model in (tiny, breaking))
    expected = [broken_by(answers[0][place], output.token_ids) for output in whole.outputs]
    assert texts_of(done) == [expected]
    assert {reason for _, reason in expected} == {"length", "error"}


def test_a_scored_prompt(breaking, prompts, answers, place):
    token = answers[0][place]
    llm = engine(breaking)
    with pytest.raises(FloatingPointError, match="not finite"):
        score(llm, [*prompts[1][:12], token, *prompts[1][12:]])
    assert len(score(llm, prompts[1])) == len(prompts[1])
    assert_idle(llm)


# The server and the commands ------------------------------------------------------------------------------------


def no_constant(name):
    pytest.fail(f"{name} is no JSON")


@pytest.fixture(scope="module")
def post(breaking):
    """Post a body: the status, and the answer's JSON or its events."""
    with serving(LLM(breaking, num_blocks=128)) as running:

        def ask(**body):
            body = {"temperature": 0, "ignore_eos": True, "max_tokens": NEW, **body}
            answer = httpx.post(f"{running.url}/v1/completions", json=body, timeout=60)
            parts = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
            return answer.status_code, [json.loads(part, parse_constant=no_constant) for part in parts]

        yield ask


@pytest.mark.parametrize("more", [{}, {"temperature": 1, "top_k": 1}, {"logprobs": 1}, {"echo": True, "logprobs": 1}])
def test_over_http_the_request_alone_gets_an_error(post, tiny, prompts, answers, more):
    for prompt in (prompts[0], [prompts[1], prompts[0]]):
        status, [body] = post(prompt=prompt, **more)
        error = body["error"]
        assert (status, error["message"], error["type"]) == (500, NOT_FINITE, "server_error")
        assert error["code"] == "logits_not_finite"
    status, [body] = post(prompt=prompts[1], **more)
    assert status == 200
    assert body["choices"][0]["text"].endswith(tiny.decode(answers[1]))


def test_a_stream_over_http_ends_with_an_error(post, tiny, prompts, answers, place):
    _, [*events, last] = post(prompt=prompts[0], stream=True, logprobs=0)
    assert last["error"]["message"] == NOT_FINITE
    assert "".join(event["choices"][0]["text"] for event in events) == tiny.decode(answers[0][: place + 1])
    assert {event["choices"][0]["finish_reason"] for event in events} == {None}


@pytest.mark.parametrize("more", [[], ["The end"]])
def test_generate_prints_what_there_is_and_one_line(breaking, prompts, tiny, more, monkeypatch, capsys):
    llm = pagedlab_fast.LLM(breaking, num_blocks=64, verbose=False)
    monkeypatch.setattr("pagedlab_fast.LLM", lambda *_, **__: llm)
    assert main(["generate", tiny.decode(prompts[0]), *more, "--max-tokens", "12"]) == 2
    out, err = capsys.readouterr()
    assert err.endswith(f"error: {NOT_FINITE}\n")
    assert out.strip()


def test_a_chat_says_so_and_goes_on(tiny, capsys):
    question = "Why is the sky blue?"
    plain = output_of(engine(tiny), [{"role": "user", "content": question}], exactly(8))
    llm = engine(breaking_at(tiny, plain.token_ids[5]))
    converse(llm, exactly(8), [question], Console())
    assert f"error: {NOT_FINITE}\n" in capsys.readouterr().out
    assert_idle(llm)
