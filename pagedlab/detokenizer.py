"""Text from tokens, one token at a time: no half characters, and nothing shown that a stop string may take back."""

from __future__ import annotations

from typing import Any

from tokenizers.decoders import DecodeStream


class Detokenizer:
    """Turns the tokens of one text into pieces. `text` is what is certain so far, cut before a stop string."""

    def __init__(self, tokenizer: Any, stop: tuple[str, ...] = ()) -> None:
        self._tokenizer = tokenizer.backend_tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stop = stop
        self._shown = 0  # characters of the text that were handed out
        self.text = ""
        self.stopped = False

    def push(self, token_id: int) -> None:
        """Take in the next token; `stopped` tells whether a stop string is complete with it."""
        try:
            piece = self._stream.step(self._tokenizer, token_id) or ""
        except Exception:  # broken bytes changed what was handed out already: tokenizers has no finer class for it
            self._stream = DecodeStream(skip_special_tokens=True)
            piece = self._stream.step(self._tokenizer, token_id) or ""
        begin = max(0, len(self.text) - max(map(len, self._stop), default=1) + 1)
        self.text += piece
        hits = [at for at in (self.text.find(s, begin) for s in self._stop) if at >= 0]
        if hits:
            self.text = self.text[: min(hits)]
            self.stopped = True

    def finish(self, full_text: str) -> None:
        """No token follows: take over what the whole text has more, such as a character left incomplete."""
        if not self.stopped and full_text.startswith(self.text):
            self.text = full_text

    def take(self, finished: bool) -> str:
        """The text not handed out yet. Until the end, a tail that may begin a stop string is held back."""
        held = 0 if finished else max((_overlap(self.text, s) for s in self._stop), default=0)
        end = len(self.text) - held
        piece, self._shown = self.text[self._shown : end], max(self._shown, end)
        return piece


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that `stop` begins with, short of all of it."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
