"""Text out of tokens, piece by piece: nothing half, nothing that a stop string takes back, nothing lost."""

import json
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from pagedlab import LLM, SamplingParams
from pagedlab.detokenizer import Detokenizer, TextAfter
from pagedlab.recipes.beam import beam_search
from pagedlab.recipes.penalties import Penalties
from pagedlab_serve.app import create_app
from pagedlab_serve.background import BackgroundServer
from support.sentencepiece import whole_words

relaxed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def tokenizer(tiny):
    return tiny.tokenizer


def encode(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def decode(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True)


def run(tokenizer, ids, stop=(), prompt=()):
    """Push the tokens as the engine does, and take a piece after each."""
    text_after = TextAfter(tokenizer, list(prompt))
    detokenizer, pieces = Detokenizer(tokenizer, stop, text_after.context), []
    for i, token in enumerate(ids):
        detokenizer.push(token)
        finished = detokenizer.stopped or i == len(ids) - 1
        if finished:
            detokenizer.finish(text_after(ids[: i + 1]))
        pieces.append(detokenizer.take(finished))
        if finished:
            break
    return detokenizer, pieces


@relaxed
@given(data=st.data())
def test_pieces_of_any_tokens_join_to_their_text(tokenizer, data):
    """Tokens drawn blindly are mostly broken UTF-8, with special tokens between."""
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), min_size=1, max_size=30))
    detokenizer, pieces = run(tokenizer, ids)
    assert "".join(pieces) == detokenizer.text == decode(tokenizer, ids)


@given(data=st.data())
def test_broken_bytes_of_a_tokenizer_that_falls_back_to_bytes(data):
    """Llama's kind: whether a byte stands for a character depends on the bytes behind it, and shown is shown."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁so", "e"]
    backend = Tokenizer(BPE({name: i for i, name in enumerate(names)}, [], unk_token="<unk>", byte_fallback=True))  # noqa: S106
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    ids = data.draw(st.lists(st.integers(1, len(names) - 1), min_size=1, max_size=12))
    detokenizer, pieces = run(PreTrainedTokenizerFast(tokenizer_object=backend), ids)
    assert "".join(pieces) == detokenizer.text
    if "\ufffd" not in backend.decode(ids):
        assert detokenizer.text == backend.decode(ids)


@relaxed
@given(text=st.text(min_size=1, max_size=40))
def test_a_piece_never_ends_in_half_a_character(tokenizer, text):
    ids = encode(tokenizer, text)
    _, pieces = run(tokenizer, ids)
    assert "".join(pieces) == decode(tokenizer, ids)
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in pieces)


def test_an_unfinished_character_shows_at_the_end_only(tokenizer):
    ids = encode(tokenizer, "so 😀")[:-1]
    assert decode(tokenizer, ids).endswith("\ufffd")
    _, pieces = run(tokenizer, ids)
    assert "".join(pieces) == decode(tokenizer, ids)
    assert all("\ufffd" not in piece for piece in pieces[:-1])


# Stop strings ---------------------------------------------------------------------------------------------------


@relaxed
@given(data=st.data())
def test_stop_strings_cut_where_plain_search_would(tokenizer, data):
    """Few letters, so that stop strings and beginnings of them turn up everywhere, across tokens too."""
    text = data.draw(st.text(alphabet="ab .\n", min_size=1, max_size=40))
    stop = tuple(data.draw(st.lists(st.text(alphabet="ab .\n", min_size=1, max_size=5), max_size=3)))
    # Cut into tokens at arbitrary places: the tokens of single characters and of what lies between.
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=20)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    ids = [token for part in parts for token in encode(tokenizer, part)]

    expected, length = text, len(ids)
    for k in range(1, len(ids) + 1):
        so_far = decode(tokenizer, ids[:k])
        hits = [so_far.find(s) for s in stop if s in so_far]
        if hits:
            expected, length = so_far[: min(hits)], k
            break
    detokenizer, pieces = run(tokenizer, ids, stop)
    assert detokenizer.stopped == any(s in text for s in stop)
    assert len(pieces) == length, "it must end with the token that completes the stop string"
    assert detokenizer.text == expected
    shown = ""
    longest = max(map(len, stop), default=1)
    for k, piece in enumerate(pieces, 1):
        shown += piece
        assert expected.startswith(shown), "something was shown that the stop string took back"
        if k < length:
            assert len(decode(tokenizer, ids[:k])) - len(shown) < longest, (
                "more was held back than may be a stop string"
            )
    assert shown == expected


@pytest.fixture(scope="module")
def straddling():
    """A byte-level tokenizer with a token that ends one character, स or é, and begins another."""
    of_byte = bytes_to_unicode()
    names = [of_byte[byte] for byte in range(256)]
    names.append(of_byte[0xA9] + of_byte[0xC3])  # the end of é, and the beginning of another one
    names.append("".join(of_byte[byte] for byte in "स्".encode()) + of_byte[0xE0])
    backend = Tokenizer(BPE({name: i for i, name in enumerate(names)}, []))
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize(
    ("ids", "stop", "left"),
    [
        ([ord("a"), 0xC3, 256], ("é",), "a"),
        ([ord("a"), 0xC3, 256], ("aé",), ""),
        ([ord("a"), 257], ("स्",), "a"),
        ([ord("a"), 257], ("\ufffd",), "aस्"),
        ([ord("a"), 0xC3], ("b", "\ufffd"), "a"),
        ([ord("a"), 0xC3, 256], ("a\ufffd",), "aé\ufffd"),
    ],
)
def test_a_stop_string_held_back_until_the_end_is_found(straddling, ids, stop, left):
    """The last token begins a character, so all of it is held back until no token follows."""
    detokenizer, pieces = run(straddling, ids, stop)
    assert (detokenizer.text, "".join(pieces)) == (left, left)
    assert detokenizer.stopped == any(s in decode(straddling, ids) for s in stop)


@relaxed
@given(data=st.data())
def test_no_stop_string_is_left_in_a_text_whatever_its_bytes(straddling, data):
    tokens = [ord("a"), ord("b"), 0xC3, 0xA9, 0xE0, 0xA4, 256, 257]
    ids = data.draw(st.lists(st.sampled_from(tokens), min_size=1, max_size=8))
    stop = tuple(data.draw(st.lists(st.text(alphabet="abéस\ufffd", min_size=1, max_size=3), max_size=3)))
    detokenizer, pieces = run(straddling, ids, stop)
    assert "".join(pieces) == detokenizer.text
    assert not any(s in detokenizer.text for s in stop)
    assert detokenizer.stopped or detokenizer.text == decode(straddling, ids)


@pytest.mark.parametrize("max_tokens", [1, 3])
def test_the_engine_ends_a_text_with_stop_if_the_stop_string_was_held_back(tiny, max_tokens):
    (first_byte,) = tiny.tokenizer.convert_tokens_to_ids([bytes_to_unicode()[0xE0]])
    params = SamplingParams(max_tokens, adjust=Penalties(bias={first_byte: 100.0}), stop=["\ufffd"], ignore_eos=True)
    llm = LLM(tiny, num_blocks=8, verbose=False)
    (done,) = llm.generate(["The cat"], params)
    (output,) = done.outputs
    assert output.token_ids == [first_byte] * max_tokens
    assert (output.text, output.finish_reason) == ("", "stop")
    assert "".join(llm.stream("The cat", params)) == ""


def test_nothing_comes_behind_a_stop_string(tokenizer):
    detokenizer = Detokenizer(tokenizer, ("b",))
    for token in encode(tokenizer, "a b c"):
        detokenizer.push(token)
        if detokenizer.stopped:
            break
    detokenizer.finish("a b c and more")
    assert detokenizer.text == "a "
    assert detokenizer.take(finished=True) == "a "
    assert detokenizer.take(finished=True) == ""


# After a prompt ------------------------------------------------------------------------------------------------


LLAMAS = whole_words()
MILL = encode(LLAMAS, "the old mill")
A, E, SPACE = LLAMAS.convert_tokens_to_ids(["▁a", "e", "▁"])


@given(data=st.data())
def test_the_text_is_what_prompt_and_new_tokens_together_add(data):
    """A decoder that strips the first space of a text, and characters of several tokens on both sides."""
    words = st.sampled_from(["the", " old", " ", "  ", " a", "e", "é", "🙂", "न", " 🙂"])
    prompt = encode(LLAMAS, "".join(data.draw(st.lists(words, max_size=30))))
    new = encode(LLAMAS, "x" + "".join(data.draw(st.lists(words, min_size=1, max_size=12))))[1:]
    added = decode(LLAMAS, prompt + new)[len(decode(LLAMAS, prompt)) :]
    assert TextAfter(LLAMAS, prompt)(new) == added
    detokenizer, pieces = run(LLAMAS, new, prompt=prompt)
    assert detokenizer.text == "".join(pieces) == added


def test_a_character_that_the_prompt_begins_is_part_of_the_text():
    *begun, last = encode(LLAMAS, "so 🙂")
    assert TextAfter(LLAMAS, begun)([last, A]) == "🙂 a"
    detokenizer, pieces = run(LLAMAS, [last, A], prompt=begun)
    assert (detokenizer.text, "".join(pieces)) == ("🙂 a", "🙂 a")


def test_a_prompt_without_text_of_its_own_begins_the_text():
    special = [LLAMAS.bos_token_id] * 50
    assert TextAfter(LLAMAS, special)([A, A]) == "a a"
    assert TextAfter(LLAMAS, [*MILL, *special])([A]) == " a"


def test_a_long_prompt_is_not_decoded_again_for_each_token():
    lengths = []

    def counted(ids, **options):
        lengths.append(len(ids))
        return LLAMAS.decode(ids, **options)

    tokenizer = SimpleNamespace(decode=counted, backend_tokenizer=SimpleNamespace(decode=counted))
    detokenizer, _ = run(tokenizer, [A, E, SPACE] * 20, prompt=MILL * 1000)
    assert detokenizer.text == " ae " * 20
    assert sorted(lengths)[-3] < 20, "all but the whole text are short"
    assert max(lengths) < 100


@pytest.fixture(scope="module")
def llama(tiny):
    """The tiny model with a tokenizer of Llama 2's kind."""
    return replace(tiny, tokenizer=LLAMAS)


@pytest.mark.parametrize(
    ("stop", "text"), [((), " a a a"), (("a",), " "), ((" a",), ""), (("a a",), " "), (("ill",), " a a a")]
)
def test_the_engine_keeps_the_first_space(llama, stop, text):
    params = SamplingParams(3, adjust=Penalties(bias={A: 100.0}), stop=stop, ignore_eos=True)
    llm = LLM(llama, num_blocks=8, verbose=False)
    (output,) = llm.generate("the old mill", params)[0].outputs
    assert output.text == text
    assert "".join(llm.stream("the old mill", params)) == text
    assert output.finish_reason == ("length" if text == " a a a" else "stop")
    for beam in beam_search(llm, "the old mill", width=2, max_tokens=3, ignore_eos=True):
        assert "the old mill" + beam.text == decode(LLAMAS, MILL + beam.token_ids)


@pytest.fixture(scope="module")
def server(llama):
    with BackgroundServer(create_app(LLM(llama, num_blocks=16, verbose=False))) as running:
        yield running


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("stop", [None, "a a"])
def test_the_server_keeps_the_first_space(server, echo, stop):
    prompt = "the old mill"
    body = {"prompt": prompt, "max_tokens": 3, "logit_bias": {A: 100}, "ignore_eos": True, "echo": echo, "stop": stop}
    text = prompt * echo + (" " if stop else " a a a")
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
    assert answer["choices"][0]["text"] == text
    lines = httpx.post(f"{server.url}/v1/completions", json=body | {"stream": True}, timeout=60).text.split("data: ")
    events = [json.loads(line) for line in lines if line.startswith("{")]
    assert "".join(event["choices"][0]["text"] for event in events) == text
