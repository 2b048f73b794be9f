"""top_k, top_p and min_p in Triton.

Sorting the logits of 150,000 tokens takes milliseconds. But a sample needs no order. It needs the
**cut**: the limits keep all tokens whose logit is above it, and the first `ties` that equal it.

A search finds the cut. Each pass tries several candidates at once: it counts the tokens that reach
each candidate, and adds up their weights. The weight of a token is its probability but for a
factor: exp((logit - top) / temperature). A pass reads only the chunks of the vocabulary that have
a token for one of its candidates. With top_k = 20, these are about 20 of Qwen's 297 chunks.
"""

import math
from typing import Any, NamedTuple

import torch

from pagedlab.kernels.runtime import tl, triton
from pagedlab_fast.kernels.penalties import RowPenalties, counts_row_and_penalties, load_logits

LOG2E = tl.constexpr(math.log2(math.e))  # the hardware has exp2
HOTTEST = tl.constexpr(1e30)  # a temperature may be infinite in fp32, and 1 / t would be 0
STAGES = tl.constexpr(3)  # a loop over chunks loads two of them ahead
CANDIDATES = tl.constexpr(8)  # of a pass
# Sums in fp32 are rounded. Of equal tokens, top_p would sometimes keep one too many. So it asks for
# a millionth less.
ROUNDING = tl.constexpr(1e-6)
# Every logit of this dtype ends with so many zeros in fp32. The search skips these bits.
SKIPPED_BITS = {torch.bfloat16: 16, torch.float16: 13}


class Row(NamedTuple):
    """What the functions below know of a row.

    Args:
        logits: pointer to its logits.
        largest: pointer to the largest logit of each chunk.
        maxima: the largest logit of each chunk, -inf behind the last chunk.
        chunks: pointer to memory for a list of chunks.
        top: its largest logit.
        scale: log2(e) / temperature.
        size: tokens of the vocabulary.
        penalties: `RowPenalties`.
    """

    logits: Any
    largest: Any
    maxima: Any
    chunks: Any
    top: Any
    scale: Any
    size: Any
    penalties: Any


@triton.jit
def key_of(x, SKIPPED: tl.constexpr):
    """Map fp32 to whole numbers that have the same order.

    They are int64, because the difference of two may not fit in an int32. A number between two of
    the dtype is rounded towards zero.
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
    return tl.exp2((x - row.top) * row.scale)


@triton.jit
def list_chunks(lowest, row):
    """List the chunks that have a logit of at least `lowest`, in order, and count them."""
    reaches = (row.maxima >= lowest) & (row.maxima > float("-inf"))
    index = tl.cumsum(reaches.to(tl.int32), 0) - 1
    tl.debug_barrier()  # needed: no thread still reads the list before
    tl.store(row.chunks + index, tl.arange(0, row.maxima.numel), mask=reaches)
    tl.debug_barrier()  # needed: each thread reads what others wrote
    return tl.sum(reaches.to(tl.int32), 0)


@triton.jit
def load_chunk(chunk, row, CHUNK: tl.constexpr):
    """The tokens of a chunk, and their logits."""
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    return token, load_logits(row.logits, token, row.size, row.penalties)


@triton.jit
def tally(candidates, row, CHUNK: tl.constexpr):
    """For each candidate, count the tokens whose logit is at least that, and sum their weights."""
    listed = list_chunks(tl.min(candidates, 0), row)
    # Each thread adds up its own tokens. A sum over threads in every chunk would take longer.
    counts = tl.zeros([CANDIDATES, CHUNK], tl.int32)
    weights = tl.zeros([CANDIDATES, CHUNK], tl.float32)
    for i in tl.range(listed, num_stages=STAGES):
        _, x = load_chunk(tl.load(row.chunks + i), row, CHUNK)
        reaches = x[None, :] >= candidates[:, None]
        counts += reaches.to(tl.int32)
        weights += tl.where(reaches, weight_of(x, row)[None, :], 0.0)
    return tl.sum(counts, 1), tl.sum(weights, 1)


@triton.jit
def search(low, goal, row, CHUNK: tl.constexpr, SKIPPED: tl.constexpr, BY_WEIGHT: tl.constexpr):
    """Find the key of the largest logit that enough tokens reach.

    Enough tokens reach `low`, and too few reach `high` + 1. Each pass brings them together. If too
    few reach even the first `low`, it is returned.

    Args:
        low: the key to begin with.
        goal: what is enough: a number of tokens, or a sum of weights.

    Returns:
        The key, the number of tokens above it, and the sum of their weights. (If too few reach the
        first `low`, tokens that equal it are among them.)
    """
    i = tl.arange(0, CANDIDATES)
    high = key_of(row.top, SKIPPED)
    count_above = tl.zeros_like(low).to(tl.int32)
    weight_above = tl.zeros_like(row.top)
    # The first candidates are 1, 2, 4, ..., 128 below the largest logit. Later ones divide what is
    # left between low and high into equal parts, and the last of them is high.
    keys = tl.maximum(key_of(row.top - tl.exp2(i.to(tl.float32)), SKIPPED), low)
    while low < high:
        count, weight = tally(logit_of(keys, SKIPPED), row, CHUNK)
        enough = (weight if BY_WEIGHT else count) >= goal
        low = tl.maximum(low, tl.max(tl.where(enough, keys, low), 0))
        high = tl.min(tl.where(enough, high, keys - 1), 0)
        # Of the candidates with too few tokens, the lowest has the most: those above `high`.
        count_above = tl.maximum(count_above, tl.max(tl.where(enough, 0, count), 0))
        weight_above = tl.maximum(weight_above, tl.max(tl.where(enough, 0.0, weight), 0))
        keys = low + ((high - low) * (i + 1) + CANDIDATES - 1) // CANDIDATES
    return low, count_above, weight_above


@triton.jit
def reached_by_k(k, row):
    """A logit that at least k tokens reach: the k-th largest of the chunks' largest logits."""
    in_order = tl.sort(row.maxima, descending=True)
    rank = tl.arange(0, row.maxima.numel)
    return tl.max(tl.where(rank == k - 1, in_order, float("-inf")), 0)


@triton.jit
def reached_by_p(p, total, row):
    """A logit that tokens with the share p of all weights reach.

    Tokens below this logit weigh at most half of what top_p may leave out, even if all tokens are
    below it. (The other half is for rounding.)
    """
    return row.top + tl.log2((1 - p) * total / (2 * row.size)) / row.scale


@triton.jit
def sum_kept(cut, ties, row, sums, CHUNK: tl.constexpr):
    """Sum the weights of each chunk's kept tokens, and store them in `sums`.

    As in `chunk_kernel`, the weights are relative to the chunk's largest logit.

    Returns:
        The last kept token that equals the cut.
    """
    listed = list_chunks(cut, row)
    part = tl.arange(0, row.maxima.numel)
    keeps_none = ~(row.maxima >= cut)  # also if one of the two is not a number
    emptied = (part * CHUNK < row.size) & keeps_none
    # 0 * NaN is NaN: a row that is not finite stays so.
    tl.store(sums + part, 0 * tl.load(sums + part, mask=emptied), mask=emptied)
    last = tl.full([CHUNK], -1, tl.int32)
    for i in tl.range(listed, num_stages=STAGES):
        chunk = tl.load(row.chunks + i)
        token, x = load_chunk(chunk, row, CHUNK)
        equal = (x == cut).to(tl.int32)
        kept_ties = (equal > 0) & (tl.cumsum(equal, 0) <= ties)
        ties -= tl.sum(equal, 0)
        last = tl.maximum(last, tl.where(kept_ties, token, -1))
        below = x - tl.load(row.largest + chunk)
        weights = tl.where(kept_ties | (x > cut), tl.exp2(below * row.scale), 0.0)
        tl.store(sums + chunk, tl.sum(weights, 0) + 0 * tl.load(sums + chunk))
    return tl.max(last, 0)


# These limits are columns of one packed tensor, so their alignment depends on the batch.
@triton.jit(do_not_specialize_on_alignment=["top_k", "top_p", "min_p"])
def cut_kernel(
    logits, temperature, top_k, top_p, min_p, largest, sums, chunks, cuts, last_ties,
    counts, counts_rows, ROW_STRIDE, columns, COLUMN_STRIDE,
    row_stride, VOCABULARY, CHUNKS, COLDEST,
    CHUNK: tl.constexpr, PARTS: tl.constexpr, SKIPPED: tl.constexpr,
):  # fmt: skip
    """One program a row: find the cut, and the last kept token that equals it.

    A row without limits keeps all tokens. If no row has min_p, it is None.
    """
    number = tl.program_id(0).to(tl.int64)
    t = tl.minimum(tl.load(temperature + number).to(tl.float32), HOTTEST)
    k = tl.load(top_k + number).to(tl.int32)
    k = tl.where(k < VOCABULARY, k, 0)  # top_k excludes no token
    p = tl.load(top_p + number).to(tl.float32)
    tl.store(cuts + number, float("-inf"))
    tl.store(last_ties + number, VOCABULARY)
    limited = (k > 0) | (p < 1)
    if min_p is not None:
        fraction = tl.load(min_p + number).to(tl.float32)
        limited = limited | (fraction > 0)
    if (t >= COLDEST) & limited:
        first = number * CHUNKS  # where the row's chunks begin
        sums += first
        part = tl.arange(0, PARTS)
        real = part < CHUNKS
        logits += number * row_stride
        largest += first
        maxima = tl.load(largest + part, mask=real, other=float("-inf"))
        top = tl.max(maxima, 0)
        counts_row, repetition, presence, frequency = counts_row_and_penalties(
            counts, counts_rows, ROW_STRIDE, columns, COLUMN_STRIDE, number
        )
        penalties = RowPenalties(counts, counts_row, repetition, presence, frequency)
        scale = LOG2E / t
        row = Row(logits, largest, maxima, chunks + first, top, scale, VOCABULARY, penalties)
        if k > 0:
            low = key_of(reached_by_k(k, row), SKIPPED)
            key, count, above = search(low, k, row, CHUNK, SKIPPED, False)
            ties = k - count
            total = above + ties * weight_of(logit_of(key, SKIPPED), row)
        else:
            of_chunks = tl.load(sums + part, mask=real, other=0.0)
            total = tl.sum(of_chunks * weight_of(maxima, row), 0)
            key = key_of(reached_by_p(p, total, row), SKIPPED)
            ties = VOCABULARY  # top_p sets it below
        if p < 1:  # p is a share of what top_k keeps
            goal = p * total * (1 - ROUNDING)
            key, _, above = search(key, goal, row, CHUNK, SKIPPED, True)
            weight = tl.maximum(weight_of(logit_of(key, SKIPPED), row), 1e-30)  # may be 0 in fp32
            ties = tl.minimum(tl.ceil((goal - above) / weight), 1e9).to(tl.int32)  # int32 holds 1e9
            ties = tl.maximum(ties, 1)  # the likeliest token stays, however small p is
        cut = logit_of(key, SKIPPED)
        if min_p is not None:
            least = top + tl.log2(fraction) / scale
            ties = tl.where(least > cut, VOCABULARY, ties)
            cut = tl.maximum(cut, least)
        last = sum_kept(cut, ties, row, sums, CHUNK)
        tl.store(cuts + number, cut)
        tl.store(last_ties + number, last)
