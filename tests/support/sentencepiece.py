"""A tokenizer of Llama 2's kind: spaces are part of tokens, and its decoder strips the first one of a text."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import Unigram
from transformers import PreTrainedTokenizerFast

WORDS = ["▁", "▁the", "▁old", "▁mill", "▁a", "e", "▁so"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def sentencepiece() -> PreTrainedTokenizerFast:
    """The words above, and a token for each byte."""
    names = ["<unk>", "<s>", *BYTES, *WORDS]
    backend = Tokenizer(Unigram([(name, -(len(name) ** -1.0)) for name in names], unk_id=0, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>")  # noqa: S106
