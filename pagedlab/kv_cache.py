"""The KV cache: for each layer, two tensors [num_blocks, block_size, num_kv_heads, head_dim].

A token's slot is its block id times the block size, plus its offset in the block. So a layer's
tensor, viewed as [num_blocks * block_size, num_kv_heads, head_dim], is indexed by slots. The block
tables in blocks.py say which sequence has which block.
"""

from collections.abc import Sequence as Seq

import torch

from pagedlab.arguments import integer, one_of
from pagedlab.blocks import BlockCopy
from pagedlab.kernels import compiles_for

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
        ValueError: If a size is no number of at least 1, or the dtype is another one.
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
        self.block_size = block_size
        self.keys = torch.empty(shape, dtype=dtype, device=device)
        self.values = torch.empty_like(self.keys)
        self.bytes_per_block = 2 * self.keys[:, 0].nbytes  # keys and values of all layers
        self._in_triton = compiles_for(self.keys.device)  # one kernel for keys and values

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        """Store the keys and values of T tokens in one layer.

        Args:
            layer: the layer's number.
            k: keys, [T, num_kv_heads, head_dim].
            v: values, [T, num_kv_heads, head_dim].
            slots: int64 [T]; a token with slot -1 is padding, and not stored.
        """
        keys = self.keys[layer]
        values = self.values[layer]
        if self._in_triton:
            from pagedlab.kernels.cache import write_kv  # needs Triton

            write_kv(k, v, keys, values, slots)
        else:
            is_stored = slots >= 0
            keys.flatten(0, 1)[slots[is_stored]] = k[is_stored]
            values.flatten(0, 1)[slots[is_stored]] = v[is_stored]

    def copy_blocks(self, copies: Seq[BlockCopy]) -> None:
        """Copy whole blocks in every layer. All sources are read before a block is written."""
        if copies:
            sources = [copy.source for copy in copies]
            destinations = [copy.destination for copy in copies]
            self.keys[:, destinations] = self.keys[:, sources]
            self.values[:, destinations] = self.values[:, sources]
