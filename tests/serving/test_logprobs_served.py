"""Log-probabilities over HTTP: OpenAI's shapes through its own client, and what lm-evaluation-harness asks for."""

import httpx
import pytest
import torch

from pagedlab import LLM, SamplingParams
from pagedlab.sampling_params import TokenLogprob
from pagedlab.serving.app import create_app
from pagedlab.serving.background import BackgroundServer
from pagedlab.serving.logprobs import LEAST, OfCompletion, Spelling, of_chat
from support.engines import plain_logits
from support.served import CHAT, MODEL, STORY, ask, chat, client_of


@pytest.fixture(scope="module")
def server(tiny):
    llm = LLM(tiny, num_blocks=256, max_batch_tokens=64, verbose=False)
    with BackgroundServer(create_app(llm)) as running:
        yield running
    assert llm.pool.num_free == llm.pool.num_blocks


@pytest.fixture(scope="module")
def client(server):
    return client_of(server)


def close(a, b):
    return a == pytest.approx(b, rel=1e-5, abs=1e-5)


def test_a_chat_in_openais_shape_streamed_and_whole(client, tiny, seed):
    asked = {"max_tokens": 12, "n": 2, "seed": seed}
    params = SamplingParams(max_tokens=12, temperature=1.0, n=2, seed=seed, logprobs=3)
    (expected,) = LLM(tiny, num_blocks=64, verbose=False).generate([CHAT], params)
    whole = chat(client, **asked, logprobs=True, top_logprobs=3)
    streamed = {0: [], 1: []}
    for event in chat(client, **asked, logprobs=True, top_logprobs=3, stream=True):
        for part in event.choices:
            streamed[part.index] += part.logprobs.content or []
    for choice, output in zip(whole.choices, expected.outputs, strict=True):
        content = choice.logprobs.content or []
        assert len(content) == len(output.token_ids) == len(streamed[choice.index])
        for one, later, said in zip(content, streamed[choice.index], output.logprobs or [], strict=True):
            assert one.token == later.token == Spelling(tiny.tokenizer).text(said.token_id)
            assert close(one.logprob, said.logprob)
            assert close(later.logprob, said.logprob)
            assert close([top.logprob for top in one.top_logprobs], [logprob for _, logprob in said.top])
        special = 1 if output.finish_reason == "stop" else 0
        spelled = b"".join(bytes(one.bytes or []) for one in content[: len(content) - special])
        assert spelled.decode(errors="replace") == choice.message.content
    plain = chat(client, **asked)
    assert [choice.logprobs for choice in plain.choices] == [None, None]
    (first, *_) = chat(client, **asked, logprobs=True).choices
    assert [one.top_logprobs for one in first.logprobs.content or []] == [[]] * len(first.logprobs.content or [])


@pytest.mark.parametrize("echo", [False, True])
def test_a_completion_in_openais_shape_streamed_and_whole(client, echo, seed):
    asked = {"model": MODEL, "prompt": [STORY, "The"], "max_tokens": 9, "n": 2, "seed": seed}
    asked |= {"logprobs": 2, "echo": echo}
    whole = ask(client, **asked).choices
    texts, streamed = dict.fromkeys(range(4), ""), {i: {} for i in range(4)}
    for event in ask(client, **asked, stream=True):
        for part in event.choices:
            texts[part.index] += part.text
            for name, column in (part.logprobs.model_dump() if part.logprobs else {}).items():
                streamed[part.index].setdefault(name, []).extend(column)
    for choice in whole:
        shape = choice.logprobs.model_dump() if choice.logprobs else {}
        assert choice.text == texts[choice.index]
        assert choice.text.startswith(asked["prompt"][choice.index // 2]) == echo
        assert {len(column) for column in shape.values()} == {len(shape["tokens"])}
        assert shape["tokens"] == streamed[choice.index]["tokens"]
        assert shape["text_offset"] == streamed[choice.index]["text_offset"]
        assert close(shape["token_logprobs"][echo:], streamed[choice.index]["token_logprobs"][echo:])
        assert (shape["token_logprobs"][0] is None) == (shape["top_logprobs"][0] is None) == echo
        for token, logprob, top in list(zip(shape["tokens"], shape["token_logprobs"], shape["top_logprobs"]))[echo:]:  # noqa: B905
            assert top[token] == logprob or token.startswith("bytes:")
            assert 2 <= len(top) <= 3
        for token, start in zip(shape["tokens"], shape["text_offset"], strict=True):
            ended = choice.finish_reason == "stop" and start == len(choice.text)  # by a token that is no part of it
            assert choice.text[start : start + len(token)] == token or ended or "bytes:" in "".join(shape["tokens"])


@pytest.mark.parametrize(("max_tokens", "before"), [(0, "nothing"), (1, "the same prompts")])
def test_a_harness_scores_as_transformers_does(server, tiny, max_tokens, before):
    """The request of lm-evaluation-harness's local-completions, and its arithmetic: endings in several contexts."""
    contexts = ["The capital of France is", STORY, "Two and two make", "One day a little girl named"] * 4
    endings = [" Paris.", " little girl named Lily. She", " five", " Tim"] * 4
    pairs = [(tiny.encode(a), tiny.encode(b)) for a, b in zip(contexts, endings, strict=True)]
    body = {"model": MODEL, "prompt": [a + b for a, b in pairs], "temperature": 0, "max_tokens": max_tokens}
    body |= {"logprobs": 1, "seed": 1234, "echo": True}
    if before != "nothing":  # they lie in the cache then, which has no logits
        httpx.post(f"{server.url}/v1/completions", json=body | {"logprobs": None, "echo": False, "max_tokens": 1})
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
    assert answer["usage"]["completion_tokens"] == max_tokens * len(pairs)
    for (context, ending), choice in zip(pairs, answer["choices"], strict=True):
        end = len(context) + len(ending)
        said, top = choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]
        assert len(said) == end + max_tokens
        rows = torch.log_softmax(plain_logits(tiny, context + ending), dim=1)[len(context) - 1 : -1]
        assert close(sum(said[len(context) : end]), rows.gather(1, torch.tensor([ending]).T).sum().item())
        greedy = [one == max(others.values()) for one, others in zip(said, top, strict=True) if others][
            len(context) - 1 :
        ]
        assert greedy[: len(ending)] == (rows.argmax(1) == torch.tensor(ending)).tolist()


def test_tokens_are_spelled_as_bytes(tiny):
    spell = Spelling(tiny.tokenizer)
    for text in ["Once upon", "naïve café", "😀👩‍🚀", "日本語", " \n\t\x00", "<|im_end|>"]:
        assert b"".join(map(spell, tiny.encode(text))).decode() == text
    halves = [spell.text(i) for i in tiny.encode("😀")]
    assert len(halves) == 1 or all(half.startswith("bytes:\\xf0") or half.startswith("bytes:\\x") for half in halves)
    assert len({spell(i) for i in range(len(tiny.tokenizer))}) == len(tiny.tokenizer)


def test_no_infinity_and_of_equal_texts_the_likeliest(tiny):
    spell = Spelling(tiny.tokenizer)
    said = TokenLogprob(5, -torch.inf, [(7, -0.5), (8, -torch.inf)])
    assert of_chat(spell, [said])["content"][0]["logprob"] == LEAST
    spell.text = lambda token_id: "same"
    assert OfCompletion(spell)(0, [(5, said)])["top_logprobs"] == [{"same": -0.5}]


@pytest.mark.parametrize("body", [{"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 21}, {"logprobs": 2}])
def test_what_a_chat_cannot_be_told(server, body):
    answer = httpx.post(f"{server.url}/v1/chat/completions", json={"model": MODEL, "messages": CHAT, **body})
    assert answer.status_code == 400
    assert "logprobs" in answer.json()["error"]["message"]
