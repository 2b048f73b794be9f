"""Three ways to compute attention over blocks. They are plain, to be read; vectorised.py is fast.

Each function takes one sequence: q [n, Hq, D], its last n queries; the caches of one layer;
`block_ids`, its blocks in logical order; and `seq_len`, its keys. They differ in what they hold at
once:

    concat    all keys and scores         gather the blocks into one tensor, then softmax
    safe      one block, in two passes    first find the largest score, then sum
    online    one block, in one pass      correct the sums when a larger score is found

All query heads of a group read the same KV head. The query heads are reshaped into [Hkv, group], so
that keys and values are broadcast over the group and never repeated in memory.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

Ids = Sequence[int]  # block ids of a sequence, in logical order


def group_heads(q: Tensor, num_kv_heads: int) -> Tensor:
    """[n, Hq, D] -> [Hkv, G, n, D] with G = Hq // Hkv. Query head h reads KV head h // G."""
    n, num_heads, head_dim = q.shape
    group = num_heads // num_kv_heads
    return q.reshape(n, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)


def ungroup_heads(out: Tensor) -> Tensor:
    """[Hkv, G, n, D] -> [n, Hkv * G, D], the inverse of `group_heads`."""
    return out.permute(2, 0, 1, 3).flatten(1, 2)


def block_scores(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_ids: Ids, seq_len: int, scale: float
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each block's masked scores [Hkv, G, n, b] and values [Hkv, b, D].

    A block of the sequence holds b tokens.
    """
    size = k_cache.shape[1]
    n = q.shape[2]
    query_positions = torch.arange(seq_len - n, seq_len, device=q.device)[:, None]
    for i, block_id in enumerate(block_ids):
        filled = min(size, seq_len - i * size)  # unwritten slots may hold anything, even NaN
        k = k_cache[block_id, :filled].transpose(0, 1).to(q.dtype)  # [Hkv, b, D]
        v = v_cache[block_id, :filled].transpose(0, 1).to(q.dtype)
        scores = torch.einsum("hgnd,hbd->hgnb", q, k) * scale
        key_positions = torch.arange(i * size, i * size + filled, device=q.device)
        is_hidden = key_positions > query_positions
        yield scores.masked_fill(is_hidden, float("-inf")), v


def concat_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_ids: Ids, seq_len: int, scale: float
) -> Tensor:
    """Compute softmax(q k^T * scale) v with all keys in one tensor, as if there were no blocks."""
    q = group_heads(q, k_cache.shape[2])
    blocks = block_scores(q, k_cache, v_cache, block_ids, seq_len, scale)
    scores, values = zip(*blocks, strict=True)
    p = torch.softmax(torch.cat(scores, dim=3), dim=3)
    v = torch.cat(values, dim=1)
    return ungroup_heads(torch.einsum("hgnb,hbd->hgnd", p, v))


def safe_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_ids: Ids, seq_len: int, scale: float
) -> Tensor:
    """Find the largest score m in a first pass. Sum exp(s - m) and exp(s - m) v in a second one.

    Subtracting m changes nothing, because it cancels in the quotient. No exponent is above zero, so
    exp never overflows. The keys are read twice.
    """
    q = group_heads(q, k_cache.shape[2])
    m = torch.full_like(q[..., :1], float("-inf"))  # [Hkv, G, n, 1]
    for scores, _ in block_scores(q, k_cache, v_cache, block_ids, seq_len, scale):
        m = torch.maximum(m, scores.amax(dim=3, keepdim=True))
    total = torch.zeros_like(m)
    out = torch.zeros_like(q)
    for scores, v in block_scores(q, k_cache, v_cache, block_ids, seq_len, scale):
        p = torch.exp(scores - m)
        total += p.sum(dim=3, keepdim=True)
        out += torch.einsum("hgnb,hbd->hgnd", p, v)
    return ungroup_heads(out / total)


def online_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_ids: Ids, seq_len: int, scale: float
) -> Tensor:
    """Keep the largest score m, the sum of weights and the output in a single pass over the blocks.

    If a block has a larger score m', both sums are rescaled by exp(m - m'). The recurrence is from
    Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018). Rabe and Staats
    (2021) have it for the weighted sum of values, as has FlashAttention (Dao et al., 2022).
    """
    q = group_heads(q, k_cache.shape[2])
    m = torch.full_like(q[..., :1], float("-inf"))  # [Hkv, G, n, 1]
    total = torch.zeros_like(m)
    out = torch.zeros_like(q)
    for scores, v in block_scores(q, k_cache, v_cache, block_ids, seq_len, scale):
        # Every query sees position 0, so m is finite after the first block.
        new_m = torch.maximum(m, scores.amax(dim=3, keepdim=True))
        rescale = torch.exp(m - new_m)
        p = torch.exp(scores - new_m)
        total = total * rescale + p.sum(dim=3, keepdim=True)
        out = out * rescale + torch.einsum("hgnb,hbd->hgnd", p, v)
        m = new_m
    return ungroup_heads(out / total)


OneSequence = Callable[[Tensor, Tensor, Tensor, Ids, int, float], Tensor]


def over_sequences(attend: OneSequence) -> Callable[..., Tensor]:
    """Turn attention of one sequence into `paged_attention`, by a loop over the batch.

    Half-precision inputs are computed in fp32 and rounded once, at the end.
    """

    def batched(
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        block_tables: Tensor,
        seq_lens: Tensor,
        query_starts: Tensor,
        scale: float | None = None,
    ) -> Tensor:
        scale = q.shape[2] ** -0.5 if scale is None else scale
        exact = torch.promote_types(q.dtype, torch.float32)
        out = torch.zeros_like(q)
        starts = query_starts.tolist()
        for b, seq_len in enumerate(seq_lens.tolist()):
            stop = starts[b + 1]
            start = max(starts[b], stop - seq_len)  # earlier queries see no key
            if start < stop:
                num_blocks = -(-seq_len // k_cache.shape[1])  # rounded up
                block_ids = block_tables[b, :num_blocks].tolist()
                queries = q[start:stop].to(exact)
                out[start:stop] = attend(queries, k_cache, v_cache, block_ids, seq_len, scale)
        return out

    return batched
