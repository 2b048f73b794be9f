"""Log-probabilities over HTTP: OpenAI's shapes through its own client, and what lm-evaluation-harness asks for."""

import copy

import httpx
import pytest
import torch

from pagedlab import LLM, SamplingParams
from pagedlab.sampling_params import TokenLogprob
from pagedlab_serve.app import create_app
from pagedlab_serve.background import BackgroundServer
from pagedlab_serve.logprobs import LEAST, Places, Spelling, of_chat, of_completion
from support.engines import plain_logits
from support.sentencepiece import BYTES, sentencepiece
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
            streamed[part.index] += part.logprobs.content
    for choice, output in zip(whole.choices, expected.outputs, strict=True):
        content = choice.logprobs.content
        for one, later, said in zip(content, streamed[choice.index], output.logprobs, strict=True):
            assert one.token == later.token == Spelling(tiny.tokenizer).text(said.token_id)
            assert close(one.logprob, said.logprob)
            assert close(later.logprob, said.logprob)
            assert close([top.logprob for top in one.top_logprobs], [logprob for _, logprob in said.top])
        special = 1 if output.finish_reason == "stop" else 0
        spelled = b"".join(bytes(one.bytes) for one in content[: len(content) - special])
        assert spelled.decode(errors="replace") == choice.message.content
    plain = chat(client, **asked)
    assert [choice.logprobs for choice in plain.choices] == [None, None]


@pytest.mark.parametrize("echo", [False, True])
def test_a_completion_in_openais_shape_streamed_and_whole(client, echo, seed):
    asked = {"model": MODEL, "prompt": [STORY, "The"], "max_tokens": 9, "n": 2, "seed": seed}
    asked |= {"logprobs": 2, "echo": echo}
    whole = ask(client, **asked).choices
    texts, streamed = dict.fromkeys(range(4), ""), {i: {} for i in range(4)}
    for event in ask(client, **asked, stream=True):
        for part in event.choices:
            texts[part.index] += part.text
            for name, column in part.logprobs.model_dump().items():
                streamed[part.index].setdefault(name, []).extend(column)
    for choice in whole:
        shape = choice.logprobs.model_dump()
        assert choice.text == texts[choice.index]
        assert choice.text.startswith(asked["prompt"][choice.index // 2]) == echo
        assert {len(column) for column in shape.values()} == {len(shape["tokens"])}
        assert shape["tokens"] == streamed[choice.index]["tokens"]
        assert shape["text_offset"] == streamed[choice.index]["text_offset"]
        assert close(shape["token_logprobs"][echo:], streamed[choice.index]["token_logprobs"][echo:])
        assert (shape["token_logprobs"][0] is None) == (shape["top_logprobs"][0] is None) == echo
        columns = shape["tokens"], shape["token_logprobs"], shape["top_logprobs"]
        for token, logprob, top in list(zip(*columns, strict=True))[echo:]:
            assert top[token] == logprob
            assert 2 <= len(top) <= 3


@pytest.mark.parametrize("before", ["nothing", "the same prompts"])
def test_a_harness_scores_as_transformers_does(server, tiny, before):
    """The request of lm-evaluation-harness's local-completions, and its arithmetic: endings in several contexts."""
    contexts = ["The capital of France is", STORY, "Two and two make", "One day a little girl named"] * 4
    endings = [" Paris.", " little girl named Lily. She", " five", " Tim"] * 4
    pairs = [(tiny.encode(a), tiny.encode(b)) for a, b in zip(contexts, endings, strict=True)]
    body = {"model": MODEL, "prompt": [a + b for a, b in pairs], "temperature": 0, "max_tokens": 1}
    body |= {"logprobs": 1, "seed": 1234, "echo": True}
    if before != "nothing":  # they lie in the cache then, which has no logits
        httpx.post(f"{server.url}/v1/completions", json=body | {"logprobs": None, "echo": False})
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
    assert answer["usage"]["completion_tokens"] == len(pairs)
    for (context, ending), choice in zip(pairs, answer["choices"], strict=True):
        end = len(context) + len(ending)
        said, top = choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]
        assert len(said) == end + 1
        rows = torch.log_softmax(plain_logits(tiny, context + ending), dim=1)[len(context) - 1 : -1]
        assert close(sum(said[len(context) : end]), rows.gather(1, torch.tensor([ending]).T).sum().item())
        greedy = [one == max(others.values()) for one, others in zip(said, top, strict=True) if others]
        assert greedy[len(context) - 1 : end - 1] == (rows.argmax(1) == torch.tensor(ending)).tolist()


def test_tokens_are_spelled_as_bytes(tiny):
    spell = Spelling(tiny.tokenizer)
    for text in ["Once upon", "naïve café", "😀👩‍🚀", "日本語", " \n\t\x00", "<|im_end|>"]:
        assert b"".join(map(spell, tiny.encode(text))).decode() == text
    assert len({spell(i) for i in range(len(tiny.tokenizer))}) == len(tiny.tokenizer)


def test_tokens_of_a_vocabulary_with_byte_tokens_are_spelled_as_bytes():
    tokenizer = sentencepiece()
    spell = Spelling(tokenizer)
    for text in ["the old mill", "a 🙂 or\n日本", "  é"]:
        assert b"".join(map(spell, tokenizer.encode(text)[1:])).decode() == f" {text}"
    for byte, name in enumerate(BYTES):
        assert spell(tokenizer.convert_tokens_to_ids(name)) == bytes([byte])
    assert [spell(token_id) for token_id in (1, len(tokenizer))] == [b"<s>", b""], "the second is none"


def with_two_tokens_of_one_text():
    tokenizer = sentencepiece()
    tokenizer.add_tokens([" the", "🙂"])
    return tokenizer


@pytest.mark.parametrize("make", [sentencepiece, with_two_tokens_of_one_text, None])
def test_no_two_tokens_have_one_name(make, tiny):
    tokenizer = make() if make else tiny.tokenizer
    spell = Spelling(tokenizer)
    padded = len(tokenizer) + 10  # a model may have more rows than its tokenizer has tokens
    assert len({spell.text(token_id) for token_id in range(padded)}) == padded
    letters = tokenizer.convert_tokens_to_ids(["t", "h", "e"])
    assert [spell.text(token_id) for token_id in letters] == ["t", "h", "e"], "the byte of the letter has another name"


def test_top_logprobs_have_every_token(tiny):
    """Bytes of characters, and a byte that is also a letter, are made the likeliest tokens of a Llama's vocabulary."""
    model = copy.copy(tiny)
    model.tokenizer = sentencepiece()
    model.tokenizer.chat_template = "{{ messages[0]['content'] }}"
    names = ["<0xF0>", "<0x9F>", "<0x99>", "<0x74>", "t"]
    bias = {str(token_id): 100 for token_id in model.tokenizer.convert_tokens_to_ids(names)}
    body = {"prompt": "the old", "max_tokens": 3, "logprobs": 5, "logit_bias": bias, "ignore_eos": True}
    asked = {"messages": CHAT, "max_tokens": 1, "logprobs": True, "top_logprobs": 5, "logit_bias": bias}
    with BackgroundServer(create_app(LLM(model, num_blocks=64, verbose=False))) as server:
        (choice,) = httpx.post(f"{server.url}/v1/completions", json=body).json()["choices"]
        (message,) = httpx.post(f"{server.url}/v1/chat/completions", json=asked).json()["choices"]
    for token, top in zip(choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"], strict=True):
        assert len(top) == 5 + (token not in [*top][:5])
    assert len({one["token"] for one in message["logprobs"]["content"][0]["top_logprobs"]}) == 5


@pytest.mark.parametrize("text", ["The 😀 old mill", "日本 old", "Two<|im_end|>\n<|im_start|>three"])
def test_a_place_counts_the_characters_of_the_tokens_before(tiny, text):
    """Special tokens have none. A part of a character counts once the character is complete."""
    places = Places(Spelling(tiny.tokenizer))
    ids = tiny.encode(text)
    for count, token_id in enumerate(ids):
        before = tiny.decode(ids[:count]) if count else ""
        assert places.add(token_id) == len(before.rstrip("\ufffd"))


def test_no_infinity(tiny):
    said = TokenLogprob(5, -torch.inf, [(7, -0.5), (8, -torch.inf)])
    spell = Spelling(tiny.tokenizer)
    assert of_chat(spell, [said])["content"][0]["logprob"] == LEAST
    shape = of_completion(spell, Places(spell), [(5, said)])
    assert shape["token_logprobs"] == [LEAST]
    assert list(shape["top_logprobs"][0].values()) == [-0.5, LEAST, LEAST]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_ids", [False, True])
def test_an_echo_gives_the_prompt_back(client, tiny, as_ids, stream):
    prompt = tiny.encode(STORY) if as_ids else STORY
    answer = ask(client, prompt, echo=True, max_tokens=4, n=2, stream=stream)
    texts = ["", ""]
    for event in answer if stream else [answer]:
        for choice in event.choices:
            texts[choice.index] += choice.text
    assert all(text.startswith(STORY) and len(text) > len(STORY) for text in texts)
