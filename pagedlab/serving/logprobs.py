"""Log-probabilities in OpenAI's shapes, and what a token looks like by itself."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel
from transformers.convert_slow_tokenizer import bytes_to_unicode

from pagedlab.sampling_params import TokenLogprob

LEAST = -9999.0  # JSON has no infinity
# as byte-level vocabularies spell bytes
LETTERS = {letter: byte for byte, letter in bytes_to_unicode().items()}


class Spelling:
    """The bytes of tokens.

    A byte-level vocabulary says them; of others they are what the token is decoded to.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        backend = tokenizer.backend_tokenizer
        self._added = {
            i: token.content.encode() for i, token in backend.get_added_tokens_decoder().items()
        }
        self._texts: dict[int, str] = {}
        self._by_bytes = backend.get_vocab().keys() >= set(ByteLevel.alphabet())

    def __call__(self, token_id: int) -> bytes:
        """Of one token."""
        if token_id in self._added:
            return self._added[token_id]
        letters = self.tokenizer.backend_tokenizer.id_to_token(token_id) if self._by_bytes else None
        return (
            bytes(LETTERS[letter] for letter in letters)
            if letters
            else self.tokenizer.decode([token_id]).encode()
        )

    def text(self, token_id: int) -> str:
        """Of one token; part of a character is written as OpenAI does, bytes:\\xe2\\x80."""
        if token_id not in self._texts:
            spelled = self(token_id)
            try:
                self._texts[token_id] = spelled.decode()
            except UnicodeDecodeError:
                self._texts[token_id] = "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)
        return self._texts[token_id]


def of_chat(spell: Spelling, said: Sequence[TokenLogprob]) -> dict[str, Any]:
    """The `logprobs` of a chat's choice."""

    def one(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": spell.text(token_id),
            "logprob": max(logprob, LEAST),
            "bytes": [*spell(token_id)],
        }

    content = [
        one(t.token_id, t.logprob) | {"top_logprobs": [one(*other) for other in t.top]}
        for t in said
    ]
    return {"content": content, "refusal": None}


class OfCompletion:
    """The `logprobs` of a completion's choices, piece by piece, with each token's place in the
    text.
    """

    def __init__(self, spell: Spelling) -> None:
        self._spell, self._ends = spell, Counter[int]()

    def __call__(
        self, choice: int, tokens: Sequence[tuple[int, TokenLogprob | None]]
    ) -> dict[str, Any]:
        """Of these tokens. Of those with one text, the likeliest is told."""
        shape: dict[str, Any] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for token_id, said in tokens:
            shape["tokens"].append(text := self._spell.text(token_id))
            shape["token_logprobs"].append(said and max(said.logprob, LEAST))
            top: dict[str, float] = {}
            for other, logprob in [*said.top, (token_id, said.logprob)] if said else ():
                top.setdefault(self._spell.text(other), max(logprob, LEAST))
            shape["top_logprobs"].append(top or None)
            shape["text_offset"].append(self._ends[choice])
            self._ends[choice] += len(text)
        return shape
