"""Paged attention in Triton: a kernel for decoding, one for ragged batches, one that merges splits.

A Triton program is one group of GPU threads that works on whole tiles of numbers. A program here
takes the queries of one sequence that share a KV head, as the rows of a matrix [ROWS, DIM], and
walks over that sequence's keys and values, TILE at a time, with the online softmax of
`reference.online_attention`.

What makes it paged is one look-up: position p lies in page table[p // BLOCK_SIZE], at offset p %
BLOCK_SIZE. Every row of a tile does its own, so a tile may span many pages, or a part of one.

    decode_kernel   program (new token, KV head) x split of its keys    one new token a sequence
    ragged_kernel   program (tile of queries, KV head) x split          prompts, chunks and new tokens together
    merge_kernel    program (sequence, query head)                      adds up the splits of a sequence

A KV head serves GROUP query heads, and DIM is HEAD_DIM rounded up to a power of two, as tiles must
be. `triton_attention`, at the end, launches them; plan.py says how many, and how large.
"""

import math

import torch
from torch import Tensor

from pagedlab.kernels.plan import MIN_SPLIT, Plan, choose_plan, overlaps, padded, query_tiles
from pagedlab.kernels.runtime import INTERPRETED, on_device_of, power_of_two, tl, triton

# sequences up to which decode_kernel starts early too: more would settle unevenly where there is
# room
ALONE = 16


@triton.jit
def load_rows(rows, HEAD_DIM: tl.constexpr, DIM: tl.constexpr):
    """Load [len(rows), DIM] from pointers to the rows' first elements, zeros behind HEAD_DIM."""
    dims = tl.arange(0, DIM)
    if HEAD_DIM == DIM:
        return tl.load(rows[:, None] + dims)
    return tl.load(rows[:, None] + dims, mask=dims[None, :] < HEAD_DIM, other=0.0)


@triton.jit
def attend(
    # [ROWS, DIM], [ROWS], and the state so far: [ROWS], [ROWS], [ROWS, DIM]
    q, positions, m, total, acc,
    start, stop, table, k_head, v_head, scale, MASKED: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Take the keys at positions [start, stop) into the online softmax of every query row."""
    for first in tl.range(start, stop, TILE, num_stages=STAGES):
        keys = first + tl.arange(0, TILE)
        # Rows behind the end repeat the last key, and the mask drops their scores: unused slots are
        # never read, so whatever they hold, NaN included, cannot get into the sums.
        stored = tl.minimum(keys, stop - 1) if MASKED else keys
        page = tl.load(table + stored // BLOCK_SIZE).to(tl.uint32)
        # Unsigned, and wide only now: a sixth fewer instructions. A cache may pass 2**31 elements,
        # its slots do not.
        row = (page * BLOCK_SIZE + stored.to(tl.uint32) % BLOCK_SIZE).to(tl.uint64) * (
            KV_HEADS * HEAD_DIM
        )
        k = load_rows(k_head + row, HEAD_DIM, DIM)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")  # [ROWS, TILE], summed in fp32
        if MASKED:
            s = tl.where(keys[None, :] <= positions[:, None], s, float("-inf"))
        # exp2 is what the hardware has: `scale` carries a factor log2(e), and goes onto the fp32
        # scores, not q.
        new_m = tl.maximum(m, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - new_m[:, None])
        rescale = tl.exp2(m - new_m)
        v = load_rows(v_head + row, HEAD_DIM, DIM)
        total = total * rescale + tl.sum(p, 1)
        if (
            v.dtype == tl.float32
        ):  # sum the tile by itself: one chain of additions over all keys loses digits
            acc = tl.fma(
                acc,
                tl.broadcast_to(rescale[:, None], acc.shape),
                tl.dot(p, v, input_precision="ieee"),
            )
        else:
            acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None])
        m = new_m
    return m, total, acc


@triton.jit
def write_rows(out, row, real, acc, total, HEAD_DIM: tl.constexpr, DIM: tl.constexpr):
    """Divide by the sum of the weights and store.

    A row that saw no key has total = 0 or NaN, and becomes zeros.
    """
    acc = tl.where(total[:, None] > 0, acc / total[:, None], 0.0)
    dims = tl.arange(0, DIM)
    tl.store(out + row[:, None] * HEAD_DIM + dims, acc, mask=real[:, None] & (dims < HEAD_DIM))


@triton.jit
def splits_of(n, length, MIN_SPLIT: tl.constexpr, max_splits):
    """Programs that share a sequence's keys: pieces of MIN_SPLIT, if it is a lone query's and makes
    two at least.
    """
    return tl.where(
        (n == 1) & (length >= 2 * MIN_SPLIT), tl.minimum(tl.cdiv(length, MIN_SPLIT), max_splits), 1
    )


@triton.jit
def attend_tile(
    out, split_out, split_sums, q, k_cache, v_cache, table, scale, b, first, n, length, start, kv_head, split, splits,
    FEW: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Attention of a sequence's queries start, start + 1, ..., GROUP heads each, packed into ROWS
    rows.

    A FEW are bound by memory: they take one split of the keys, and write to `out` or for the merge.
    Many take all keys.
    """
    r = tl.arange(0, ROWS)
    query = start + r // GROUP
    real = (query < n) & (r < ROWS // GROUP * GROUP)
    row = (first + query).to(tl.int64) * (KV_HEADS * GROUP) + kv_head * GROUP + r % GROUP
    dims = tl.arange(0, DIM)
    rows = tl.load(
        q + row[:, None] * HEAD_DIM + dims, mask=real[:, None] & (dims < HEAD_DIM), other=0.0
    )
    positions = length - n + query  # the last that each row sees
    seen_by_all = length - n + start + 1
    stop = length - n + tl.minimum(start + ROWS // GROUP, n)  # behind the last that any row sees
    m, total = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    if FEW:
        tiles = tl.cdiv(stop, TILE)
        begin, stop = (
            split * tiles // splits * TILE,
            tl.minimum((split + 1) * tiles // splits * TILE, stop),
        )
    else:
        begin = tl.maximum(seen_by_all, 0) // TILE * TILE  # up to here no score is masked
    k_head, v_head = k_cache + kv_head * HEAD_DIM, v_cache + kv_head * HEAD_DIM
    if not FEW:
        m, total, acc = attend(
            rows, positions, m, total, acc, 0, begin, table, k_head, v_head, scale,
            False, TILE, STAGES, BLOCK_SIZE, KV_HEADS, HEAD_DIM, DIM,
        )  # fmt: skip
    m, total, acc = attend(
        rows, positions, m, total, acc, begin, stop, table, k_head, v_head, scale,
        True, TILE, STAGES, BLOCK_SIZE, KV_HEADS, HEAD_DIM, DIM,
    )  # fmt: skip
    if splits == 1:
        write_rows(out, row, real, acc, total, HEAD_DIM, DIM)
    else:
        heads = kv_head * GROUP + tl.arange(0, ROWS)
        part = (b * tl.num_programs(1) + split) * (KV_HEADS * GROUP) + heads
        write_rows(split_out, part, real, acc, total, HEAD_DIM, DIM)
        tl.store(split_sums + 2 * part, m, mask=real)
        tl.store(split_sums + 2 * part + 1, total, mask=real)


@triton.jit
def find_sequence(query_starts, tile, num_sequences, QUERIES: tl.constexpr):
    """The sequence that query tile number `tile` belongs to.

    Sequence b's tiles are numbered from query_starts[b] // QUERIES + b. That leaves each sequence
    room for its last, partial tile, whatever the others' lengths, and nobody has to add up tile
    counts. The number sought is how many sequences start at or before `tile`, minus one. QUERIES 0
    means that `tile` is a token.
    """
    count = 0
    for i in range(0, num_sequences, 256):
        b = i + tl.arange(0, 256)
        start = tl.load(query_starts + b, mask=b < num_sequences, other=0)
        start = start // QUERIES + b if QUERIES > 0 else start
        count += tl.sum(((b < num_sequences) & (start <= tile)).to(tl.int32))
    return count - 1


@triton.jit(do_not_specialize=["table_stride", "num_sequences"])
def decode_kernel(
    out, split_out, split_sums, q, k_cache, v_cache, tables, seq_lens, query_starts, scale, table_stride, num_sequences,
    ROWS: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr, MIN_SPLIT: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
    SPLIT: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """One program a new token, KV head and split.

    Heads vary fastest: neighbours read neighbouring parts of a page.

    To the rest, the token is a sequence of its own: one query, that sees the keys up to its own.
    """
    if OVERLAP:
        # this kernel may have started early: from here on its queries and keys are there
        tl.extra.cuda.gdc_wait()
        # the next may start as soon as all of these programs have come here
        tl.extra.cuda.gdc_launch_dependents()
    kv_head = tl.program_id(0) % KV_HEADS
    token = (tl.program_id(0) // KV_HEADS).to(tl.int64)
    b = token
    first, behind = tl.load(query_starts + b), tl.load(query_starts + b + 1)
    if (first != token) | (
        behind != token + 1
    ):  # as many tokens as sequences, yet not one each: whose is it?
        b = find_sequence(query_starts, token, num_sequences, 0).to(tl.int64)
        first, behind = tl.load(query_starts + b), tl.load(query_starts + b + 1)
    length = tl.load(seq_lens + b) - (behind - 1 - token.to(tl.int32))
    split, splits = 0, 1
    if SPLIT:
        split, splits = (
            tl.program_id(1),
            splits_of(behind - first, length, MIN_SPLIT, tl.num_programs(1)),
        )
    if (split < splits) & (token < behind):
        attend_tile(
            out, split_out, split_sums, q, k_cache, v_cache, tables + b * table_stride, scale,
            b, token, 1, length, 0, kv_head, split, splits,
            True, ROWS, TILE, STAGES, BLOCK_SIZE, GROUP, KV_HEADS, HEAD_DIM, DIM,
        )  # fmt: skip


@triton.jit(do_not_specialize=["table_stride", "num_sequences"])
def ragged_kernel(
    out, split_out, split_sums, q, k_cache, v_cache, tables, seq_lens, query_starts, scale, table_stride, num_sequences,
    ROWS: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
    FEW_ROWS: tl.constexpr, FEW_TILE: tl.constexpr, FEW_STAGES: tl.constexpr, MIN_SPLIT: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """One program a tile of queries and KV head: many rows where there are many queries, few where
    there are few.
    """
    QUERIES: tl.constexpr = ROWS // GROUP
    kv_head = tl.program_id(0) % KV_HEADS
    # Last tile first: late queries see the most keys, and the longest jobs should not start last.
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)) // KV_HEADS
    b = find_sequence(query_starts, tile, num_sequences, QUERIES).to(tl.int64)
    length, first = tl.load(seq_lens + b), tl.load(query_starts + b)
    n = tl.load(query_starts + b + 1) - first
    start = (tile - (first // QUERIES + b).to(tl.int32)) * QUERIES
    table = tables + b * table_stride
    if start < n:
        if n * GROUP <= FEW_ROWS:
            splits = splits_of(n, length, MIN_SPLIT, tl.num_programs(1))
            if tl.program_id(1) < splits:
                attend_tile(
                    out, split_out, split_sums, q, k_cache, v_cache, table, scale,
                    b, first, n, length, start, kv_head, tl.program_id(1), splits,
                    True, FEW_ROWS, FEW_TILE, FEW_STAGES, BLOCK_SIZE, GROUP, KV_HEADS, HEAD_DIM, DIM,
                )  # fmt: skip
        elif tl.program_id(1) == 0:
            attend_tile(
                out, split_out, split_sums, q, k_cache, v_cache, table, scale,
                b, first, n, length, start, kv_head, 0, 1,
                False, ROWS, TILE, STAGES, BLOCK_SIZE, GROUP, KV_HEADS, HEAD_DIM, DIM,
            )  # fmt: skip


@triton.jit(do_not_specialize=["max_splits"])
def merge_kernel(
    out, split_out, split_sums, seq_lens, query_starts, max_splits, SPLITS: tl.constexpr, MIN_SPLIT: tl.constexpr,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Add up the splits of one sequence and head, each as heavy as its softmax weights: 2 ** m *
    total in all.
    """
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    b = (tl.program_id(0) // HEADS).to(tl.int64)
    head = tl.program_id(0) % HEADS
    first = tl.load(query_starts + b)
    n = tl.load(query_starts + b + 1) - first
    splits = splits_of(n, tl.load(seq_lens + b), MIN_SPLIT, max_splits)
    if OVERLAP:
        # this kernel may have started early: from here on the splits have been written
        tl.extra.cuda.gdc_wait()
    if splits > 1:
        s, dims = tl.arange(0, SPLITS), tl.arange(0, DIM)
        part, real = (b * max_splits + s) * HEADS + head, s < splits
        m = tl.load(split_sums + 2 * part, mask=real, other=float("-inf"))
        total = tl.load(split_sums + 2 * part + 1, mask=real, other=0.0)
        o = tl.load(
            split_out + part[:, None] * HEAD_DIM + dims,
            mask=real[:, None] & (dims < HEAD_DIM),
            other=0.0,
        )
        weight = tl.exp2(m - tl.max(m, 0)) * total
        o = tl.sum(o * weight[:, None], 0) / tl.sum(weight, 0)
        tl.store(
            out + (first.to(tl.int64) * HEADS + head) * HEAD_DIM + dims, o, mask=dims < HEAD_DIM
        )


def triton_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, seq_lens: Tensor, query_starts: Tensor,
    scale: float | None = None, *, plan: Plan | None = None,
) -> Tensor:  # fmt: skip
    """`paged_attention` on an NVIDIA GPU, without a look at any value; on the CPU in Triton's
    interpreter.

    Rows of q behind the last query of the last sequence are left as the memory was. `plan`
    overrules the one that `choose_plan` makes. `ValueError` for a dtype other than fp32, fp16 and
    bf16, for caches that are not contiguous, and for a scale that is not positive.
    """
    (num_tokens, num_heads, head_dim), num_sequences = q.shape, len(block_tables)
    _, block_size, kv_heads, _ = k_cache.shape
    scale = head_dim**-0.5 if scale is None else scale
    if (
        q.dtype not in (torch.float32, torch.float16, torch.bfloat16)
        or not q.dtype == k_cache.dtype == v_cache.dtype
    ):
        got = f"got {q.dtype}, {k_cache.dtype} and {v_cache.dtype}"
        raise ValueError(
            "the Triton kernels take q and both caches in one dtype, float32, float16 or "
            f"bfloat16, {got}"
        )
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        raise ValueError(
            "the Triton kernels need contiguous caches, [num_blocks, block_size, Hkv, D]"
        )
    if not scale > 0:
        raise ValueError(f"scale must be positive, got {scale}: negate q instead of scale")
    if not q.is_cuda and not INTERPRETED:
        ways = (
            "move the tensors there, take backend='torch', or set TRITON_INTERPRET=1 before Python "
            "starts"
        )
        raise ValueError(f"q is on {q.device} and Triton compiles for the GPU: {ways}")
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if num_tokens == 0 or num_sequences == 0:
        return out
    few, many, splits = plan or choose_plan(q, k_cache, block_tables)
    group, dim, overlap = num_heads // kv_heads, padded(head_dim), overlaps(q.device)
    parts = (num_sequences, splits, num_heads) if splits > 1 else (0, 0, 0)
    split_out = torch.empty((*parts, head_dim), dtype=torch.float32, device=q.device)
    split_sums = torch.empty((*parts, 2), dtype=torch.float32, device=q.device)
    grid = query_tiles(num_tokens, num_sequences, group, many) * kv_heads, splits
    tensors = (
        out, split_out, split_sums, q.contiguous(), k_cache, v_cache, block_tables, seq_lens, query_starts,
        scale * math.log2(math.e), block_tables.stride(0), num_sequences,
    )  # fmt: skip
    shape, early = (
        (MIN_SPLIT, block_size, group, kv_heads, head_dim, dim),
        {"launch_pdl": True} if overlap else {},
    )
    first = early if num_sequences <= ALONE else {}
    with on_device_of(q):
        if many is None:
            decode_kernel[grid](
                *tensors, *few.cut, *shape, splits > 1, overlap, **few.options, **first
            )
        else:
            ragged_kernel[grid](*tensors, *many.cut, *few.cut, *shape, **many.options)
        if splits > 1:
            merge_kernel[(num_sequences * num_heads,)](
                out, split_out, split_sums, seq_lens, query_starts, splits, power_of_two(splits), MIN_SPLIT, num_heads,
                head_dim, dim, overlap, num_warps=2, **early,
            )  # fmt: skip
    return out
