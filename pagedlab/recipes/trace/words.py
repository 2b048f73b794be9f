"""The text that each token adds to the tokens before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Decode = Callable[[list[int]], str]

CONTEXT = 4  # tokens that tell whether the next one begins with a space
LONGEST = 24  # tokens that are decoded at once
INCOMPLETE = "\ufffd"  # a decoded text ends with it while a character is incomplete


def pieces(decode: Decode, ids: Sequence[int], start: int = 0) -> list[str]:
    """Return the text that each token adds, from the token number `start` on.

    A piece is "" while a character is incomplete; the token that completes it has all of it.

    Args:
        decode: gives the text of token ids.
        ids: all tokens of a sequence.
        start: the first token that is wanted.
    """
    words: list[str] = []
    first = max(0, start - CONTEXT)
    known = decode(list(ids[first:start])).rstrip(INCOMPLETE)
    for stop in range(start + 1, len(ids) + 1):
        text = decode(list(ids[first:stop]))
        if text.endswith(INCOMPLETE):
            words.append("")
            continue
        piece = text[len(known) :]
        words.append(piece)
        if piece:
            known = text
        if piece and stop - first > LONGEST:
            first = stop - CONTEXT
            known = decode(list(ids[first:stop]))
    return words
