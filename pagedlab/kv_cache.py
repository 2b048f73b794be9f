"""The tensors behind the blocks: one pair of [num_blocks, block_size, num_kv_heads, head_dim] a layer.

A token's slot is its block times the block size plus its offset, so a layer's cache seen as
[num_blocks * block_size, num_kv_heads, head_dim] is indexed by slots directly. Which block belongs to whom
is not known here: see blocks.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from pagedlab.blocks import BlockCopy
from pagedlab.kernels import compiles_for

CPU_KV_BYTES = 1 << 30  # of a cache on the CPU, unless its size is chosen; untouched blocks cost nothing
GPU_KV_SHARE = 0.8  # of the memory that is free once the model is loaded


class HostBlocks(NamedTuple):
    """Blocks parked in host memory, each tensor [num_layers, n, block_size, num_kv_heads, head_dim]."""

    keys: torch.Tensor
    values: torch.Tensor


class KVCache:
    """Keys and values of every block in every layer. Fresh slots hold whatever the memory held."""

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
        shape = (num_layers, num_blocks, block_size, num_kv_heads, head_dim)
        if min(shape) < 1:
            raise ValueError(f"every size of a KV cache must be at least 1, got {shape}")
        self.block_size = block_size
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty(shape, dtype=dtype, device=device)
        self._in_triton = compiles_for(self.keys.device)  # one launch for keys and values, instead of several

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block's keys and values in all layers."""
        num_layers, _, *block = self.keys.shape
        return 2 * num_layers * torch.Size(block).numel() * self.keys.element_size()

    def blocks_that_fit(self) -> int:
        """How many such blocks a cache on this device should hold, given the memory that is free now."""
        device = self.keys.device
        memory = int(GPU_KV_SHARE * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else CPU_KV_BYTES
        return max(1, memory // self.bytes_per_block)

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        """Store k and v, each [T, num_kv_heads, head_dim], in `slots`, int64 [T], of one layer; at -1, nothing."""
        if self._in_triton:
            from pagedlab.kernels.cache import write_kv

            write_kv(k, v, self.keys[layer], self.values[layer], slots)
        else:
            real = slots >= 0
            self.keys[layer].flatten(0, 1)[slots[real]] = k[real]
            self.values[layer].flatten(0, 1)[slots[real]] = v[real]

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks in every layer, with the same result as doing `copies` one after the other."""
        origin: dict[int, int] = {}  # where each destination's contents come from, seen before the first copy
        for source, destination in copies:
            origin[destination] = origin.get(source, source)
        if not origin:
            return
        if self._in_triton and not origin.keys() & set(origin.values()):
            from pagedlab.kernels.cache import KV, copy_blocks

            kv = KV(self.keys, self.values)
            copy_blocks(kv, kv, list(origin.values()), list(origin))
            return
        device = self.keys.device
        destinations = torch.tensor(list(origin), device=device)
        sources = torch.tensor(list(origin.values()), device=device)
        # Indexing gathers all sources before the first write: a block may be a source and a destination.
        self.keys[:, destinations] = self.keys[:, sources]
        self.values[:, destinations] = self.values[:, sources]

    def swap_out(self, block_ids: Sequence[int]) -> HostBlocks:
        """Return a copy of these blocks in host memory, pinned where there is a GPU to copy back to."""
        index = torch.tensor(block_ids, dtype=torch.int64, device=self.keys.device)
        parked = HostBlocks(self.keys[:, index].cpu(), self.values[:, index].cpu())
        return HostBlocks(*(t.pin_memory() for t in parked)) if self.keys.is_cuda else parked

    def swap_in(self, parked: HostBlocks, block_ids: Sequence[int]) -> None:
        """Write parked blocks back, in order, into `block_ids`, which need not be where they came from."""
        if parked.keys.shape[1] != len(block_ids):
            raise ValueError(f"{parked.keys.shape[1]} blocks were parked, {len(block_ids)} ids given to put them in")
        index = torch.tensor(block_ids, dtype=torch.int64, device=self.keys.device)
        self.keys[:, index] = parked.keys.to(self.keys.device, non_blocking=True)
        self.values[:, index] = parked.values.to(self.values.device, non_blocking=True)
