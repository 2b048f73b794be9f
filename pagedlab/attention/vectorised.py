"""Attention over blocks in vectorised torch, for a ragged batch on any device. The fast way without Triton.

Sequences are grouped by size, each group is gathered into one padded tensor and given to torch's own fused
attention. Within a group no length is more than twice another, so at most half of either axis is padding.
Padding repeats a sequence's own last token, so that a slot nobody has written is never read.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import torch
import torch.nn.functional as F


def _size_groups(query_lens: list[int], seq_lens: list[int]) -> list[list[int]]:
    """Indices of the sequences that have something to compute, grouped by the power of two above each length."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for b, (n, length) in enumerate(zip(query_lens, seq_lens, strict=True)):
        if n > 0 and length > 0:
            groups[(n - 1).bit_length(), (length - 1).bit_length()].append(b)
    return list(groups.values())


def torch_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    query_starts: torch.Tensor,
    scale: float | None = None,
) -> torch.Tensor:
    """`paged_attention` for any device torch runs on; the lengths are read on the host."""
    out = torch.zeros_like(q)
    starts = query_starts.tolist()
    query_lens = [stop - start for start, stop in pairwise(starts)]
    for group in _size_groups(query_lens, seq_lens.tolist()):
        index = torch.tensor(group, device=q.device)
        max_n = max(query_lens[b] for b in group)
        first, last = query_starts[index].long()[:, None], query_starts[index + 1].long()[:, None] - 1
        rows = torch.minimum(first + torch.arange(max_n, device=q.device), last)  # [b, n]
        # Query row r of a sequence stands at position length - 1 - (last row - r).
        positions = seq_lens[index].long()[:, None] - 1 - (last - rows)
        result = _padded_attention(q[rows], k_cache, v_cache, block_tables[index], seq_lens[index], positions, scale)
        out[rows] = result  # padded rows repeat the last one, and so does their result
    return out


def _padded_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    positions: torch.Tensor,
    scale: float | None,
) -> torch.Tensor:
    """q [b, n, Hq, D] whose rows stand at `positions` [b, n] in their sequences -> [b, n, Hq, D]."""
    batch, n, num_heads, head_dim = q.shape
    block_size, num_kv_heads = k_cache.shape[1:3]
    group = num_heads // num_kv_heads
    key_positions = torch.arange(int(seq_lens.max()), device=q.device)
    padded = torch.minimum(key_positions, seq_lens.long()[:, None] - 1)  # [b, S], the last token repeated
    slots = block_tables.long().gather(1, padded // block_size) * block_size + padded % block_size
    # [b, Hkv, 1, S, D]: the axis of the group is broadcast, keys and values are not repeated for it.
    k = k_cache.flatten(0, 1)[slots].transpose(1, 2)[:, :, None]
    v = v_cache.flatten(0, 1)[slots].transpose(1, 2)[:, :, None]
    mask = (key_positions <= positions[:, :, None])[:, None, None]  # [b, 1, 1, n, S]
    q = q.reshape(batch, n, num_kv_heads, group, head_dim).permute(0, 2, 3, 1, 4)  # [b, Hkv, G, n, D]
    if n == 1:  # decoding: let the group be the rows of one matrix product, so each key is read once
        out = F.scaled_dot_product_attention(q.squeeze(3), k.squeeze(2), v.squeeze(2), mask.squeeze(1), scale=scale)
        out = out[:, :, :, None]
    else:
        shape = (batch * num_kv_heads, group, -1, head_dim)
        k, v = k.expand(-1, -1, group, -1, -1), v.expand(-1, -1, group, -1, -1)
        out = F.scaled_dot_product_attention(
            q.reshape(shape).contiguous(),
            k.flatten(0, 1),
            v.flatten(0, 1),
            mask.expand(-1, num_kv_heads, -1, -1, -1).flatten(0, 1),
            scale=scale,
        ).unflatten(0, (batch, num_kv_heads))
    # A row before the sequence's first token sees no key at all; softmax over nothing is NaN, attention to nothing 0.
    out = torch.where((positions >= 0)[:, None, None, :, None], out, 0)
    return out.permute(0, 3, 1, 2, 4).reshape(batch, n, num_heads, head_dim)
