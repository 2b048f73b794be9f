"""A drafter that knows which tokens the model writes."""

import random

from pagedlab.recipes.speculative import Draft, Drafter


class Recalls(Drafter):
    """Drafts the next tokens from `texts`, which are known by prompt; some of the tokens are wrong."""

    def __init__(self, k: int, texts: dict[tuple[int, ...], list[int]], wrong: float, rng: random.Random):
        self.k, self.texts, self.wrong, self.rng = k, texts, wrong, rng

    def propose(self, llm, limits):
        drafts = {}
        for sequence, limit in limits.items():
            prompt = tuple(sequence.token_ids[: sequence.num_prompt_tokens])
            right = self.texts[prompt][sequence.num_outputs :][:limit]
            drafts[sequence] = Draft([t ^ (self.rng.random() < self.wrong) for t in right])
        return drafts
