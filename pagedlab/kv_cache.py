"""The KV cache: for each layer, two tensors [num_blocks, block_size, num_kv_heads, head_dim].

A token's slot is its block id times the block size, plus its offset in the block. So a layer's
tensor, viewed as [num_blocks * block_size, num_kv_heads, head_dim], is indexed by slots. The block
tables in blocks.py say which sequence has which block.

A cache in FP8 has two tensors more: the scales of keys and values, see fp8.py.
"""

import math
import os
from collections.abc import Sequence
from typing import NamedTuple

import torch

from pagedlab.blocks import BlockCopy
from pagedlab.fp8 import FP8, Cache, Quantised, tensors_of, write
from pagedlab.kernels import compiles_for
from pagedlab.validation import integer, known_names, shown

CPU_KV_BYTES = 1 << 30  # default size on a CPU; blocks that are never used take no memory
GPU_KV_SHARE = 0.8  # default size on a GPU, as a share of the memory that the model leaves free
SIZES = "num_layers", "num_blocks", "block_size", "num_kv_heads", "head_dim"


class HostBlocks(NamedTuple):
    """The contents of n blocks in CPU memory.

    Args:
        keys: [num_layers, n, block_size, num_kv_heads, head_dim].
        values: the same shape.
    """

    keys: Cache
    values: Cache


class KVCache:
    """The keys and values of all blocks in all layers. Unwritten slots may hold anything.

    Args:
        num_layers: layers of the model.
        num_blocks: blocks in each layer.
        block_size: tokens a block.
        num_kv_heads: KV heads of a layer.
        head_dim: numbers in a key or value.
        dtype: the dtype of the tensors. float8_e4m3fn adds the scales.
        device: the device of the tensors.

    Attributes:
        keys: [num_layers, num_blocks, block_size, num_kv_heads, head_dim].
        values: the same shape.
        scales: of keys and of values, each fp32 [num_layers, num_blocks, block_size, num_kv_heads];
            none unless the cache is in FP8.

    Raises:
        ValueError: If the tensors are larger than the memory.
    """

    @known_names()
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
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"dtype must be a torch.dtype, got {shown(dtype)}")
        self.is_fp8 = dtype == FP8
        need = 2 * math.prod(shape) * dtype.itemsize
        if self.is_fp8:
            need += 2 * math.prod(shape[:-1]) * torch.float32.itemsize
        self.block_size = shape[2]
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
        self.scales: tuple[torch.Tensor, torch.Tensor] | tuple[()] = ()
        if self.is_fp8:
            self.scales = (
                torch.empty(shape[:-1], dtype=torch.float32, device=device),
                torch.empty(shape[:-1], dtype=torch.float32, device=device),
            )
        self._in_triton = compiles_for(self.keys.device)  # one kernel for keys and values

    def blocks_that_fit(self) -> int:
        """How many blocks of this size a cache should have, given the memory that is free now."""
        memory = CPU_KV_BYTES
        if self.keys.is_cuda:
            free, _ = torch.cuda.mem_get_info(self.keys.device)
            memory = int(GPU_KV_SHARE * free)
        return max(1, memory // self.bytes_per_block)

    def layer(self, layer: int) -> tuple[Cache, Cache]:
        """Keys and values of one layer, each [num_blocks, block_size, num_kv_heads, head_dim]."""
        keys = self.keys[layer]
        values = self.values[layer]
        if not self.scales:
            return keys, values
        key_scales, value_scales = self.scales
        return Quantised(keys, key_scales[layer]), Quantised(values, value_scales[layer])

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        """Store the keys and values of T tokens in one layer.

        Args:
            layer: the layer's number.
            k: keys, [T, num_kv_heads, head_dim].
            v: values, [T, num_kv_heads, head_dim].
            slots: int64 [T]; a token with slot -1 is not stored.
        """
        keys, values = self.layer(layer)
        if self._in_triton:
            from pagedlab.kernels.cache import write_kv  # needs Triton

            write_kv(k, v, keys, values, slots)
        else:
            real = slots >= 0
            write(keys.flatten(0, 1), slots[real], k[real])
            write(values.flatten(0, 1), slots[real], v[real])

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks in every layer, with the result of executing the copies in order."""
        origin: dict[int, int] = {}  # by destination: the block that had these contents at first
        for source, destination in copies:
            origin[destination] = origin.get(source, source)
        sources = list(origin.values())
        destinations = list(origin)
        overlaps = not origin.keys().isdisjoint(sources)
        if self._in_triton and not overlaps:
            from pagedlab.kernels.cache import copy_blocks  # needs Triton

            copy_blocks(self.keys, self.values, sources, destinations)
            if self.scales:
                copy_blocks(self.scales[0], self.scales[1], sources, destinations)
        elif origin:
            # Indexing reads all sources before the first write, so a block may be both.
            for tensor in (self.keys, self.values, *self.scales):
                tensor[:, destinations] = tensor[:, sources]

    def swap_out(self, block_ids: Sequence[int]) -> HostBlocks:
        """Return a copy of these blocks in CPU memory, which is pinned if the cache is on a GPU."""
        index = list(block_ids)
        tensors = (self.keys, self.values, *self.scales)
        copies = [tensor[:, index].cpu() for tensor in tensors]
        if self.keys.is_cuda:
            copies = [copy.pin_memory() for copy in copies]
        if not self.is_fp8:
            return HostBlocks(*copies)
        keys, values, key_scales, value_scales = copies
        return HostBlocks(Quantised(keys, key_scales), Quantised(values, value_scales))

    def swap_in(self, swapped: HostBlocks, block_ids: Sequence[int]) -> None:
        """Copy the contents that `swap_out` returned into these blocks, in order.

        Args:
            swapped: the contents of n blocks.
            block_ids: n block ids, usually others than those that were swapped out.
        """
        num_blocks = swapped.keys.shape[1]
        if num_blocks != len(block_ids):
            raise ValueError(
                f"{num_blocks} blocks were swapped out, and {len(block_ids)} ids are given"
            )
        index = list(block_ids)
        for side, copy in zip(self._sides(), swapped, strict=True):
            for tensor, part in zip(tensors_of(side), tensors_of(copy), strict=True):
                tensor[:, index] = part.to(tensor.device, non_blocking=True)

    def _sides(self) -> tuple[Cache, Cache]:
        """Keys and values of all layers."""
        if not self.scales:
            return self.keys, self.values
        key_scales, value_scales = self.scales
        return Quantised(self.keys, key_scales), Quantised(self.values, value_scales)


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
