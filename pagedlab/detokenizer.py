"""Text from tokens, one token at a time: no half characters, and nothing that a later stop string
would cut off.
"""

from typing import Any

from tokenizers.decoders import DecodeStream


class Detokenizer:
    """Turns the tokens of one sequence into pieces of text.

    `text` is what is certain so far, cut before a stop string; `stopped` tells whether one was
    found.

    Args:
        tokenizer: a fast tokenizer of transformers.
        stop: strings that end the text.
    """

    def __init__(self, tokenizer: Any, stop: tuple[str, ...] = ()) -> None:
        self._tokenizer = tokenizer.backend_tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stop = stop
        # characters at the end that may begin a stop string
        self._most = max(map(len, stop), default=1) - 1
        self._shown = 0  # characters of the text that were handed out
        self.text = ""
        self.stopped = False

    def push(self, token_id: int) -> None:
        """Add the next token. `stopped` tells whether it completes a stop string."""
        try:
            piece = self._stream.step(self._tokenizer, token_id) or ""
        except (
            Exception
        ):  # broken bytes changed what was handed out already: tokenizers has no finer class for it
            self._stream = DecodeStream(skip_special_tokens=True)
            piece = self._stream.step(self._tokenizer, token_id) or ""
        self._add(piece)

    def finish(self, full_text: str) -> None:
        """Add what the decoded tokens have beyond `text`, an incomplete character for one.

        No token follows.

        A stop string in the rest cuts the text too.

        Args:
            full_text: all tokens, decoded at once.
        """
        if not self.stopped and full_text.startswith(self.text):
            self._add(full_text[len(self.text) :])

    def _add(self, piece: str) -> None:
        """Append a piece to the text, and cut the text before the first stop string."""
        begin = max(0, len(self.text) - self._most)  # a stop string may begin in the text before
        self.text += piece
        hits = [self.text.find(stop, begin) for stop in self._stop]
        found = [at for at in hits if at >= 0]
        if found:
            self.text = self.text[: min(found)]
            self.stopped = True

    def take(self, finished: bool) -> str:
        """Return the text that was not returned yet.

        Args:
            finished: no token follows. Until then, a tail that may be the start of a stop string is
                held back.
        """
        end = len(self.text) if finished else self._certain_length()
        piece = self.text[self._shown : end]
        self._shown = max(self._shown, end)
        return piece

    def _certain_length(self) -> int:
        """Characters before the first tail that may be the start of a stop string."""
        length = len(self.text)
        for start in range(max(0, length - self._most), length):
            tail = self.text[start:]
            if any(stop.startswith(tail) for stop in self._stop):
                return start
        return length
