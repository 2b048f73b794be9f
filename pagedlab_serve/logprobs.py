"""Log-probabilities in OpenAI's form, and the bytes and places of single tokens."""

import re
from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

from pagedlab.sampling_params import TokenLogprob

LEAST = -9999.0  # JSON has no infinity
# A byte-level vocabulary writes each byte as one of these letters.
LETTERS = {letter: byte for byte, letter in bytes_to_unicode().items()}
# Other vocabularies have tokens with such names, for bytes of characters that have no token.
BYTE = re.compile(r"<0x([0-9A-F]{2})>")
Scored = tuple[int, TokenLogprob | None]  # a token; nothing predicts the first of a prompt


class Spelling:
    """The bytes and the names of single tokens.

    Args:
        tokenizer: of transformers.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._backend = tokenizer.backend_tokenizer
        added = self._backend.get_added_tokens_decoder()
        self._added = {token_id: token.content.encode() for token_id, token in added.items()}
        self.special = frozenset(token_id for token_id, token in added.items() if token.special)
        decoder = self._backend.decoder
        self._is_byte_level = decoder is not None and decoder.decode(["Ġ"]) == " "
        self._bytes = dict[int, bytes]()
        self._names = dict[int, str]()
        pieces = {token_id: piece for piece, token_id in self._backend.get_vocab().items()}
        unusual = self._added.keys() | {i for i, piece in pieces.items() if BYTE.fullmatch(piece)}
        taken = set[str]()
        # A name is first that of the token which a text is usually made of.
        for token_id in [*sorted(pieces.keys() - unusual), *sorted(unusual)]:
            spelled = self._spell(token_id, pieces[token_id])
            name = _name_of(spelled)
            self._bytes[token_id] = spelled
            if name not in taken:
                self._names[token_id] = name
                taken.add(name)

    def _spell(self, token_id: int, piece: str) -> bytes:
        """Return the bytes of a token that the vocabulary writes as `piece`."""
        if token_id in self._added:
            return self._added[token_id]
        if self._is_byte_level and all(letter in LETTERS for letter in piece):
            return bytes(LETTERS[letter] for letter in piece)
        if byte := BYTE.fullmatch(piece):
            return bytes.fromhex(byte[1])
        # The decoder may change the beginning of a text, so the token is looked at further inside.
        text = self._backend.decode([token_id], skip_special_tokens=False)
        twice = self._backend.decode([token_id, token_id], skip_special_tokens=False)
        return twice.removeprefix(text).encode()

    def __call__(self, token_id: int) -> bytes:
        """Return the bytes of one token; none if the tokenizer does not have it."""
        return self._bytes.get(token_id, b"")

    def text(self, token_id: int) -> str:
        r"""Return the name of one token, which no other token has.

        It is the token's text. Part of a character is bytes:\xe2\x80, as with OpenAI. A token whose
        text is the name of another one is token_id:65, as with vLLM.
        """
        return self._names.get(token_id, f"token_id:{token_id}")


def _name_of(spelled: bytes) -> str:
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


class Places:
    """Finds where each token begins in the text of all tokens. Special tokens take no place.

    Args:
        spell: the bytes of tokens.
    """

    def __init__(self, spell: Spelling) -> None:
        self._spell = spell
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._end = 0  # characters so far, without one that is incomplete

    def add(self, token_id: int) -> int:
        """Add a token. Return the number of complete characters before it."""
        begin = self._end
        if token_id not in self._spell.special:
            self._end += len(self._decoder.decode(self._spell(token_id)))
        return begin


def of_chat(spell: Spelling, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return the `logprobs` of a chat's choice."""

    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": spell.text(token_id),
            "logprob": max(logprob, LEAST),
            "bytes": list(spell(token_id)),
        }

    content = []
    for token in logprobs:
        top = [entry(token_id, logprob) for token_id, logprob in token.top]
        content.append(entry(token.token_id, token.logprob) | {"top_logprobs": top})
    return {"content": content, "refusal": None}


def of_completion(spell: Spelling, places: Places, tokens: Sequence[Scored]) -> dict[str, Any]:
    """Return the `logprobs` of the next tokens of a completion's choice.

    Args:
        spell: the bytes and the names of tokens.
        places: of the choice's tokens before these.
        tokens: the tokens.
    """

    def top(found: TokenLogprob) -> dict[str, float]:
        pairs = [*found.top, (found.token_id, found.logprob)]
        return {spell.text(token_id): max(logprob, LEAST) for token_id, logprob in pairs}

    return {
        "tokens": [spell.text(token_id) for token_id, _ in tokens],
        "token_logprobs": [max(found.logprob, LEAST) if found else None for _, found in tokens],
        "top_logprobs": [top(found) if found else None for _, found in tokens],
        "text_offset": [places.add(token_id) for token_id, _ in tokens],
    }
