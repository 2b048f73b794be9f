"""The tokens of sequences with penalties, counted on the device.

A sequence gets a row of the counts when its first token is about to be sampled. The host counts the
tokens that it knows then. From there on, each step on the device counts what it samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import chain
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from pagedlab.scheduler import Sequence
from pagedlab_fast.asked import penalties_of
from pagedlab_fast.window import RowPlan

IN_PROMPT = 1
SAMPLED = 2  # for each time


@dataclass
class CountsRow:
    """A sequence's row of the counts.

    Args:
        number: of the row.
        num_tokens: the first tokens of the sequence, which are counted once the launched windows
            are done; 0 if the row still has what it had before.
    """

    number: int
    num_tokens: int = 0


class TokenCounts:
    """The counts, and which sequence has which row.

    Args:
        max_rows: sequences of a window, at most.
        vocabulary: tokens of the vocabulary.
        device: where the counts are.

    Attributes:
        counts: int32 [max_rows, vocabulary], see `kernels.penalties.Penalties`. None until the
            first request with penalties, also that of a warm-up.
    """

    def __init__(self, max_rows: int, vocabulary: int, device: torch.device) -> None:
        self.counts: Tensor | None = None
        self._shape = max_rows, vocabulary
        self._device = device
        self._rows = WeakKeyDictionary[Sequence, CountsRow]()

    def prepare(self, plans: Seq[RowPlan]) -> list[int]:
        """Have all tokens counted that the next window's sequences with penalties begin with.

        Args:
            plans: the sequences of the window.

        Returns:
            The row of the counts for each sequence; -1 if it samples nothing, or has no penalties.
        """
        penalised = {
            plan.chunk.sequence: plan
            for plan in plans
            if plan.num_samples and penalties_of(plan.chunk.sequence.params)
        }
        if not penalised:
            return [-1] * len(plans)
        self._give_rows(penalised)
        self._catch_up({sequence: plan.first_stop for sequence, plan in penalised.items()})
        for sequence, plan in penalised.items():
            self._rows[sequence].num_tokens += plan.num_samples
        sequences = [plan.chunk.sequence for plan in plans]
        return [self._rows[each].number if each in penalised else -1 for each in sequences]

    def forget(self) -> None:
        """Count all sequences anew: the device has sampled tokens that are not taken."""
        self._rows.clear()

    def _give_rows(self, penalised: Mapping[Sequence, RowPlan]) -> None:
        """Give each of these sequences a row: one that is free, else that of another sequence."""
        max_rows, _ = self._shape
        owners = {row.number: owner for owner, row in self._rows.items()}
        free = [number for number in range(max_rows) if number not in owners]
        others = [number for number, owner in owners.items() if owner not in penalised]
        numbers = iter(free + others)
        for sequence in penalised:
            if sequence in self._rows:
                continue
            number = next(numbers)
            if number in owners:
                # Windows in flight may still count for this owner: they do so before the new one's.
                del self._rows[owners[number]]
            self._rows[sequence] = CountsRow(number)

    @torch.inference_mode()  # the counts are no inference tensor for one caller alone
    def _catch_up(self, num_tokens: Mapping[Sequence, int]) -> None:
        """Count the tokens that the host knows and the device has not counted.

        Args:
            num_tokens: how many tokens of each sequence are to be counted.
        """
        if self.counts is None:
            self.counts = torch.zeros(self._shape, dtype=torch.int32, device=self._device)
        behind: dict[Sequence, CountsRow] = {}
        new: dict[Sequence, CountsRow] = {}
        for sequence, count in num_tokens.items():
            row = self._rows[sequence]
            if row.num_tokens > count:  # tokens were counted that the sequence does not have
                row.num_tokens = 0
            if row.num_tokens < count:
                behind[sequence] = row
            if row.num_tokens == 0:
                new[sequence] = row
        if new:
            self._count_prompts(self.counts, new)
        if behind:
            self._count_answers(self.counts, behind)
        for sequence, row in behind.items():
            row.num_tokens = num_tokens[sequence]

    def _count_prompts(self, counts: Tensor, new: Mapping[Sequence, CountsRow]) -> None:
        """Begin the rows of these sequences: with their prompts alone."""
        numbers = [row.number for row in new.values()]
        prompts = [sequence.token_ids[: sequence.num_prompt_tokens] for sequence in new]
        counts[self._sent(np.array(numbers))] = 0
        rows, tokens = self._places(numbers, prompts)
        counts[rows, tokens] = IN_PROMPT

    def _count_answers(self, counts: Tensor, behind: Mapping[Sequence, CountsRow]) -> None:
        """Add the new tokens of these sequences that are not counted yet."""
        numbers = [row.number for row in behind.values()]
        answers = []
        for sequence, row in behind.items():
            start = max(row.num_tokens, sequence.num_prompt_tokens)
            answers.append(sequence.token_ids[start:])
        rows, tokens = self._places(numbers, answers)
        counts.index_put_((rows, tokens), counts.new_full((), SAMPLED), accumulate=True)

    def _places(self, rows: list[int], tokens: list[list[int]]) -> Tensor:
        """The row and the id of each token, int64 [2, N]."""
        counts = [len(ids) for ids in tokens]
        ids = np.fromiter(chain.from_iterable(tokens), dtype=np.int64, count=sum(counts))
        return self._sent(np.stack([np.repeat(np.array(rows), counts), ids]))

    def _sent(self, numbers: np.ndarray) -> Tensor:
        """The numbers on the device. Nothing waits for the windows in flight."""
        tensor = torch.from_numpy(numbers)
        if self._device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)
