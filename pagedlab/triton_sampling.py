# mypy: allow-untyped-defs
# ruff: noqa: N803  upper case marks what is known when the kernel is compiled
"""Drawing tokens in Triton: the logits are read once, and of the drawn token's chunk a second time.

What `sampling.choose` does takes a dozen passes over [R, V] numbers in torch, half a millisecond for 256 texts and
Qwen's 151,936 tokens. Here, one program for each row and chunk of the vocabulary notes the chunk's largest logit and
its sums of exponentials; then one program a row finds the chunk in which the draw falls, and the token in it.
"""

from __future__ import annotations

import contextlib

import torch

# First, for it chooses between compiler and interpreter before triton is imported.
from pagedlab.attention.triton_kernels import tl, triton

CHUNK = 4096
COLDEST = 1e-30  # below it a temperature is 0 in effect, and in fp32 in fact


@triton.jit
def chunk_kernel(logits, temperature, largest, place, sums, row_stride, VOCABULARY, CHUNKS, CHUNK: tl.constexpr):
    """Program (row, chunk): its largest logit, where that is, and its sums of exp(l - largest) and of the draw."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + row * row_stride + token, mask=token < VOCABULARY, other=float("-inf")).to(tl.float32)
    m = tl.max(x, 0)
    below = tl.where(m == float("-inf"), float("-inf"), x - m)
    part = row * CHUNKS + chunk
    tl.store(largest + part, m)
    tl.store(place + part, chunk * CHUNK + tl.argmax(x, 0))
    tl.store(sums + 2 * part, tl.sum(tl.exp(below), 0))
    tl.store(sums + 2 * part + 1, tl.sum(tl.exp(below / tl.load(temperature + row)), 0))


@triton.jit
def pick_kernel(
    logits, temperature, u, largest, place, sums, tokens, logprobs, row_stride, VOCABULARY, CHUNKS, COLDEST,
    CHUNK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Program (row): the token at share `u` of the row's cumulative distribution, and its log-probability."""
    row = tl.program_id(0).to(tl.int64)
    t = tl.load(temperature + row)
    part = tl.arange(0, PARTS)
    real = part < CHUNKS
    m = tl.load(largest + row * CHUNKS + part, mask=real, other=float("-inf"))
    top = tl.max(m, 0)
    plain = tl.load(sums + 2 * (row * CHUNKS + part), mask=real, other=0.0)
    total = tl.sum(plain * tl.exp(m - top), 0)
    best = tl.argmax(m, 0)
    token = tl.load(place + row * CHUNKS + best)
    if t >= COLDEST:
        weight = tl.load(sums + 2 * (row * CHUNKS + part) + 1, mask=real, other=0.0) * tl.exp((m - top) / t)
        upto = tl.cumsum(weight, 0)
        target = tl.load(u + row) * tl.sum(weight, 0)
        # The last chunk with any weight stands in where rounding leaves the target above them all.
        last = tl.max(tl.where(weight > 0, part, 0), 0)
        chunk = tl.minimum(tl.sum((upto <= target).to(tl.int32), 0), last)
        target -= tl.sum(tl.where(part < chunk, weight, 0.0), 0)
        i = tl.arange(0, CHUNK)
        at = chunk * CHUNK + i
        x = tl.load(logits + row * row_stride + at, mask=at < VOCABULARY, other=float("-inf")).to(tl.float32)
        p = tl.exp((x - top) / t)
        last = tl.max(tl.where(p > 0, i, 0), 0)
        token = chunk * CHUNK + tl.minimum(tl.sum((tl.cumsum(p, 0) <= target).to(tl.int32), 0), last)
    tl.store(tokens + row, token.to(tl.int64))
    chosen = tl.load(logits + row * row_stride + token).to(tl.float32)
    tl.store(logprobs + row, chosen - top - tl.log(total))


def triton_choose(
    logits: torch.Tensor, temperature: torch.Tensor, u: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens int64 [R] and their log-probabilities fp32 [R], of logits [R, V] at shares `u`, fp64 [R] in [0, 1).

    temperature: float64 [R]; 0 takes the likeliest token, the first of equals.
    """
    num_rows, vocabulary = logits.shape
    chunks = -(-vocabulary // CHUNK)
    device = logits.device
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    # At temperature 0 the second sum is not used, and must not divide by it.
    warm = torch.where(temperature < COLDEST, 0.0, temperature).float()
    safe = torch.where(warm == 0, 1.0, warm)
    largest = torch.empty((num_rows, chunks), device=device)
    place = torch.empty((num_rows, chunks), dtype=torch.int32, device=device)
    sums = torch.empty((num_rows, chunks, 2), device=device)
    tokens = torch.empty(num_rows, dtype=torch.int64, device=device)
    logprobs = torch.empty(num_rows, device=device)
    if num_rows == 0:
        return tokens, logprobs
    with torch.cuda.device(device) if logits.is_cuda else contextlib.nullcontext():
        chunk_kernel[(num_rows, chunks)](
            logits, safe, largest, place, sums, logits.stride(0), vocabulary, chunks, CHUNK, num_warps=8
        )
        pick_kernel[(num_rows,)](
            logits, warm, u.float(), largest, place, sums, tokens, logprobs, logits.stride(0), vocabulary, chunks,
            COLDEST, CHUNK, triton.next_power_of_2(chunks), num_warps=8,
        )  # fmt: skip
    return tokens, logprobs
