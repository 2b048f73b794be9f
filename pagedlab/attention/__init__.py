"""Attention over blocks: several backends with one signature, and the choice of a backend.

    q             [T, Hq, D]       the queries of all sequences, one sequence after the other
    k_cache       [num_blocks, block_size, Hkv, D]
    v_cache       [num_blocks, block_size, Hkv, D]
    block_tables  int32 [B, M]     block ids; entries after a sequence's last block are never read
    seq_lens      int32 [B]        keys of each sequence, with those of its queries
    query_starts  int32 [B + 1]    rows query_starts[b] to query_starts[b + 1] are sequence b's

The queries of a sequence are its last tokens. So row i of its n queries sees the keys at positions
0 to seq_lens[b] - n + i.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from pagedlab.arguments import one_of
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
    """Return the attention function of a backend.

    Args:
        backend: the name of a backend, or a function, which is returned as it is. "auto" is Triton
            on a GPU for which Triton compiles, else torch. "triton" on a CPU is Triton's
            interpreter.

    Raises:
        ValueError: If there is no such backend.
        ImportError: If it is "triton" and Triton is not installed.
    """
    if callable(backend):
        return backend
    one_of("an attention backend that is no function", backend, ("auto", *BACKENDS, "triton"))
    if backend == "auto":
        return _auto_attention
    if backend == "triton":
        from pagedlab.kernels.attention import triton_attention  # needs Triton

        return triton_attention
    return BACKENDS[backend]


def _auto_attention(q: Tensor, *args: Any) -> Tensor:
    return fastest_backend(q.device, True)(q, *args)


@lru_cache
def fastest_backend(device: torch.device, verbose: bool = True) -> PagedAttention:
    """Return the attention function that "auto" uses on this device.

    Args:
        device: the device of the tensors.
        verbose: print, once, which backend it is and why.
    """
    problem = why_not(device)
    if verbose:
        chosen = (
            f"torch ({problem})" if problem else f"Triton ({torch.cuda.get_device_name(device)})"
        )
        print("attention:", chosen)
    return get_backend("torch" if problem else "triton")


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    query_starts: Tensor,
    scale: float | None = None,
    *,
    backend: str | PagedAttention = "auto",
) -> Tensor:
    """Compute the causal attention of a ragged batch.

    Args:
        q: queries, [T, Hq, D].
        k_cache: keys, [num_blocks, block_size, Hkv, D].
        v_cache: values, [num_blocks, block_size, Hkv, D].
        block_tables: block ids of each sequence, int32 [B, M].
        seq_lens: keys of each sequence, int32 [B].
        query_starts: the first row of each sequence, then T, int32 [B + 1].
        scale: the factor of the scores; None for 1 / sqrt(D).
        backend: the name of a backend, or a function with these parameters.

    Returns:
        [T, Hq, D]. A row that sees no key is zero.

    Raises:
        ValueError: If the shapes do not fit together. The numbers in the batch are not checked,
            because a GPU would have to wait for the answer.
    """
    tensors = q, k_cache, v_cache, block_tables, seq_lens, query_starts
    fit = (
        (q.ndim, k_cache.ndim, block_tables.ndim) == (3, 4, 2)
        and k_cache.shape == v_cache.shape
        and q.shape[2] == k_cache.shape[3]
        and q.shape[1] % k_cache.shape[2] == 0
        and seq_lens.shape == (len(block_tables),)
        and query_starts.shape == (len(block_tables) + 1,)
    )
    if not fit:
        raise ValueError(
            "the shapes must be q [T, Hq, D], both caches [num_blocks, block_size, Hkv, D], "
            "block_tables [B, M], seq_lens [B] and query_starts [B + 1], with Hq a multiple of "
            f"Hkv; they are {[list(tensor.shape) for tensor in tensors]}"
        )
    return get_backend(backend)(*tensors, scale)


def paged_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float | None = None,
    *,
    backend: str | PagedAttention = "auto",
) -> Tensor:
    """Compute the attention of one new token a sequence, the usual case when text is generated.

    Args:
        q: queries, [B, Hq, D].
        k_cache: keys, [num_blocks, block_size, Hkv, D].
        v_cache: values, [num_blocks, block_size, Hkv, D].
        block_tables: block ids of each sequence, int32 [B, M].
        seq_lens: keys of each sequence, int32 [B].
        scale: the factor of the scores; None for 1 / sqrt(D).
        backend: as in `paged_attention`.

    Returns:
        [B, Hq, D].
    """
    num_sequences = len(block_tables)
    starts = torch.arange(num_sequences + 1, dtype=torch.int32, device=block_tables.device)
    return paged_attention(
        q, k_cache, v_cache, block_tables, seq_lens, starts, scale, backend=backend
    )
