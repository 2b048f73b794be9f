"""Log-probabilities in OpenAI's form, and the bytes and places of single tokens."""

import re
from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

from pagedlab.sampling_params import TokenLogprob

LEAST = -9999.0  # JSON has no infinity
# A byte-level vocabulary writes each byte as one of these letters.
LETTERS = {letter: byte for byte, letter in bytes_to_unicode().items()}
# Other vocabularies have tokens with such names, for bytes of characters that have no token.
BYTE = re.compile(r"<0x([0-9A-F]{2})>")


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
        # With tokens for single bytes, each byte that is of no character is shown as one.
        self.errors = "replace" if self._is_byte_level else "surrogateescape"
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
        if self._is_byte_level:
            try:
                return bytes(map(LETTERS.__getitem__, piece))
            except KeyError:  # it is not written in letters for bytes
                return piece.encode()
        text = self._backend.decode([token_id], skip_special_tokens=False)
        byte = BYTE.fullmatch(piece)
        if byte and text != piece:
            return bytes.fromhex(byte[1])
        # The decoder may change the beginning of a text, so the token is looked at further inside.
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
    """Finds where each token begins in the text of all tokens.

    Args:
        spell: the bytes of tokens.
        begin: characters before the text.
    """

    def __init__(self, spell: Spelling, begin: int = 0) -> None:
        self._spell = spell
        self._decoder = getincrementaldecoder("utf-8")(spell.errors)
        self.end = begin  # characters so far, without one that is incomplete

    def add(self, spelled: bytes) -> int:
        """Add the bytes of a token. Return the place of the character that they begin in."""
        self._add(spelled[:1])
        is_incomplete = bool(self._decoder.getstate()[0])
        begin = self.end if is_incomplete or not spelled else self.end - 1
        self._add(spelled[1:])
        return begin

    def add_token(self, token_id: int) -> int:
        """Add a token. A special token takes no place, as it is not shown."""
        return self.add(b"" if token_id in self._spell.special else self._spell(token_id))

    def _add(self, part: bytes) -> None:
        self.end += len(self._decoder.decode(part))


@dataclass
class Echo:
    """A prompt as it is given back.

    Args:
        text: the text.
        starts: where each token begins in the text.
    """

    text: str
    starts: list[int]


def echo_text(tokenizer: Any, text: str) -> Echo:
    """Return the echo of a text. Special tokens that the tokenizer puts around it take no place.

    Args:
        tokenizer: of transformers.
        text: the text.
    """
    encoded = tokenizer(
        text, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False
    )
    starts = []
    end = 0
    for (begin, stop), is_added in zip(
        encoded["offset_mapping"], encoded["special_tokens_mask"], strict=True
    ):
        # Some tokenizers count the space before a word to no token.
        starts.append(end if is_added or text[end:begin].isspace() else begin)
        end = max(end, stop)
    return Echo(text, starts)


def echo_tokens(spell: Spelling, tokenizer: Any, token_ids: Sequence[int]) -> Echo:
    """Return the echo of token ids: their text, with special tokens.

    Args:
        spell: the bytes of tokens.
        tokenizer: of transformers.
        token_ids: the token ids.
    """
    text = tokenizer.backend_tokenizer.decode(token_ids, skip_special_tokens=False)
    places = Places(spell)
    starts = [places.add(spell(token_id)) for token_id in token_ids]
    whole = b"".join(map(spell, token_ids)).decode(errors=spell.errors)
    stripped = max(0, len(whole) - len(text))  # by the decoder, which may strip a space
    return Echo(text, [max(0, start - stripped) for start in starts])


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


class OfCompletion:
    """Makes the `logprobs` of one choice of a completion, piece by piece.

    Args:
        spell: the bytes and the names of tokens.
        echo: the prompt, if the choice begins with it.
    """

    def __init__(self, spell: Spelling, echo: Echo | None = None) -> None:
        self._spell = spell
        self._places = Places(spell, len(echo.text) if echo else 0)
        self._prompt_starts = echo.starts if echo else []

    def __call__(
        self,
        prompt: Sequence[tuple[int, TokenLogprob | None]],
        new: Sequence[TokenLogprob],
        most: int | None = None,
    ) -> dict[str, Any]:
        """Return the `logprobs` of the next tokens.

        Args:
            prompt: the tokens of the prompt, with their log-probabilities; with an echo, in the
                first piece.
            new: the new tokens.
            most: length of the whole text, once it is known: a stop string may have cut it before
                the last tokens.
        """
        starts = self._prompt_starts[: len(prompt)]
        starts += [self._places.add_token(token.token_id) for token in new]
        if most is not None:
            starts = [min(start, most) for start in starts]
        tokens = [*prompt, *((token.token_id, token) for token in new)]
        return {
            "tokens": [self._spell.text(token_id) for token_id, _ in tokens],
            "token_logprobs": [max(found.logprob, LEAST) if found else None for _, found in tokens],
            "top_logprobs": [self._top(found) if found else None for _, found in tokens],
            "text_offset": starts,
        }

    def _top(self, found: TokenLogprob) -> dict[str, float]:
        """Return the log-probabilities of the likeliest tokens and of the token itself."""
        pairs = [*found.top, (found.token_id, found.logprob)]
        return {self._spell.text(token_id): max(logprob, LEAST) for token_id, logprob in pairs}
