"""Attention over blocks in vectorised torch, for a ragged batch on any device.

The fast way without Triton.

Sequences are grouped by size, each group is gathered into one padded tensor and given to torch's
own fused attention. Within a group no length is more than twice another, so at most half of either
axis is padding. Padding repeats a sequence's own last token, so that a slot nobody has written is
never read.
"""

from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import Tensor


def torch_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, seq_lens: Tensor, query_starts: Tensor,
    scale: float | None = None,
) -> Tensor:  # fmt: skip
    """`paged_attention` for any device torch runs on; the lengths are read on the host."""
    out, size = torch.zeros_like(q), k_cache.shape[1]
    groups: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for b, (n, length) in enumerate(
        zip(query_starts.diff().tolist(), seq_lens.tolist(), strict=True)
    ):
        if (
            n > 0 and length > 0
        ):  # there is something to compute: by the powers of two above n and length
            groups[(n - 1).bit_length(), (length - 1).bit_length()].append((b, n, length))
    for group in groups.values():
        members, ns, lengths = zip(*group, strict=True)
        index = torch.tensor(members, device=q.device)
        length, behind = (x[index, None].long() for x in (seq_lens, query_starts[1:]))
        # [b, n]
        rows = torch.minimum(
            query_starts[index, None] + torch.arange(max(ns), device=q.device), behind - 1
        )
        positions = length - behind + rows  # in their sequences
        keys = torch.arange(max(lengths), device=q.device)
        padded = torch.minimum(keys, length - 1)  # [b, S]
        slots = block_tables[index].long().gather(1, padded // size) * size + padded % size
        k, v = (cache.flatten(0, 1)[slots] for cache in (k_cache, v_cache))
        mixed = _grouped_attention(q[rows], k, v, keys <= positions[:, :, None], scale)
        # A row before the sequence's first token sees no key: softmax over nothing is NaN,
        # attention to nothing 0. Padded rows repeat the last one, and so does their result.
        out[rows] = torch.where((positions >= 0)[:, :, None, None], mixed, 0)
    return out


def _grouped_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float | None
) -> Tensor:
    """torch's attention of q [b, n, Hq, D], k and v [b, S, Hkv, D], mask [b, n, S] -> [b, n, Hq,
    D].
    """
    batch, kv_heads = k.shape[0], k.shape[2]
    q = q.unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4)  # [b, Hkv, G, n, D]
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    if (
        q.shape[3] == 1
    ):  # decoding: let the group be the rows of one matrix product, so each key is read once
        out = F.scaled_dot_product_attention(q.squeeze(3), k, v, mask[:, None], scale=scale)[
            :, :, :, None
        ]
    else:  # the axis of the group is broadcast, keys and values are not repeated for it
        k, v = (x[:, :, None].expand(-1, -1, q.shape[2], -1, -1).flatten(0, 1) for x in (k, v))
        mask = mask.repeat_interleave(kv_heads, 0)[:, None]
        out = F.scaled_dot_product_attention(q.flatten(0, 1).contiguous(), k, v, mask, scale=scale)
        out = out.unflatten(0, (batch, kv_heads))
    return out.permute(0, 3, 1, 2, 4).flatten(2, 3)
