"""What rank 0 sends to the other ranks: a `Batch` to run, or one of the commands below.

Each is written as one flat row of integers, so no Python object is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, get_args

import torch

from pagedlab.batch import Batch


@dataclass(frozen=True)
class Stop:
    """End in order."""


@dataclass(frozen=True)
class Follow:
    """Prepare for `Play`, within these limits of accelerate's `Decoder`."""

    limits: list[int]


@dataclass(frozen=True)
class Play:
    """Launch these steps of a run-ahead window."""

    steps: list[int]


@dataclass(frozen=True)
class NewCache:
    """Replace the cache by a new one."""

    num_blocks: int
    block_size: int


@dataclass(frozen=True)
class CountFreeBytes:
    """Report how many bytes a cache may take."""


@dataclass(frozen=True)
class CopyBlocks:
    """Copy blocks. `copies`: [n, 2], a source and a destination each."""

    copies: list[tuple[int, int]]


@dataclass(frozen=True)
class ShowBatch:
    """Report the latest batch."""


@dataclass(frozen=True)
class ShowBlocks:
    """Report the contents of these blocks."""

    block_ids: list[int]


@dataclass(frozen=True)
class Poison:
    """Fill the cache with NaN."""


Command = (
    Batch | Stop | Follow | Play | NewCache | CountFreeBytes | CopyBlocks
    | ShowBatch | ShowBlocks | Poison
)  # fmt: skip
KINDS: tuple[Any, ...] = get_args(Command)


def pack(command: Command) -> torch.Tensor:
    """Write a command as one flat int64 tensor on the CPU.

    First its place in `KINDS`; then for each field: the number of dimensions, 1 if it is int32 and
    else 0, the shape, and the numbers.
    """
    parts = [torch.tensor([KINDS.index(type(command))])]
    for field in fields(command):
        value = getattr(command, field.name)
        if not isinstance(value, torch.Tensor):
            value = torch.tensor(value, dtype=torch.int64)
        is_int32 = int(value.dtype == torch.int32)
        parts.append(torch.tensor([value.dim(), is_int32, *value.shape]))
        parts.append(value.flatten().long().cpu())
    return torch.cat(parts)


def unpack(numbers: torch.Tensor, device: torch.device) -> Command:
    """Return the command that `pack` wrote. A batch is moved to `device`."""
    kind = KINDS[int(numbers[0])]
    numbers = numbers[1:]
    values: list[Any] = []
    for _ in fields(kind):
        num_dims, is_int32 = numbers[:2].tolist()
        shape = torch.Size(numbers[2 : 2 + num_dims].tolist())
        flat, numbers = numbers[2 + num_dims :].tensor_split([shape.numel()])
        value = flat.view(shape)
        if kind is Batch:
            values.append(value.to(device, torch.int32 if is_int32 else torch.int64))
        else:
            values.append(value.tolist())
    return kind(*values)
