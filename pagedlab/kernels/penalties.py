"""Penalties in Triton: the logits of a row whose tokens are counted on the device.

`TokenCounts` of accelerate/token_counts.py begins the counts, and decode_state.py goes on. The
kernels that sample read logits through `load_logits`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pagedlab.kernels.runtime import tl, triton

LARGEST = tl.constexpr(torch.finfo(torch.float32).max)


class Penalties(NamedTuple):
    """The penalties of all rows.

    Args:
        counts: int16 [S, V], for each token of a slot's sequence: twice the times that it was
            sampled, and 1 more if the prompt has it.
        slots: int64 [R], the slot of each row's sequence; -1 for a row without penalties.
        columns: fp32 [3, R], repetition_penalty, presence_penalty and frequency_penalty.
    """

    counts: Tensor
    slots: Tensor
    columns: Tensor

    @classmethod
    def arguments(cls, penalties: "Penalties | None") -> tuple[Any, ...]:
        """What the kernels take: counts, slots and their stride, columns and their stride."""
        if penalties is None:
            return None, None, None, None, None
        counts, slots, columns = penalties
        return counts, slots, slots.stride(0), columns, columns.stride(0)


class RowPenalties(NamedTuple):
    """The penalties of one row, in a kernel.

    Args:
        counts: pointer to the counts of all slots; None if no row has penalties.
        slot: of its sequence; -1 if the row has no penalties.
        repetition: repetition_penalty.
        presence: presence_penalty.
        frequency: frequency_penalty.
    """

    counts: Any
    slot: Any
    repetition: Any
    presence: Any
    frequency: Any


@triton.jit
def slot_and_penalties(counts, slots, SLOT_STRIDE, columns, COLUMN_STRIDE, row):
    """The slot and the three penalties of a row."""
    if counts is None:
        return -1, 1.0, 0.0, 0.0
    else:
        slot = tl.load(slots + row * SLOT_STRIDE)
        repetition = tl.load(columns + row)
        presence = tl.load(columns + COLUMN_STRIDE + row)
        frequency = tl.load(columns + 2 * COLUMN_STRIDE + row)
        return slot, repetition, presence, frequency


@triton.jit
def load_logits(logits, token, VOCABULARY, penalties):
    """Logits in fp32 after the row's penalties, as `logits.adjust` computes them.

    They are -inf behind the vocabulary.
    """
    real = token < VOCABULARY
    x = tl.load(logits + token, mask=real, other=float("-inf")).to(tl.float32)
    if penalties.counts is not None:  # noqa: SIM102 - decided when the kernel is compiled
        if penalties.slot >= 0:
            counts = penalties.counts + penalties.slot * VOCABULARY
            count = tl.load(counts + token, mask=real, other=0).to(tl.int32)
            times = count >> 1
            seen = tl.where(x > 0, x / penalties.repetition, x * penalties.repetition)
            x = tl.where(count > 0, seen, x)
            x -= tl.where(times > 0, penalties.presence + penalties.frequency * times, 0.0)
            # A tiny repetition_penalty makes infinities.
            x = tl.where(real, tl.minimum(tl.maximum(x, -LARGEST), LARGEST), float("-inf"))
    return x
