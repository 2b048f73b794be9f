"""The ragged batch: all tokens of a step in one row, and small arrays that say whose they are.

The tokens of one sequence follow those of another, without padding. Only the block tables are
padded, and `seq_lens` says how much of a table is read.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pagedlab.scheduler import Chunk


@dataclass(frozen=True)
class Batch:
    """One forward pass over T tokens of B sequences, as tensors on the model's device.

    Args:
        token_ids: int64 [T].
        positions: int64 [T], the position of each token in its sequence.
        slots: int64 [T], the slot for each token's keys and values.
        block_tables: int32 [B, M], the block ids of each sequence.
        seq_lens: int32 [B], tokens of each sequence up to its last token in the batch.
        query_starts: int32 [B + 1], where the tokens of each sequence begin in the row.
        last_rows: int64 [R], the tokens that need logits.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    block_tables: Tensor
    seq_lens: Tensor
    query_starts: Tensor
    last_rows: Tensor


@dataclass
class FlatChunks:
    """The tokens of several chunks in one row.

    Args:
        token_ids: the id of each token.
        positions: the position of each token in its sequence.
        slots: the slot of each token.
        starts: where each chunk starts in the row, then where the last one ends.
        last_rows: the tokens that need logits, the last `Chunk.num_rows` of each chunk.
    """

    token_ids: list[int]
    positions: list[int]
    slots: list[int]
    starts: list[int]
    last_rows: list[int]


def flatten_chunks(chunks: Seq[Chunk]) -> FlatChunks:
    """Put the tokens of all chunks into one row."""
    flat = FlatChunks([], [], [], [0], [])
    for chunk in chunks:
        start, stop = chunk.start, chunk.stop
        flat.token_ids.extend(chunk.token_ids)
        flat.positions.extend(range(start, stop))
        flat.slots.extend(chunk.sequence.table.slots(start, stop))
        end = len(flat.token_ids)
        flat.starts.append(end)
        flat.last_rows.extend(range(end - chunk.num_rows, end))
    return flat


def build_batch(chunks: Seq[Chunk], device: torch.device) -> Batch:
    """Put the tokens of a step's chunks into one batch.

    Args:
        chunks: the tokens to compute.
        device: the device of the tensors.
    """
    flat = flatten_chunks(chunks)
    tables = [chunk.sequence.table.block_ids for chunk in chunks]
    width = max(len(block_ids) for block_ids in tables)
    padded = np.zeros((len(tables), width), np.int32)  # row by row: NumPy reads nested lists slowly
    for row, block_ids in zip(padded, tables, strict=True):
        row[: len(block_ids)] = block_ids

    def tensor(values: Any, dtype: type[np.signedinteger] = np.int64) -> Tensor:
        array = np.asarray(values, dtype)  # NumPy reads lists faster than torch
        return torch.from_numpy(array).to(device, non_blocking=True)

    return Batch(
        token_ids=tensor(flat.token_ids),
        positions=tensor(flat.positions),
        slots=tensor(flat.slots),
        block_tables=tensor(padded, np.int32),
        seq_lens=tensor([chunk.stop for chunk in chunks], np.int32),
        query_starts=tensor(flat.starts, np.int32),
        last_rows=tensor(flat.last_rows),
    )
