"""Sampling in Triton.

In torch, `sampling.sample_rows` makes a dozen passes over [R, V] numbers. That takes half a
millisecond for 256 sequences and Qwen's 151,936 tokens. Here the vocabulary is divided into chunks.
First, programs find the largest logit of each chunk of each row, and its sums of exponentials. Then
one program for each row finds the chunk that the sample falls into, and the token in it. So all
logits are read once, and those of the sampled chunk a second time. In between, limits.py applies
top_k, top_p and min_p to the rows that have them.
"""

import torch
from torch import Tensor

from pagedlab.kernels.runtime import on_device_of, power_of_two, tl, triton
from pagedlab_fast.kernels.limits import HOTTEST, LOG2E, SKIPPED_BITS, cut_kernel
from pagedlab_fast.kernels.penalties import (
    Penalties,
    RowPenalties,
    counts_row_and_penalties,
    load_logits,
    load_plain_logits,
    penalise,
)

CHUNK = 512  # tokens
GROUP = 8  # chunks that a program of chunk_kernel reads
COLDEST = 1e-30  # a lower temperature is 0 in effect
LARGEST = 1 - 2.0**-24  # the largest fp32 below 1
BELOW_1 = tl.constexpr(LARGEST)


@triton.jit
def mix(x):
    """Compute splitmix64, as in `sampling.uniform`."""
    x += 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def uniform(seed, position):
    """A number in [0, 1): `sampling.uniform`, rounded to fp32."""
    bits = mix(mix(seed.to(tl.uint64, bitcast=True)) + position.to(tl.uint64, bitcast=True)) >> 11
    # Rounding up to 1 would take the last token, however unlikely it is.
    return tl.minimum(bits.to(tl.float32) * 2.0**-53, BELOW_1)


@triton.jit
def bits_below(x, m):
    """log2(e) * (x - m), so that exp(x - m) is 2 to the power of the result.

    Args:
        x: rows of numbers. The result is NaN where one is NaN or inf.
        m: the largest number of each row that is not NaN. Where it is -inf, the result is -inf.
    """
    m = tl.where(m == float("-inf"), 0.0, m)
    return (x - m[:, None]) * LOG2E


@triton.jit
def chunk_kernel(
    logits, temperature, largest, place, sums,
    counts, counts_rows, ROW_STRIDE, columns, COLUMN_STRIDE,
    row_stride, VOCABULARY, CHUNKS, COLDEST, CHUNK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Program (row, group of chunks): find each chunk's largest logit, its token, and a sum.

    The sum is of exp((l - largest) / temperature), or of exp(l - largest) at temperature 0.
    """
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
    token = chunk[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    part = row * CHUNKS + chunk
    real = chunk < CHUNKS
    x = load_plain_logits(logits + row * row_stride, token, VOCABULARY)
    t = tl.minimum(tl.load(temperature + row).to(tl.float32), HOTTEST)
    if counts is not None:
        counts_row, repetition, presence, frequency = counts_row_and_penalties(
            counts, counts_rows, ROW_STRIDE, columns, COLUMN_STRIDE, row
        )
        penalties = RowPenalties(counts, counts_row, repetition, presence, frequency)
        x = penalise(x, token, VOCABULARY, penalties)
    m = tl.max(x, 1)
    below = bits_below(x, m)
    tl.store(largest + part, m, mask=real)
    # These lines have half the instructions of argmax, exp and a division for each logit.
    first = tl.min(tl.where(x == m[:, None], token, VOCABULARY - 1), 1)
    tl.store(place + part, first, mask=real)
    # On an H100 this kernel takes a tenth more time with the sum above `first`.
    scale = tl.where(t >= COLDEST, 1 / t, 1.0)
    tl.store(sums + part, tl.sum(tl.exp2(below * scale), 1), mask=real)


@triton.jit
def first_beyond(target, weights, i):
    """The first index with a weight at which the sum of weights is above the target.

    Sums are rounded, so the target may be below 0 or above all sums. The result has a weight even
    then: it is the first or the last index that has one.

    Args:
        i: 0, 1, 2, ..., as many as there are weights.
    """
    last = tl.max(tl.where(weights > 0, i, 0), 0)
    is_beyond = (tl.cumsum(weights, 0) > target) & (weights > 0)
    return tl.min(tl.where(is_beyond, i, last), 0)


@triton.jit(do_not_specialize=["SEED_STRIDE"], do_not_specialize_on_alignment=["seeds"])
def pick_kernel(
    logits, temperature, u, seeds, SEED_STRIDE, positions,
    largest, place, sums, cuts, last_ties, tokens,
    counts, counts_rows, ROW_STRIDE, columns, COLUMN_STRIDE,
    row_stride, VOCABULARY, CHUNKS, COLDEST, CHUNK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Program (row): find the token at `u` of the cumulative distribution.

    If `u` is None, it is computed for the position after the given one.

    Tokens that top_k, top_p and min_p exclude have no share of it: those below the cut of
    limits.py, and those that equal it and come after `last_ties`.
    """
    row = tl.program_id(0).to(tl.int64)
    t = tl.minimum(tl.load(temperature + row).to(tl.float32), HOTTEST)
    part = tl.arange(0, PARTS)
    real = part < CHUNKS
    at = row * CHUNKS + part
    m = tl.load(largest + at, mask=real, other=float("-inf"))
    top = tl.max(m, 0)
    is_sampled = t >= COLDEST
    t = tl.where(is_sampled, t, 1.0)
    weight = tl.load(sums + at, mask=real, other=0.0) * tl.exp((m - top) / t)
    total = tl.sum(weight, 0)
    # If no logit is a number, this takes the last chunk. `argmax` might take one behind it.
    top_chunk = tl.min(tl.where(m == top, part, CHUNKS - 1), 0)
    token = tl.load(place + row * CHUNKS + top_chunk)
    if is_sampled:
        if u is None:
            number = uniform(tl.load(seeds + row * SEED_STRIDE), tl.load(positions + row) + 1)
        else:
            number = tl.load(u + row).to(tl.float32)
        target = number * total
        chunk = first_beyond(target, weight, part)
        target -= tl.sum(tl.where(part < chunk, weight, 0.0), 0)
        i = tl.arange(0, CHUNK)
        candidate = chunk * CHUNK + i
        counts_row, repetition, presence, frequency = counts_row_and_penalties(
            counts, counts_rows, ROW_STRIDE, columns, COLUMN_STRIDE, row
        )
        penalties = RowPenalties(counts, counts_row, repetition, presence, frequency)
        x = load_logits(logits + row * row_stride, candidate, VOCABULARY, penalties)
        cut = tl.load(cuts + row)
        is_kept = (x > cut) | ((x == cut) & (candidate <= tl.load(last_ties + row)))
        p = tl.where(is_kept, tl.exp((x - top) / t), 0.0)
        token = chunk * CHUNK + first_beyond(target, p, i)
    # `total` is NaN if a logit is NaN or inf, or if all are -inf.
    token = tl.where(total == total, token, -1)
    tl.store(tokens + row, token.to(tl.int64))


def triton_sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    u: Tensor | None,
    penalties: Penalties | None = None,
    min_p: Tensor | None = None,
    seeds: Tensor | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """Sample one token from each row.

    Args:
        logits: [R, V].
        temperature: contiguous [R]; 0 takes the likeliest token, the first if there are several.
        top_k: contiguous [R], how many tokens are kept, at most `MAX_TOP_K`; 0 for all.
        top_p: contiguous [R], the share of the probability that is kept; 1 for all.
        u: contiguous [R], uniform in [0, 1]; None for those of seeds and positions.
        penalties: of the rows; None if no row has any.
        min_p: contiguous [R], the least probability over the largest one; None if no row has it.
        seeds: int64 [R], without `u`.
        positions: contiguous int64 [R], of the tokens before the sampled ones, without `u`.

    Returns:
        The token ids, int64 [R]; -1 for a row with NaN or inf, or with -inf alone.
    """
    rows, vocabulary = logits.shape
    device = logits.device
    tokens = torch.empty(rows, dtype=torch.int64, device=device)
    if rows == 0:
        return tokens
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    chunks = -(-vocabulary // CHUNK)
    largest = torch.empty((rows, chunks), device=device)
    place = torch.empty((rows, chunks), dtype=torch.int32, device=device)
    sums = torch.empty((rows, chunks), device=device)
    listed = torch.empty((rows, chunks), dtype=torch.int32, device=device)
    cuts = torch.empty(rows, device=device)
    last_ties = torch.empty(rows, dtype=torch.int32, device=device)
    sizes = (logits.stride(0), vocabulary, chunks, COLDEST, CHUNK)
    parts = power_of_two(chunks)
    penalty_arguments = Penalties.arguments(penalties)
    skipped_bits = SKIPPED_BITS.get(logits.dtype, 0) if penalties is None else 0
    with on_device_of(logits):
        chunk_kernel[(rows, -(-chunks // GROUP))](
            logits, temperature, largest, place, sums,
            *penalty_arguments, *sizes, GROUP, num_warps=4,
        )  # fmt: skip
        cut_kernel[(rows,)](
            logits, temperature, top_k, top_p, min_p, largest, sums, listed, cuts, last_ties,
            *penalty_arguments, *sizes, parts, skipped_bits, num_warps=4,
        )  # fmt: skip
        pick_kernel[(rows,)](
            logits, temperature, u, seeds, 0 if seeds is None else seeds.stride(0), positions,
            largest, place, sums, cuts, last_ties, tokens,
            *penalty_arguments, *sizes, parts, num_warps=8,
        )  # fmt: skip
    return tokens
