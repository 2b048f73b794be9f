"""FP8 in Triton: what `quantise` of pagedlab/fp8.py computes, bit by bit the same.

The kernels that write KV round numbers to e4m3 by integer arithmetic. A GPU has an instruction for
it, but Triton's interpreter rounds otherwise, and few numbers are written. Attention reads many: it
leaves the way back, which is exact, to the GPU's instructions.
"""

import torch
from torch import Tensor

from pagedlab.fp8 import LARGEST, SMALLEST_SCALE, Cache, Quantised
from pagedlab.kernels.runtime import tl, triton

NEEDS = (8, 9)  # the compute capability from which the GPU converts e4m3
INVERSE_OF_LARGEST = tl.constexpr(1 / LARGEST)
SMALLEST = tl.constexpr(SMALLEST_SCALE)


@triton.jit
def scale_of_largest(largest):
    """The scale of vectors whose largest number has this size."""
    return tl.maximum(largest * INVERSE_OF_LARGEST, SMALLEST)


@triton.jit
def e4m3_of(x, scale):
    """Round x / scale, fp32, to the bytes of e4m3; a tie goes to the even mantissa."""
    x *= tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)
    bits = x.to(tl.uint32, bitcast=True)
    size = bits & 0x7FFFFFFF
    # e4m3's exponent is 120 less, its mantissa 20 bits shorter. Half of a last place is added, or
    # one less where the last bit that stays is 0.
    normal = (size - (120 << 23) + 0x7FFFF + ((size >> 20) & 1)) >> 20
    # Below 2^-6, e4m3 counts in steps of 2^-9, as fp32 does just above 2^14.
    tiny = (tl.abs(x) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    byte = tl.where(size < (121 << 23), tiny, normal)
    byte = tl.where(size >= 0x7F800000, 0x7F, byte)  # NaN
    return (byte | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def widened(x, dtype: tl.constexpr):
    """Convert e4m3 to a wider dtype, which is exact.

    Straight to bf16, Triton takes an instruction of which a multiprocessor starts few. By way of
    fp32 there are as many instructions, and none of those.
    """
    return x.to(tl.float32).to(dtype)


def bytes_and_scales(cache: Cache) -> tuple[Tensor, Tensor | None]:
    """The tensors that a kernel writes: those of a cache in FP8 are bytes and scales."""
    if isinstance(cache, Quantised):
        return cache.values.view(torch.uint8), cache.scales
    return cache, None
