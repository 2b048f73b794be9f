"""Attention over blocks in vectorised torch, for a ragged batch on any device.

It is the fast backend without Triton. Sequences of similar size are gathered into one padded tensor
and computed by torch's fused attention. In such a group no length is more than twice another, so at
most half of each axis is padding. Padding repeats a sequence's last token, so that no unwritten
slot is ever read.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class _Member(NamedTuple):
    """A sequence of the batch.

    Args:
        batch_index: its index in the batch.
        num_queries: its queries.
        length: its keys.
    """

    batch_index: int
    num_queries: int
    length: int


def torch_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    query_starts: Tensor,
    scale: float | None = None,
) -> Tensor:
    """Compute `paged_attention` with torch. The host reads the lengths."""
    block_size = k_cache.shape[1]
    out = torch.zeros_like(q)
    for group in _groups(seq_lens, query_starts):
        index = torch.tensor([member.batch_index for member in group], device=q.device)
        length = seq_lens[index, None].long()  # [b, 1]
        start = query_starts[index, None].long()
        stop = query_starts[index + 1, None].long()
        query = torch.arange(max(member.num_queries for member in group), device=q.device)
        key = torch.arange(max(member.length for member in group), device=q.device)
        rows = torch.minimum(start + query, stop - 1)  # [b, n], padded
        positions = length - stop + rows  # [b, n], of the queries in their sequences
        stored = torch.minimum(key, length - 1)  # [b, S], padded
        blocks = block_tables[index].long().gather(1, stored // block_size)
        slots = blocks * block_size + stored % block_size
        k = k_cache.flatten(0, 1)[slots].to(q.dtype)
        v = v_cache.flatten(0, 1)[slots].to(q.dtype)
        is_visible = key <= positions[:, :, None]  # [b, n, S]
        mixed = _grouped_attention(q[rows], k, v, is_visible, scale)
        # A query before the sequence's first token sees no key. Its softmax is NaN, its result 0.
        # A padded row is written several times, each time with the same result.
        sees_a_key = positions >= 0
        out[rows] = torch.where(sees_a_key[:, :, None, None], mixed, 0)
    return out


def _groups(seq_lens: Tensor, query_starts: Tensor) -> Iterable[list[_Member]]:
    """Group the sequences by the powers of two above their numbers of queries and of keys."""
    groups: dict[tuple[int, int], list[_Member]] = defaultdict(list)
    sizes = zip(query_starts.diff().tolist(), seq_lens.tolist(), strict=True)
    for index, (num_queries, length) in enumerate(sizes):
        if num_queries > 0 and length > 0:
            powers = (num_queries - 1).bit_length(), (length - 1).bit_length()
            groups[powers].append(_Member(index, num_queries, length))
    return groups.values()


def _grouped_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float | None
) -> Tensor:
    """Compute torch's attention with several query heads a KV head.

    Args:
        q: [b, n, Hq, D].
        k: [b, S, Hkv, D].
        v: [b, S, Hkv, D].
        mask: which query sees which key, bool [b, n, S].
        scale: the factor of the scores; None for 1 / sqrt(D).

    Returns:
        [b, n, Hq, D].
    """
    batch, _, kv_heads, _ = k.shape
    q = q.unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4)  # [b, Hkv, G, n, D]
    k = k.transpose(1, 2)  # [b, Hkv, S, D]
    v = v.transpose(1, 2)
    group, num_queries = q.shape[2], q.shape[3]
    if num_queries == 1:
        # Decoding: the heads of a group are the rows of one product, so each key is read once.
        rows = q.squeeze(3)  # [b, Hkv, G, D]
        out = F.scaled_dot_product_attention(rows, k, v, mask[:, None], scale=scale)
        out = out[:, :, :, None]
    else:
        # Keys and values are broadcast over the group, not repeated in memory.
        k = k[:, :, None].expand(-1, -1, group, -1, -1).flatten(0, 1)
        v = v[:, :, None].expand(-1, -1, group, -1, -1).flatten(0, 1)
        mask = mask.repeat_interleave(kv_heads, 0)[:, None]
        out = F.scaled_dot_product_attention(q.flatten(0, 1).contiguous(), k, v, mask, scale=scale)
        out = out.unflatten(0, (batch, kv_heads))
    return out.permute(0, 3, 1, 2, 4).flatten(2, 3)
