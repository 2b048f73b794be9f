"""A window: some steps of the same sequences that are launched together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pagedlab.scheduler import Chunk

if TYPE_CHECKING:
    from pagedlab_fast.buffers import RowState, Samples


@dataclass(slots=True)
class RowPlan:
    """The part of one sequence that a window computes.

    Args:
        chunk: its positions in all steps of the window.
        first_stop: where its first step stops. The first token that is sampled has this position.
        num_samples: tokens to sample; 0 if the prompt goes on in a later window.
        token: the last token of the first step; None if only the device knows it yet.
    """

    chunk: Chunk
    first_stop: int
    num_samples: int
    token: int | None

    @classmethod
    def of(cls, chunk: Chunk) -> RowPlan:
        """The first step takes the tokens that are known, or one that the device has. Each further
        step takes the token that was sampled before it.
        """
        token_ids = chunk.sequence.token_ids
        num_known = len(token_ids)
        first_stop = max(chunk.start + 1, min(chunk.stop, num_known))
        num_samples = chunk.stop - first_stop + 1 if first_stop >= num_known else 0
        token = token_ids[first_stop - 1] if first_stop <= num_known else None
        return cls(chunk, first_stop, num_samples, token)

    @property
    def position(self) -> int:
        """Of the last token of the first step."""
        return self.first_stop - 1

    @property
    def first_chunk(self) -> Chunk:
        """Its positions in the first step."""
        return self.chunk._replace(stop=self.first_stop)


@dataclass
class Window:
    """Steps that were launched.

    Args:
        rows: what they compute of each sequence.
        samples: tokens and their log-probabilities, on the host.
        row_state: how far each row came, on the host.
        done: both of these are filled when the device has reached this event.
    """

    rows: list[RowPlan]
    samples: Samples
    row_state: RowState
    done: torch.cuda.Event | None = None
