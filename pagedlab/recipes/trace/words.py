"""The text that each token adds to the tokens before it."""

from __future__ import annotations

from collections.abc import Sequence

from pagedlab.detokenizer import Decode, Detokenizer


def pieces(decode: Decode, ids: Sequence[int], start: int = 0) -> list[str]:
    """Return the text that each token adds, from the token number `start` on.

    A piece is "" while a character is incomplete; the token that completes it has all of it.

    Args:
        decode: gives the text of token ids.
        ids: all tokens of a sequence.
        start: the first token that is wanted.
    """
    detokenizer = Detokenizer(decode, ids[:start])
    words = []
    for token_id in ids[start:]:
        detokenizer.push(token_id)
        words.append(detokenizer.take())
    return words
