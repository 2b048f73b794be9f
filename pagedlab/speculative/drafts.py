"""What a drafter is asked and answers, and the simplest one: it copies what came last time."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any, NamedTuple, Protocol

import torch

from pagedlab.arguments import whole
from pagedlab.request import Request, Sequence
from pagedlab.sampling import SamplingParams


class Draft(NamedTuple):
    """Proposed tokens, and the distributions [n, V] that they were drawn from; None if they are certain."""

    tokens: list[int]
    probs: torch.Tensor | None = None


class Ask(NamedTuple):
    """Propose up to `limit` tokens, at least one, behind a text of which all but the last token is computed."""

    request: Request
    text: Sequence
    params: SamplingParams
    limit: int


class Drafter(Protocol):
    """Who proposes: `PromptLookup`, `DraftModel`, or a class of your own with these three."""

    k: int

    def attach(self, llm: Any, block_size: int) -> int:
        """Take note of the engine, before its pool is made; return the bytes that each block of it costs here."""

    def propose(self, asks: Seq[Ask]) -> list[Draft]:
        """One draft an ask, in order; empty ones are fine."""


class Checked(NamedTuple):
    """A draft that a step checked: its tokens, the first at `position`, and how many of them were accepted."""

    text: str
    position: int
    tokens: list[int]
    accepted: int


class PromptLookup:
    """Proposes what came last time: the k tokens behind the latest earlier place that ends like the text does now.

    Tries endings of max_ngram tokens first, then shorter ones, down to min_ngram. No model, no memory; good where
    the answer copies from the prompt or repeats itself.
    """

    def __init__(self, k: int = 4, max_ngram: int = 3, min_ngram: int = 1) -> None:
        self.k = whole("k, the tokens of a draft,", k, 1)
        self.min_ngram = whole("min_ngram", min_ngram, 1)
        self.max_ngram = whole("max_ngram", max_ngram, self.min_ngram)

    def attach(self, llm: Any, block_size: int) -> int:
        """Nothing to prepare, and no memory."""
        return 0

    def propose(self, asks: Seq[Ask]) -> list[Draft]:
        """What followed the latest place that looks like the end of each text."""
        return [Draft(self.look_up(ask.text.token_ids, ask.limit)) for ask in asks]

    def look_up(self, token_ids: list[int], limit: int) -> list[int]:
        """Up to `limit` tokens, none if no ending was seen before."""
        for n in range(min(self.max_ngram, len(token_ids) - 1), self.min_ngram - 1, -1):
            ending = token_ids[-n:]
            for start in range(len(token_ids) - n - 1, -1, -1):
                if token_ids[start : start + n] == ending:
                    # What follows may reach the end of the text; there it goes on with the draft itself.
                    longer = token_ids[start + n :]
                    while len(longer) < limit:
                        longer = longer + longer
                    return longer[:limit]
        return []
