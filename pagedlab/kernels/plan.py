"""How a call of the attention kernels is cut: which tiles, how many programs, into how many splits.

Everything here is decided from shapes, dtypes and the card, never from values on the device:
nothing waits for the GPU, and a CUDA graph of a call stays right for any lengths that fit its block
table.
"""

from functools import lru_cache
from typing import NamedTuple

import torch

from pagedlab.kernels.runtime import INTERPRETED, power_of_two

# keys in a piece, and two pieces at least: less costs more to start and to merge than it saves
MIN_SPLIT = 128
MAX_SPLITS = 64  # what the merge holds at once


class Tiles(NamedTuple):
    """How a kernel is cut: query rows and keys a step, warps a program, depth of the pipeline of
    loads.
    """

    rows: int
    tile: int
    warps: int
    stages: int
    registers: int | None = None  # a thread, at most

    @property
    def cut(self) -> tuple[int, int, int]:
        """What the kernels are told."""
        return self.rows, self.tile, self.stages

    @property
    def options(self) -> dict[str, int | None]:
        """What Triton's compiler is told."""
        return {"num_warps": self.warps, "maxnreg": self.registers}


def padded(n: int) -> int:
    """A tile's axis that holds n: a power of two, and 16 is the least that a tensor core takes or
    sums over.
    """
    return max(16, power_of_two(n))


def decode_tiles(dtype: torch.dtype, dim: int, group: int, crowd: float, split: bool) -> Tiles:
    """Tiles for one query a sequence: 16 rows are the fewest that a tensor core takes.

    `crowd` is programs a multiprocessor. One that is nearly alone there needs warps of its own to
    have enough loads in flight; many of a warp or two each, none of which waits for another, do
    better than few large ones.
    """
    rows = padded(group)
    if dtype == torch.float32 or INTERPRETED:  # no tensor core: registers are what is short
        return Tiles(rows, 32 if dim <= 64 else 16, 4, 2)
    if dim > 128:
        return Tiles(rows, 32, 4, 5)
    if crowd <= (2 if dim <= 64 else 1):
        return Tiles(rows, 64, 4, 5)
    if (
        dim <= 64
        # 32 keys and 7 stages are 1 % faster for equal lengths, but 4 to 18 % slower for unequal ones
    ):
        return Tiles(rows, 64, 1, 5)
    return Tiles(rows, 32, 1, 5) if split else Tiles(rows, 64, 2, 5)


def ragged_tiles(dtype: torch.dtype, dim: int, group: int, many: bool) -> tuple[Tiles, Tiles]:
    """Tiles for sequences of few queries, and of many, in one launch: the warps are those of the
    second.

    `many`: most tokens belong to prompts. Then large tiles of queries load each key seldom, and 128
    registers a thread let two programs share a multiprocessor: one computes while the other waits.
    Otherwise most programs are decodes, and small tiles leave them room.
    """
    rows = padded(group)
    if dtype == torch.float32 or INTERPRETED:
        few = decode_tiles(dtype, dim, group, 0, False)
        return few, few._replace(rows=max(32, rows)) if INTERPRETED else few
    if dim > 128:
        return Tiles(rows, 64, 8, 3), Tiles(max(128, rows), 32, 8, 2)
    if dim <= 64:
        return Tiles(rows, 128, 4, 3), Tiles(max(64, rows), 64, 4, 3)
    large, small = Tiles(max(128, rows), 64, 8, 2, registers=128), Tiles(max(64, rows), 32, 4, 2)
    return Tiles(rows, 128, 4, 3), large if many else small


@lru_cache
def multiprocessors(device: torch.device) -> int:
    """Streaming multiprocessors of the card, each of which runs a few programs at a time; 4 without
    a card.
    """
    return (
        torch.cuda.get_device_properties(device).multi_processor_count
        if device.type == "cuda"
        else 4
    )


@lru_cache
def overlaps(device: torch.device) -> bool:
    """Whether a kernel may start before the one ahead has ended, and wait for it: on Hopper and
    later.

    NVIDIA calls it programmatic dependent launch. It hides the start of a kernel, a microsecond or
    so.
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


class Plan(NamedTuple):
    """How a call is launched.

    `many` is None for a batch of decodes, which has a kernel of its own.
    """

    few: Tiles
    many: Tiles | None
    splits: int  # at most, of a sequence's keys


def choose_plan(q: torch.Tensor, k_cache: torch.Tensor, block_tables: torch.Tensor) -> Plan:
    """The plan for these shapes: enough programs to fill the card, and no more splits than that
    takes.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_sequences, pages = block_tables.shape
    _, block_size, kv_heads, _ = k_cache.shape
    group, dim = num_heads // kv_heads, padded(head_dim)
    # a batch of decodes: as many tokens as sequences. If it is none, the result is right too
    few, many = (
        None,
        None,
    )
    if num_tokens != num_sequences:
        few, many = ragged_tiles(q.dtype, dim, group, many=num_tokens >= 8 * num_sequences)
    programs, processors = (
        query_tiles(num_tokens, num_sequences, group, many) * kv_heads,
        multiprocessors(q.device),
    )
    # Three programs a multiprocessor keep enough loads in flight to fill the memory's pipe. At most
    # three, but for narrow heads the nearest to three: 256 programs of theirs (unequal lengths, on
    # an H200's 132 multiprocessors) took 25.2 us whole and 21.3 in two splits each; 256 of wide
    # heads, with twice the bytes each, gained nothing.
    room = 3 * processors / programs
    room = round(room) if few is None and dim <= 64 else int(room)
    keys = pages * block_size
    pieces = -(-keys // MIN_SPLIT) if keys >= 2 * MIN_SPLIT else 1
    splits = max(1, min(room, pieces, MAX_SPLITS))
    return Plan(
        few or decode_tiles(q.dtype, dim, group, programs * splits / processors, splits > 1),
        many,
        splits,
    )


def query_tiles(num_tokens: int, num_sequences: int, group: int, many: Tiles | None) -> int:
    """Tiles of queries that the grid must have room for: see `find_sequence`."""
    return num_sequences if many is None else num_tokens // (many.rows // group) + num_sequences
