"""One step's work as flat arrays: a batch is one row of tokens with a few small arrays beside it,
not a rectangle.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pagedlab.scheduler import Chunk


@dataclass(frozen=True)
class Batch:
    """One forward pass over T tokens of B sequences, as tensors on the model's device.

    Args:
        token_ids: int64 [T].
        positions: int64 [T], of each token in its sequence.
        slots: int64 [T], where its keys and values go.
        block_tables: int32 [B, M], as in pagedlab.attention.
        seq_lens: int32 [B], tokens of each sequence up to the last one here.
        query_starts: int32 [B + 1], where each sequence's tokens begin in the row.
        last_rows: int64 [R], the tokens whose logits are wanted.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    block_tables: Tensor
    seq_lens: Tensor
    query_starts: Tensor
    last_rows: Tensor


class FlatChunks(NamedTuple):
    """The tokens of several chunks in one row.

    Args:
        token_ids: 0 for a token that is not known yet.
        positions: of each token in its sequence.
        slots: of each token.
        starts: where each chunk starts in the row, and where the last one ends.
    """

    token_ids: list[int]
    positions: list[int]
    slots: list[int]
    starts: list[int]


def flatten_chunks(chunks: Seq[Chunk]) -> FlatChunks:
    """Put the tokens of all chunks into one row. `ValueError` for a chunk without a token."""
    flat = FlatChunks([], [], [], [0])
    for _, sequence, start, stop in chunks:
        if start >= stop:
            raise ValueError(
                f"{sequence.name} has no token in this step: its row of logits would be another's"
            )
        known = sequence.token_ids[start:stop]
        unknown = [0] * (stop - start - len(known))
        flat.token_ids.extend(known + unknown)
        flat.positions.extend(range(start, stop))
        flat.slots.extend(sequence.table.slots(start, stop))
        flat.starts.append(len(flat.token_ids))
    return flat


def build_batch(chunks: Seq[Chunk], device: torch.device) -> Batch:
    """Put the tokens of a step's chunks into one row.

    Each chunk says how many of its last rows want logits: `Chunk.num_rows`.

    Args:
        chunks: what the step computes.
        device: of the tensors.
    """
    token_ids, positions, slots, starts = flatten_chunks(chunks)
    last_rows = list[int]()
    for chunk, end in zip(chunks, starts[1:], strict=True):
        last_rows += range(end - chunk.num_rows, end)
    width = max(len(chunk.sequence.table.block_ids) for chunk in chunks)
    tables = np.zeros((len(chunks), width), np.int32)
    for row, chunk in zip(tables, chunks, strict=True):
        block_ids = chunk.sequence.table.block_ids
        row[: len(block_ids)] = block_ids

    def integers(values: list[int], dtype: type[np.signedinteger] = np.int64) -> Tensor:
        array = np.array(values, dtype)  # NumPy reads lists faster than torch
        return torch.from_numpy(array).to(device, non_blocking=True)

    return Batch(
        token_ids=integers(token_ids),
        positions=integers(positions),
        slots=integers(slots),
        block_tables=torch.from_numpy(tables).to(device, non_blocking=True),
        seq_lens=integers([chunk.stop for chunk in chunks], np.int32),
        query_starts=integers(starts, np.int32),
        last_rows=integers(last_rows),
    )
