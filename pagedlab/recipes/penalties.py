"""Penalties for tokens that occurred before, and biases.

SamplingParams(adjust=Penalties(repetition=1.1))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pagedlab.arguments import integer, real, shown


@dataclass(frozen=True)
class Penalties:
    """Changes the logits of tokens that occurred before.

    Args:
        repetition: for tokens of prompt and answer, divides positive logits and multiplies negative
            ones; 1 for none.
        presence: subtracted once from the logit of each token of the answer.
        frequency: subtracted for each time that a token occurs in the answer.
        bias: a number that is added to the logit, by token id.

    Raises:
        ValueError: If a number is out of range.

    Examples:
        >>> import torch
        >>> from pagedlab.recipes.penalties import Penalties
        >>> Penalties(frequency=0.5)(torch.zeros(3), [2], [0, 0]).tolist()
        [-1.0, 0.0, 0.0]
    """

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    bias: Mapping[int, float] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        real("repetition", self.repetition, 0, 100, above=True)
        real("presence", self.presence, -2, 2)
        real("frequency", self.frequency, -2, 2)
        if not isinstance(self.bias, Mapping | None):
            raise ValueError(f"bias must be a dict of numbers by token id, got {shown(self.bias)}")
        for token, number in (self.bias or {}).items():
            integer("a token id in bias", token)
            real(f"the bias of token {token}", number, -100, 100)

    def __call__(self, logits: Tensor, prompt_ids: list[int], output_ids: list[int]) -> Tensor:
        """Return the changed logits, fp32 [V].

        Args:
            logits: fp32 [V].
            prompt_ids: the tokens of the prompt.
            output_ids: the tokens of the answer so far.
        """
        plain = logits
        logits = logits.clone()
        if self.repetition != 1:
            seen = _ids([*prompt_ids, *output_ids], logits)
            old = logits[seen]
            # A token that was seen twice gets the same value twice.
            logits[seen] = torch.where(old > 0, old / self.repetition, old * self.repetition)
        if self.presence or self.frequency:
            counts = _ids(output_ids, logits).bincount(minlength=len(logits))
            logits -= self.presence * (counts > 0) + self.frequency * counts
        for token, bias in (self.bias or {}).items():
            if token < len(logits):
                logits[token] += bias
        limits = torch.finfo(logits.dtype)
        # A tiny repetition makes infinities. Those that were there stay.
        return torch.where(plain.isfinite(), logits.clamp(limits.min, limits.max), plain)


def _ids(token_ids: list[int], logits: Tensor) -> Tensor:
    return torch.tensor(token_ids, dtype=torch.int64, device=logits.device)
