"""Sampling by the kernels, for steps that the host samples for."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from pagedlab.sampling_params import SamplingParams
from pagedlab_fast.asked import MAX_TOP_K
from pagedlab_fast.kernels.sampling import LARGEST, triton_sample


def sample_rows(logits: Tensor, params: Seq[SamplingParams], numbers: Seq[float]) -> Tensor:
    """Sample one token from each row, as `pagedlab.sampling.sample_rows` does."""
    columns = [
        [p.temperature for p in params],
        [min(p.top_k, MAX_TOP_K) for p in params],
        [p.top_p for p in params],
        [p.min_p for p in params],
        numbers,
    ]
    # A blocking copy would make the host wait for every step in flight.
    sent = torch.tensor(columns, dtype=torch.float32).to(logits.device, non_blocking=True)
    temperature, top_k, top_p, min_p, u = sent
    u.clamp_(max=LARGEST)
    least = min_p if any(p.min_p for p in params) else None
    return triton_sample(logits, temperature, top_k, top_p, u, min_p=least)
