"""top_k and top_p in Triton.

Sorting the logits of 150,000 tokens takes milliseconds. But a sample needs no order. It needs the
**cut**: the limits keep all tokens whose logit is above it, and the first `ties` that equal it.

A search finds the cut. Each pass over a row tries several candidates at once: it counts the tokens
that reach each candidate, and adds up their weights. The weight of a token is
exp((logit - top) / temperature), which is its probability but for a factor.

In these functions `row` has what they know of a row:

    logits     pointer to its logits
    largest    pointer to the largest logit of each chunk of tokens
    top        its largest logit
    scale      log2(e) / temperature
    size       tokens of the vocabulary
"""

import math

import torch

from pagedlab.kernels.runtime import tl, triton

LOG2E = tl.constexpr(math.log2(math.e))  # the hardware has exp2
HOTTEST = tl.constexpr(1e30)  # of a higher temperature t, 1 / t would be 0 in fp32
BLOCK = tl.constexpr(1024)  # tokens that are read at once
CANDIDATES = tl.constexpr(8)  # of a pass
# Sums in fp32 are rounded. Of equal tokens, top_p would sometimes keep one too many.
ROUNDING = tl.constexpr(1e-6)
# Every logit of this dtype ends with so many zeros in fp32. The search skips these bits.
SKIPPED_BITS = {torch.bfloat16: 16, torch.float16: 13}


@triton.jit
def key_of(x, SKIPPED: tl.constexpr):
    """Map fp32 to whole numbers that have the same order.

    They are int64, because the difference of two may not fit in an int32. A number between two of
    the dtype is mapped to the lower one.
    """
    x = tl.where(x == 0, 0.0, x)  # -0.0 equals 0.0, but has other bits
    bits = x.to(tl.int32, bitcast=True)
    # The bits of a negative number grow with its absolute value, so they are inverted.
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) >> SKIPPED


@triton.jit
def logit_of(key, SKIPPED: tl.constexpr):
    """Undo `key_of`."""
    bits = (key << SKIPPED).to(tl.int32)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    bits = (bits >> SKIPPED) << SKIPPED  # of a negative number, the inversion has set them
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def weight_of(x, row):
    """The weight of a token with this logit."""
    _, _, top, scale, _ = row
    return tl.exp2((x - top) * scale)


@triton.jit
def tally(candidates, row, CHUNK: tl.constexpr):
    """For each candidate, count the tokens whose logit is at least that, and sum their weights.

    For a candidate of -inf, the count includes padding. Nothing depends on it.
    """
    logits, largest, _, _, size = row
    lowest = tl.min(candidates, 0)
    # Each thread adds up its own tokens. A sum over threads in every block would take longer.
    counts = tl.zeros([CANDIDATES, BLOCK], tl.int32)
    weights = tl.zeros([CANDIDATES, BLOCK], tl.float32)
    for start in range(0, size, BLOCK):
        if tl.load(largest + start // CHUNK) >= lowest:  # else no token here reaches a candidate
            token = start + tl.arange(0, BLOCK)
            x = tl.load(logits + token, mask=token < size, other=float("-inf")).to(tl.float32)
            reaches = x[None, :] >= candidates[:, None]
            counts += reaches.to(tl.int32)
            weights += tl.where(reaches, weight_of(x, row)[None, :], 0.0)
    return tl.sum(counts, 1), tl.sum(weights, 1)


@triton.jit
def tally_above(key, row, CHUNK: tl.constexpr, SKIPPED: tl.constexpr):
    """Count the tokens above one key, and sum their weights."""
    same = tl.zeros([CANDIDATES], tl.int64)  # all candidates are the same
    count, weight = tally(logit_of(same + key + 1, SKIPPED), row, CHUNK)
    return tl.max(count, 0), tl.max(weight, 0)


@triton.jit
def search(
    low, goal, row, CHUNK: tl.constexpr, SKIPPED: tl.constexpr, BY_WEIGHT: tl.constexpr
):  # fmt: skip
    """Find the key of the largest logit that enough tokens reach.

    Enough tokens reach `low`, and too few reach `high` + 1. Each pass brings them together. If too
    few reach even the first `low`, it is returned.

    Args:
        low: the key to begin with.
        goal: what is enough: a number of tokens, or a sum of weights.
    """
    _, _, top, _, _ = row
    i = tl.arange(0, CANDIDATES)
    high = key_of(top, SKIPPED)
    # The first candidates are 1, 2, 4, ..., 128 below the largest logit. Later ones divide what is
    # left between low and high into equal parts, and the last of them is high.
    keys = tl.maximum(key_of(top - tl.exp2(i.to(tl.float32)), SKIPPED), low)
    while low < high:
        count, weight = tally(logit_of(keys, SKIPPED), row, CHUNK)
        enough = (weight if BY_WEIGHT else count) >= goal
        low = tl.maximum(low, tl.max(tl.where(enough, keys, low), 0))
        high = tl.min(tl.where(enough, high, keys - 1), 0)
        keys = low + ((high - low) * (i + 1) + CANDIDATES - 1) // CANDIDATES
    return low


@triton.jit
def cut_by_weight(goal, least, row, CHUNK: tl.constexpr, SKIPPED: tl.constexpr):
    """Find the cut that keeps the fewest of the likeliest tokens whose weights reach the goal.

    Args:
        goal: the weight.
        least: the lowest key that the cut may have.

    Returns:
        The key of the cut, and how many of the tokens that equal it are kept.
    """
    key = search(least, goal, row, CHUNK, SKIPPED, True)
    _, above = tally_above(key, row, CHUNK, SKIPPED)
    weight = tl.maximum(weight_of(logit_of(key, SKIPPED), row), 1e-30)  # it may be 0 in fp32
    ties = tl.minimum(tl.ceil((goal - above) / weight), 1e9)  # what int32 can hold
    return key, tl.maximum(ties, 1).to(tl.int32)  # the likeliest token stays, however small p is


@triton.jit
def keep(cut, ties, row, sums, CHUNKS, CHUNK: tl.constexpr):
    """Write each chunk's sum at temperature over its kept tokens, `sums[..., 1]` of `chunk_kernel`.

    Returns:
        The last kept token that equals the cut.
    """
    logits, largest, _, scale, size = row
    last = -1
    for chunk in range(CHUNKS):
        token = chunk * CHUNK + tl.arange(0, CHUNK)
        real = token < size
        x = tl.load(logits + token, mask=real, other=float("-inf")).to(tl.float32)
        m = tl.load(largest + chunk)
        equal = (real & (x == cut)).to(tl.int32)
        kept_ties = (equal > 0) & (tl.cumsum(equal, 0) <= ties)
        ties -= tl.sum(equal, 0)
        last = tl.maximum(last, tl.max(tl.where(kept_ties, token, -1), 0))
        below = tl.where(m == float("-inf"), float("-inf"), x - m)
        weights = tl.where(kept_ties | (x > cut), tl.exp2(below * scale), 0.0)
        tl.store(sums + 2 * chunk + 1, tl.sum(weights, 0))
    return last


# top_k and top_p are columns of one packed tensor, so their alignment depends on the batch.
@triton.jit(do_not_specialize_on_alignment=["top_k", "top_p"])
def cut_kernel(
    logits, temperature, top_k, top_p, largest, sums, cuts, last_ties,
    row_stride, VOCABULARY, CHUNKS, COLDEST,
    CHUNK: tl.constexpr, PARTS: tl.constexpr, SKIPPED: tl.constexpr,
):  # fmt: skip
    """One program a row: find the cut, and the last kept token that equals it.

    A row without limits keeps all tokens.
    """
    number = tl.program_id(0).to(tl.int64)
    t = tl.minimum(tl.load(temperature + number).to(tl.float32), HOTTEST)
    k = tl.load(top_k + number).to(tl.int32)
    p = tl.load(top_p + number).to(tl.float32)
    tl.store(cuts + number, float("-inf"))
    tl.store(last_ties + number, VOCABULARY)
    if (t >= COLDEST) & ((k > 0) | (p < 1)):
        largest += number * CHUNKS
        part = tl.arange(0, PARTS)
        top = tl.max(tl.load(largest + part, mask=part < CHUNKS, other=float("-inf")), 0)
        row = (logits + number * row_stride, largest, top, LOG2E / t, VOCABULARY)
        key = key_of(tl.zeros_like(top) - float("inf"), SKIPPED)  # every token reaches it
        if k > 0:
            key = search(key, k, row, CHUNK, SKIPPED, False)
        count, above = tally_above(key, row, CHUNK, SKIPPED)
        ties = tl.where(k > 0, k - count, VOCABULARY)  # without top_k, as many as there are
        if p < 1:  # p is a share of what top_k keeps
            total = above + ties * weight_of(logit_of(key, SKIPPED), row)
            goal = p * total * (1 - ROUNDING)
            key, ties = cut_by_weight(goal, key, row, CHUNK, SKIPPED)
        cut = logit_of(key, SKIPPED)
        last = keep(cut, ties, row, sums + 2 * number * CHUNKS, CHUNKS, CHUNK)
        tl.store(cuts + number, cut)
        tl.store(last_ties + number, last)
