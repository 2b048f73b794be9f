"""Log-probabilities in OpenAI's form, and the text of single tokens."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel
from transformers.convert_slow_tokenizer import bytes_to_unicode

from pagedlab.sampling_params import TokenLogprob

LEAST = -9999.0  # JSON has no infinity
# A byte-level vocabulary writes each byte as one of these letters.
LETTERS = {letter: byte for byte, letter in bytes_to_unicode().items()}


class Spelling:
    """The bytes of single tokens.

    A byte-level vocabulary contains them. With any other, they are the decoded text.

    Args:
        tokenizer: of transformers.
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
        """Return the bytes of one token."""
        if token_id in self._added:
            return self._added[token_id]
        letters = self.tokenizer.backend_tokenizer.id_to_token(token_id) if self._by_bytes else None
        if letters:
            return bytes(LETTERS[letter] for letter in letters)
        return self.tokenizer.decode([token_id]).encode()

    def text(self, token_id: int) -> str:
        """Return the text of one token. Part of a character is bytes:\\xe2\\x80, as with OpenAI."""
        if token_id not in self._texts:
            spelled = self(token_id)
            try:
                self._texts[token_id] = spelled.decode()
            except UnicodeDecodeError:
                self._texts[token_id] = "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)
        return self._texts[token_id]


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
    """Makes the `logprobs` of a completion's choices, piece by piece.

    Args:
        spell: the text of tokens.
    """

    def __init__(self, spell: Spelling) -> None:
        self._spell = spell
        self._ends = Counter[int]()  # choice -> length of its text so far

    def __call__(
        self, choice: int, tokens: Sequence[tuple[int, TokenLogprob | None]]
    ) -> dict[str, Any]:
        """Return the `logprobs` of the next tokens.

        Of several tokens with the same text, the likeliest is reported.

        Args:
            choice: index of the choice.
            tokens: token ids, and their log-probabilities where there are any.
        """
        form: dict[str, Any] = {
            "tokens": [],
            "token_logprobs": [],
            "top_logprobs": [],
            "text_offset": [],
        }
        for token_id, found in tokens:
            text = self._spell.text(token_id)
            top: dict[str, float] = {}
            if found:
                for other, logprob in [*found.top, (token_id, found.logprob)]:
                    top.setdefault(self._spell.text(other), max(logprob, LEAST))
            form["tokens"].append(text)
            form["token_logprobs"].append(max(found.logprob, LEAST) if found else None)
            form["top_logprobs"].append(top or None)
            form["text_offset"].append(self._ends[choice])
            self._ends[choice] += len(text)
        return form
