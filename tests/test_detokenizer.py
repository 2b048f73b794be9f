"""Text out of tokens, piece by piece: nothing half, nothing that a stop string takes back, nothing lost."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from pagedlab import SamplingParams
from pagedlab.detokenizer import Detokenizer
from pagedlab.recipes.beam import beam_search
from pagedlab.recipes.penalties import Penalties
from support.engines import engine, output_of
from support.sentencepiece import whole_words

relaxed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
LLAMAS = whole_words()  # a byte-fallback decoder that strips the first space of a text


def straddling():
    """A byte-level tokenizer with a token that ends one character, स or é, and begins another."""
    of_byte = bytes_to_unicode()
    names = [of_byte[byte] for byte in range(256)]
    names.append(of_byte[0xA9] + of_byte[0xC3])  # the end of é, and the beginning of another one
    names.append("".join(of_byte[byte] for byte in "स्".encode()) + of_byte[0xE0])
    backend = Tokenizer(BPE({name: i for i, name in enumerate(names)}, []))
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


STRADDLING = straddling()


def encode(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def decode(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True)


MILL = encode(LLAMAS, "the old mill")
A, E, SPACE = LLAMAS.convert_tokens_to_ids(["▁a", "e", "▁"])


def run(tokenizer, ids, stop=(), prompt=()):
    """Read the tokens as the engine does, and take a piece after each."""
    detokenizer, pieces = Detokenizer(partial(decode, tokenizer), prompt, stop), []
    for i in range(1, len(ids) + 1):
        detokenizer.read(ids[:i], is_whole=False)
        is_last = detokenizer.stopped or i == len(ids)
        detokenizer.read(ids[:i], is_last)
        pieces.append(detokenizer.take())
        if is_last:
            break
    assert detokenizer.text == "".join(pieces)
    assert detokenizer.take() == ""
    return detokenizer, pieces


@pytest.mark.parametrize("kind", ["tiny", "Llama's", "straddling"])
@relaxed
@given(data=st.data())
def test_pieces_of_any_tokens_join_to_their_text(tiny, kind, data):
    """Tokens drawn blindly are mostly broken UTF-8, with special tokens between."""
    tokenizer = {"tiny": tiny.tokenizer, "Llama's": LLAMAS, "straddling": STRADDLING}[kind]
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), min_size=1, max_size=30))
    text = decode(tokenizer, ids)
    # With byte fallback, whether a byte is a character depends on the bytes behind it, and shown is shown.
    assert run(tokenizer, ids)[0].text == text or (kind == "Llama's" and "\ufffd" in text)


@relaxed
@given(text=st.text(min_size=1, max_size=40))
def test_a_piece_never_ends_in_half_a_character(tiny, text):
    """An unfinished one shows at the end only."""
    ids = encode(tiny.tokenizer, text)
    assume("\ufffd" not in text)
    assert not any("\ufffd" in piece for piece in run(tiny.tokenizer, ids)[1])
    assert not any("\ufffd" in piece for piece in run(tiny.tokenizer, ids[:-1] or ids)[1][:-1])


# Stop strings ---------------------------------------------------------------------------------------------------


@relaxed
@given(data=st.data())
def test_stop_strings_cut_where_plain_search_would(tiny, data):
    """Few letters, so that stop strings and beginnings of them turn up everywhere, across tokens too."""
    letters = st.sampled_from("ab .\n")
    parts = data.draw(st.lists(st.text(letters, min_size=1, max_size=6), min_size=1, max_size=12))
    stop = tuple(data.draw(st.lists(st.text(letters, min_size=1, max_size=5), max_size=3)))
    ids = [token for part in parts for token in encode(tiny.tokenizer, part)]
    so_far = [decode(tiny.tokenizer, ids[:k]) for k in range(1, len(ids) + 1)]
    length = next((k for k, text in enumerate(so_far, 1) if any(s in text for s in stop)), len(ids))
    text = so_far[length - 1]
    expected = text[: min((text.find(s) for s in stop if s in text), default=len(text))]
    detokenizer, pieces = run(tiny.tokenizer, ids, stop)
    assert detokenizer.stopped == any(s in text for s in stop)
    assert len(pieces) == length, "it must end with the token that completes the stop string"
    assert detokenizer.text == expected
    shown = ""
    longest = max(map(len, stop), default=1)
    for k, piece in enumerate(pieces, 1):
        shown += piece
        assert expected.startswith(shown), "something was shown that the stop string took back"
        assert k == length or len(so_far[k - 1]) - len(shown) < longest, "more was held back than may be a stop string"
    assert shown == expected


@given(data=st.data())
def test_no_stop_string_is_left_in_a_text_whatever_its_bytes(data):
    ids = data.draw(st.lists(st.sampled_from([97, 98, 0xC3, 0xA9, 0xE0, 0xA4, 256, 257]), min_size=1, max_size=8))
    stop = tuple(data.draw(st.lists(st.text(alphabet="abéस\ufffd", min_size=1, max_size=3), max_size=3)))
    detokenizer, _ = run(STRADDLING, ids, stop)
    assert not any(s in detokenizer.text for s in stop)
    assert detokenizer.stopped or detokenizer.text == decode(STRADDLING, ids)


# After a prompt ------------------------------------------------------------------------------------------------


@given(data=st.data())
def test_the_text_is_what_prompt_and_new_tokens_together_add(data):
    """Characters of several tokens on both sides. One that the prompt begins is part of the text."""
    words = st.sampled_from(["the", " old", " ", "  ", " a", "e", "é", "🙂", "न", " 🙂"])
    prompt = encode(LLAMAS, "".join(data.draw(st.lists(words, max_size=30))))
    new = encode(LLAMAS, "x" + "".join(data.draw(st.lists(words, min_size=1, max_size=12))))[1:]
    added = decode(LLAMAS, prompt + new)[len(decode(LLAMAS, prompt)) :]
    assert run(LLAMAS, new, prompt=prompt)[0].text == added
    *begun, last = encode(LLAMAS, "so 🙂")
    assert run(LLAMAS, [last, A], prompt=begun)[0].text == "🙂 a"


def test_a_long_prompt_is_not_decoded_again_for_each_token():
    lengths = []

    def counted(ids, **options):
        lengths.append(len(ids))
        return LLAMAS.decode(ids, **options)

    detokenizer, _ = run(SimpleNamespace(decode=counted), [A, E, SPACE] * 20, prompt=MILL * 1000)
    assert detokenizer.text == " ae " * 20
    assert max(lengths) < 20


# In the engine and over HTTP --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llm(tiny):
    """The tiny model with a tokenizer of Llama 2's kind."""
    return engine(replace(tiny, tokenizer=LLAMAS), num_blocks=16)


PROMPT = "the old mill"
BYTE = LLAMAS.convert_tokens_to_ids("<0xE0>")


@pytest.mark.parametrize(
    ("token", "stop", "text"),
    [
        *((A, *row) for row in [((), " a a a"), (("a",), " "), ((" a",), ""), (("a a",), " "), (("ill",), " a a a")]),
        (BYTE, ("\ufffd",), ""),  # held back until the end
    ],
)
def test_the_engine_keeps_the_first_space(llm, token, stop, text):
    params = SamplingParams(3, adjust=Penalties(bias={token: 100.0}), stop=stop, ignore_eos=True)
    output = output_of(llm, PROMPT, params)
    assert (output.text, output.finish_reason) == (text, "length" if text == " a a a" else "stop")
    assert "".join(llm.stream(PROMPT, params)) == text


def test_beams_keep_the_first_space(llm):
    for beam in beam_search(llm, PROMPT, width=2, max_tokens=3, ignore_eos=True):
        assert PROMPT + beam.text == decode(LLAMAS, MILL + beam.token_ids)
