"""Paged attention in Triton: a kernel for decoding, one for ragged batches, one that merges splits.

A Triton program is a group of GPU threads that works on whole tiles of numbers. A program here
takes queries of one sequence that share a KV head, as the rows of a matrix [ROWS, DIM]. It loops
over the sequence's keys and values, TILE at a time, with the online softmax of
`reference.online_attention`.

One look-up makes it paged: position p is in page table[p // BLOCK_SIZE], at offset p % BLOCK_SIZE.
Every row of a tile has its own look-up, so a tile may span many pages, or a part of one.

    decode_kernel   program (new token, KV head) x split of its keys    one new token a sequence
    ragged_kernel   program (tile of queries, KV head) x split          prompts, chunks, new tokens
    merge_kernel    program (sequence, one or some query heads)         merges a sequence's splits

A KV head serves GROUP query heads. DIM is HEAD_DIM rounded up to a power of two, because tiles need
one. `triton_attention` launches the kernels. plan.py decides how many programs there are and how
large their tiles are.
"""

import math

import torch
from torch import Tensor

from pagedlab.kernels.plan import launch_plan, overlaps, padded, query_tiles
from pagedlab.kernels.runtime import INTERPRETED, on_device_of, power_of_two, tl, triton

# Up to this many sequences decode_kernel starts early. With more, early programs would fill some
# multiprocessors and leave others empty.
MAX_EARLY = 16
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@triton.jit
def load_rows(rows, HEAD_DIM: tl.constexpr, DIM: tl.constexpr):
    """Load [len(rows), DIM] from pointers to the rows' first elements, zeros after HEAD_DIM."""
    dims = tl.arange(0, DIM)
    if HEAD_DIM == DIM:
        return tl.load(rows[:, None] + dims)
    return tl.load(rows[:, None] + dims, mask=dims[None, :] < HEAD_DIM, other=0.0)


@triton.jit
def attend(
    # [ROWS, DIM], [ROWS], and the state so far: [ROWS], [ROWS], [ROWS, DIM]
    q, positions, m, total, acc,
    start, stop, table, k_head, v_head, scale,
    MASKED: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Add the keys at positions [start, stop) to the online softmax of every query row."""
    for first in tl.range(start, stop, TILE, num_stages=STAGES):
        keys = first + tl.arange(0, TILE)
        # Rows after the end repeat the last key, and the mask drops their scores. So unwritten
        # slots are never read, and NaN in them cannot reach the sums.
        stored = tl.minimum(keys, stop - 1) if MASKED else keys
        page = tl.load(table + stored // BLOCK_SIZE).to(tl.uint32)
        # Slots fit into 32 bits, elements may not. Unsigned arithmetic that is widened only here
        # saves a sixth of the instructions.
        slot = page * BLOCK_SIZE + stored.to(tl.uint32) % BLOCK_SIZE
        row = slot.to(tl.uint64) * (KV_HEADS * HEAD_DIM)
        k = load_rows(k_head + row, HEAD_DIM, DIM)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")  # [ROWS, TILE], summed in fp32
        if MASKED:
            s = tl.where(keys[None, :] <= positions[:, None], s, float("-inf"))
        # The hardware has exp2, so `scale` includes a factor log2(e). It is applied to the fp32
        # scores, not to q.
        new_m = tl.maximum(m, tl.max(s, 1) * scale)
        p = tl.exp2(s * scale - new_m[:, None])
        rescale = tl.exp2(m - new_m)
        v = load_rows(v_head + row, HEAD_DIM, DIM)
        total = total * rescale + tl.sum(p, 1)
        if v.dtype == tl.float32:
            # Sum each tile separately: one long chain of additions would lose digits.
            of_tile = tl.dot(p, v, input_precision="ieee")
            acc = tl.fma(acc, tl.broadcast_to(rescale[:, None], acc.shape), of_tile)
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
    """Return how many programs share the keys of a sequence.

    Only a single query is split, into pieces of MIN_SPLIT keys, and only if there are two pieces.
    """
    pieces = tl.minimum(tl.cdiv(length, MIN_SPLIT), max_splits)
    return tl.where((n == 1) & (length >= 2 * MIN_SPLIT), pieces, 1)


@triton.jit
def attend_tile(
    out, split_out, split_sums, q, k_cache, v_cache, table, scale,
    b, first, n, length, start, kv_head, split, splits,
    FEW: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Compute queries start, start + 1, ... of a sequence, GROUP heads each, packed into ROWS rows.

    A FEW queries are limited by memory. Their programs take one split of the keys, and write to
    `out`, or to `split_out` for the merge. Many queries take all keys.
    """
    r = tl.arange(0, ROWS)
    query = start + r // GROUP
    real = (query < n) & (r < ROWS // GROUP * GROUP)
    row = (first + query).to(tl.int64) * (KV_HEADS * GROUP) + kv_head * GROUP + r % GROUP
    dims = tl.arange(0, DIM)
    is_stored = real[:, None] & (dims < HEAD_DIM)
    rows = tl.load(q + row[:, None] * HEAD_DIM + dims, mask=is_stored, other=0.0)
    positions = length - n + query  # the last key that each row sees
    stop = length - n + tl.minimum(start + ROWS // GROUP, n)  # after the last key that any row sees
    m = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    k_head = k_cache + kv_head * HEAD_DIM
    v_head = v_cache + kv_head * HEAD_DIM
    if FEW:
        tiles = tl.cdiv(stop, TILE)
        begin = split * tiles // splits * TILE
        stop = tl.minimum((split + 1) * tiles // splits * TILE, stop)
    else:
        seen_by_all = tl.maximum(length - n + start + 1, 0)
        begin = seen_by_all // TILE * TILE  # tiles before it need no mask
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
    """Return the sequence that query tile number `tile` belongs to.

    The tiles of sequence b are numbered from query_starts[b] // QUERIES + b. This leaves a number
    for the last, partial tile of each sequence, whatever the lengths, and no tiles need to be
    counted. So the result is the number of sequences whose tiles start at or before `tile`, minus
    one. QUERIES 0 means that `tile` is a token.
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
    out, split_out, split_sums, q, k_cache, v_cache, tables, seq_lens, query_starts,
    scale, table_stride, num_sequences,
    ROWS: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr, MIN_SPLIT: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, SPLIT: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Run one program for each new token, KV head and split.

    Programs of neighbouring heads follow each other, because they read neighbouring memory.
    """
    if OVERLAP:
        # This kernel may have started early. After this line its queries and keys are written.
        tl.extra.cuda.gdc_wait()
        # The next kernel may start as soon as all of these programs are at this line.
        tl.extra.cuda.gdc_launch_dependents()
    kv_head = tl.program_id(0) % KV_HEADS
    token = (tl.program_id(0) // KV_HEADS).to(tl.int64)
    b = token
    first = tl.load(query_starts + b)
    after = tl.load(query_starts + b + 1)
    if (first != token) | (after != token + 1):
        # There are as many tokens as sequences, but not one each.
        b = find_sequence(query_starts, token, num_sequences, 0).to(tl.int64)
        first = tl.load(query_starts + b)
        after = tl.load(query_starts + b + 1)
    length = tl.load(seq_lens + b) - (after - 1 - token.to(tl.int32))
    split = 0
    splits = 1
    if SPLIT:
        split = tl.program_id(1)
        splits = splits_of(after - first, length, MIN_SPLIT, tl.num_programs(1))
    if (split < splits) & (token < after):
        # The token is computed like a sequence of one query, which sees `length` keys.
        attend_tile(
            out, split_out, split_sums, q, k_cache, v_cache, tables + b * table_stride, scale,
            b, token, 1, length, 0, kv_head, split, splits,
            True, ROWS, TILE, STAGES, BLOCK_SIZE, GROUP, KV_HEADS, HEAD_DIM, DIM,
        )  # fmt: skip


@triton.jit(do_not_specialize=["table_stride", "num_sequences"])
def ragged_kernel(
    out, split_out, split_sums, q, k_cache, v_cache, tables, seq_lens, query_starts,
    scale, table_stride, num_sequences,
    ROWS: tl.constexpr, TILE: tl.constexpr, STAGES: tl.constexpr,
    FEW_ROWS: tl.constexpr, FEW_TILE: tl.constexpr, FEW_STAGES: tl.constexpr,
    MIN_SPLIT: tl.constexpr, BLOCK_SIZE: tl.constexpr, GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Run one program for each tile of queries and KV head.

    A sequence with few queries gets tiles of FEW_ROWS rows, one with many gets tiles of ROWS rows.
    """
    QUERIES: tl.constexpr = ROWS // GROUP
    kv_head = tl.program_id(0) % KV_HEADS
    # The last tile comes first: late queries see the most keys, and long programs should not start
    # last.
    tile = (tl.num_programs(0) - 1 - tl.program_id(0)) // KV_HEADS
    b = find_sequence(query_starts, tile, num_sequences, QUERIES).to(tl.int64)
    length = tl.load(seq_lens + b)
    first = tl.load(query_starts + b)
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
                    True, FEW_ROWS, FEW_TILE, FEW_STAGES,
                    BLOCK_SIZE, GROUP, KV_HEADS, HEAD_DIM, DIM,
                )  # fmt: skip
        elif tl.program_id(1) == 0:
            attend_tile(
                out, split_out, split_sums, q, k_cache, v_cache, table, scale,
                b, first, n, length, start, kv_head, 0, 1,
                False, ROWS, TILE, STAGES, BLOCK_SIZE, GROUP, KV_HEADS, HEAD_DIM, DIM,
            )  # fmt: skip


@triton.jit(do_not_specialize=["max_splits"])
def merge_kernel(
    out, split_out, split_sums, seq_lens, query_starts, max_splits,
    SPLITS: tl.constexpr, MIN_SPLIT: tl.constexpr, EACH: tl.constexpr, ROWS: tl.constexpr,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Merge the splits of one sequence, for EACH of its heads: average their outputs.

    The weight of a split is the sum of its softmax weights, 2 ** m * total. ROWS is EACH rounded up
    to a power of two. The rows after the last head repeat it.
    """
    if OVERLAP:
        tl.extra.cuda.gdc_launch_dependents()
    b = (tl.program_id(0) // (HEADS // EACH)).to(tl.int64)
    first_head = tl.program_id(0) % (HEADS // EACH) * EACH
    first = tl.load(query_starts + b)
    n = tl.load(query_starts + b + 1) - first
    splits = splits_of(n, tl.load(seq_lens + b), MIN_SPLIT, max_splits)
    if OVERLAP:
        # This kernel may have started early. After this line the splits are written.
        tl.extra.cuda.gdc_wait()
    if splits > 1:
        heads = first_head + tl.minimum(tl.arange(0, ROWS), EACH - 1)
        s = tl.arange(0, SPLITS)[:, None]
        part = (b * max_splits + s) * HEADS + heads[None, :]  # [SPLITS, ROWS]
        real = (s < splits) & (heads[None, :] < HEADS)
        m = tl.load(split_sums + 2 * part, mask=real, other=float("-inf"))
        total = tl.load(split_sums + 2 * part + 1, mask=real, other=0.0)
        weight = tl.exp2(m - tl.max(m, 0)[None, :]) * total
        dims = tl.arange(0, DIM)
        is_stored = real[:, :, None] & (dims < HEAD_DIM)[None, None, :]
        element = part[:, :, None] * HEAD_DIM + dims[None, None, :]
        o = tl.load(split_out + element, mask=is_stored, other=0.0)  # [SPLITS, ROWS, DIM]
        o = tl.sum(o * weight[:, :, None], 0) / tl.sum(weight, 0)[:, None]
        row = first.to(tl.int64) * HEADS + heads
        tl.store(out + row[:, None] * HEAD_DIM + dims, o, mask=(dims < HEAD_DIM)[None, :])


def check_inputs(q: Tensor, k_cache: Tensor, v_cache: Tensor, scale: float) -> None:
    """Raise `ValueError` if the kernels do not support these inputs."""
    if q.dtype not in DTYPES or not q.dtype == k_cache.dtype == v_cache.dtype:
        raise ValueError(
            "the Triton kernels take q and both caches in one dtype, float32, float16 or "
            f"bfloat16, got {q.dtype}, {k_cache.dtype} and {v_cache.dtype}"
        )
    if not (k_cache.is_contiguous() and v_cache.is_contiguous()):
        shape = "[num_blocks, block_size, Hkv, D]"
        raise ValueError(f"the Triton kernels need contiguous caches, {shape}")
    if not scale > 0:
        raise ValueError(f"scale must be positive, got {scale}: negate q instead of scale")
    if not q.is_cuda and not INTERPRETED:
        raise ValueError(
            f"q is on {q.device} and Triton compiles for the GPU: move the tensors there, take "
            "backend='torch', or set TRITON_INTERPRET=1 before Python starts"
        )


def triton_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    query_starts: Tensor,
    scale: float | None = None,
) -> Tensor:
    """Compute `paged_attention` on an NVIDIA GPU, or on a CPU in Triton's interpreter.

    The host reads no value from the device. The arguments are those of `paged_attention`.

    Returns:
        [T, Hq, D]. Rows after the last query of the last sequence are not written.

    Raises:
        ValueError: If the kernels do not support these inputs.
    """
    num_tokens, num_heads, head_dim = q.shape
    num_sequences = len(block_tables)
    _, block_size, kv_heads, _ = k_cache.shape
    scale = head_dim**-0.5 if scale is None else scale
    check_inputs(q, k_cache, v_cache, scale)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if num_tokens == 0 or num_sequences == 0:
        return out
    plan = launch_plan(q, k_cache, block_tables)
    few, many, splits = plan.few, plan.many, plan.splits
    group = num_heads // kv_heads
    dim = padded(head_dim)
    parts = (num_sequences, splits, num_heads) if splits > 1 else (0, 0, 0)
    split_out = torch.empty((*parts, head_dim), dtype=torch.float32, device=q.device)
    split_sums = torch.empty((*parts, 2), dtype=torch.float32, device=q.device)
    grid = query_tiles(num_tokens, num_sequences, group, many) * kv_heads, splits
    tensors = (
        out, split_out, split_sums, q.contiguous(), k_cache, v_cache,
        block_tables, seq_lens, query_starts,
        scale * math.log2(math.e), block_tables.stride(0), num_sequences,
    )  # fmt: skip
    shape = (plan.min_split, block_size, group, kv_heads, head_dim, dim)
    overlap = overlaps(q.device)
    early = {"launch_pdl": True} if overlap else {}
    with on_device_of(q):
        if many is None:
            options = few.options | (early if num_sequences <= MAX_EARLY else {})
            decode_kernel[grid](*tensors, *few.constants, *shape, splits > 1, overlap, **options)
        else:
            constants = (*many.constants, *few.constants)
            ragged_kernel[grid](*tensors, *constants, *shape, **many.options)
        if splits > 1:
            # Programs that have nothing to merge cost time too, so there are few of them.
            each = group if plan.splits_long_only else 1
            merge_kernel[(num_sequences * num_heads // each,)](
                out, split_out, split_sums, seq_lens, query_starts, splits,
                power_of_two(splits), plan.min_split, each, power_of_two(each), num_heads,
                head_dim, dim, overlap, num_warps=2, **early,
            )  # fmt: skip
    return out
