"""The detokenizer: text from tokens, one token at a time.

It never returns half a character, nor text that a later stop string would cut off. The text is what
the new tokens add to that of the prompt: alone, the first token may lose its space, as in Llama 2.
"""

from functools import cached_property, partial
from os.path import commonprefix
from typing import Any

CONTEXT = 8  # tokens of a prompt that are decoded with the new ones
INCOMPLETE = "\ufffd"  # a decoded text ends with it while a character is incomplete


class TextAfter:
    """Decodes tokens that continue a prompt.

    Args:
        tokenizer: a fast tokenizer of transformers.
        prompt_ids: the tokens of the prompt.
    """

    def __init__(self, tokenizer: Any, prompt_ids: list[int]) -> None:
        self._decode = partial(tokenizer.decode, skip_special_tokens=True)
        self._prompt_ids = prompt_ids

    @cached_property
    def context(self) -> list[int]:
        """The last tokens of the prompt, enough for a text that begins with a whole character."""
        count = CONTEXT
        while count < len(self._prompt_ids):
            last = self._prompt_ids[-count:]
            text = self._decode(last)
            if text and not text.startswith(INCOMPLETE):
                return last
            count *= 2
        return self._prompt_ids

    def __call__(self, token_ids: list[int]) -> str:
        """Return the text that these tokens add, without special tokens."""
        return _added(self._decode(self.context), self._decode(self.context + token_ids))


def _added(before: str, whole: str) -> str:
    """Return what a text has more than the text before it.

    An incomplete character at the end of the text before may have become a whole one.
    """
    if whole.startswith(before):
        return whole[len(before) :]
    return whole[len(commonprefix([before, whole])) :]  # noqa: RUF071 - of texts, not of paths


class Detokenizer:
    """Turns the tokens of one sequence into pieces of text.

    `text` is the text so far, up to a stop string. `stopped` says whether one was found.

    Args:
        tokenizer: a fast tokenizer of transformers.
        stop: strings that end the text.
        context: the last tokens of the prompt, see `TextAfter`.
    """

    def __init__(
        self, tokenizer: Any, stop: tuple[str, ...] = (), context: list[int] | None = None
    ) -> None:
        # The library's DecodeStream raises at bytes that are no text.
        self._decode = partial(tokenizer.backend_tokenizer.decode, skip_special_tokens=True)
        self._ids = list(context or ())  # the tokens of the piece before, and those after it
        self._before = self._decode(self._ids)  # the text of the piece before
        self._num_before = len(self._ids)  # its tokens
        self._stop = stop
        self._num_taken = 0  # characters that `take` has returned
        self.text = ""
        self.stopped = False

    def push(self, token_id: int) -> None:
        """Add the next token. If it completes a stop string, `stopped` is True afterwards."""
        self._ids.append(token_id)
        whole = self._decode(self._ids)
        piece = _added(self._before, whole)
        if whole.endswith(INCOMPLETE) or not piece:
            return
        self._ids = self._ids[self._num_before :]
        self._num_before = len(self._ids)
        self._before = self._decode(self._ids)
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
        self.text += piece
        hits = [self.text.find(stop) for stop in self._stop]
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
        held = 0
        if not finished:
            begins = [stop[:length] for stop in self._stop for length in range(1, len(stop))]
            held = max((len(begin) for begin in begins if self.text.endswith(begin)), default=0)
        start, self._num_taken = self._num_taken, len(self.text) - held
        return self.text[start : self._num_taken]
