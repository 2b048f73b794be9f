"""A window: some steps of the same sequences that are launched together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pagedlab.scheduler import Chunk
from pagedlab_fast.scheduler import FastSequence, up_to


@dataclass(slots=True)
class RowPlan:
    """The part of one sequence that a window computes.

    Args:
        sequence: the sequence.
        chunk: its positions in all steps of the window.
        first_stop: where its first step stops. The first token that is sampled has this position.
        num_samples: tokens to sample; 0 if the prompt goes on in a later window.
        token: the last token of the first step; None if only the device knows it yet.
        counts_row: of `TokenCounts`; -1 if it samples nothing, or has no penalties.
    """

    sequence: FastSequence
    chunk: Chunk
    first_stop: int
    num_samples: int
    token: int | None
    counts_row: int = -1

    @classmethod
    def of(cls, chunk: Chunk) -> RowPlan:
        """The first step takes the tokens that are known, or one that the device has. Each further
        step takes the token that was sampled before it.
        """
        sequence: FastSequence = chunk.sequence  # type: ignore[assignment]
        num_known = len(sequence.token_ids)
        first_stop = max(chunk.start + 1, min(chunk.stop, num_known))
        num_samples = chunk.stop - first_stop + 1 if first_stop >= num_known else 0
        token = sequence.token_ids[first_stop - 1] if first_stop <= num_known else None
        return cls(sequence, chunk, first_stop, num_samples, token)

    @property
    def position(self) -> int:
        """Of the last token of the first step."""
        return self.first_stop - 1

    @property
    def first_chunk(self) -> Chunk:
        """Its positions in the first step."""
        return up_to(self.chunk, self.first_stop)


@dataclass
class Window:
    """Steps that were launched.

    Args:
        rows: what they compute of each sequence.
        samples: tokens, on the host, see `StepBuffers`.
        state: how far each row came, on the host.
        done: both of these are filled when the device has reached this event; None on a CPU.
    """

    rows: list[RowPlan]
    samples: Tensor
    state: Tensor
    done: torch.cuda.Event | None
