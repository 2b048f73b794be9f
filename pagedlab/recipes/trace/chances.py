"""How likely each token was that a step could sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pagedlab.sampling import probabilities
from pagedlab.sampling_params import SamplingParams


@dataclass
class Chances:
    """The distribution of a sequence's next token.

    Args:
        position: of the token in the sequence.
        probabilities: [V], after temperature, top-k and top-p; at temperature 0 the model's own.
    """

    position: int
    probabilities: Tensor

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return len(self.probabilities)

    def likeliest(self, sampled: int, most: int) -> list[tuple[int, float]]:
        """The sampled token and the likeliest others, with their probabilities; `most` in all."""
        best = torch.topk(self.probabilities, min(most, self.vocabulary)).indices.tolist()
        others = [token for token in best if token != sampled]
        tokens = [sampled, *others][:most]
        return [(token, self.probabilities[token].item()) for token in tokens]


def next_token_chances(plan: Any, logits: Tensor) -> dict[str, Chances]:
    """The distribution of the next token of each sequence that samples one, by name.

    Args:
        plan: the step's `Plan`.
        logits: [R, V], the rows that the plan's chunks want.
    """
    chances = {}
    row = 0
    for chunk in plan.chunks:
        row += chunk.num_rows
        if chunk.num_rows:
            first = row - chunk.num_rows  # the others follow guesses
            sequence = chunk.sequence
            distribution = _distribution(logits[first], sequence.params)
            chances[sequence.name] = Chances(len(sequence.token_ids), distribution)
    return chances


def _distribution(logits: Tensor, params: SamplingParams) -> Tensor:
    """The probabilities [V] of a row of logits."""
    if params.temperature == 0:
        return torch.softmax(logits.float(), dim=0).cpu()
    weights = probabilities(logits[None], [params])[0].cpu()
    return weights / weights.sum()
