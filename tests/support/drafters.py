"""A drafter that knows which tokens the model writes."""

from __future__ import annotations

import random
from typing import Any

from pagedlab.recipes.speculative import Draft


class Recalls:
    """Drafts the next tokens from `texts`, which are known by prompt; some of the tokens are wrong."""

    def __init__(self, k: int, texts: dict[tuple[int, ...], list[int]], wrong: float, rng: random.Random) -> None:
        self.k, self.texts, self.wrong, self.rng = k, texts, wrong, rng

    def attach(self, llm: Any) -> int:
        return 0

    def propose(self, asks: Any) -> list[Draft]:
        drafts = []
        for ask in asks:
            prompt = tuple(ask.sequence.token_ids[: ask.sequence.num_prompt_tokens])
            right = self.texts[prompt][ask.sequence.num_outputs :][: ask.limit]
            drafts.append(Draft([t ^ (self.rng.random() < self.wrong) for t in right]))
        return drafts
