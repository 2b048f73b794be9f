"""Checking a draft that was drawn, not certain: what is kept is distributed as the model alone would draw it."""

from __future__ import annotations

import torch

from pagedlab.sampling import SamplingParams, invert, probabilities, uniform
from pagedlab.scheduler import Sequence

ACCEPT_STREAM = 0x14057B7EF767814F  # draws for one token must not depend on each other: see draft_model.py


def accept_or_redraw(p: torch.Tensor, q: torch.Tensor, token: int, u_accept: float, u_draw: float) -> int | None:
    """None if the drafted `token` is accepted, else the token that takes its place. p, q: [V], the distributions of
    the model and of the draft. Each u is uniform in [0, 1)."""
    if u_accept * q[token].item() < p[token].item():
        return None
    rest = (p - q).clamp(min=0)
    # Rounding can leave nothing where p and q are equal.
    u = torch.tensor([u_draw], dtype=torch.float64, device=p.device)
    return int(invert((rest if rest.any() else p)[None], u))


def check_sampled(
    logits: torch.Tensor,
    drafted: list[int],
    q: torch.Tensor,
    own: list[int],
    text: Sequence,
    params: SamplingParams,
) -> tuple[list[int], list[float]]:
    """The tokens kept and their log-probabilities (the model's own, as `sample` gives them).

    logits [n + 1, V]: the model's, at the places of the n drafted tokens and behind them. q [n, V]. own: what the
    model would draw at each place; the last is taken where the whole draft is accepted.
    """
    n, device = len(drafted), logits.device
    p = probabilities(logits[:n], [params] * n)
    positions = torch.arange(text.num_known, text.num_known + n, device=device)
    u_accept, u_draw = (
        uniform(torch.full_like(positions, seed % 2**63), positions).tolist()
        for seed in (text.seed ^ ACCEPT_STREAM, text.seed)
    )
    kept: list[int] = []
    for i, token in enumerate(drafted):
        other = accept_or_redraw(p[i], q[i].to(device), token, u_accept[i], u_draw[i])
        kept.append(token if other is None else other)
        if other is not None:
            break
    else:
        kept.append(own[n])
    rows = torch.log_softmax(logits[: len(kept)].float(), dim=1)
    return kept, rows.gather(1, torch.tensor(kept, device=device)[:, None]).squeeze(1).tolist()
