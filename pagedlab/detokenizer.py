"""The detokenizer: text from tokens, one token at a time.

It never returns half a character, nor text that a later stop string would cut off.
"""

from typing import Any

from tokenizers.decoders import DecodeStream


class Detokenizer:
    """Turns the tokens of one sequence into pieces of text.

    `text` is the text so far, up to a stop string. `stopped` says whether one was found.

    Args:
        tokenizer: a fast tokenizer of transformers.
        stop: strings that end the text.
    """

    def __init__(self, tokenizer: Any, stop: tuple[str, ...] = ()) -> None:
        self._tokenizer = tokenizer.backend_tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stop = stop
        self._longest_tail = max(map(len, stop), default=1) - 1  # that can begin a stop string
        self._num_taken = 0  # characters that `take` has returned
        self.text = ""
        self.stopped = False

    def push(self, token_id: int) -> None:
        """Add the next token. If it completes a stop string, `stopped` is True afterwards."""
        try:
            piece = self._stream.step(self._tokenizer, token_id) or ""
        except Exception:  # invalid bytes; tokenizers has no narrower class for this error
            self._stream = DecodeStream(skip_special_tokens=True)
            piece = self._stream.step(self._tokenizer, token_id) or ""
        self._add(piece)

    def finish(self, full_text: str) -> None:
        """Add the rest of the text after the last token, for instance an incomplete character.

        A stop string in the rest ends the text, too.

        Args:
            full_text: the text of all tokens, decoded at once.
        """
        if not self.stopped and full_text.startswith(self.text):
            self._add(full_text[len(self.text) :])

    def _add(self, piece: str) -> None:
        """Append a piece to the text, and cut the text before the first stop string."""
        length_before = len(self.text)
        self.text += piece
        if not self._stop:
            return
        # A stop string may begin in the text before the piece.
        begin = max(0, length_before - self._longest_tail)
        hits = [self.text.find(stop, begin) for stop in self._stop]
        found = [at for at in hits if at >= 0]
        if found:
            self.text = self.text[: min(found)]
            self.stopped = True

    def take(self, finished: bool) -> str:
        """Return the text that was not returned yet.

        Args:
            finished: whether no token follows. If more tokens follow, an end of the text that may
                begin a stop string is held back.
        """
        end = len(self.text) if finished else self._certain_length()
        piece = self.text[self._num_taken : end]
        self._num_taken = max(self._num_taken, end)
        return piece

    def _certain_length(self) -> int:
        """Characters before the longest end of the text that may begin a stop string."""
        length = len(self.text)
        for start in range(max(0, length - self._longest_tail), length):
            tail = self.text[start:]
            if any(stop.startswith(tail) for stop in self._stop):
                return start
        return length
