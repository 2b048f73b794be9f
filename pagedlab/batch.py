"""One step's work as flat tensors: a batch is a list of tokens with a few small arrays beside it, not a rectangle."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pagedlab.scheduler import Chunk


@dataclass(frozen=True)
class Batch:
    """One forward pass over T tokens of B sequences, as tensors on the model's device.

    token_ids, positions, slots: int64 [T]. block_tables int32 [B, M], seq_lens int32 [B], query_starts int32
    [B + 1] as in pagedlab.attention. last_rows int64 [R]: the rows whose logits are wanted.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    block_tables: Tensor
    seq_lens: Tensor
    query_starts: Tensor
    last_rows: Tensor


def flatten_chunks(chunks: Seq[Chunk]) -> tuple[list[int], list[int], list[int], list[int]]:
    """The chunks' tokens end to end: ids, 0 where one is not known yet; positions; slots; and where each chunk starts,
    with the end of the last."""
    token_ids, positions, slots, starts = list[int](), list[int](), list[int](), [0]
    for _, sequence, start, stop in chunks:
        if start >= stop:
            raise ValueError(f"{sequence.name} has no token in this step: its row of logits would be another's")
        starts.append(starts[-1] + stop - start)
        token_ids += sequence.token_ids[start:stop]
        token_ids += [0] * (starts[-1] - len(token_ids))
        positions += range(start, stop)
        slots += sequence.table.slots(start, stop)
    return token_ids, positions, slots, starts


def build_batch(chunks: Seq[Chunk], device: torch.device) -> Batch:
    """Lay the chunks' tokens end to end. Wanted are the logits of each text's last token, if it is among them, and of
    the one before a draft and all drafted tokens."""
    token_ids, positions, slots, starts = flatten_chunks(chunks)
    last_rows = [i for chunk, end in zip(chunks, starts[1:], strict=True) for i in range(end - chunk.num_rows, end)]
    tables = np.zeros((len(chunks), max(len(chunk.sequence.table.block_ids) for chunk in chunks)), np.int32)
    for table, chunk in zip(tables, chunks, strict=True):
        table[: len(chunk.sequence.table.block_ids)] = chunk.sequence.table.block_ids

    def integers(values: list[int], dtype: type[np.signedinteger] = np.int64) -> Tensor:
        return torch.from_numpy(np.array(values, dtype)).to(device, non_blocking=True)  # NumPy reads lists faster

    return Batch(
        token_ids=integers(token_ids),
        positions=integers(positions),
        slots=integers(slots),
        block_tables=torch.from_numpy(tables).to(device, non_blocking=True),
        seq_lens=integers([chunk.stop for chunk in chunks], np.int32),
        query_starts=integers(starts, np.int32),
        last_rows=integers(last_rows),
    )
