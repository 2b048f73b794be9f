"""Penalties in Triton: the logits of a row whose tokens are counted on the device.

`TokenCounts` of token_counts.py begins the counts, and decode_state.py goes on. The
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
        counts: int32 [C, V], for each token of a sequence: twice the times that it was sampled, and
            1 more if the prompt has it.
        counts_rows: int64 [R], the row of the counts for each row of logits; -1 for a row without
            penalties.
        columns: fp32 [3, R], repetition_penalty, presence_penalty and frequency_penalty.
    """

    counts: Tensor
    counts_rows: Tensor
    columns: Tensor

    @classmethod
    def arguments(cls, penalties: "Penalties | None") -> tuple[Any, ...]:
        """What the kernels take: counts, counts_rows and their stride, columns and their stride."""
        if penalties is None:
            return None, None, None, None, None
        counts, counts_rows, columns = penalties
        return counts, counts_rows, counts_rows.stride(0), columns, columns.stride(0)


class RowPenalties(NamedTuple):
    """The penalties of one row, in a kernel.

    Args:
        counts: pointer to all counts; None if no row has penalties.
        counts_row: the row of the counts; -1 if this row has no penalties.
        repetition: repetition_penalty.
        presence: presence_penalty.
        frequency: frequency_penalty.
    """

    counts: Any
    counts_row: Any
    repetition: Any
    presence: Any
    frequency: Any


@triton.jit
def counts_row_and_penalties(counts, counts_rows, ROW_STRIDE, columns, COLUMN_STRIDE, row):
    """The row of the counts, and the three penalties, of a row of logits."""
    if counts is None:
        return -1, 1.0, 0.0, 0.0
    else:
        counts_row = tl.load(counts_rows + row * ROW_STRIDE)
        repetition = tl.load(columns + row)
        presence = tl.load(columns + COLUMN_STRIDE + row)
        frequency = tl.load(columns + 2 * COLUMN_STRIDE + row)
        return counts_row, repetition, presence, frequency


@triton.jit
def load_plain_logits(logits, token, VOCABULARY):
    """Logits in fp32 as the model gives them; -inf behind the vocabulary."""
    return tl.load(logits + token, mask=token < VOCABULARY, other=float("-inf")).to(tl.float32)


@triton.jit
def penalise(x, token, VOCABULARY, penalties):
    """Apply a row's penalties to its logits.

    The result is that of `logits.adjust` but for rounding: the compiler joins a product and a sum.
    All kernels of a step must compute it in this way, since they compare it bit by bit.
    """
    if penalties.counts is not None:  # noqa: SIM102 - decided when the kernel is compiled
        if penalties.counts_row >= 0:
            plain = x
            counts = penalties.counts + penalties.counts_row * VOCABULARY
            count = tl.load(counts + token, mask=token < VOCABULARY, other=0)
            times = count >> 1
            seen = tl.where(x > 0, tl.div_rn(x, penalties.repetition), x * penalties.repetition)
            x = tl.where(count > 0, seen, x)
            x -= tl.where(times > 0, penalties.presence + penalties.frequency * times, 0.0)
            # A tiny repetition makes infinities. Those that were there stay.
            x = tl.where(tl.abs(plain) <= LARGEST, tl.clamp(x, -LARGEST, LARGEST), plain)
    return x


@triton.jit
def load_logits(logits, token, VOCABULARY, penalties):
    """Logits in fp32 after the row's penalties; -inf behind the vocabulary."""
    return penalise(load_plain_logits(logits, token, VOCABULARY), token, VOCABULARY, penalties)
