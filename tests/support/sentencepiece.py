"""A tokenizer of Llama's kind: a space is ▁, a text gets one in front, and characters without a token are bytes."""

from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import Unigram
from transformers import PreTrainedTokenizerFast

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["▁", "▁the", "▁old", "▁mill", "▁a", "e", "▁so"]


def whole_words():
    """A tokenizer with a token for each of `WORDS`, and for each byte."""
    names = ["<unk>", "<s>", *BYTES, *WORDS]
    scores = [(name, -(len(name) ** -1.0)) for name in names]
    backend = Tokenizer(Unigram(scores, unk_id=0, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", bos_token="<s>")  # noqa: S106
