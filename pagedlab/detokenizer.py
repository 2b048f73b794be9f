"""The detokenizer: text from tokens, one token at a time.

It never returns half a character, nor text that a later stop string would cut off. The text is what
the new tokens add to that of the prompt: alone, the first token may lose its space, as in Llama 2.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from os.path import commonprefix

Decode = Callable[[list[int]], str]

CONTEXT = 8  # tokens of a prompt that are decoded with the new ones
INCOMPLETE = "\ufffd"  # a decoded text ends with it while a character is incomplete


def _added(before: str, whole: str) -> str:
    """Return what a text has more than the text before it.

    An incomplete character at the end of the text before may have become a whole one.
    """
    if whole.startswith(before):
        return whole[len(before) :]
    return whole[len(commonprefix([before, whole])) :]  # noqa: RUF071 - of texts, not of paths


class Detokenizer:
    """Turns the tokens of one sequence into pieces of text.

    Args:
        decode: returns the text of token ids, without special tokens.
        prompt_ids: the tokens of the prompt.
        stop: strings that end the text.

    Attributes:
        text: the text so far, up to a stop string.
        stopped: whether a stop string was found.
    """

    def __init__(
        self, decode: Decode, prompt_ids: Seq[int] = (), stop: tuple[str, ...] = ()
    ) -> None:
        # The library's DecodeStream raises at bytes that are no text.
        self._decode = decode
        self._ids = self._context(list(prompt_ids))  # tokens of the piece before, and after it
        self._before = self._decode(self._ids)  # the text of the piece before
        self._num_before = len(self._ids)  # its tokens
        self._num_read = 0  # new tokens
        self._num_taken = 0  # characters that `take` has returned
        self._is_whole = False
        self.stop = stop
        self.text = ""
        self.stopped = False

    def _context(self, prompt_ids: list[int]) -> list[int]:
        """The last tokens of the prompt, enough for a text that begins with a whole character."""
        count = CONTEXT
        while count < len(prompt_ids):
            text = self._decode(prompt_ids[-count:])
            if text and not text.startswith(INCOMPLETE):
                break
            count *= 2
        return prompt_ids[-count:]

    def read(self, token_ids: list[int], is_whole: bool) -> None:
        """Read the new tokens that were not read yet.

        Args:
            token_ids: all new tokens so far.
            is_whole: whether no token follows. Then the text ends with a character that is
                incomplete.
        """
        rest = token_ids[self._num_read :]
        self._num_read = len(token_ids)
        if not is_whole:
            for token_id in rest:
                self.push(token_id)
        elif not self._is_whole:
            self._is_whole = True
            self._add(_added(self._before, self._decode(self._ids + rest)))

    def push(self, token_id: int) -> None:
        """Read one token."""
        self._ids.append(token_id)
        whole = self._decode(self._ids)
        piece = _added(self._before, whole)
        if whole.endswith(INCOMPLETE) or not piece:
            return
        self._ids = self._ids[self._num_before :]
        self._num_before = len(self._ids)
        self._before = self._decode(self._ids)
        self._add(piece)

    def _add(self, piece: str) -> None:
        """Append a piece to the text, and cut the text before the first stop string."""
        if self.stopped:
            return
        self.text += piece
        hits = [self.text.find(stop) for stop in self.stop]
        found = [at for at in hits if at >= 0]
        if found:
            self.text = self.text[: min(found)]
            self.stopped = True

    def take(self) -> str:
        """Return the text that was not returned yet.

        If more tokens follow, an end of the text that may begin a stop string is held back.
        """
        held = 0
        if not self._is_whole:
            begins = [stop[:length] for stop in self.stop for length in range(1, len(stop))]
            held = max((len(begin) for begin in begins if self.text.endswith(begin)), default=0)
        start, self._num_taken = self._num_taken, len(self.text) - held
        return self.text[start : self._num_taken]
