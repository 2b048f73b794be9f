"""top_k and top_p in Triton.

Sorting the logits of 150,000 tokens takes milliseconds. But a sample needs no order. It needs the
**cut**: the limits keep all tokens whose logit is above it, and the first `ties` that equal it.

A search finds the cut. Each pass over a row tries several candidates at once: it counts the tokens
that reach each candidate, and adds up their weights. The weight of a token is
exp((logit - largest) / temperature), which is its probability but for a factor.

In these functions `row` has what they know of a row:

    logits     pointer to its logits
    largest    pointer to the largest logit of each chunk
    top        its largest logit
    scale      log2(e) / temperature
    size       tokens of the vocabulary
"""

import math

import torch

from pagedlab.kernels.runtime import tl, triton

LOG2E = tl.constexpr(math.log2(math.e))  # the hardware has exp2
# At a higher temperature all tokens are as likely as at this one, and 1 / t would be 0 in fp32.
HOTTEST = tl.constexpr(1e30)
BLOCK = tl.constexpr(1024)  # tokens that are read at once
CANDIDATES = tl.constexpr(8)  # of a pass
# In fp32, a sum may be too small by this share. Then top_p would keep one token too many.
ROUNDING = tl.constexpr(1e-6)
# Every logit of this dtype ends with so many zeros in fp32. The search skips these bits.
ZERO_BITS = {torch.bfloat16: 16, torch.float16: 13}


@triton.jit
def rank_of(x, ZERO_BITS: tl.constexpr):
    """Map fp32 to whole numbers that have the same order."""
    x = tl.where(x == 0, 0.0, x)  # -0.0 equals 0.0, but has other bits
    bits = x.to(tl.int32, bitcast=True)
    # The bits of a negative number grow with its absolute value, so they are inverted.
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64) >> ZERO_BITS


@triton.jit
def logit_of(rank, ZERO_BITS: tl.constexpr):
    """Undo `rank_of`."""
    bits = (rank << ZERO_BITS).to(tl.int32)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return ((bits >> ZERO_BITS) << ZERO_BITS).to(tl.float32, bitcast=True)


@triton.jit
def weight_of(x, row):
    _, _, top, scale, _ = row
    return tl.exp2((x - top) * scale)


@triton.jit
def lowest_rank(row, ZERO_BITS: tl.constexpr):
    _, _, top, _, _ = row
    return rank_of(tl.zeros_like(top) - float("inf"), ZERO_BITS)


@triton.jit
def tally(candidates, row, CHUNK: tl.constexpr):
    """For each candidate, count the tokens whose logit is at least that, and sum their weights."""
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
def tally_above(rank, row, CHUNK: tl.constexpr, ZERO_BITS: tl.constexpr):
    """Count the tokens above one rank, and sum their weights."""
    next_rank = rank + 1 + tl.zeros([CANDIDATES], tl.int64)
    count, weight = tally(logit_of(next_rank, ZERO_BITS), row, CHUNK)
    return tl.max(count, 0), tl.max(weight, 0)  # all candidates are the same


@triton.jit
def search(
    low, goal, row, CHUNK: tl.constexpr, ZERO_BITS: tl.constexpr, BY_WEIGHT: tl.constexpr
):  # fmt: skip
    """Find the rank of the largest logit that enough tokens reach.

    Args:
        low: a rank that enough tokens reach.
        goal: what is enough: a number of tokens, or a sum of weights.
    """
    _, _, top, _, _ = row
    i = tl.arange(0, CANDIDATES)
    high = rank_of(top, ZERO_BITS)
    # The first candidates are 1, 2, 4, ..., 128 below the largest logit. Later ones divide what is
    # left between low and high into equal parts.
    ranks = tl.maximum(rank_of(top - tl.exp2(i.to(tl.float32)), ZERO_BITS), low)
    while low < high:
        count, weight = tally(logit_of(ranks, ZERO_BITS), row, CHUNK)
        enough = (weight if BY_WEIGHT else count) >= goal
        low = tl.maximum(low, tl.max(tl.where(enough, ranks, low), 0))
        high = tl.min(tl.where(enough, high, ranks - 1), 0)
        ranks = low + ((high - low) * (i + 1) + CANDIDATES - 1) // CANDIDATES
    return low


@triton.jit
def cut_by_weight(goal, least, row, CHUNK: tl.constexpr, ZERO_BITS: tl.constexpr):
    """Find the cut whose kept tokens are the fewest that have this weight.

    Args:
        goal: the weight.
        least: a rank that the cut is not below.

    Returns:
        The rank of the cut, and how many of the tokens that equal it are kept.
    """
    rank = search(least, goal, row, CHUNK, ZERO_BITS, True)
    _, above = tally_above(rank, row, CHUNK, ZERO_BITS)
    weight = tl.maximum(weight_of(logit_of(rank, ZERO_BITS), row), 1e-30)
    ties = tl.minimum(tl.ceil((goal - above) / weight), 1e9)  # what int32 can hold
    return rank, tl.maximum(ties, 1).to(tl.int32)


@triton.jit
def keep(cut, ties, row, sums, CHUNKS, CHUNK: tl.constexpr):
    """Replace the second sum of each chunk by that of its kept tokens. Return the last kept tie."""
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


@triton.jit(do_not_specialize_on_alignment=["top_k", "top_p"])
def cut_kernel(
    logits, temperature, top_k, top_p, largest, sums, cuts, last_ties,
    row_stride, VOCABULARY, CHUNKS, COLDEST,
    CHUNK: tl.constexpr, PARTS: tl.constexpr, ZERO_BITS: tl.constexpr,
):  # fmt: skip
    """Program (row): find the cut, and the last kept token that equals it.

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
        rank = lowest_rank(row, ZERO_BITS)
        if k > 0:
            rank = search(rank, k, row, CHUNK, ZERO_BITS, False)
        count, above = tally_above(rank, row, CHUNK, ZERO_BITS)
        ties = tl.where(k > 0, k - count, VOCABULARY)
        if p < 1:  # of the weight that top_k has left
            total = above + ties * weight_of(logit_of(rank, ZERO_BITS), row)
            goal = p * total * (1 - ROUNDING)
            rank, ties = cut_by_weight(goal, rank, row, CHUNK, ZERO_BITS)
        cut = logit_of(rank, ZERO_BITS)
        last = keep(cut, ties, row, sums + 2 * number * CHUNKS, CHUNKS, CHUNK)
        tl.store(cuts + number, cut)
        tl.store(last_ties + number, last)
