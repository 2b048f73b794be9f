"""Attention over blocks. One signature, several ways to compute it; this module picks the way.

q [T, Hq, D] holds the queries of all sequences one after the other: those of sequence b are rows
query_starts[b] to query_starts[b + 1], and they are its last tokens, so row i of n queries sees the
keys at positions 0 to seq_lens[b] - n + i. Caches are [num_blocks, block_size, Hkv, D];
block_tables int32 [B, M], of which a row's entries behind the last block in use are never read;
seq_lens int32 [B], the tokens whose KV is in the cache, these queries' own included; query_starts
int32 [B + 1].
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pagedlab.attention.reference import (
    concat_attention,
    online_attention,
    over_sequences,
    safe_attention,
)
from pagedlab.attention.vectorised import torch_attention
from pagedlab.kernels import why_not

PagedAttention = Callable[..., Tensor]

BACKENDS: dict[str, PagedAttention] = {
    "concat": over_sequences(concat_attention),
    "safe": over_sequences(safe_attention),
    "online": over_sequences(online_attention),
    "torch": torch_attention,
}


def get_backend(backend: str | PagedAttention) -> PagedAttention:
    """Return the attention function of that name, or a callable as it is.

    "auto" is Triton for tensors on a GPU that Triton compiles for, and torch for others. "triton"
    on the CPU runs in Triton's interpreter. ImportError if it is asked for and not installed.
    """
    if callable(backend):
        return backend
    if backend == "auto":
        return _auto_attention
    if backend == "triton":  # imported when asked for: a machine without Triton can do all the rest
        from pagedlab.kernels.attention import triton_attention

        return triton_attention
    if backend not in BACKENDS:
        known = ", ".join(repr(name) for name in ("auto", *BACKENDS, "triton"))
        raise ValueError(
            f"there is no attention backend {backend!r}: choose one of {known}, or pass a function"
        )
    return BACKENDS[backend]


def _auto_attention(q: Tensor, *args: Any) -> Tensor:
    # kernels sum in fp32
    attend = torch_attention if q.dtype == torch.float64 else fastest_backend(q.device, True)
    return attend(q, *args)


@lru_cache
def fastest_backend(device: torch.device, verbose: bool = True) -> PagedAttention:
    """What "auto" takes for tensors on this device.

    It says, once, which backend that is and why.
    """
    problem = why_not(device)
    if verbose:
        print(
            "attention:",
            f"torch ({problem})" if problem else f"Triton ({torch.cuda.get_device_name(device)})",
        )
    return get_backend("torch" if problem else "triton")


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, seq_lens: Tensor, query_starts: Tensor,
    scale: float | None = None, *, backend: str | PagedAttention = "auto",
) -> Tensor:  # fmt: skip
    """Causal attention of a ragged batch, [T, Hq, D]. `scale` is 1 / sqrt(D) unless given.

    Rows that see no key are zeros. `ValueError` if the shapes do not fit together.
    """
    if (
        q.ndim != 3
        or k_cache.ndim != 4
        or k_cache.shape != v_cache.shape
        or q.shape[2] != k_cache.shape[3]
    ):
        got = (
            f"with the same D, got {list(q.shape)}, {list(k_cache.shape)} and {list(v_cache.shape)}"
        )
        raise ValueError(
            f"q must be [T, Hq, D] and both caches [num_blocks, block_size, Hkv, D] {got}"
        )
    if q.shape[1] % k_cache.shape[2]:
        raise ValueError(
            f"{q.shape[1]} query heads cannot share {k_cache.shape[2]} KV heads evenly"
        )
    if not len(block_tables) == len(seq_lens) == len(query_starts) - 1:
        got = f"got {len(block_tables)}, {len(seq_lens)} and {len(query_starts)}"
        raise ValueError(
            f"a batch of B sequences has B tables, B lengths and B + 1 query starts, {got}"
        )
    return get_backend(backend)(q, k_cache, v_cache, block_tables, seq_lens, query_starts, scale)


def paged_decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, seq_lens: Tensor,
    scale: float | None = None, *, backend: str | PagedAttention = "auto",
) -> Tensor:  # fmt: skip
    """Attention of one new token a sequence, q [B, Hq, D]: the case that dominates text
    generation.
    """
    starts = torch.arange(len(q) + 1, dtype=torch.int32, device=q.device)
    return paged_attention(
        q, k_cache, v_cache, block_tables, seq_lens, starts, scale, backend=backend
    )
