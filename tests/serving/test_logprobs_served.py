"""Log-probabilities over HTTP: OpenAI's shapes through its own client, and what lm-evaluation-harness asks for."""

import httpx
import pytest
import torch

from pagedlab import LLM, SamplingParams
from pagedlab.sampling_params import TokenLogprob
from pagedlab_serve.logprobs import LEAST, Places, Spelling, of_chat, of_completion
from support.engines import plain_logits
from support.sentencepiece import BYTES, whole_words
from support.served import CHAT, MODEL, STORY, ask, chat


def close(a, b):
    return a == pytest.approx(b, rel=1e-5, abs=1e-5)


def test_a_chat_in_openais_shape_streamed_and_whole(client, tiny, seed):
    asked = {"max_tokens": 12, "n": 2, "seed": seed}
    params = SamplingParams(**asked, temperature=1.0, logprobs=3)
    (expected,) = LLM(tiny, num_blocks=64, verbose=False).generate([CHAT], params)
    whole = chat(client, **asked, logprobs=True, top_logprobs=3)
    streamed = [[], []]
    for event in chat(client, **asked, logprobs=True, top_logprobs=3, stream=True):
        for part in event.choices:
            streamed[part.index] += part.logprobs.content
    for choice, later, output in zip(whole.choices, streamed, expected.outputs, strict=True):
        for said, *told in zip(output.logprobs, choice.logprobs.content, later, strict=True):
            for one in told:
                assert one.token == Spelling(tiny.tokenizer).text(said.token_id)
                found = [one.logprob, *(top.logprob for top in one.top_logprobs)]
                assert close(found, [said.logprob, *dict(said.top).values()])
        spelled = b"".join(bytes(one.bytes) for one in later).removesuffix(b"<|im_end|>")
        assert spelled.decode(errors="replace") == choice.message.content
    assert [choice.logprobs for choice in chat(client, **asked).choices] == [None, None]


@pytest.mark.parametrize("echo", [False, True])
def test_a_completion_in_openais_shape_streamed_and_whole(client, echo, seed):
    asked = {"max_tokens": 9, "n": 2, "seed": seed, "logprobs": 2, "echo": echo}
    prompts = [STORY, "The"]
    texts, streamed = [""] * 4, [{}, {}, {}, {}]
    for event in ask(client, prompts, **asked, stream=True):
        for part in event.choices:
            texts[part.index] += part.text
            for name, column in part.logprobs.model_dump().items():
                streamed[part.index].setdefault(name, []).extend(column)
    for choice, text, later in zip(ask(client, prompts, **asked).choices, texts, streamed, strict=True):
        shape = choice.logprobs.model_dump()
        assert choice.text == text
        assert text.startswith(prompts[choice.index // 2]) == echo
        assert (later["tokens"], later["text_offset"]) == (shape["tokens"], shape["text_offset"])
        columns = (later["token_logprobs"], *(shape[name] for name in ("tokens", "token_logprobs", "top_logprobs")))
        rows = [*zip(*columns, strict=True)]
        if echo:
            assert rows.pop(0)[2:] == (None, None)
        for again, token, logprob, top in rows:
            assert close(again, logprob)
            assert top[token] == logprob
            assert 2 <= len(top) <= 3


def test_a_harness_scores_as_transformers_does(server, tiny):
    """The request of lm-evaluation-harness's local-completions, and its arithmetic: endings in several contexts."""
    contexts = ["The capital of France is", STORY, "Two and two make", "One day a little girl named"] * 4
    endings = [" Paris.", " little girl named Lily. She", " five", " Tim"] * 4
    pairs = [(tiny.encode(a), tiny.encode(b)) for a, b in zip(contexts, endings, strict=True)]
    body = {"model": MODEL, "prompt": [a + b for a, b in pairs], "temperature": 0, "max_tokens": 1}
    httpx.post(f"{server.url}/v1/completions", json=body)  # now the cache has all of it, but no logits
    body |= {"logprobs": 1, "seed": 1234, "echo": True}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
    assert answer["usage"]["completion_tokens"] == len(pairs)
    for (context, ending), choice in zip(pairs, answer["choices"], strict=True):
        end = len(context) + len(ending)
        assert choice["text"].startswith(tiny.decode(context + ending))
        said, top = choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]
        assert len(said) == end + 1
        rows = torch.log_softmax(plain_logits(tiny, context + ending), dim=1)[len(context) - 1 : -1]
        assert close(sum(said[len(context) : end]), rows.gather(1, torch.tensor([ending]).T).sum().item())
        greedy = [one == max(others.values()) for one, others in zip(said, top, strict=True) if others]
        assert greedy[len(context) - 1 : end - 1] == (rows.argmax(1) == torch.tensor(ending)).tolist()


def test_tokens_are_spelled_as_bytes(tiny):
    """Those of a byte-level vocabulary, and of one with a token for each byte."""
    texts = ["Once upon", "naïve café", "😀👩‍🚀", "a 🙂 or\n日本", "  é", " \n\t\x00"]
    for tokenizer, first in ((tiny.tokenizer, ""), (whole_words(), " ")):
        spell = Spelling(tokenizer)
        for text in texts:
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert b"".join(map(spell, ids)).decode() == first + text
    assert [spell(byte) for byte in tokenizer.convert_tokens_to_ids(BYTES)] == [bytes([i]) for i in range(256)]
    assert [spell(token_id) for token_id in (1, len(tokenizer))] == [b"<s>", b""], "the second is none"


def test_no_two_tokens_have_one_name(tiny):
    twins = whole_words()
    twins.add_tokens([" the", "🙂"])
    for tokenizer in (twins, tiny.tokenizer):
        spell = Spelling(tokenizer)
        padded = len(tokenizer) + 10  # a model may have more rows than its tokenizer has tokens
        assert len({spell.text(token_id) for token_id in range(padded)}) == padded
        assert spell.text(tokenizer.convert_tokens_to_ids("e")) == "e", "the byte of the letter has another name"


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
