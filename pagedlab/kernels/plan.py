"""Launch plans of the attention kernels: which tiles, how many programs and how many splits.

Everything is decided from shapes, dtypes and the card, and never from values on the device. So the
host does not wait for the GPU, and a CUDA graph of a call is valid for all lengths that fit its
block table.
"""

from functools import lru_cache
from typing import NamedTuple

import torch

from pagedlab.kernels.runtime import INTERPRETED, power_of_two

# Keys in a split. Two splits are the fewest: to start and merge shorter ones costs more than it
# saves.
MIN_SPLIT = 128
MAX_SPLITS = 64  # splits that merge_kernel holds at once
# The same two limits for batches in which one program per sequence and KV head fills the card.
# Then only long sequences are split, so that none of them runs on when all others have ended.
LONG_SPLIT = 512
MAX_LONG_SPLITS = 4
# Programs per multiprocessor. With more of them, one long sequence matters less than the cost of
# starting and merging splits.
MAX_CROWD = 4
PROGRAMS = 3  # a multiprocessor: enough loads in flight to use the memory's full bandwidth


class Tiles(NamedTuple):
    """The tiles of a kernel.

    Args:
        rows: query rows of a program.
        tile: keys that a program reads at a time.
        warps: warps of a program.
        stages: loads that are in flight while earlier ones are computed.
        registers: registers of a thread, at most; None for no limit.
    """

    rows: int
    tile: int
    warps: int
    stages: int
    registers: int | None = None

    @property
    def constants(self) -> tuple[int, int, int]:
        """The arguments of the kernel that are known when it is compiled."""
        return self.rows, self.tile, self.stages

    @property
    def options(self) -> dict[str, int | None]:
        """The options of Triton's compiler."""
        return {"num_warps": self.warps, "maxnreg": self.registers}


class Plan(NamedTuple):
    """How a call is launched.

    Args:
        few: tiles of sequences with few queries.
        many: tiles of sequences with many queries; None for a batch of decodes.
        splits: splits of a sequence's keys, at most.
        min_split: keys in a split. Only sequences of two splits or more are split.
    """

    few: Tiles
    many: Tiles | None
    splits: int
    min_split: int = MIN_SPLIT

    @property
    def splits_long_only(self) -> bool:
        """Whether few sequences are split, if any."""
        return self.min_split > MIN_SPLIT


def padded(n: int) -> int:
    """Return the size of a tile's axis for n elements: a power of two of at least 16.

    A tensor core multiplies no smaller tiles.
    """
    return max(16, power_of_two(n))


def decode_tiles(dtype: torch.dtype, dim: int, group: int, crowd: float, split: bool) -> Tiles:
    """Return the tiles for one query a sequence.

    A program that is nearly alone on its multiprocessor needs several warps, to have enough loads
    in flight. Where there are many programs, one or two warps each are faster: fewer threads wait
    for each other.

    Args:
        dtype: the dtype of queries and caches.
        dim: the padded head dimension.
        group: query heads a KV head.
        crowd: programs a multiprocessor.
        split: whether keys are split.
    """
    rows = padded(group)
    if dtype == torch.float32 or INTERPRETED:  # no tensor cores, so registers are short
        return Tiles(rows, 32 if dim <= 64 else 16, 4, 2)
    if dim > 128:
        return Tiles(rows, 32, 4, 5)
    is_alone = crowd <= (2 if dim <= 64 else 1)
    if is_alone:
        return Tiles(rows, 64, 4, 5)
    if dim <= 64:
        # 32 keys and 7 stages are 1 % faster if lengths are equal, and 4 to 18 % slower if not.
        return Tiles(rows, 64, 1, 5)
    return Tiles(rows, 32, 1, 5) if split else Tiles(rows, 64, 2, 5)


def ragged_tiles(dtype: torch.dtype, dim: int, group: int, many: bool) -> tuple[Tiles, Tiles]:
    """Return the tiles for sequences with few queries, and for those with many.

    Both run in one launch, with the warps of the second.

    If most tokens belong to prompts, large tiles of queries load each key seldom. A limit of 128
    registers a thread lets two programs share a multiprocessor, so that one computes while the
    other waits. If not, most programs are decodes, and small tiles leave room for them.

    Args:
        dtype: the dtype of queries and caches.
        dim: the padded head dimension.
        group: query heads a KV head.
        many: whether most tokens belong to prompts.
    """
    rows = padded(group)
    if INTERPRETED:
        few = decode_tiles(dtype, dim, group, 0, False)
        return few, few._replace(rows=max(32, rows))
    if dtype == torch.float32:
        few = decode_tiles(dtype, dim, group, 0, False)
        return few, few
    if dim > 128:
        return Tiles(rows, 64, 8, 3), Tiles(max(128, rows), 32, 8, 2)
    if dim <= 64:
        return Tiles(rows, 128, 4, 3), Tiles(max(64, rows), 64, 4, 3)
    few = Tiles(rows, 128, 4, 3)
    if many:
        return few, Tiles(max(128, rows), 64, 8, 2, registers=128)
    return few, Tiles(max(64, rows), 32, 4, 2)


@lru_cache
def multiprocessors(device: torch.device) -> int:
    """Return the card's number of streaming multiprocessors; 4 on a CPU."""
    if device.type != "cuda":
        return 4
    return torch.cuda.get_device_properties(device).multi_processor_count


@lru_cache
def overlaps(device: torch.device) -> bool:
    """Return whether a kernel may start before the previous one has ended: on Hopper and later.

    NVIDIA calls this programmatic dependent launch. It hides a kernel's start, about a microsecond.
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def launch_plan(q: torch.Tensor, k_cache: torch.Tensor, block_tables: torch.Tensor) -> Plan:
    """Return the plan for these shapes: enough programs to fill the card, and no more splits.

    Args:
        q: queries, [T, Hq, D].
        k_cache: keys, [num_blocks, block_size, Hkv, D].
        block_tables: int32 [B, M].
    """
    num_tokens, num_heads, head_dim = q.shape
    num_sequences, pages = block_tables.shape
    _, block_size, kv_heads, _ = k_cache.shape
    group = num_heads // kv_heads
    dim = padded(head_dim)
    few, many = None, None
    # As many tokens as sequences are nearly always one token each. decode_kernel is correct for
    # other batches, too.
    is_decode = num_tokens == num_sequences
    if not is_decode:
        mostly_prompts = num_tokens >= 8 * num_sequences
        few, many = ragged_tiles(q.dtype, dim, group, many=mostly_prompts)
    programs = query_tiles(num_tokens, num_sequences, group, many) * kv_heads
    processors = multiprocessors(q.device)
    room = PROGRAMS * processors / programs
    # Rounded down, except for decodes with narrow heads. 256 of their programs (unequal lengths, on
    # an H200's 132 multiprocessors) took 25.2 us whole and 21.3 in two splits each. 256 of wide
    # heads, with twice the bytes each, gained nothing.
    room = round(room) if is_decode and dim <= 64 else int(room)
    keys = pages * block_size
    splits = max(1, min(room, pieces_of(keys, MIN_SPLIT), MAX_SPLITS))
    if few is not None:
        return Plan(few, many, splits)
    few = decode_tiles(q.dtype, dim, group, programs * splits / processors, splits > 1)
    if splits == 1 and programs <= MAX_CROWD * processors:
        # 128 decodes of a chat's lengths, on an H200: 47.6 us whole and 40.3 with long ones split
        # (wide heads); 256 of narrow heads: 35.9 and 25.0. Equal lengths lose up to 4 us.
        return Plan(few, None, min(pieces_of(keys, LONG_SPLIT), MAX_LONG_SPLITS), LONG_SPLIT)
    return Plan(few, None, splits)


def pieces_of(keys: int, min_split: int) -> int:
    """Return how many splits a sequence of this length has at most."""
    return -(-keys // min_split) if keys >= 2 * min_split else 1


def query_tiles(num_tokens: int, num_sequences: int, group: int, many: Tiles | None) -> int:
    """Return how many tiles of queries the grid must have room for, see `find_sequence`."""
    return num_sequences if many is None else num_tokens // (many.rows // group) + num_sequences
