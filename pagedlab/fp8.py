"""FP8 keys and values: a byte a number, and a scale for each vector of a token and KV head.

A vector x of head_dim numbers is stored as x / scale in e4m3 (1 sign bit, 4 of the exponent, 3 of
the mantissa), with scale = max |x| / 448, so that its largest number becomes e4m3's largest. A
rounding is at most 1/16 of a number, or 2^-10 scale for one below scale / 64.

Why a scale a vector, and not one a layer, a head or a block:

- What is stored for a token depends on that token alone. A scale for a block would change when a
  larger token arrives, and the block's earlier tokens would have to be rounded again. Then tokens
  would depend on how the scheduler cut a prompt into steps.
- Nothing is calibrated: no texts to run first, no numbers that a checkpoint must bring.
- A block is complete with its scales. So copy-on-write, forks, swapping and the prefix cache move
  them with the block and need to know nothing else.

The price is 4 bytes a vector beside head_dim: 6 % with heads of 64, 3 % with heads of 128.

Attention needs no copy of K or V in another dtype. A score is q . k = scale * (q . stored k), and
an output is the sum of p * v = sum of (p * scale) * stored v. So the kernels convert the bytes to
the queries' dtype in registers, which is exact, and multiply scores and weights by the scales. A
product of two fp8 matrices would use faster tensor cores; for that q and p would be rounded, too.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
LARGEST = 448.0  # of e4m3
# Below it 1 / scale would overflow. A vector of zeros has it, too, so that nothing divides by 0.
SMALLEST_SCALE = 2.0**-100


@dataclass(frozen=True)
class Quantised:
    """Vectors in FP8.

    Args:
        values: float8_e4m3fn, [..., D].
        scales: fp32, [...].
    """

    values: Tensor
    scales: Tensor

    @property
    def shape(self) -> torch.Size:
        """The shape of the vectors, [..., D]."""
        return self.values.shape

    @property
    def ndim(self) -> int:
        return self.values.ndim

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    def __getitem__(self, index: Any) -> Tensor:
        """Return the numbers of some vectors in fp32. `index` is one of a tensor without axis D."""
        return dequantise(Quantised(self.values[index], self.scales[index]), torch.float32)

    def is_contiguous(self) -> bool:
        """Whether both tensors are."""
        return self.values.is_contiguous() and self.scales.is_contiguous()

    def flatten(self, first: int, last: int) -> "Quantised":
        """Join axes as `Tensor.flatten` does; not the last one."""
        return Quantised(self.values.flatten(first, last), self.scales.flatten(first, last))

    def to(self, device: torch.device | str) -> "Quantised":
        return Quantised(self.values.to(device), self.scales.to(device))


# A cache of one layer, [num_blocks, block_size, Hkv, D].
Cache = Tensor | Quantised


def tensors_of(cache: Cache) -> tuple[Tensor, ...]:
    """The tensor of a cache; the two of a cache in FP8."""
    if isinstance(cache, Quantised):
        return cache.values, cache.scales
    return (cache,)


def quantise(vectors: Tensor) -> Quantised:
    """Round vectors [..., D] to FP8, each with its own scale.

    A number that is not finite is NaN afterwards, and may make its whole vector NaN.
    """
    exact = vectors.float()
    largest = exact.abs().amax(dim=-1)
    scales = (largest * (1 / LARGEST)).clamp(min=SMALLEST_SCALE)
    return Quantised((exact * (1 / scales)[..., None]).to(FP8), scales)


def dequantise(vectors: Quantised, dtype: torch.dtype) -> Tensor:
    """Return the numbers [..., D] that these vectors stand for, in another dtype."""
    exact = torch.promote_types(dtype, torch.float32)
    return (vectors.values.to(exact) * vectors.scales[..., None]).to(dtype)


def write(cache: Cache, index: Any, vectors: Tensor) -> None:
    """Set `cache[index]`; of a cache in FP8 to the rounded vectors."""
    if isinstance(cache, Quantised):
        rounded = quantise(vectors)
        cache.values[index] = rounded.values
        cache.scales[index] = rounded.scales
    else:
        cache[index] = vectors
