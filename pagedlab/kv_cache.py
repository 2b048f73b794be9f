"""The KV cache: for each layer, two tensors [num_blocks, block_size, num_kv_heads, head_dim].

A token's slot is its block id times the block size, plus its offset in the block. So a layer's
tensor, viewed as [num_blocks * block_size, num_kv_heads, head_dim], is indexed by slots. The block
tables in blocks.py say which sequence has which block.
"""

import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from pagedlab.arguments import integer, one_of, shown
from pagedlab.blocks import BlockCopy
from pagedlab.kernels import compiles_for

CPU_KV_BYTES = 1 << 30  # default size on a CPU; blocks that are never used take no memory
SIZES = "num_layers", "num_blocks", "block_size", "num_kv_heads", "head_dim"
DTYPES = torch.float32, torch.float16, torch.bfloat16, torch.float64


class KVCache:
    """The keys and values of all blocks in all layers. Unwritten slots may hold anything.

    Args:
        num_layers: layers of the model.
        num_blocks: blocks in each layer.
        block_size: tokens a block.
        num_kv_heads: KV heads of a layer.
        head_dim: numbers in a key or value.
        dtype: the dtype of the tensors.
        device: the device of the tensors.

    Attributes:
        keys: [num_layers, num_blocks, block_size, num_kv_heads, head_dim].
        values: the same shape.

    Raises:
        ValueError: If there is no such device, if the dtype is no dtype of a cache, or if the
            tensors are larger than the memory.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        sizes = num_layers, num_blocks, block_size, num_kv_heads, head_dim
        shape = [integer(name, size, 1) for name, size in zip(SIZES, sizes, strict=True)]
        one_of("dtype", dtype, DTYPES)
        _check_device(device)
        need = 2 * math.prod(shape) * dtype.itemsize
        self.num_layers = shape[0]
        self.num_blocks = shape[1]
        self.block_size = shape[2]
        self._vectors = tuple(shape[3:])  # the shape of a token's keys
        self.bytes_per_block = need // shape[1]  # keys and values of all layers
        memory = _memory(torch.device(device))
        if need > memory.num_bytes:
            several = shape[1] > 1
            blocks = f"{shape[1]:,} blocks" if several else "1 block"
            takes = "take" if several else "takes"
            raise ValueError(
                f"{blocks} of {self.bytes_per_block / 2**10:,.15g} KiB {takes} "
                f"{math.ceil(need / 2**30):,} GiB, and {memory.name} "
                f"{memory.num_bytes / 2**30:,.1f} GiB: lower "
                f"{'num_blocks' if several else 'block_size'}"
            )
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self._in_triton = compiles_for(self.keys.device)  # one kernel for keys and values

    def free_bytes(self) -> int:
        """Return how many bytes another cache may take: on a GPU, its free memory."""
        if self.keys.is_cuda:
            return int(_memory(self.keys.device).num_bytes)
        return CPU_KV_BYTES

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        """Store the keys and values of T tokens in one layer.

        Args:
            layer: the layer's number.
            k: keys, [T, num_kv_heads, head_dim].
            v: values, [T, num_kv_heads, head_dim].
            slots: int64 [T]; a token with slot -1 is not stored.

        Raises:
            ValueError: If an argument does not fit the cache. The values of slots are checked on a
                CPU only, because a GPU would have to wait for the answer. Nothing is stored then.
        """
        layer = integer("layer", layer, 0, self.num_layers - 1)
        stores_all = self._check_tokens(k, v, slots)
        keys = self.keys[layer]
        values = self.values[layer]
        if self._in_triton:
            from pagedlab.kernels.cache import write_kv  # needs Triton

            write_kv(k, v, keys, values, slots)
        else:
            if not stores_all:
                real = slots >= 0
                k, v, slots = k[real], v[real], slots[real]
            keys.flatten(0, 1)[slots] = k
            values.flatten(0, 1)[slots] = v

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks in every layer, with the result of executing the copies in order.

        Raises:
            ValueError: If a copy is no pair of block ids. Nothing is copied then.
        """
        origin: dict[int, int] = {}  # by destination: the block that had these contents at first
        for source, destination in self._checked_copies(copies):
            origin[destination] = origin.get(source, source)
        sources = list(origin.values())
        destinations = list(origin)
        overlaps = not origin.keys().isdisjoint(sources)
        if self._in_triton and not overlaps:
            from pagedlab.kernels.cache import copy_blocks  # needs Triton

            copy_blocks(self.keys, self.values, sources, destinations)
        elif origin:
            # Indexing reads all sources before the first write, so a block may be both.
            self.keys[:, destinations] = self.keys[:, sources]
            self.values[:, destinations] = self.values[:, sources]

    # ------------------------------------------------------------------ checks

    def _check_tokens(self, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> bool:
        """Check the arguments of `write`. It asks a GPU for nothing.

        Returns:
            Whether every token is known to have a slot.
        """
        try:
            shape = k.shape
            fits = shape[1:] == self._vectors and v.shape == shape and slots.shape == shape[:1]
            dtype = k.dtype
            fits &= dtype == v.dtype == self.keys.dtype and slots.dtype == torch.int64
        except AttributeError:  # not a tensor
            fits = False
        if not fits:
            heads, dim = self._vectors
            raise ValueError(
                f"k and v must be [T, {heads}, {dim}] in {self.keys.dtype}, and slots [T] in "
                f"torch.int64, got {_kind_of(k)}, {_kind_of(v)} and {_kind_of(slots)}"
            )
        if not (slots.is_cpu and slots.numel()):
            return False
        lowest, highest = (end.item() for end in slots.aminmax())
        num_slots = self.num_blocks * self.block_size
        if lowest < -1 or highest >= num_slots:
            raise ValueError(
                f"slots must be from 0 to {num_slots - 1}, or -1 for a token that is not stored, "
                f"got {lowest if lowest < -1 else highest}"
            )
        return lowest >= 0

    def _checked_ids(self, block_ids: Any) -> list[int]:
        """Return the ids of blocks, each of them checked."""
        try:
            ids = list(block_ids)
        except TypeError:
            raise ValueError(f"block_ids must be a list, got {shown(block_ids)}") from None
        return [integer("a block id", block_id, 0, self.num_blocks - 1) for block_id in ids]

    def _checked_copies(self, copies: Any) -> list[tuple[int, int]]:
        """Return the copies, each of them checked."""
        try:
            pairs = [BlockCopy(*pair) for pair in copies]
        except TypeError:
            raise ValueError(
                f"copies must be a list of BlockCopy(source, destination), got {shown(copies)}"
            ) from None
        return [BlockCopy(*self._checked_ids(pair)) for pair in pairs]


def _kind_of(value: Any) -> str:
    """Return the shape and the dtype of a tensor, or the type of what is none."""
    if not hasattr(value, "dtype"):
        return f"a {type(value).__name__}"
    return f"{list(value.shape)} in {value.dtype}"


def _check_device(device: torch.device | str) -> None:
    """Raise `ValueError` if a cache cannot be on this device."""
    names = ["cpu"]
    if torch.cuda.is_available():
        names += ["cuda", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if str(device) not in names:
        seen = "" if len(names) > 1 else " (torch sees no GPU here)"
        accepted = " or ".join(map(repr, names))
        raise ValueError(f"there is no device {shown(str(device))}: choose {accepted}{seen}")


class _Memory(NamedTuple):
    """Memory that tensors may take, and how a message names it."""

    num_bytes: float
    name: str


def _memory(device: torch.device) -> _Memory:
    """The free memory of a GPU, or all memory of the machine."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free, _ = torch.cuda.mem_get_info(device)
        return _Memory(free + unused, "free on this GPU are")
    if not hasattr(os, "sysconf"):
        return _Memory(math.inf, "this machine has")
    num_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return _Memory(num_bytes, "this machine has")
