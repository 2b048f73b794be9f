"""Plausible wrong answers to the exercises of notebook 06, and right ones that differ from the solution."""

from __future__ import annotations

from math import inf
from typing import Any

import torch

from pagedlab.checks.softmax import merge_states, online_step

Tensor = torch.Tensor
State = tuple[Tensor, Tensor, Tensor]

# the update ---------------------------------------------------------------------------------------------------


def from_the_textbook(m: Tensor, total: Tensor, out: Tensor, scores: Tensor, v: Tensor) -> State:
    """Right until a row has seen nothing: (-inf) - (-inf)."""
    new_m = torch.maximum(m, scores.amax(-1, keepdim=True))
    rescale, p = torch.exp(m - new_m), torch.exp(scores - new_m)
    return new_m, total * rescale + p.sum(-1, keepdim=True), out * rescale + p @ v


def no_maximum(m: Tensor, total: Tensor, out: Tensor, scores: Tensor, v: Tensor) -> State:
    p = torch.exp(scores)
    return torch.maximum(m, scores.amax(-1, keepdim=True)), total + p.sum(-1, keepdim=True), out + p @ v


def no_rescale(m: Tensor, total: Tensor, out: Tensor, scores: Tensor, v: Tensor) -> State:
    new_m = torch.maximum(m, scores.amax(-1, keepdim=True))
    p = torch.exp(scores - new_m)
    return new_m, total + p.sum(-1, keepdim=True), out + p @ v


def rescales_the_sum_only(m: Tensor, total: Tensor, out: Tensor, scores: Tensor, v: Tensor) -> State:
    new_m, total, _ = online_step(m, total, out, scores, v)
    return new_m, total, out + torch.exp(scores - new_m) @ v


def upside_down(m: Tensor, total: Tensor, out: Tensor, scores: Tensor, v: Tensor) -> State:
    new_m = torch.maximum(m, scores.amax(-1, keepdim=True))
    rescale, p = torch.exp(new_m - m), torch.exp(scores - new_m)
    return new_m, total * rescale + p.sum(-1, keepdim=True), out * rescale + p @ v


def rescales_the_new_as_well(m: Tensor, total: Tensor, out: Tensor, scores: Tensor, v: Tensor) -> State:
    new_m, _, _ = online_step(m, total, out, scores, v)
    rescale, p = torch.exp(m - new_m), torch.exp(scores - new_m)
    return new_m, (total + p.sum(-1, keepdim=True)) * rescale, (out + p @ v) * rescale


def the_blocks_own_maximum(m: Tensor, total: Tensor, out: Tensor, scores: Tensor, v: Tensor) -> State:
    return online_step(torch.full_like(m, -inf), total, out, scores, v)


def one_maximum_for_all_rows(m: Tensor, total: Tensor, out: Tensor, scores: Tensor, v: Tensor) -> State:
    new_m = torch.maximum(m, scores.amax()).expand_as(m)
    base = new_m.masked_fill(new_m == -inf, 0)
    rescale, p = torch.exp(m - base), torch.exp(scores - base)
    return new_m, total * rescale + p.sum(-1, keepdim=True), out * rescale + p @ v


def remembers_the_zero(m: Tensor, total: Tensor, out: Tensor, scores: Tensor, v: Tensor) -> State:
    """Puts 0 for -inf and keeps it: later scores below 0 are then measured from a maximum that never was."""
    base = torch.maximum(m, scores.amax(-1, keepdim=True))
    base = base.masked_fill(base == -inf, 0)
    rescale, p = torch.exp(m - base), torch.exp(scores - base)
    return base, total * rescale + p.sum(-1, keepdim=True), out * rescale + p @ v


def normalises_as_it_goes(m: Tensor, total: Tensor, out: Tensor, scores: Tensor, v: Tensor) -> State:
    m, total, out = online_step(m, total, out, scores, v)
    return m, total, out / total.clamp(min=1e-300)


def drops_an_axis(m: Tensor, total: Tensor, out: Tensor, scores: Tensor, v: Tensor) -> State:
    m, total, out = online_step(m, total, out, scores, v)
    return m.squeeze(-1), total.squeeze(-1), out


def repairs_afterwards(m: Tensor, total: Tensor, out: Tensor, scores: Tensor, v: Tensor) -> State:
    """Right: what was NaN can only have been a row that saw nothing."""
    new_m = torch.maximum(m, scores.amax(-1, keepdim=True))
    rescale, p = torch.exp(m - new_m).nan_to_num(), torch.exp(scores - new_m).nan_to_num()
    return new_m, total * rescale + p.sum(-1, keepdim=True), out * rescale + p @ v


def in_place(m: Tensor, total: Tensor, out: Tensor, scores: Tensor, v: Tensor) -> State:
    """Right, and writes over what it was given."""
    new = online_step(m, total, out, scores, v)
    return m.copy_(new[0]), total.copy_(new[1]), out.copy_(new[2])


# the merge of two halves --------------------------------------------------------------------------------------


def adds(a: State, b: State) -> State:
    return torch.maximum(a[0], b[0]), a[1] + b[1], a[2] + b[2]


def brings_b_to_a(a: State, b: State) -> State:
    """Right as long as a holds the larger score."""
    return a[0], a[1] + b[1] * torch.exp(b[0] - a[0]), a[2] + b[2] * torch.exp(b[0] - a[0])


def forgets_out(a: State, b: State) -> State:
    m, total, _ = merge_states(a, b)
    return m, total, a[2] + b[2]


def averages(a: State, b: State) -> State:
    m, total, _ = merge_states(a, b)
    return m, total, (a[2] / a[1] + b[2] / b[1]) / 2 * total


def merges_by_the_textbook(a: State, b: State) -> State:
    m = torch.maximum(a[0], b[0])
    rescale_a, rescale_b = torch.exp(a[0] - m), torch.exp(b[0] - m)
    return m, a[1] * rescale_a + b[1] * rescale_b, a[2] * rescale_a + b[2] * rescale_b


def divides(a: State, b: State) -> State:
    m, total, out = merge_states(a, b)
    return m, total, out / total


def returns_the_output(a: State, b: State) -> Tensor:
    _, total, out = merge_states(a, b)
    return out / total


def by_the_smaller(a: State, b: State) -> State:
    m = torch.minimum(a[0], b[0])
    rescale_a, rescale_b = torch.exp(a[0] - m), torch.exp(b[0] - m)
    return m, a[1] * rescale_a + b[1] * rescale_b, a[2] * rescale_a + b[2] * rescale_b


def by_logarithms(a: State, b: State) -> State:
    """Right: the sums by way of log-sum-exp."""
    m, empty = torch.maximum(a[0], b[0]), torch.maximum(a[0], b[0]) == -inf
    total = torch.exp(torch.logaddexp(a[0] + a[1].log(), b[0] + b[1].log()) - m).masked_fill(empty, 0)
    out = sum(torch.exp(x[0] - m).masked_fill(empty, 0) * x[2] for x in (a, b))
    return m, total, torch.as_tensor(out)


# heads that share ---------------------------------------------------------------------------------------------


def dealt_like_cards(q: Tensor, k: Tensor) -> Tensor:
    """Query head h to KV head h % Hkv."""
    return torch.einsum("nghd,lhd->hgnl", q.unflatten(1, (-1, k.shape[1])), k)


def repeated(q: Tensor, k: Tensor) -> Tensor:
    group = q.shape[1] // k.shape[1]
    keys = k.repeat_interleave(group, dim=1)  # [L, Hq, D]
    return (q.transpose(0, 1) @ keys.permute(1, 2, 0)).unflatten(0, (-1, group))


def repeated_in_turn(q: Tensor, k: Tensor) -> Tensor:
    group = q.shape[1] // k.shape[1]
    keys = k.repeat(1, group, 1)
    return (q.transpose(0, 1) @ keys.permute(1, 2, 0)).unflatten(0, (-1, group))


def broadcast(q: Tensor, k: Tensor) -> Tensor:
    """Looks free. torch expands the keys and, since bmm wants one batch axis, copies them."""
    grouped = q.unflatten(1, (k.shape[1], -1)).permute(1, 2, 0, 3)
    return grouped @ k.permute(1, 2, 0)[:, None]


def queries_first(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("nhgd,lhd->nhgl", q.unflatten(1, (k.shape[1], -1)), k)


def rows_out_of_order(q: Tensor, k: Tensor) -> Tensor:
    """Folds n and G in one order and takes them apart in the other."""
    group = q.shape[1] // k.shape[1]
    rows = q.unflatten(1, (k.shape[1], group)).transpose(0, 1).flatten(1, 2)  # [Hkv, n * G, D]
    return (rows @ k.permute(1, 2, 0)).unflatten(1, (group, -1))


def by_einsum(q: Tensor, k: Tensor) -> Tensor:
    return torch.einsum("nhgd,lhd->hgnl", q.unflatten(1, (k.shape[1], -1)), k)


def head_by_head(q: Tensor, k: Tensor) -> Tensor:
    group = q.shape[1] // k.shape[1]
    return torch.stack([q[:, h] @ k[:, h // group].T for h in range(q.shape[1])]).unflatten(0, (-1, group))


def scores_in_fp32(q: Tensor, k: Tensor) -> Tensor:
    return by_einsum(q.float(), k.float())


def step_in_fp32(*state_and_block: Tensor) -> State:
    return online_step(*(x.float() for x in state_and_block))


def log_sum_exp(a: State, b: State) -> State:
    """Equivalent, and not what is asked for."""
    m, total, out = merge_states(a, b)
    return m + total.log(), total / total, out / total


WRONG: dict[str, list[Any]] = {
    "softmax_step": [
        from_the_textbook,
        no_maximum,
        no_rescale,
        rescales_the_sum_only,
        upside_down,
        rescales_the_new_as_well,
        the_blocks_own_maximum,
        one_maximum_for_all_rows,
        remembers_the_zero,
        normalises_as_it_goes,
        drops_an_axis,
    ],
    "merge_halves": [
        log_sum_exp,
        adds,
        brings_b_to_a,
        forgets_out,
        averages,
        merges_by_the_textbook,
        divides,
        returns_the_output,
        by_the_smaller,
    ],
    "shared_heads": [dealt_like_cards, repeated, repeated_in_turn, broadcast, queries_first, rows_out_of_order],
}
RIGHT: dict[str, list[Any]] = {
    "softmax_step": [repairs_afterwards, in_place, step_in_fp32],
    "merge_halves": [by_logarithms],
    "shared_heads": [by_einsum, head_by_head, scores_in_fp32],
}
