"""Attention over blocks in vectorised torch, for a ragged batch on any device.

It is the fast backend without Triton. Sequences of similar size are gathered into one padded tensor
and computed by torch's fused attention. In such a group no length is more than twice another, so at
most half of each axis is padding. Padding repeats a sequence's last token, so that no unwritten
slot is ever read.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor


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
        index = torch.tensor(group, device=q.device)
        length = seq_lens[index, None].long()  # [b, 1]
        start = query_starts[index, None].long()
        stop = query_starts[index + 1, None].long()
        query = torch.arange(int((stop - start).max()), device=q.device)
        key = torch.arange(int(length.max()), device=q.device)
        rows = torch.minimum(start + query, stop - 1)  # [b, n], padded
        positions = length - stop + rows  # [b, n], of the queries in their sequences
        stored = torch.minimum(key, length - 1)  # [b, S], padded
        blocks = block_tables[index].long().gather(1, stored // block_size)
        slots = blocks * block_size + stored % block_size
        k = k_cache.flatten(0, 1)[slots].to(q.dtype)
        v = v_cache.flatten(0, 1)[slots].to(q.dtype)
        is_visible = key <= positions[:, :, None]  # [b, n, S]
        mixed = F.scaled_dot_product_attention(
            q[rows].transpose(1, 2),  # [b, heads, n or S, D]
            k.transpose(1, 2),
            v.transpose(1, 2),
            is_visible[:, None],
            scale=scale,
            enable_gqa=True,
        ).transpose(1, 2)
        # A query before the sequence's first token sees no key. Its softmax is NaN, its result 0.
        # A padded row is written several times, each time with the same result.
        sees_a_key = positions >= 0
        out[rows] = torch.where(sees_a_key[:, :, None, None], mixed, 0)
    return out


def _groups(seq_lens: Tensor, query_starts: Tensor) -> Iterable[list[int]]:
    """Group the sequences by the powers of two above their numbers of queries and of keys."""
    groups = defaultdict[tuple[int, int], list[int]](list)
    sizes = zip(query_starts.diff().tolist(), seq_lens.tolist(), strict=True)
    for index, (num_queries, length) in enumerate(sizes):
        if num_queries > 0 and length > 0:
            powers = (num_queries - 1).bit_length(), (length - 1).bit_length()
            groups[powers].append(index)
    return groups.values()
