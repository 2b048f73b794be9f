"""The tokens of sequences with penalties, counted on the device.

A sequence has a row of the counts while it holds blocks. The host counts the tokens that it knows
when the first token is about to be sampled. From there on, each step on the device counts what it
samples.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

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
        max_rows: running sequences, at most.
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
        self._rows = dict[Sequence, CountsRow]()

    def prepare(self, plans: Seq[RowPlan]) -> bool:
        """Have all tokens counted that the next window's sequences with penalties begin with.

        Args:
            plans: the sequences of the window. They get their `counts_row`.

        Returns:
            Whether one of them has penalties.
        """
        penalised = [
            plan for plan in plans if plan.num_samples and penalties_of(plan.sequence.params)
        ]
        uncounted: dict[Sequence, int] = {}
        for plan in penalised:
            row = self._row_of(plan.sequence)
            if row.num_tokens != plan.first_stop:  # it is new, or the host sampled for it
                uncounted[plan.sequence] = row.number
            row.num_tokens = plan.first_stop + plan.num_samples
            plan.counts_row = row.number
        if uncounted:
            self._count(uncounted)
        return bool(penalised)

    def forget(self) -> None:
        """Count all sequences anew: the device has sampled tokens that are not taken."""
        self._rows.clear()

    def _row_of(self, sequence: Sequence) -> CountsRow:
        """The row of a sequence. A new one gets a row of nobody who holds blocks."""
        if sequence not in self._rows:
            for other in [each for each in self._rows if not each.table.block_ids]:
                del self._rows[other]
            taken = {row.number for row in self._rows.values()}
            free = next(number for number in count() if number not in taken)
            self._rows[sequence] = CountsRow(free)
        return self._rows[sequence]

    @torch.inference_mode()  # the counts are no inference tensor for one caller alone
    def _count(self, uncounted: dict[Sequence, int]) -> None:
        """Fill the rows of these sequences with the counts of all their tokens."""
        if self.counts is None:
            self.counts = torch.zeros(self._shape, dtype=torch.int32, device=self._device)
        rows = list(uncounted.values())
        prompts = [each.token_ids[: each.num_prompt_tokens] for each in uncounted]
        answers = [each.output_ids for each in uncounted]
        # The windows in flight, which may still count in these rows, end before.
        self.counts[self._sent(rows)] = 0
        self.counts[self._places(rows, prompts)] = IN_PROMPT
        once = self.counts.new_full((), SAMPLED)
        self.counts.index_put_(self._places(rows, answers), once, accumulate=True)

    def _places(self, rows: list[int], token_ids: list[list[int]]) -> tuple[Tensor, Tensor]:
        """The row and the id of each token, int64 [N] each."""
        each_row = np.repeat(rows, [len(ids) for ids in token_ids])
        return self._sent(each_row), self._sent(list(chain.from_iterable(token_ids)))

    def _sent(self, numbers: Any) -> Tensor:
        """The numbers on the device. Nothing waits for the windows in flight."""
        tensor = torch.from_numpy(np.asarray(numbers, dtype=np.int64))
        if self._device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)
