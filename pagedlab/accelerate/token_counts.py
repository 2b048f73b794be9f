"""The tokens of sequences with penalties, counted on the device.

A sequence gets a slot when its first token is about to be sampled. The host counts the tokens that
it knows then. From there on, each step on the device counts what it samples.
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

from pagedlab.accelerate.window import RowPlan
from pagedlab.sampling_params import SamplingParams
from pagedlab.sequence import Sequence

IN_PROMPT = 1
SAMPLED = 2  # for each time


@dataclass
class Slot:
    """A sequence's row of the counts.

    Args:
        number: the row.
        num_tokens: tokens of the sequence that it counts when all windows are done. -1 if none.
    """

    number: int
    num_tokens: int = -1


class TokenCounts:
    """The counts of all slots, and which sequence has which.

    Args:
        max_rows: sequences of a window, at most.
        vocabulary: tokens of the vocabulary.
        device: where the counts are.

    Attributes:
        counts: int16 [max_rows, vocabulary], see `kernels.penalties.Penalties`. None until a
            request has penalties.
    """

    def __init__(self, max_rows: int, vocabulary: int, device: torch.device) -> None:
        self.counts: Tensor | None = None
        self._shape = max_rows, vocabulary
        self._device = device
        self._slots = WeakKeyDictionary[Sequence, Slot]()

    def slots_of(self, plans: Seq[RowPlan], params: Mapping[int, SamplingParams]) -> list[int]:
        """Return the slot of each row, and have it count all tokens before the next sample.

        Args:
            plans: the rows of the next window.
            params: what each request asks for, by request id.

        Returns:
            The slot of each row; -1 for a row that samples nothing, or has no penalties.
        """
        penalised = {
            plan.chunk.sequence: plan
            for plan in plans
            if plan.num_samples and params[plan.chunk.request.request_id].penalises
        }
        if not penalised:
            return [-1] * len(plans)
        behind = []
        for sequence, plan in penalised.items():
            slot = self._slots.get(sequence) or self._new_slot(sequence, penalised)
            if slot.num_tokens != plan.first_stop:
                behind.append(sequence)
            slot.num_tokens = plan.first_stop + plan.num_samples
        if behind:
            self._count(behind)
        return [
            self._slots[plan.chunk.sequence].number if plan.chunk.sequence in penalised else -1
            for plan in plans
        ]

    def forget(self) -> None:
        """Count all sequences anew: the device has sampled tokens that are not taken."""
        self._slots.clear()

    def _new_slot(self, sequence: Sequence, penalised: Mapping[Sequence, RowPlan]) -> Slot:
        """Give a sequence a free slot, or one of a sequence that has no row in this window."""
        max_rows, _ = self._shape
        taken = {slot.number: owner for owner, slot in self._slots.items()}
        number = next(n for n in range(max_rows) if taken.get(n) not in penalised)
        if number in taken:
            # The device is done with its rows, or will be before it counts for the new owner.
            del self._slots[taken[number]]
        self._slots[sequence] = slot = Slot(number)
        return slot

    def _count(self, sequences: list[Sequence]) -> None:
        """Count the tokens of these sequences, which the host knows."""
        if self.counts is None:
            self.counts = torch.zeros(self._shape, dtype=torch.int16, device=self._device)
        numbers = [self._slots[sequence].number for sequence in sequences]
        prompts = [sequence.token_ids[: sequence.num_prompt_tokens] for sequence in sequences]
        answers = [sequence.token_ids[sequence.num_prompt_tokens :] for sequence in sequences]
        self.counts[self._sent(np.array(numbers))] = 0
        rows, tokens = self._places(numbers, prompts)
        self.counts[rows, tokens] = IN_PROMPT
        rows, tokens = self._places(numbers, answers)
        times = self.counts.new_full((), SAMPLED)
        self.counts.index_put_((rows, tokens), times, accumulate=True)

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
