"""Log-probabilities over HTTP: OpenAI's shapes through its own client, and what lm-evaluation-harness asks for."""

import copy
import threading
import unicodedata

import httpx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pagedlab import LLM, SamplingParams
from pagedlab.sampling_params import TokenLogprob
from pagedlab_serve.app import create_app
from pagedlab_serve.background import BackgroundServer
from pagedlab_serve.logprobs import LEAST, OfCompletion, Places, Spelling, echo_tokens, of_chat
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


@pytest.fixture(scope="module")
def pieces(tiny):
    """The tiny model with a tokenizer of Llama's kind, which knows the first 275 of its tokens."""
    model = copy.copy(tiny)
    model.tokenizer = sentencepiece()
    model.tokenizer.chat_template = "{{ messages[0]['content'] }}"
    return model


@pytest.fixture(scope="module")
def served_pieces(pieces):
    with BackgroundServer(create_app(LLM(pieces, num_blocks=64, verbose=False))) as running:
        yield running


def test_tokens_are_spelled_as_bytes(tiny):
    spell = Spelling(tiny.tokenizer)
    for text in ["Once upon", "naïve café", "😀👩‍🚀", "日本語", " \n\t\x00", "<|im_end|>"]:
        assert b"".join(map(spell, tiny.encode(text))).decode() == text
    halves = [spell.text(i) for i in tiny.encode("😀")]
    assert len(halves) == 1 or all(half.startswith("bytes:\\xf0") or half.startswith("bytes:\\x") for half in halves)
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


def test_top_logprobs_have_every_token(pieces, served_pieces):
    """Bytes of characters, and a byte that is also a letter, are made the likeliest tokens."""
    names = ["<0xF0>", "<0x9F>", "<0x99>", "<0x74>", "t"]
    bias = {str(token_id): 100 for token_id in pieces.tokenizer.convert_tokens_to_ids(names)}
    body = {"prompt": "the old", "max_tokens": 3, "logprobs": 5, "logit_bias": bias, "ignore_eos": True}
    (choice,) = httpx.post(f"{served_pieces.url}/v1/completions", json=body).json()["choices"]
    for token, top in zip(choice["logprobs"]["tokens"], choice["logprobs"]["top_logprobs"], strict=True):
        assert len(top) == 5 + (token not in [*top][:5])
    chat = {"messages": CHAT, "max_tokens": 1, "logprobs": True, "top_logprobs": 5, "logit_bias": bias}
    (choice,) = httpx.post(f"{served_pieces.url}/v1/chat/completions", json=chat).json()["choices"]
    top = choice["logprobs"]["content"][0]["top_logprobs"]
    assert len({one["token"] for one in top}) == 5


@pytest.mark.parametrize(
    ("text", "tokens", "offsets"),
    [
        (
            "the old 🙂",
            ["<s>", " the", " old", " ", r"bytes:\xf0", r"bytes:\x9f", r"bytes:\x99", r"bytes:\x82"],
            [0, 0, 3, *[7], *[8] * 4],
        ),
        ("the</s> old", ["<s>", " the", "</s>", " ", " old"], [0, 0, 3, 7, 7]),
    ],
)
def test_offsets_of_an_echo_with_byte_tokens(served_pieces, text, tokens, offsets):
    body = {"prompt": text, "echo": True, "logprobs": 0, "max_tokens": 0}
    (choice,) = httpx.post(f"{served_pieces.url}/v1/completions", json=body).json()["choices"]
    assert choice["text"] == text
    assert choice["logprobs"]["tokens"] == tokens
    assert choice["logprobs"]["text_offset"] == offsets


@pytest.mark.parametrize(
    "text", ["The 😀 old mill", "cafe\u0301 e\u0301\u0301 old", "Two<|im_end|>\n<|im_start|>three", "日本 old"]
)
@pytest.mark.parametrize("as_ids", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_offsets_are_places_in_the_text(client, tiny, text, as_ids, stream):
    """A token of a part of a character begins where the character does. NFC joins e and its accent."""
    prompt = tiny.encode(text) if as_ids else text
    answer = ask(client, prompt, echo=True, logprobs=0, max_tokens=6, temperature=0, stream=stream)
    parts = [event.choices[0] for event in answer] if stream else [answer.choices[0]]
    returned = "".join(part.text for part in parts)
    tokens = [token for part in parts for token in part.logprobs.tokens]
    offsets = [offset for part in parts for offset in part.logprobs.text_offset]
    assert returned.startswith(tiny.tokenizer.decode(prompt) if as_ids else text)
    at = 0
    for token, offset in zip(tokens, offsets, strict=True):
        assert at <= offset <= len(returned)
        at = offset
        if offset < len(returned) and not token.startswith("bytes:"):
            assert unicodedata.normalize("NFC", returned[offset:]).startswith(token)


def test_a_stop_string_leaves_no_offset_beyond_the_text(client):
    whole = ask(client, max_tokens=12, temperature=0, logprobs=0).choices[0]
    stop = whole.text[9:20]  # it begins within a token, and ends some tokens later
    asked = {"max_tokens": 12, "temperature": 0, "logprobs": 0, "stop": stop}
    cut = ask(client, **asked).choices[0]
    assert cut.text == whole.text[:9]
    starts = whole.logprobs.text_offset[: len(cut.logprobs.tokens)]
    assert max(starts) > 9
    assert cut.logprobs.text_offset == [min(start, 9) for start in starts]
    streamed = [event.choices[0].logprobs for event in ask(client, **asked, stream=True)]
    assert [offset for part in streamed for offset in part.text_offset] == cut.logprobs.text_offset


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_places_of_any_tokens_whatever_their_bytes(tiny, data):
    """Bytes that are no character are shown, so what is behind them is further on."""
    spell = Spelling(tiny.tokenizer)
    # Behind the byte ED, Python's decoder waits for a third byte, even if the second is of no character.
    plain = [i for i in range(len(tiny.tokenizer)) if i not in spell.special and b"\xed" not in spell(i)]
    ids = data.draw(st.lists(st.sampled_from(plain), min_size=1, max_size=20))
    text = tiny.tokenizer.decode(ids)
    places = Places(spell)
    for count, token_id in enumerate(ids):
        before = tiny.tokenizer.decode(ids[:count]) if count else ""
        is_split = before + tiny.tokenizer.decode(ids[count:]) != text  # a character, between two tokens
        assert places.add_token(token_id) == len(before) - is_split


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["▁the", "▁old"], [0, 4]),
        (["▁old", "<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "▁", "</s>"], [0, 4, 4, 4, 4, 5, 6]),
        (["<0xF0>", "<0x9F>", "▁old", "e"], [0, 0, 2, 6]),
    ],
)
def test_places_of_byte_tokens_behind_a_prompt(names, expected):
    """Where they make no character, the text has a mark for each of them."""
    tokenizer = sentencepiece()
    places = Places(Spelling(tokenizer), begin=7)
    ids = tokenizer.convert_tokens_to_ids(names)
    assert [places.add_token(token_id) - 7 for token_id in ids] == expected


def test_no_infinity(tiny):
    said = TokenLogprob(5, -torch.inf, [(7, -0.5), (8, -torch.inf)])
    spell = Spelling(tiny.tokenizer)
    assert of_chat(spell, [said])["content"][0]["logprob"] == LEAST
    shape = OfCompletion(spell)([], [said])
    assert shape["token_logprobs"] == [LEAST]
    assert list(shape["top_logprobs"][0].values()) == [-0.5, LEAST, LEAST]


def test_the_limit_counts_the_tokens_of_echoed_prompts(server, tiny):
    prompt = tiny.encode("word " * 400)
    body = {"prompt": [prompt] * 4, "n": 128, "logprobs": 1, "echo": True, "max_tokens": 1}
    answer = httpx.post(f"{server.url}/v1/completions", json=body)
    asked = 4 * 128 * (len(prompt) + 1) * 2
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(
        f"prompts * n * (prompt tokens + max_tokens) * (logprobs + 1) is {asked:,} log-probabilities"
    )
    without = httpx.post(f"{server.url}/v1/completions", json=body | {"prompt": prompt, "n": 1})
    assert without.status_code == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_a_prompt_is_decoded_once_and_outside_the_event_loop(tiny, monkeypatch, stream, logprobs):
    threads = []

    def watched(*arguments):
        threads.append(threading.current_thread().name)
        return echo_tokens(*arguments)

    monkeypatch.setattr("pagedlab_serve.prompts.echo_tokens", watched)
    prompts = [tiny.encode(STORY), tiny.encode("The sky")]
    body = {"prompt": prompts, "n": 8, "echo": True, "max_tokens": 2, "logprobs": logprobs, "stream": stream}
    with BackgroundServer(create_app(LLM(tiny, num_blocks=200, verbose=False))) as server:
        answer = httpx.post(f"{server.url}/v1/completions", json=body)
    assert answer.text.count(STORY) == 8
    assert len(threads) == 2
    assert all(name.startswith("pagedlab-tokens") for name in threads)


@pytest.mark.parametrize("body", [{"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 21}, {"logprobs": 2}])
def test_what_a_chat_cannot_be_told(server, body):
    answer = httpx.post(f"{server.url}/v1/chat/completions", json={"model": MODEL, "messages": CHAT, **body})
    assert answer.status_code == 400
    assert "logprobs" in answer.json()["error"]["message"]
