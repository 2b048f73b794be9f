"""A tokenizer of Llama's kind: a space is ▁, a text gets one in front, and characters without a token are bytes."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = ["▁", *"theoldmia"]
MERGES = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "o"), ("l", "d"), ("▁o", "ld")]


def sentencepiece() -> PreTrainedTokenizerFast:
    """Return the tokenizer. It has tokens of its own for " the", " old" and a few letters."""
    names = ["<unk>", "<s>", "</s>", *BYTES, *LETTERS, *("".join(pair) for pair in MERGES)]
    vocabulary = {name: token_id for token_id, name in enumerate(names)}
    backend = Tokenizer(BPE(vocabulary, MERGES, unk_token="<unk>", byte_fallback=True))  # noqa: S106
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    strip = decoders.Strip(" ", 1, 0)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    backend.add_special_tokens(["<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")  # noqa: S106
