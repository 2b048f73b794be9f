"""Three ways to compute attention over blocks, each as plain as it can be.

Made to be read; vectorised.py is fast.

All three take one sequence: q [n, Hq, D], its last n queries; one layer's caches; `block_ids`, its
blocks in logical order; `seq_len` >= n. They differ in what must be held at once:

    concat    all keys and all scores       gather the blocks into one tensor, then ordinary softmax
    safe      one block, in two passes      first the largest score, then the sums
    online    one block, in one pass        correct the past whenever a larger score turns up

Every query head of a group reads the same KV head. The heads are reshaped into [Hkv, group], so K
and V are broadcast over the group and never repeated in memory.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

Ids = Sequence[int]  # of a sequence's blocks, in logical order


def group_heads(q: Tensor, num_kv_heads: int) -> Tensor:
    """[n, Hq, D] -> [Hkv, Hq // Hkv, n, D]: query head h reads KV head h // (Hq // Hkv)."""
    n, num_heads, head_dim = q.shape
    return q.reshape(n, num_kv_heads, num_heads // num_kv_heads, head_dim).permute(1, 2, 0, 3)


def ungroup_heads(out: Tensor) -> Tensor:
    """[Hkv, G, n, D] -> [n, Hkv * G, D], the inverse of `group_heads`."""
    return out.permute(2, 0, 1, 3).flatten(1, 2)


def block_scores(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_ids: Ids, seq_len: int, scale: float
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each block's masked scores [Hkv, G, n, b] and values [Hkv, b, D]; b is how full the
    block is.
    """
    size, n = k_cache.shape[1], q.shape[2]
    query_positions = torch.arange(seq_len - n, seq_len, device=q.device)[:, None]
    for i, block_id in enumerate(block_ids):
        # slots behind the last token hold anything, NaN included
        filled = min(size, seq_len - i * size)
        k = k_cache[block_id, :filled].transpose(0, 1).to(q.dtype)  # [Hkv, b, D]
        v = v_cache[block_id, :filled].transpose(0, 1).to(q.dtype)
        scores = torch.einsum("hgnd,hbd->hgnb", q, k) * scale
        key_positions = torch.arange(i * size, i * size + filled, device=q.device)
        yield scores.masked_fill(key_positions > query_positions, float("-inf")), v


def concat_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_ids: Ids, seq_len: int, scale: float
) -> Tensor:
    """softmax(q k^T * scale) v with all keys side by side, as if there were no blocks."""
    q = group_heads(q, k_cache.shape[2])
    scores, values = zip(*block_scores(q, k_cache, v_cache, block_ids, seq_len, scale), strict=True)
    p = torch.softmax(torch.cat(scores, dim=3), dim=3)
    return ungroup_heads(torch.einsum("hgnb,hbd->hgnd", p, torch.cat(values, dim=1)))


def safe_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_ids: Ids, seq_len: int, scale: float
) -> Tensor:
    """Two passes: the largest score m over all blocks; then sum exp(s - m) and sum exp(s - m) v.

    Taking m away changes nothing, since it cancels in the quotient, and no exponent is above zero:
    exp never overflows. Every block is read twice.
    """
    q = group_heads(q, k_cache.shape[2])
    m = torch.full((*q.shape[:3], 1), float("-inf"), dtype=q.dtype, device=q.device)
    for scores, _ in block_scores(q, k_cache, v_cache, block_ids, seq_len, scale):
        m = torch.maximum(m, scores.amax(dim=3, keepdim=True))
    total, out = torch.zeros_like(m), torch.zeros_like(q)
    for scores, v in block_scores(q, k_cache, v_cache, block_ids, seq_len, scale):
        p = torch.exp(scores - m)
        total += p.sum(dim=3, keepdim=True)
        out += torch.einsum("hgnb,hbd->hgnd", p, v)
    return ungroup_heads(out / total)


def online_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_ids: Ids, seq_len: int, scale: float
) -> Tensor:
    """One pass: keep the running max m, sum l and output o; a larger score rescales l and o by
    exp(m - m').

    The recurrence is Milakov and Gimelshein's ("Online normalizer calculation for softmax", 2018),
    carried over to the weighted sum as in FlashAttention (Dao et al., 2022, section 3.1).
    """
    q = group_heads(q, k_cache.shape[2])
    m = torch.full((*q.shape[:3], 1), float("-inf"), dtype=q.dtype, device=q.device)
    total, out = torch.zeros_like(m), torch.zeros_like(q)
    for scores, v in block_scores(q, k_cache, v_cache, block_ids, seq_len, scale):
        # The first block holds position 0, which every query sees: from there on m is finite.
        new_m = torch.maximum(m, scores.amax(dim=3, keepdim=True))
        rescale = torch.exp(m - new_m)
        p = torch.exp(scores - new_m)
        total = total * rescale + p.sum(dim=3, keepdim=True)
        out = out * rescale + torch.einsum("hgnb,hbd->hgnd", p, v)
        m = new_m
    return ungroup_heads(out / total)


OneSequence = Callable[[Tensor, Tensor, Tensor, Ids, int, float], Tensor]


def over_sequences(attend: OneSequence) -> Callable[..., Tensor]:
    """Turn attention of one sequence into `paged_attention`'s signature, by a loop over the batch.

    Half-precision inputs are computed in fp32 and rounded once, at the end.
    """

    def batched(
        q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, seq_lens: Tensor, query_starts: Tensor,
        scale: float | None = None,
    ) -> Tensor:  # fmt: skip
        scale = q.shape[2] ** -0.5 if scale is None else scale
        exact, out = torch.promote_types(q.dtype, torch.float32), torch.zeros_like(q)
        starts = query_starts.tolist()
        for b, seq_len in enumerate(seq_lens.tolist()):
            start, stop = max(starts[b], starts[b + 1] - seq_len), starts[b + 1]
            if start < stop:
                block_ids = block_tables[b, : -(-seq_len // k_cache.shape[1])].tolist()
                out[start:stop] = attend(
                    q[start:stop].to(exact), k_cache, v_cache, block_ids, seq_len, scale
                )
        return out

    batched.__name__, batched.__doc__ = attend.__name__, attend.__doc__
    return batched
