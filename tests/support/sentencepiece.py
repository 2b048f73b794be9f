"""Tokenizers of Llama's kind: a space is ▁, a text gets one in front, and characters without a token are bytes."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE, Model, Unigram
from transformers import PreTrainedTokenizerFast

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["▁", "▁the", "▁old", "▁mill", "▁a", "e", "▁so"]
LETTERS = ["▁", *"theoldmia"]
MERGES = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "o"), ("l", "d"), ("▁o", "ld")]


def whole_words() -> PreTrainedTokenizerFast:
    """A tokenizer with a token for each of `WORDS`, and for each byte."""
    names = ["<unk>", "<s>", *BYTES, *WORDS]
    backend = _with_spaces(Unigram([(name, -(len(name) ** -1.0)) for name in names], unk_id=0, byte_fallback=True))
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>")  # noqa: S106


def sentencepiece() -> PreTrainedTokenizerFast:
    """A tokenizer with tokens of its own for " the", " old" and a few letters. A text begins with <s>."""
    names = ["<unk>", "<s>", "</s>", *BYTES, *LETTERS, *("".join(pair) for pair in MERGES)]
    vocabulary = {name: token_id for token_id, name in enumerate(names)}
    backend = _with_spaces(BPE(vocabulary, MERGES, unk_token="<unk>", byte_fallback=True))  # noqa: S106
    backend.add_special_tokens(["<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")  # noqa: S106


def _with_spaces(model: Model) -> Tokenizer:
    """Write a space as ▁, put one in front of a text, and strip it again."""
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend
