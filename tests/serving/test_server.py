"""The server: OpenAI's client, what is refused, a crowd that hangs up, an engine that fails, and a fuzzer."""

import asyncio
import copy
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings

from pagedlab import LLM, SamplingParams
from pagedlab.model import TINY_MODEL, Model
from pagedlab.recipes.penalties import Penalties
from pagedlab_serve.app import create_app
from pagedlab_serve.background import listen
from pagedlab_serve.engine_thread import run_loop
from pagedlab_serve.openai_api import ChatRequest, CompletionRequest
from pagedlab_serve.prompts import Encoder
from support.engines import assert_idle
from support.faults import raising_at
from support.refused import refused
from support.served import CHAT, LONG, MODEL, STORY, ask, chat, client_of, serving
from support.waiting import until


def wait_for(url, headers=None, **values):
    """The metrics, once these have these values."""

    def seen():
        lines = httpx.get(f"{url}/metrics", headers=headers).text.splitlines()
        pairs = (line.removeprefix("pagedlab_").rsplit(" ", 1) for line in lines if line[0] != "#")
        metrics = {name: float(value) for name, value in pairs}
        return metrics if metrics | values == metrics else None

    return until(seen, why=f"expected {values}")


@pytest.fixture(scope="module")
def alone(tiny):
    """Another engine over the same model, to compare with."""
    return LLM(tiny, num_blocks=256)


ON = {"extra_body": {"ignore_eos": True}}

# OpenAI's client ----------------------------------------------------------------------------------------------


def test_models(client):
    assert [model.id for model in client.models.list()] == [client.models.retrieve(MODEL).id] == [MODEL]


def test_a_chat_is_what_generate_gives_streamed_and_whole(client, alone):
    (expected,) = alone.generate([[{"role": "system", "content": "Be brief."}, *CHAT]], SamplingParams(max_tokens=24))
    (output,) = expected.outputs
    parts = [{"type": "text", "text": "Why is the "}, {"type": "text", "text": "sky blue?"}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    answer = chat(client, messages, temperature=0, max_completion_tokens=24)
    (choice,) = answer.choices
    said = (choice.message.role, choice.message.content, choice.finish_reason)
    assert said == ("assistant", output.text, output.finish_reason)
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert answer.usage.completion_tokens == len(output.token_ids)
    stream = chat(client, messages, temperature=0, max_tokens=24, stream=True)
    first, *deltas = [choice.delta for chunk in stream for choice in chunk.choices]
    assert (first.role, {delta.role for delta in deltas}) == ("assistant", {None})
    assert first.content + "".join(delta.content for delta in deltas) == output.text
    assert len(deltas) > 4, "it comes in pieces"


@pytest.mark.parametrize("stop", [None, "the", [" there", "zz"]])
def test_n_sampled_texts_of_two_prompts_streamed_and_whole(client, alone, seed, stop):
    params = SamplingParams(max_tokens=20, temperature=0.9, top_p=0.95, n=3, seed=seed, stop=stop or ())
    prompts = [STORY, "The sky is"]
    expected = [output for completion in alone.generate(prompts, params) for output in completion.outputs]
    asked = {"max_tokens": 20, "temperature": 0.9, "top_p": 0.95, "n": 3, "seed": seed, "stop": stop}
    whole = ask(client, [alone.model.encode(prompt) for prompt in prompts], **asked)
    texts = [(output.text, output.finish_reason) for output in expected]
    assert [(choice.text, choice.finish_reason) for choice in whole.choices] == texts
    streamed = [("", None)] * 6
    *chunks, last = ask(client, prompts, **asked, stream=True, stream_options={"include_usage": True})
    for chunk in chunks:
        (choice,) = chunk.choices
        text, reason = streamed[choice.index]
        assert reason is None, "nothing comes behind a finish reason"
        streamed[choice.index] = (text + choice.text, choice.finish_reason)
    assert streamed == texts
    assert (last.choices, last.usage) == ([], whole.usage)


def test_what_changes_the_draw_is_passed_on():
    limits = {"top_k": 2, "top_p": 0.4, "min_p": 0.3}
    penalties = {"repetition_penalty": 1.5, "presence_penalty": 2.0, "frequency_penalty": 0.5, "logit_bias": {"7": 9.0}}
    asked = CompletionRequest(prompt=STORY, **limits, **penalties)
    assert asked.sampling(9) == SamplingParams(9, 1.0, adjust=Penalties(1.5, 2.0, 0.5, {7: 9.0}), **limits)


def test_new_tokens_of_a_request_that_does_not_say(tiny):
    with serving(LLM(tiny, num_blocks=256), default_max_tokens=7) as server:
        client = client_of(server)
        nearly = [7] * (tiny.max_length - 10)
        answers = ask(client, **ON), chat(client, **ON), ask(client, nearly, **LONG)
        # OpenAI's 16, this server's 7, and as many as the context has room for.
        assert [answer.usage.completion_tokens for answer in answers] == [16, 7, 10]


STREAMED = {"max_tokens": 4, "stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
# What `vllm bench serve`, lm-evaluation-harness, LangChain and LiteLLM send, and fields that ask for nothing.
OTHERS = [
    {"prompt": STORY, "repetition_penalty": 1.0, "logprobs": None, "temperature": 0.0, **STREAMED},
    {"prompt": [[7, 8], [9]], "max_tokens": 4, "top_k": -1, "logit_bias": {}, "suffix": "", "best_of": 1},
    {"messages": CHAT, "functions": [], "tools": [], "tool_choice": "auto", "response_format": {"type": "text"}},
    {"messages": [{"role": "assistant", "content": None, "tool_calls": []}], "max_tokens": 4},
]


@pytest.mark.parametrize("body", OTHERS)
def test_what_other_clients_send_is_accepted(server, body):
    path = "chat/completions" if "messages" in body else "completions"
    answer = httpx.post(f"{server.url}/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    if "stream" in body:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.text.endswith("}\n\ndata: [DONE]\n\n")


def test_unknown_fields_are_named_once_in_the_log(tiny, caplog):
    """A client cannot fill the log: neither with many names nor with a long one."""
    body = {"prompt": STORY, "max_tokens": 1, "verbosity": "low"}
    many = body | {"y" * 5000: 1} | {f"x{i}\n": i for i in range(500)}
    with serving(LLM(tiny, num_blocks=16, verbose=False)) as server:
        for asked in (body, body, many):
            httpx.post(f"{server.url}/v1/completions", json=asked)
    logged = [record.getMessage() for record in caplog.records if record.name == "pagedlab_serve"]
    assert logged[0].startswith("the field 'verbosity' is ignored")
    assert len(logged) == len(set(logged)) == 100
    assert all("\n" not in line and len(line) < 200 for line in logged)


# Bad input: 4xx, one line in OpenAI's form, and nothing left -------------------------------------------------------

# A change, the field that the error names, its code, and what it says. pydantic's own checks are in openai_api.py.
REFUSED = [
    ({"temperature": float("nan")}, "temperature", None, "temperature: "),
    ({"stop": ["a", ""]}, "stop", None, "stop"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages",
        None,
        "messages.0.content.0.type: ",
    ),
    ({"messages": CHAT, "tools": [{"type": "function"}]}, "tools", None, "tools: this server does not support it"),
    ({"prompt": 5}, "prompt", None, "prompt: Input should be a valid list or Input should be a valid string"),
    ({"messages": CHAT, "response_format": {"type": "json_object"}}, "response_format", None, "response_format"),
    ({"prompt": "\ud800"}, None, None, "must be valid Unicode"),
    ({"prompt": "word " * 3000}, None, "context_length_exceeded", "takes 2048, new ones included"),
    ({"n": 2, "temperature": 0}, None, None, "would all be the same"),
    ({"logit_bias": {"99999": 1}}, "logit_bias", None, "a token id goes from 0 to 4095"),
    ({"max_tokens": 400, "n": 128, "logprobs": 5}, "logprobs", None, "307,200 log-probabilities"),
    ({"prompt": [7] * 1000, "n": 128, "logprobs": 1, "echo": True}, "logprobs", None, "log-probabilities"),
    ({"model": "gpt"}, "model", "model_not_found", "there is no model 'gpt' here"),
]


@pytest.mark.parametrize(("change", "param", "code", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_is_refused(server, llm, change, param, code, message):
    path = "chat/completions" if "messages" in change else "completions"
    content = json.dumps({"prompt": STORY, **change})  # httpx writes no NaN
    answer = httpx.post(f"{server.url}/v1/{path}", content=content, headers=JSON)
    error = answer.json()["error"]
    assert answer.status_code == (404 if code == "model_not_found" else 400), answer.text
    assert (error["type"], error["code"]) == ("invalid_request_error", code)
    assert (error["param"] or "").partition(".")[0] == (param or "")
    assert message in error["message"]
    assert "\n" not in error["message"]
    assert llm.num_unfinished == 0


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "said"),
    [
        ("POST", "completions", b'{"model": "tiny', 400, "send a JSON object"),
        ("POST", "completions", b'{"prompt": ' + b"9" * 5000 + b"}", 400, ""),
        ("POST", "completions", b" " * (1 << 20) + b"{}", 413, ""),
        ("GET", "embeddings", b"", 404, "Not Found: /docs lists every path"),
    ],
)
def test_bad_bodies_and_paths(server, method, path, content, status, said):
    answer = httpx.request(method, f"{server.url}/v1/{path}", content=content, headers=JSON)
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]["message"]


def test_a_body_is_left_at_its_first_fault():
    """To list 100,000 faults takes the interpreter seconds, in which nobody's stream moves."""
    bodies = [(CompletionRequest, {"prompt": [[0.5] * 5000] * 3}), (ChatRequest, {"messages": [{}] * 2000})]
    for kind, body in bodies:
        with pytest.raises(ValueError, match="validation error") as caught:
            kind.model_validate(body)
        assert caught.value.error_count() < 8


def test_another_hosts_name_is_refused(server):
    for host in ("rebound.example", "[localhost]", "localhost:80:80", "[::1", ""):
        assert httpx.get(f"{server.url}/health", headers={"Host": host}).status_code == 400, host
    for host in ("localhost:1", "[::1]:8000", "127.0.0.1"):
        assert httpx.get(f"{server.url}/health", headers={"Host": host}).status_code == 200, host


# Tokens, made outside of the engine's thread --------------------------------------------------------------------


def test_a_prompt_that_takes_long_holds_up_no_stream_and_may_be_given_up(tiny):
    go_on = threading.Event()

    class Slow(Model):
        def encode(self, prompt, **options):
            assert prompt != "slow" or go_on.wait(60)
            return super().encode(prompt, **options)

    with serving(LLM(Slow(**vars(tiny)), num_blocks=256)) as server:
        client = client_of(server)
        stream = ask(client, **LONG, stream=True)
        next(stream)
        for text in ("slow", "and one behind it"):
            with pytest.raises(openai.APITimeoutError):
                ask(client.with_options(timeout=0.3), text, max_tokens=1)
            assert len([next(stream) for _ in range(20)]) == 20
        go_on.set()
        assert ask(client, "The sky", max_tokens=1).choices
        stream.close()
        seen = wait_for(server.url, requests_running=0, requests_waiting=0)
        assert seen["ended_seconds_count"] == 1, "neither of the two was served"


def test_the_tokenizer_is_nobody_elses(tiny):
    """One that threads share may be in other hands, with other settings, in the middle of a prompt."""
    model = replace(tiny, tokenizer=copy.deepcopy(tiny.tokenizer))
    encoder = Encoder(model)
    model.tokenizer.add_tokens(["Once upon"])
    assert asyncio.run(encoder.encode([STORY])) == [tiny.encode(STORY)]


# Keys, tenants, salts -----------------------------------------------------------------------------------------


def test_keys(tiny):
    with serving(LLM(tiny, num_blocks=64), api_keys=["anna-1", "tom-2"]) as server:
        for wrong in ("none", "anna", "anna-11", "ANNA-1"):
            with pytest.raises(openai.AuthenticationError) as caught:
                ask(client_of(server, wrong))
            assert caught.value.code == "invalid_api_key"
            assert caught.value.response.headers["WWW-Authenticate"] == "Bearer"
        assert ask(client_of(server, "tom-2")).choices
        for path, statuses in (("metrics", [401, 401, 200]), ("blocks", [401, 401, 404]), ("health", [200] * 3)):
            headers = [{}, {"Authorization": "Basic anna-1"}, {"Authorization": "bearer anna-1"}]
            assert [httpx.get(f"{server.url}/{path}", headers=each).status_code for each in headers] == statuses


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


def test_keys_that_make_no_sense_are_refused(llm):
    for keys in ([], "secret", [""], [7]):
        with refused("api_keys"):
            create_app(llm, api_keys=keys)


# Coming and going ---------------------------------------------------------------------------------------------


def test_an_answer_does_not_wait_for_the_clients_ack():
    """On a connection that stays open, without TCP_NODELAY nearly every answer takes the 40 ms of a delayed ACK."""
    with listen("127.0.0.1", 0) as listener:
        assert listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_client_without_a_stream_that_hangs_up_frees_its_blocks(server, client):
    before = wait_for(server.url, requests_running=0)
    with pytest.raises(openai.APITimeoutError):
        ask(client.with_options(timeout=0.3), **LONG)
    after = wait_for(server.url, requests_running=0, requests_waiting=0, blocks_used=0)
    assert after["ended_seconds_count"] == before["ended_seconds_count"], "it was aborted, not served to the end"


def test_a_full_queue_answers_429(tiny):
    llm = LLM(tiny, num_blocks=256, max_sequences=1)
    with serving(llm, max_waiting=2) as server, ThreadPoolExecutor() as crowd:
        client = client_of(server)
        running = ask(client, **LONG, stream=True)
        next(iter(running))
        waiting = [crowd.submit(ask, client) for _ in range(2)]
        wait_for(server.url, requests_waiting=2)
        with pytest.raises(openai.RateLimitError, match="2 of 2 places are taken") as caught:
            ask(client)
        assert int(caught.value.response.headers["Retry-After"]) > 0
        assert caught.value.code == "queue_full"
        running.close()
        assert all(each.result().choices for each in waiting)


def test_two_hundred_clients_of_whom_many_hang_up(exact, rng):
    common = exact.encode("the cat and the dog went to the mill by the river where a fox sat on a stone")
    prompts = [[*common[: rng.randint(1, 18)], *rng.choices(common, k=3)] for _ in range(200)]

    def talk(i):
        """Far more is asked than a client that hangs up stays for, so that an end can only be an abort."""
        asked = {"max_tokens": 12, "seed": i} if i % 3 else LONG
        with ask(client, prompts[i], **asked, stream=True) as stream:
            pieces = list(stream if i % 3 else islice(stream, 1 + i % 8))
        return "".join(piece.choices[0].text for piece in pieces) if i % 3 else "gone"

    # In fp64, or rounding, which depends on who else is in the batch, would decide a draw now and then.
    with (
        serving(LLM(exact, num_blocks=2000, max_sequences=128), max_waiting=200) as server,
        ThreadPoolExecutor(200) as crowd,
    ):
        client = client_of(server)
        texts = list(crowd.map(talk, range(200)))
        seen = wait_for(server.url, requests_running=0, requests_waiting=0, blocks_used=0)
        assert seen["ended_seconds_count"] == 133
    params = [SamplingParams(max_tokens=12, temperature=1.0, seed=i) for i in range(200)]
    expected = LLM(exact, num_blocks=2000).generate(prompts, params)
    assert texts == [completion.outputs[0].text if i % 3 else "gone" for i, completion in enumerate(expected)]


def test_stopping_ends_streams_uncleanly_and_hands_the_engine_back(tiny):
    llm = LLM(tiny, num_blocks=256)
    with serving(llm) as server:
        stream = ask(client_of(server), **LONG, stream=True)
        next(stream)
        server.stop()
        with pytest.raises(openai.APIError, match="shutting down"):  # and no [DONE]
            list(stream)
    assert llm.generate(STORY, SamplingParams(max_tokens=2))[0].finished


# An engine that fails -------------------------------------------------------------------------------------------


def test_an_engine_that_fails_says_so_and_goes_on(tiny):
    llm = LLM(tiny, num_blocks=256)
    forward = llm.forward
    with serving(llm) as server:
        client = client_of(server)
        for stream, error in ((True, openai.APIError), (False, openai.InternalServerError)):  # in the middle, and 503
            llm.forward = raising_at(3, forward, RuntimeError("no more memory"))
            with pytest.raises(error, match="no more memory"):
                list(ask(client, stream=stream))
        assert ask(client).choices


def test_a_loop_that_fails_is_started_again(tiny):
    at_second = raising_at(1, lambda step: step(), KeyError("lost"))

    def loop(inbox, busy, step):
        run_loop(inbox, busy, lambda: at_second(step))

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
        assert "Without it" in httpx.get(f"{server.url}/docs").text  # said until a script from the web is there
        for path in ("health", "v1x", "v1/models/gpt"):  # the last alone is the API's
            httpx.get(f"{server.url}/{path}")
        head = httpx.head(f"{server.url}/health")  # monitors and `curl -I` send it
        assert (head.status_code, head.content) == (200, b"")
        seen = wait_for(server.url, requests_running=0, blocks=64, begun_seconds_count=2, ended_seconds_count=2)
        assert seen["prompt_tokens_total"] == sum(u.prompt_tokens for u in usage)
        assert seen["output_tokens_total"] == sum(u.completion_tokens for u in usage) > 0
        answers = {name: count for name, count in seen.items() if name.startswith("requests_total")}
        assert answers == {'requests_total{status="404"}': 1, 'requests_total{status="200"}': 2}
        assert 0 < seen["begun_seconds_sum"] < seen["ended_seconds_sum"]


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
        return body | {"model": MODEL, "max_tokens": 4} if isinstance(body, dict) else body

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
    reached = {("/v1/completions", 200), ("/v1/chat/completions", 200), ("/v1/completions", 400)}
    assert reached <= statuses, "the fuzzer got through to the engine"


# The command --------------------------------------------------------------------------------------------------


def test_sigterm_with_connections_that_never_end():
    """Half-sent requests, and a stream that nobody reads: the server ends at once, and quietly.

    It listens on another address of this machine, and its keys have a space between them.
    """
    host = "127.8.9.10"
    options = ["--model", str(TINY_MODEL), "--host", host, "--port", "0", "--api-key", "a,", "--api-key", "b"]
    command = [sys.executable, "-u", "-m", "pagedlab_serve", "serve", *options]
    body = json.dumps({"prompt": STORY, "max_tokens": 1900, "n": 64, "stream": True, "ignore_eos": True})
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer b\r\n"
    whole = f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            url = next(line.split()[1].removesuffix("/v1") for line in server.stdout if line.startswith("API:"))
            connections = [socket.create_connection((host, int(url.rpartition(":")[2]))) for _ in range(4)]
            for connection, sent in zip(connections, (whole[:99], whole[:-5], b"", whole), strict=True):
                connection.sendall(sent)
            wait_for(url, {"Authorization": "Bearer a"}, requests_running=1)
            server.send_signal(signal.SIGTERM)
            began = time.monotonic()
            assert "Traceback" not in server.communicate(timeout=60)[1]
            assert time.monotonic() - began < 4, "uvicorn's own patience, or the stream's end, would take longer"
        finally:
            server.kill()
