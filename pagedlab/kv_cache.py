"""The tensors behind the blocks: one pair of [num_blocks, block_size, num_kv_heads, head_dim] a
layer.

A token's slot is its block times the block size plus its offset. So a layer's cache, seen as
[num_blocks * block_size, num_kv_heads, head_dim], is indexed by slots directly. blocks.py knows
which sequence has which block.
"""

import math
import os
from collections.abc import Sequence
from typing import NamedTuple

import torch

from pagedlab.blocks import BlockCopy
from pagedlab.kernels import compiles_for
from pagedlab.validation import integer

# of a cache on the CPU, unless its size is chosen; untouched blocks cost nothing
CPU_KV_BYTES = 1 << 30
GPU_KV_SHARE = 0.8  # of the memory that is free once the model is loaded
SIZES = "num_layers", "num_blocks", "block_size", "num_kv_heads", "head_dim"


class HostBlocks(NamedTuple):
    """Blocks in host memory.

    Args:
        keys, values: [num_layers, n, block_size, num_kv_heads, head_dim].
    """

    keys: torch.Tensor
    values: torch.Tensor


class KVCache:
    """Keys and values of every block and layer. Slots that were never written may hold anything.

    Args:
        num_layers, num_blocks, num_kv_heads: how many of each.
        block_size: tokens a block.
        head_dim: numbers of a key or value.
        dtype, device: of the tensors.

    Raises:
        ValueError: If they are larger than memory.
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
        need = 2 * math.prod(shape) * dtype.itemsize
        has, here = _memory(torch.device(device))
        self.block_size = shape[2]
        self.bytes_per_block = need // shape[1]  # of keys and values in all layers
        if need > has:
            blocks = (
                f"{shape[1]:,} blocks of {self.bytes_per_block / 2**10:,g} KiB take "
                f"{-(-need // 2**30):,} GiB"
            )
            raise ValueError(f"{blocks}, and {here} {has / 2**30:,.1f} GiB: lower num_blocks")
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        # one launch for keys and values, instead of several
        self._in_triton = compiles_for(self.keys.device)

    def blocks_that_fit(self) -> int:
        """How many such blocks a cache on this device should hold, given the memory that is free
        now.
        """
        memory = CPU_KV_BYTES
        if self.keys.is_cuda:
            free, _ = torch.cuda.mem_get_info(self.keys.device)
            memory = int(GPU_KV_SHARE * free)
        return max(1, memory // self.bytes_per_block)

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        """Store the keys and values of T tokens in one layer.

        Args:
            layer: its number.
            k, v: [T, num_kv_heads, head_dim].
            slots: int64 [T]; a token with slot -1 is not stored.
        """
        if self._in_triton:
            from pagedlab.kernels.cache import write_kv

            write_kv(k, v, self.keys[layer], self.values[layer], slots)
        else:
            real = slots >= 0
            self.keys[layer].flatten(0, 1)[slots[real]] = k[real]
            self.values[layer].flatten(0, 1)[slots[real]] = v[real]

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks in every layer, with the same result as doing `copies` one after the
        other.
        """
        origin = dict[
            int, int
        ]()  # by destination: the block that had its contents before the first copy
        for source, destination in copies:
            origin[destination] = origin.get(source, source)
        sources = list(origin.values())
        destinations = list(origin)
        if self._in_triton and not origin.keys() & set(sources):
            from pagedlab.kernels.cache import copy_blocks

            copy_blocks(self.keys, self.values, sources, destinations)
        elif origin:
            # Indexing gathers all sources before the first write: a block may be a source and a
            # destination.
            self.keys[:, destinations] = self.keys[:, sources]
            self.values[:, destinations] = self.values[:, sources]

    def swap_out(self, block_ids: Sequence[int]) -> HostBlocks:
        """Return a copy of these blocks in host memory, pinned where there is a GPU to copy back
        to.
        """
        index = list(block_ids)
        keys = self.keys[:, index].cpu()
        values = self.values[:, index].cpu()
        if self.keys.is_cuda:
            return HostBlocks(keys.pin_memory(), values.pin_memory())
        return HostBlocks(keys, values)

    def swap_in(self, swapped: HostBlocks, block_ids: Sequence[int]) -> None:
        """Write swapped blocks back, in order, into `block_ids`.

        These need not be the blocks that they came from.
        """
        num_blocks = swapped.keys.shape[1]
        if num_blocks != len(block_ids):
            raise ValueError(
                f"{num_blocks} blocks were swapped out, and {len(block_ids)} ids are given"
            )
        index = list(block_ids)
        self.keys[:, index] = swapped.keys.to(self.keys.device, non_blocking=True)
        self.values[:, index] = swapped.values.to(self.values.device, non_blocking=True)


def _memory(device: torch.device) -> tuple[float, str]:
    """Bytes that tensors may take, and words for it: the free memory of a GPU, or the memory of the
    machine.
    """
    if device.type == "cuda":  # torch's own reserve is free, too
        reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reserve, "free on this GPU are"
    has = (
        os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if hasattr(os, "sysconf")
        else math.inf
    )
    return has, "this machine has"
