"""The server: OpenAI's client, what is refused, a crowd that hangs up, an engine that fails, and a fuzzer."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import httpx
import openai
import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings

from pagedlab import LLM, SamplingParams
from pagedlab.model import TINY_MODEL
from pagedlab.recipes.penalties import Penalties
from pagedlab_serve.app import create_app, salt_for
from pagedlab_serve.background import BackgroundServer
from pagedlab_serve.engine_thread import run_loop
from pagedlab_serve.openai_api import ChatRequest, CompletionRequest
from pagedlab_serve.prompts import Encoder
from support.engines import assert_idle, exactly
from support.refused import refused
from support.served import CHAT, LONG, MODEL, STORY, ask, chat, client_of
from support.waiting import until


@contextmanager
def serving(llm, **options):
    """A live server, and afterwards every block free or cached."""
    with BackgroundServer(create_app(llm, **options)) as server:
        yield server
    assert_idle(llm)


def wait_for(server, **values):
    """The metrics, once these have these values."""

    def seen():
        lines = httpx.get(f"{server.url}/metrics").text.splitlines()
        pairs = (line.removeprefix("pagedlab_").rsplit(" ", 1) for line in lines if line[0] != "#")
        metrics = {name: float(value) for name, value in pairs}
        return metrics if metrics | values == metrics else None

    return until(seen, why=f"expected {values}")


@pytest.fixture(scope="module")
def llm(tiny):
    return LLM(tiny, num_blocks=256)


@pytest.fixture(scope="module")
def server(llm):
    with serving(llm) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


@pytest.fixture(scope="module")
def alone(tiny):
    """Another engine over the same model, to compare with."""
    return LLM(tiny, num_blocks=256)


# OpenAI's client ----------------------------------------------------------------------------------------------


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).object == "model"
    with pytest.raises(openai.NotFoundError, match="there is no model 'gpt'"):
        client.models.retrieve("gpt")


def test_an_answer_does_not_wait_for_the_clients_ack(server):
    """On a connection that stays open, without TCP_NODELAY nearly every answer takes the 40 ms of a delayed ACK."""
    took = []
    with httpx.Client() as one:
        for _ in range(30):
            began = time.perf_counter()
            one.get(f"{server.url}/v1/models")
            took.append(time.perf_counter() - began)
    assert sorted(took)[10] < 0.03


def test_a_chat_is_what_generate_gives_streamed_and_whole(client, alone):
    plain = [{"role": "system", "content": "Be brief."}, *CHAT]
    (expected,) = alone.generate([plain], SamplingParams(max_tokens=24))
    (output,) = expected.outputs
    parts = [{"type": "text", "text": "Why is the "}, {"type": "text", "text": "sky blue?"}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    answer = chat(client, messages, temperature=0, max_completion_tokens=24)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", output.text)
    assert choice.finish_reason == output.finish_reason
    counts = (len(expected.prompt_token_ids), len(output.token_ids))
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == counts
    stream = chat(client, messages, temperature=0, max_tokens=24, stream=True)
    choices = [choice for chunk in stream for choice in chunk.choices]
    assert [choice.delta.role for choice in choices] == ["assistant"] + [None] * (len(choices) - 1)
    assert "".join(choice.delta.content for choice in choices) == output.text
    assert len(choices) > 5, "it comes in pieces"


@pytest.mark.parametrize("stop", [None, "the", [" there", "zz"]])
def test_n_sampled_texts_of_two_prompts_streamed_and_whole(client, alone, seed, stop):
    params = SamplingParams(max_tokens=20, temperature=0.9, top_p=0.95, n=3, seed=seed, stop=stop or ())
    prompts = [STORY, "The sky is"]
    expected = [output for completion in alone.generate(prompts, params) for output in completion.outputs]
    asked = {"max_tokens": 20, "temperature": 0.9, "top_p": 0.95, "n": 3, "seed": seed, "stop": stop}
    whole = ask(client, [alone.model.encode(prompt) for prompt in prompts], **asked)
    texts = [(output.text, output.finish_reason) for output in expected]
    assert [(choice.text, choice.finish_reason) for choice in whole.choices] == texts
    pieces = dict.fromkeys(range(6), "")
    reasons = {}
    chunks = list(ask(client, prompts, **asked, stream=True, stream_options={"include_usage": True}))
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        assert choice.index not in reasons, "nothing comes behind a finish reason"
        assert chunk.usage is None
        pieces[choice.index] += choice.text
        if choice.finish_reason:
            reasons[choice.index] = choice.finish_reason
    assert [(pieces[i], reasons[i]) for i in range(6)] == texts
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage


def test_what_changes_the_draw_is_passed_on(client, alone):
    first = alone.model.encode(" big")
    more = {"repetition_penalty": 1.2, "min_p": 0.05, "top_k": 50, "ignore_eos": True}
    penalties = {"presence_penalty": 0.5, "frequency_penalty": 0.25}
    adjust = Penalties(1.2, 0.5, 0.25, {first[0]: 6.0})
    params = exactly(20, temperature=0.8, seed=3, min_p=0.05, top_k=50, adjust=adjust)
    (expected,) = alone.generate(STORY, params)
    asked = {**penalties, "logit_bias": {str(first[0]): 6.0}, "temperature": 0.8, "seed": 3}
    answer = ask(client, max_tokens=20, extra_body=more, **asked)
    assert answer.choices[0].text == expected.outputs[0].text


def test_new_tokens_of_a_request_that_does_not_say(tiny):
    with serving(LLM(tiny, num_blocks=256), default_max_tokens=7) as server:
        client = client_of(server)
        assert ask(client, extra_body={"ignore_eos": True}).usage.completion_tokens == 16
        assert chat(client, extra_body={"ignore_eos": True}).usage.completion_tokens == 7
        nearly = [7] * (tiny.max_length - 10)
        assert ask(client, nearly, **LONG).usage.completion_tokens == 10, "as many as the context has room for"


# What `vllm bench serve`, lm-evaluation-harness, LangChain and LiteLLM send, and fields that ask for nothing.
OTHERS = {
    "vllm bench": {"prompt": STORY, "repetition_penalty": 1.0, "max_tokens": 4, "logprobs": None, "stream": True}
    | {"stream_options": {"include_usage": True}, "temperature": 0.0, "ignore_eos": True},
    "vllm bench, ids": {"prompt": [7, 8, 9], "max_tokens": 4, "stream": False, "top_k": -1},
    "lm-eval": {"prompt": [[7, 8], [9]], "max_tokens": 4, "temperature": 0, "seed": 1234, "stop": ["\nclass", "\ndef"]},
    "lm-eval, chat": {"messages": [{"role": "user", "content": STORY, "type": "text"}], "max_tokens": 4}
    | {"temperature": 0, "stop": ["\n\n", "<|endoftext|>"], "seed": 1234},
    "nothing": {"prompt": STORY, "logit_bias": {}, "suffix": "", "best_of": 1, "guided_json": None, "user": "me"},
    "nothing, chat": {"messages": CHAT, "functions": [], "tools": [], "tool_choice": "auto", "user": None}
    | {"response_format": {"type": "text"}, "modalities": ["text"], "web_search_options": None},
    "a tool": {"messages": [*CHAT, {"role": "assistant", "content": None, "tool_calls": []}]}
    | {"max_completion_tokens": 4, "max_tokens": 4},
    "unknown": {"messages": CHAT, "verbosity": "medium", "service_tier": "auto", "max_tokens": 4, "stream": True}
    | {"stream_options": {"include_usage": True, "include_obfuscation": False}, "prompts": 1, "top": 2},
}


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS)
def test_what_other_clients_send_is_accepted(server, body):
    path = "chat/completions" if "messages" in body else "completions"
    answer = httpx.post(f"{server.url}/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    if body.get("stream"):
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.text.endswith("\n\ndata: [DONE]\n\n")
        assert json.loads(answer.text.split("\n\n")[-3].removeprefix("data: "))["usage"]["completion_tokens"] == 4


def test_unknown_fields_are_named_once_in_the_log(tiny, caplog):
    """A client cannot fill the log: neither with many names nor with a long one."""
    body = {"prompt": STORY, "max_tokens": 1, "verbosity": "low", "stream": True}
    body |= {"stream_options": {"include_obfuscation": True}}
    many = {"prompt": STORY, "max_tokens": 1} | {"y" * 5000: 1} | {f"x{i}\n": i for i in range(500)}
    with BackgroundServer(create_app(LLM(tiny, num_blocks=16, verbose=False))) as server:
        for asked in (body, body, many):
            assert httpx.post(f"{server.url}/v1/completions", json=asked).status_code == 200
    logged = [record.getMessage() for record in caplog.records if record.name == "pagedlab_serve"]
    assert logged[0] == "the field 'verbosity' is ignored: this server does not know it"
    assert "include_obfuscation" in logged[1]
    assert len(logged) == len(set(logged)) == 100
    assert all("\n" not in line and len(line) < 200 for line in logged)


# Bad input: 4xx, one line in OpenAI's form, and nothing left -------------------------------------------------------

LONG_TEXT = "word " * 3000
BAD = [
    ({"prompt": ""}, None, "the prompt is empty"),
    ({"prompt": [7, 99999]}, None, "a token id in the prompt must be .* got 99999"),
    ({"prompt": {"text": "x"}}, "prompt.", "valid list"),
    ({"prompt": "\ud800"}, None, "must be valid Unicode"),
    ({"prompt": LONG_TEXT}, None, "tokens and tiny-qwen2 takes 2048, new ones included: shorten it"),
    ({"prompt": [0.5] * 1000}, "prompt.", "valid string"),
    ({"prompt": ["a"] * 3000}, "prompt.", "at most 2048 items"),
    ({"temperature": -1}, "temperature", "^temperature: Input should be greater than or equal to 0$"),
    ({"temperature": float("nan")}, "temperature", "temperature: "),
    ({"n": 2, "temperature": 0}, None, "would all be the same"),
    ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "greater than or equal to 1"),
    ({"top_k": 10**400}, "top_k", "less than or equal"),
    ({"stop": ["a", ""]}, "stop.", "at least 1 character"),
    ({"logprobs": 6}, "logprobs", "less than or equal to 5"),
    ({"logit_bias": {"the": 1}}, "logit_bias.", "valid integer"),
    ({"logit_bias": {"99999": 1}}, "logit_bias", "a token id goes from 0 to 4095"),
    ({"max_tokens": 400, "n": 128, "logprobs": 5}, "logprobs", "307,200 log-probabilities.* gives 250,000 at most"),
    ({"prompt": [7] * 1000, "n": 128, "logprobs": 1, "echo": True}, "logprobs", "log-probabilities"),
    ({"best_of": 2}, "best_of", "Input should be 1"),
    ({"suffix": "the end"}, "suffix", "Input should be ''"),
    ({"model": "gpt"}, "model", "there is no model 'gpt' here; there is 'tiny-qwen2'"),
    ({"messages": [{"role": "user"}]}, "messages.0.content", "Field required"),
    ({"messages": [{"content": "hi"}]}, "messages.0.role", "Field required"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages.0.content.", "valid list"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.", "should be 'text'"),
    ({"messages": [CHAT[0] | {"tool_calls": [{}]}]}, "messages.0.tool_calls", "at most 0 items"),
    ({"messages": CHAT, "tools": [{"type": "function"}]}, "tools", "at most 0 items"),
    ({"messages": CHAT, "response_format": {"type": "json_object"}}, "response_format.type", "should be 'text'"),
    ({"messages": CHAT, "logprobs": 2}, "logprobs", "valid boolean"),
    ({"messages": CHAT, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
]


@pytest.mark.parametrize(("change", "param", "message"), BAD, ids=[str(case[0])[:40] for case in BAD])
def test_bad_input(server, llm, change, param, message):
    """`param` is the path of the field, or its beginning."""
    is_chat = "messages" in change
    body = change if is_chat else {"model": MODEL, "prompt": STORY, **change}
    path = "chat/completions" if is_chat else "completions"
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"{server.url}/v1/{path}", content=json.dumps(body), headers=headers)
    assert answer.status_code == (404 if param == "model" else 400), answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["code"] == {"model": "model_not_found"}.get(param) or (LONG_TEXT in change.values())
    assert error["param"] == param or (param and param[-1] == "." and error["param"].startswith(param[:-1]))
    assert re.search(message, error["message"]), error["message"]
    assert llm.num_unfinished == 0


@pytest.mark.parametrize(
    ("method", "path", "content", "status"),
    [
        ("POST", "/v1/completions", b'{"model": "tiny', 400),
        ("POST", "/v1/completions", b"[1, 2]", 400),
        ("POST", "/v1/completions", b"\xff\xfe", 400),
        ("POST", "/v1/completions", b'{"prompt": ' + b"9" * 5000 + b"}", 400),
        ("POST", "/v1/completions", b"", 400),
        ("POST", "/v1/completions", b" " * (1 << 20) + b"{}", 413),
        ("POST", "/v1/embeddings", b"{}", 404),
        ("GET", "/v1/completions", b"", 405),
        ("GET", "/../server.py", b"", 404),
    ],
)
def test_bad_bodies_and_paths(server, method, path, content, status):
    headers = {"Content-Type": "application/json"}
    answer = httpx.request(method, server.url + path, content=content, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "body", [{"prompt": [[0.5] * 5000] * 3}, {"messages": [{"role": "user", "content": [{}] * 5000}]}]
)
def test_a_body_is_left_at_its_first_fault(body):
    """To list 100,000 faults takes the interpreter seconds, in which nobody's stream moves."""
    with pytest.raises(ValueError, match="validation error") as caught:
        (ChatRequest if "messages" in body else CompletionRequest).model_validate(body)
    assert caught.value.error_count() < 8


def test_another_hosts_name_is_refused(server):
    for host in ("rebound.example", "[localhost]", "localhost:80:80", "[::1", ""):
        assert httpx.get(f"{server.url}/health", headers={"Host": host}).status_code == 400, host
    for host in ("localhost:1", "LOCALHOST", "[::1]:8000", "127.0.0.1"):
        assert httpx.get(f"{server.url}/health", headers={"Host": host}).status_code == 200, host


# Tokens, made outside of the engine's thread --------------------------------------------------------------------


def test_a_prompt_that_takes_long_holds_up_no_stream_and_may_be_given_up(tiny, monkeypatch):
    llm, begun, go_on = LLM(tiny, num_blocks=256), threading.Event(), threading.Event()
    added, threads = [], set()
    encode, add = Encoder._encode, llm.add

    def slow(encoder, prompt):
        threads.add(threading.current_thread().name.rpartition("_")[0])
        if prompt.startswith("slow"):
            begun.set()
            assert go_on.wait(60)
        return encode(encoder, prompt)

    monkeypatch.setattr(Encoder, "_encode", slow)
    monkeypatch.setattr(llm, "add", lambda ids, *rest, **options: added.append(ids) or add(ids, *rest, **options))
    with serving(llm) as server:
        client = client_of(server)
        stream = ask(client, **LONG, stream=True)
        next(stream)
        for first in ("slow", "and one behind it"):
            with pytest.raises(openai.APITimeoutError):
                ask(client.with_options(timeout=0.3), first, max_tokens=1)
            assert begun.is_set()
            assert len([next(stream) for _ in range(20)]) == 20
        go_on.set()
        assert ask(client, "The sky", max_tokens=1).choices
        stream.close()
        wait_for(server, requests_running=0, requests_waiting=0)
    assert added == [tiny.encode(STORY), tiny.encode("The sky")]
    assert threads == {"pagedlab-tokens"}


def test_the_tokenizer_is_nobody_elses(tiny):
    """One that threads share raises "Already borrowed" when one changes its settings, or forgets half a prompt."""
    encoder = Encoder(tiny)
    prompts = [STORY * count for count in (1, 5, 90) * 20]
    expected = [tiny.encode(prompt) for prompt in prompts]
    stop = threading.Event()

    def meddle():
        while not stop.is_set():
            tiny.tokenizer(STORY, truncation=True, max_length=3)
            tiny.tokenizer(STORY)

    meddler = threading.Thread(target=meddle)
    meddler.start()
    try:
        assert asyncio.run(encoder.encode(prompts)) == expected
    finally:
        stop.set()
        meddler.join()


# Keys, tenants, salts -----------------------------------------------------------------------------------------


def test_keys(tiny):
    with serving(LLM(tiny, num_blocks=64), api_keys=["anna-1", "tom-2"]) as server:
        for wrong in ("none", "anna", "anna-11", "ANNA-1"):
            with pytest.raises(openai.AuthenticationError) as caught:
                ask(client_of(server, wrong))
            assert caught.value.code == "invalid_api_key"
            assert caught.value.response.headers["WWW-Authenticate"] == "Bearer"
        assert ask(client_of(server, "tom-2")).choices
        for path, open_to_all in (("/v1/models", False), ("/metrics", False), ("/blocks", False), ("/health", True)):
            assert (httpx.get(server.url + path).status_code == 401) is not open_to_all
            assert httpx.get(server.url + path, headers={"Authorization": "Bearer anna-1"}).status_code != 401
        for authorization, status in (("Bearer wrong", 401), ("Basic anna-1", 401), ("bearer anna-1", 400)):
            answer = httpx.post(f"{server.url}/v1/completions", json={}, headers={"Authorization": authorization})
            assert answer.status_code == status, answer.text


def test_blocks_are_shared_within_a_tenant_and_a_salt_only(tiny):
    llm = LLM(tiny, num_blocks=256)

    def found(server, key, **extra):
        """Prompt tokens found in the cache by this request."""
        ask(client_of(server, key), list(range(100, 164)), max_tokens=1, extra_body=extra)
        return llm.stats.cached_tokens

    with serving(llm, api_keys={"a1": "lab", "a2": "lab", "b1": "shop"}) as server:
        assert [found(server, key) for key in ("a1", "a1", "a2", "b1", "b1")] == [0, 48, 48, 0, 48]
        salted = [("a1", "x"), ("a2", "x"), ("a2", "y"), ("b1", "x")]
        assert [found(server, key, cache_salt=salt) for key, salt in salted] == [0, 48, 0, 0]
    with serving(llm, salt=lambda tenant, cache_salt: None, api_keys=["a", "b"]) as server:
        assert [found(server, key) for key in ("a", "b")] == [0, 48]


def test_no_two_pairs_have_one_salt():
    words = [None, "", "a", "ab", "b", "bc", "abc", '", "', "null", "a,b"]
    salts = [salt_for(tenant, cache_salt) for tenant in words for cache_salt in words]
    assert len(set(salts)) == len(salts)
    assert salt_for(None, None) is None


@pytest.mark.parametrize("keys", [[], "secret", [""], {}, [7]])
def test_keys_that_make_no_sense(tiny, keys):
    with refused("api_keys"):
        create_app(LLM(tiny, num_blocks=8), api_keys=keys)


# Coming and going ---------------------------------------------------------------------------------------------


def test_a_client_that_hangs_up_frees_its_blocks(server, client):
    before = wait_for(server, requests_running=0)
    stream = ask(client, **LONG, stream=True)
    next(iter(stream))
    wait_for(server, requests_running=1)
    stream.close()
    wait_for(server, requests_running=0, requests_waiting=0, blocks_used=0)
    with pytest.raises(openai.APITimeoutError):  # and the same without a stream
        ask(client.with_options(timeout=0.3), **LONG)
    after = wait_for(server, requests_running=0, requests_waiting=0, blocks_used=0)
    assert after["ended_seconds_count"] == before["ended_seconds_count"], "they were aborted, not served to the end"


def test_a_full_queue_answers_429(tiny):
    with serving(LLM(tiny, num_blocks=256, max_sequences=1), max_waiting=2) as server:
        client = client_of(server)
        running = ask(client, **LONG, stream=True)
        next(iter(running))
        waiting = [threading.Thread(target=ask, args=[client]) for _ in range(2)]
        for thread in waiting:
            thread.start()
        wait_for(server, requests_waiting=2)
        with pytest.raises(openai.RateLimitError, match="2 of 2 places are taken") as caught:
            ask(client)
        assert int(caught.value.response.headers["Retry-After"]) > 0
        assert caught.value.code == "queue_full"
        running.close()
        for thread in waiting:
            thread.join()
        assert ask(client).choices


def test_four_hundred_clients_of_whom_many_hang_up(tiny, exact, rng):
    words = tiny.encode("the cat and the dog went to the mill by the river where a fox sat on a stone")
    shared = [rng.choices(words, k=20) for _ in range(5)]
    prompts = [rng.choice(shared)[: rng.randint(1, 20)] + rng.choices(words, k=3) for _ in range(400)]
    leaves = set(rng.sample(range(400), 110))

    async def talk(client, i):
        body = {"model": MODEL, "prompt": prompts[i], "stream": True, "seed": i, "max_tokens": 12}
        if i in leaves:  # far more than they stay for, so that an end can only be an abort
            body |= {"max_tokens": 1900, "ignore_eos": True}
        text, patience = "", rng.randint(1, 8)
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    assert "error" not in event, event
                    text += event["choices"][0]["text"]
                    patience -= 1
                    if i in leaves and not patience:
                        return "gone"
        return text

    async def crowd(url):
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=240) as client:
            return await asyncio.gather(*(talk(client, i) for i in range(400)))

    # In fp64, or rounding, which depends on who else is in the batch, would decide a draw now and then.
    llm = LLM(exact, num_blocks=4000)
    with serving(llm, max_waiting=400) as server:
        texts = asyncio.run(crowd(server.url))
        seen = wait_for(server, requests_running=0, requests_waiting=0, blocks_used=0)
        assert seen["ended_seconds_count"] == 400 - len(leaves)
    stayed = [i for i in range(400) if i not in leaves]
    params = [SamplingParams(max_tokens=12, temperature=1.0, seed=i) for i in stayed]
    expected = LLM(exact, num_blocks=2000).generate([prompts[i] for i in stayed], params)
    assert [texts[i] for i in stayed] == [completion.outputs[0].text for completion in expected]
    assert all(texts[i] == "gone" for i in leaves)


def test_stopping_ends_streams_uncleanly_and_hands_the_engine_back(tiny):
    llm = LLM(tiny, num_blocks=256)
    asked = {"model": MODEL, "prompt": STORY, "max_tokens": 1500, "ignore_eos": True, "stream": True}
    with (
        BackgroundServer(create_app(llm)) as server,
        httpx.stream("POST", f"{server.url}/v1/completions", json=asked, timeout=60) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        server.stop()
        events = [line for line in lines if line]
    assert "shutting down" in events[-1], "an error, and no [DONE] after it"
    assert_idle(llm)
    assert llm.generate(STORY, SamplingParams(max_tokens=2))[0].finished


# An engine that fails -------------------------------------------------------------------------------------------


def test_an_engine_that_fails_says_so_and_goes_on(tiny, monkeypatch):
    llm = LLM(tiny, num_blocks=256)
    with serving(llm) as server:
        client = client_of(server)
        step, left = llm.step, [3]

        def failing():
            left[0] -= 1
            if left[0] == 0:
                raise RuntimeError("no more memory")
            return step()

        monkeypatch.setattr(llm, "step", failing)
        with pytest.raises(openai.APIError, match="no more memory"):  # in the middle of a stream
            list(ask(client, stream=True))
        left[0] = 3
        with pytest.raises(openai.APIStatusError, match="no more memory") as caught:
            ask(client)
        assert caught.value.status_code == 503
        assert ask(client).choices


def test_a_loop_that_fails_is_started_again(tiny):
    failures = iter([True, False])

    def loop(inbox, busy, step):
        def checked():
            if next(failures, False):
                raise KeyError("lost")
            step()

        run_loop(inbox, busy, checked)

    with serving(LLM(tiny, num_blocks=64), loop=loop) as server:
        client = client_of(server)
        with pytest.raises(openai.APIStatusError, match="failed: KeyError"):
            ask(client)
        assert ask(client).choices


# What monitors see --------------------------------------------------------------------------------------------


def test_metrics_count(tiny):
    with serving(LLM(tiny, num_blocks=64)) as server:
        client = client_of(server)
        usage = [ask(client, max_tokens=i, n=2).usage for i in (1, 3)]
        with pytest.raises(openai.NotFoundError):
            ask(client, model="gpt")
        for path in ("health", "metrics", "", "docs", "blocks", "openapi.json", "v1x"):
            httpx.get(f"{server.url}/{path}")
        seen = wait_for(server, requests_running=0)
        assert seen["prompt_tokens_total"] == sum(u.prompt_tokens for u in usage)
        assert seen["output_tokens_total"] == sum(u.completion_tokens for u in usage) > 0
        answers = {name: count for name, count in seen.items() if name.startswith("requests_total")}
        assert answers == {'requests_total{status="404"}': 1, 'requests_total{status="200"}': 2}
        assert seen["blocks"] == 64
        assert seen["begun_seconds_count"] == seen["ended_seconds_count"] == 2
        assert 0 < seen["begun_seconds_sum"] < seen["ended_seconds_sum"]


def test_head_is_get_without_a_body(server):
    """Monitors and `curl -I` send HEAD."""
    for path in ("/docs", "/health", "/v1/models"):
        whole, head = httpx.get(server.url + path), httpx.head(server.url + path)
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-length"] == whole.headers["content-length"]


def test_every_field_of_a_request_is_described(server):
    types = httpx.get(f"{server.url}/openapi.json").json()["components"]["schemas"]
    for body in (CompletionRequest, ChatRequest):
        described = types[body.__name__]["properties"]
        assert all(described[name]["description"] for name in body.model_fields)


def test_fuzzer_finds_no_server_error(tiny):
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.openapi import from_asgi
    from schemathesis.specs.openapi.checks import status_code_conformance

    llm = LLM(tiny, num_blocks=64)
    app = create_app(llm, max_waiting=8, allowed_hosts=None)
    schema = from_asgi("/openapi.json", app)
    statuses = set()

    @schema.hook
    def map_body(context, body):
        """Right in what would end nearly every example early, and short in what would take long."""
        if isinstance(body, dict):
            if isinstance(body.get("model"), str):
                body["model"] = MODEL
            if isinstance(body.get("max_tokens", 2), int):
                body["max_tokens"] = min(body.get("max_tokens", 2), 4)
            if isinstance(body.get("n"), int):
                body["n"] = min(body["n"], 3)
        return body

    app.state.serving.engine.start()  # the in-process transport runs no lifespan
    try:
        for result in schema.get_all_operations():
            operation = result.ok()
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)[: 2 if operation.body else 1]:

                @given(case=operation.as_strategy(generation_mode=mode))
                @settings(max_examples=12, database=None, suppress_health_check=list(HealthCheck))
                def attack(case):
                    answer = case.call()
                    statuses.add((case.path, answer.status_code))
                    case.validate_response(answer, checks=[not_a_server_error, status_code_conformance])

                attack()
    finally:
        app.state.serving.engine.stop()
    assert_idle(llm)
    reached = {path for path, status in statuses if status == 200}
    assert {"/v1/completions", "/v1/chat/completions"} <= reached, "the fuzzer got through to the engine"
    assert any(status == 400 for _, status in statuses)


# The command --------------------------------------------------------------------------------------------------


def test_sigterm_with_connections_that_never_end():
    """Half-sent requests, and a stream that nobody reads: the server ends at once, and quietly."""
    command = [sys.executable, "-u", "-m", "pagedlab_serve", "serve", "--model", str(TINY_MODEL), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        url = next(line.split()[1].removesuffix("/v1") for line in server.stdout if line.startswith("API:"))
        body = json.dumps({"prompt": STORY, "max_tokens": 1900, "n": 64, "stream": True, "ignore_eos": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        whole = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
        connections = []
        for sent in (head, whole[:-5], b"", whole):
            connections.append(socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))))
            connections[-1].sendall(sent)
        wait_for(SimpleNamespace(url=url), requests_running=1)
        server.send_signal(signal.SIGTERM)
        began = time.monotonic()
        _, errors = server.communicate(timeout=60)
        assert "Traceback" not in errors
        assert time.monotonic() - began < 4, "uvicorn's own patience, or the stream's end, would take longer"
        for connection in connections:
            connection.close()
    finally:
        server.kill()


def test_the_command_answers_to_the_address_it_listens_on(tiny, monkeypatch, capsys):
    """Any of 127.0.0.0/8; and keys may have spaces between them."""
    from pagedlab_serve.cli.serve import serve

    apps = []
    monkeypatch.setattr("pagedlab_fast.LLM", lambda *_, **__: LLM(tiny, num_blocks=8, verbose=False))
    run = SimpleNamespace(run=lambda sockets: None)
    monkeypatch.setattr("pagedlab_serve.background.server_of", lambda app: apps.append(app) or run)
    serve(host="127.8.9.10", port=0, api_keys=["a,", "b"])
    assert "API:          http://127.8.9.10:" in capsys.readouterr().out
    with TestClient(apps[0], base_url="http://127.8.9.10:8000") as client, suppress(AttributeError):
        assert client.get("/v1/models", headers={"Authorization": "Bearer b"}).status_code == 200
