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
from pagedlab.recipes.speculative import DraftModel, PromptLookup, SpeculativeLLM
from pagedlab.recipes.trace import Recorder, Replay
from pagedlab.sampling import NO_TOKEN, sample_rows
from pagedlab_serve.app import create_app
from pagedlab_serve.background import BackgroundServer
from pagedlab_serve.cli.chat import converse
from pagedlab_serve.cli.main import main
from support.drafters import Recalls
from support.engines import assert_idle, breaking_at, engine, exactly, prompts_of

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


def spoilt_rows(vocabulary):
    """Rows that have no distribution, by what is wrong with them."""
    rows = {"NaN": torch.randn(vocabulary), "inf": torch.randn(vocabulary), "all -inf": torch.randn(vocabulary)}
    rows["NaN"][vocabulary // 2] = torch.nan
    rows["inf"][-1] = torch.inf
    rows["all -inf"][:] = -torch.inf
    rows["all NaN"] = torch.full((vocabulary,), torch.nan)
    rows["NaN among -inf"] = torch.full((vocabulary,), -torch.inf).index_fill_(0, torch.tensor([1]), torch.nan)
    return rows


@pytest.mark.parametrize("kind", spoilt_rows(2))
@pytest.mark.parametrize("asked", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.2}], ids=str)
def test_the_sampler_marks_a_row(kind, asked):
    """A row with some -inf is none of them."""
    sound = torch.randn(10)
    sound[::2] = -torch.inf
    logits = torch.stack([spoilt_rows(10)[kind], sound]).repeat(2, 1)
    params = [SamplingParams(temperature=t, **asked) for t in (0.0, 0.0, 1.0, 1.0)]
    tokens = sample_rows(logits, params, [0.5] * 4)
    assert [token == NO_TOKEN for token in tokens.tolist()] == [True, False] * 2


DRAFTERS = {
    "none": lambda tiny, texts: None,
    "lookup": lambda tiny, texts: PromptLookup(k=3),
    "right": lambda tiny, texts: Recalls(3, texts, 0.0, random.Random(0)),
    "model": lambda tiny, texts: DraftModel(tiny, k=3),
}
ASKED = {
    "greedy": {},
    "sampled": {"temperature": 1e-6},
    "logprobs": {"logprobs": 2},
    "penalty": {"adjust": Penalties(repetition=1 + 1e-9), "logprobs": 0},
    "min_p": {"temperature": 1e-6, "min_p": 0.1},
    "stop": {"stop": ("zzzz",)},
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


def test_of_n_samples_the_others_go_on(tiny, breaking, prompts, place):
    """All samples of one prompt are neighbours, too."""
    params = exactly(NEW, temperature=0.8, n=6, seed=2)
    (expected,) = engine(tiny).generate(prompts[:1], params)
    (done,) = engine(breaking).generate(prompts[:1], params)
    broken = next(iter(torch.nonzero(breaking.module.get_input_embeddings().weight.isnan().any(1)))).item()
    reasons = set()
    for output, plain in zip(done.outputs, expected.outputs, strict=True):
        reasons.add(output.finish_reason)
        end = plain.token_ids.index(broken) + 1 if broken in plain.token_ids[:-1] else NEW
        assert output.token_ids == plain.token_ids[:end]
        assert output.finish_reason == ("length" if end == NEW else "error")
    assert reasons == {"length", "error"}


def test_a_scored_prompt(breaking, prompts, answers, place):
    token = answers[0][place]
    llm = engine(breaking)
    with pytest.raises(FloatingPointError, match="not finite"):
        score(llm, [*prompts[1][:12], token, *prompts[1][12:]])
    assert len(score(llm, prompts[1])) == len(prompts[1])
    assert_idle(llm)


def test_the_prefix_cache_keeps_nothing_of_it(breaking, prompts, answers, place):
    """In a step with the token, the rows before it break, too: so do their blocks."""
    token = answers[0][place]
    llm = engine(breaking)
    (bad,) = llm.generate([[*prompts[1], token, *prompts[1]]], exactly(3))
    (good,) = llm.generate([prompts[1]], exactly(NEW))
    assert bad.outputs[0].finish_reason == "error"
    assert good.outputs[0].token_ids == answers[1]
    (again,) = llm.generate([prompts[1]], exactly(NEW))
    assert again.outputs[0].token_ids == answers[1]
    assert llm.stats.cached_tokens >= 32
    assert_idle(llm)


@pytest.mark.parametrize("stop", [(), ("zzzz",)])
def test_a_stream_raises_after_its_last_piece(tiny, breaking, prompts, answers, place, stop):
    llm = engine(breaking)
    pieces = []
    stream = llm.stream(prompts[0], exactly(NEW, stop=stop))
    with pytest.raises(FloatingPointError, match=f"^{NOT_FINITE}$"):
        pieces.extend(stream)
    assert "".join(pieces) == tiny.decode(answers[0][: place + 1])
    assert "".join(llm.stream(prompts[1], exactly(NEW))) == tiny.decode(answers[1])
    assert_idle(llm)


def test_a_recording_says_so(breaking, prompts):
    llm = engine(breaking, num_blocks=32)
    with Recorder(llm) as recorder:
        llm.generate(prompts[:2], exactly(NEW))
    states = [Replay(recorder.recording).seek(step).sequences for step in range(len(recorder.recording["steps"]))]
    assert {state["r0"].state for state in states if "r0" in state} == {"running", "error"}


# The server ---------------------------------------------------------------------------------------------------


def no_constant(name):
    pytest.fail(f"{name} is no JSON")


@pytest.fixture(scope="module")
def server(breaking):
    with BackgroundServer(create_app(LLM(breaking, num_blocks=128, verbose=False))) as running:
        yield running


def post(server, **body):
    answer = httpx.post(f"{server.url}/v1/completions", json=body | {"ignore_eos": True, "max_tokens": NEW}, timeout=60)
    return answer.status_code, json.loads(answer.text, parse_constant=no_constant)


@pytest.mark.parametrize("more", [{}, {"temperature": 1, "top_k": 1}, {"logprobs": 1}, {"echo": True, "logprobs": 1}])
def test_the_request_alone_gets_an_error(server, tiny, prompts, answers, more):
    asked = {"temperature": 0, **more}
    status, body = post(server, prompt=prompts[0], **asked)
    assert status == 500
    assert body["error"] | {"param": None} == {
        "message": NOT_FINITE, "type": "server_error", "param": None, "code": "logits_not_finite",
    }  # fmt: skip
    status, body = post(server, prompt=[prompts[1], prompts[0]], **asked)
    assert (status, body["error"]["code"]) == (500, "logits_not_finite")
    status, body = post(server, prompt=prompts[1], **asked)
    assert status == 200
    assert body["choices"][0]["text"].endswith(tiny.decode(answers[1]))


def test_a_stream_over_http_ends_with_an_error(server, tiny, prompts, answers, place):
    body = {
        "prompt": prompts[0],
        "temperature": 0,
        "max_tokens": NEW,
        "ignore_eos": True,
        "stream": True,
        "logprobs": 0,
    }
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    *events, last = [json.loads(line, parse_constant=no_constant) for line in lines]
    assert last["error"]["message"] == NOT_FINITE
    assert "".join(event["choices"][0]["text"] for event in events) == tiny.decode(answers[0][: place + 1])
    assert {event["choices"][0]["finish_reason"] for event in events} == {None}


# The commands ---------------------------------------------------------------------------------------------------


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
    (plain,) = LLM(tiny, num_blocks=64, verbose=False).generate([[{"role": "user", "content": question}]], exactly(8))
    llm = LLM(breaking_at(tiny, plain.outputs[0].token_ids[5]), num_blocks=64, verbose=False)
    converse(llm, exactly(8), [question], Console())
    assert f"error: {NOT_FINITE}\n" in capsys.readouterr().out
    assert_idle(llm)
