"""Text from tokens, one token at a time: no half characters, and nothing shown that a stop string may take back."""

from typing import Any

from tokenizers.decoders import DecodeStream


class Detokenizer:
    """Turns the tokens of one text into pieces. `text` is what is certain so far, cut before a stop string."""

    def __init__(self, tokenizer: Any, stop: tuple[str, ...] = ()) -> None:
        self._tokenizer = tokenizer.backend_tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stop = stop
        self._most = max(map(len, stop), default=1) - 1  # characters at the end that may begin a stop string
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
        self._add(piece)

    def finish(self, full_text: str) -> None:
        """Take over what the whole text has beyond `text`: no token follows.

        That is a character left incomplete, and what came in one token with its beginning. A stop
        string in it cuts the text too, and `stopped` tells so.
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
        """The text not handed out yet. Until the end, a tail that may begin a stop string is held back."""
        end = len(self.text)
        if not finished:
            tails = range(max(0, end - self._most), end)
            end = next((at for at in tails if any(s.startswith(self.text[at:]) for s in self._stop)), end)
        piece, self._shown = self.text[self._shown : end], max(self._shown, end)
        return piece
