"""Drawing tokens in Triton.

What `sampling.sample` does takes a dozen passes over [R, V] numbers in torch, half a millisecond
for 256 texts and Qwen's 151,936 tokens. Here, one program for each row and chunk of the vocabulary
notes the chunk's largest logit and its sums of exponentials; then one program a row finds the chunk
in which the draw falls, and the token in it. So the logits are read once, and of the drawn token's
chunk a second time.
"""

import math

import torch
from torch import Tensor

from pagedlab.kernels.runtime import on_device_of, power_of_two, tl, triton

CHUNK = 4096
COLDEST = 1e-30  # below it a temperature is 0 in effect, and in fp32 in fact
LOG2E = tl.constexpr(math.log2(math.e))  # exp2 is what the hardware has


@triton.jit
def mix(x):
    """splitmix64, as in `sampling.uniform`."""
    x += 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit(
    do_not_specialize=["SEED_STRIDE", "AHEAD", "ROWS"],
    do_not_specialize_on_alignment=["seeds", "positions"],
)
def uniform_kernel(seeds, SEED_STRIDE, positions, AHEAD, u, ROWS, SIZE: tl.constexpr):
    """A number in [0, 1] for each row: `sampling.uniform`, rounded to fp32."""
    row = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    seed = tl.load(seeds + row * SEED_STRIDE, mask=row < ROWS, other=0).to(tl.uint64, bitcast=True)
    position = (tl.load(positions + row, mask=row < ROWS, other=0) + AHEAD).to(
        tl.uint64, bitcast=True
    )
    tl.store(u + row, (mix(mix(seed) + position) >> 11).to(tl.float32) * 2.0**-53, mask=row < ROWS)


@triton.jit
def chunk_kernel(
    logits,
    temperature,
    largest,
    place,
    sums,
    row_stride,
    VOCABULARY,
    CHUNKS,
    COLDEST,
    CHUNK: tl.constexpr,
):
    """Program (row, chunk): its largest logit, where that is, and its sums of exp(l - largest) and
    of the draw.
    """
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + row * row_stride + token, mask=token < VOCABULARY, other=float("-inf")).to(
        tl.float32
    )
    t = tl.load(temperature + row).to(tl.float32)
    m = tl.max(x, 0)
    below = tl.where(m == float("-inf"), float("-inf"), x - m) * LOG2E
    part = row * CHUNKS + chunk
    tl.store(largest + part, m)
    # Half the instructions of argmax, exp and a division for each logit, and those are what takes
    # the time.
    tl.store(place + part, tl.min(tl.where(x == m, token, VOCABULARY - 1), 0))
    tl.store(sums + 2 * part, tl.sum(tl.exp2(below), 0))
    if t >= COLDEST:
        tl.store(sums + 2 * part + 1, tl.sum(tl.exp2(below * (1 / t)), 0))


@triton.jit
def pick_kernel(
    logits, temperature, u, largest, place, sums, tokens, logprobs, row_stride, VOCABULARY, CHUNKS, COLDEST,
    CHUNK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Program (row): the token at share `u` of the row's cumulative distribution, and its
    log-probability.
    """
    row = tl.program_id(0).to(tl.int64)
    t = tl.load(temperature + row).to(tl.float32)
    part = tl.arange(0, PARTS)
    real = part < CHUNKS
    m = tl.load(largest + row * CHUNKS + part, mask=real, other=float("-inf"))
    top = tl.max(m, 0)
    total = tl.sum(
        tl.load(sums + 2 * (row * CHUNKS + part), mask=real, other=0.0) * tl.exp(m - top), 0
    )
    token = tl.load(place + row * CHUNKS + tl.argmax(m, 0))
    if t >= COLDEST:
        weight = tl.load(sums + 2 * (row * CHUNKS + part) + 1, mask=real, other=0.0) * tl.exp(
            (m - top) / t
        )
        upto = tl.cumsum(weight, 0)
        target = tl.load(u + row).to(tl.float32) * tl.sum(weight, 0)
        # The last chunk with any weight stands in where rounding leaves the target above them all.
        last = tl.max(tl.where(weight > 0, part, 0), 0)
        chunk = tl.minimum(tl.sum((upto <= target).to(tl.int32), 0), last)
        target -= tl.sum(tl.where(part < chunk, weight, 0.0), 0)
        i = tl.arange(0, CHUNK)
        at = chunk * CHUNK + i
        x = tl.load(logits + row * row_stride + at, mask=at < VOCABULARY, other=float("-inf")).to(
            tl.float32
        )
        p = tl.exp((x - top) / t)
        last = tl.max(tl.where(p > 0, i, 0), 0)
        token = chunk * CHUNK + tl.minimum(
            tl.sum((tl.cumsum(p, 0) <= target).to(tl.int32), 0), last
        )
    tl.store(tokens + row, token.to(tl.int64))
    chosen = tl.load(logits + row * row_stride + token).to(tl.float32)
    tl.store(logprobs + row, chosen - top - tl.log(total))


def triton_uniform(seeds: Tensor, positions: Tensor, ahead: int = 0) -> Tensor:
    """`sampling.uniform` at positions + ahead, in one launch in place of thirty: int64 [R] twice ->
    fp32 [R].
    """
    u = torch.empty(len(seeds), device=seeds.device)
    if len(u):
        with on_device_of(u):
            uniform_kernel[(-(-len(u) // 256),)](
                seeds, seeds.stride(0), positions, ahead, u, len(u), 256
            )
    return u


def triton_choose(logits: Tensor, temperature: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens int64 [R] and their log-probabilities fp32 [R], of logits [R, V] at shares `u` [R] in
    [0, 1).

    Args:
        temperature: [R]; 0 takes the likeliest token, the first of equals.
    """
    (rows, vocabulary), device = logits.shape, logits.device
    chunks = -(-vocabulary // CHUNK)
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    tokens, logprobs = (
        torch.empty(rows, dtype=torch.int64, device=device),
        torch.empty(rows, device=device),
    )
    largest, sums = (
        torch.empty((rows, chunks), device=device),
        torch.empty((rows, chunks, 2), device=device),
    )
    place = torch.empty((rows, chunks), dtype=torch.int32, device=device)
    if rows == 0:
        return tokens, logprobs
    sizes = logits.stride(0), vocabulary, chunks, COLDEST, CHUNK
    with on_device_of(logits):
        chunk_kernel[(rows, chunks)](logits, temperature, largest, place, sums, *sizes, num_warps=4)
        pick_kernel[(rows,)](
            logits,
            temperature,
            u,
            largest,
            place,
            sums,
            tokens,
            logprobs,
            *sizes,
            power_of_two(chunks),
            num_warps=8,
        )
    return tokens, logprobs
