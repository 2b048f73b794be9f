"""Checks of notebook 06: a step of online softmax, the merge of two halves, shared KV heads.

A state is what online softmax keeps of the scores that it has read:

    m      [..., 1]   the largest score
    total  [..., 1]   the sum of exp(score - m)
    out    [..., D]   the sum of exp(score - m) * v

Before the first block it is (-inf, 0, 0). The functions that answers are compared with are here
too; the notebook uses them until the reader's own pass.
"""

from itertools import product
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pagedlab.attention.reference import group_heads
from pagedlab_lessons.checks import Function, Wrong, compared, normal, shape

State = tuple[Tensor, Tensor, Tensor]


def online_step(
    m: Tensor,
    total: Tensor,
    out: Tensor,
    scores: Tensor,
    v: Tensor,
) -> State:
    """Return the state after one more block.

    Args:
        m: [..., n, 1]
        total: [..., n, 1]
        out: [..., n, D]
        scores: [..., n, b]; a score of -inf does not count.
        v: [..., b, D]
    """
    new_m = m.maximum(scores.amax(dim=-1, keepdim=True))
    # No score so far: (-inf) - 0 is -inf; (-inf) - (-inf) would be NaN.
    base = new_m.masked_fill(new_m == -inf, 0)
    rescale = (m - base).exp()
    p = (scores - base).exp()
    return new_m, total * rescale + p.sum(dim=-1, keepdim=True), out * rescale + p @ v


def merge_states(a: State, b: State) -> State:
    """Return the state of two halves read as one, in either order.

    A half without scores changes nothing.
    """
    m_a, total_a, out_a = a
    m_b, total_b, out_b = b
    m = m_a.maximum(m_b)
    base = m.masked_fill(m == -inf, 0)
    rescale_a = (m_a - base).exp()
    rescale_b = (m_b - base).exp()
    return m, total_a * rescale_a + total_b * rescale_b, out_a * rescale_a + out_b * rescale_b


def grouped_scores(q: Tensor, k: Tensor) -> Tensor:
    """Return q k^T, with the heads of a group as the rows of one product.

    Args:
        q: [n, Hq, D]
        k: [L, Hkv, D]

    Returns:
        [Hkv, G, n, L], with G = Hq / Hkv.
    """
    grouped = group_heads(q, k.shape[1])  # [Hkv, G, n, D]
    return (grouped.flatten(1, 2) @ k.permute(1, 2, 0)).unflatten(1, grouped.shape[1:3])


def largest_tensor(function: Function, *args: Any) -> tuple[Any, int]:
    """Call a function and watch the tensors that torch allocates.

    Args:
        function: what to call.
        args: its arguments.

    Returns:
        The value that the function returns, and the number of elements of the largest tensor.
    """
    with _Allocations() as allocations:
        result = function(*args)
    return result, allocations.largest


class _Allocations(TorchDispatchMode):
    """Notes the largest tensor that torch allocates; views do not count."""

    largest = 0

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = op(*args, **(kwargs or {}))
        # A view, also an expanded one, has the storage of the tensor that it shows.
        storages = {x.untyped_storage().data_ptr() for x in args if isinstance(x, Tensor)}
        if isinstance(made, Tensor) and made.untyped_storage().data_ptr() not in storages:
            self.largest = max(self.largest, made.numel())
        return made


# Blocks of two scores, the simplest first; the last one is masked out.
_BLOCKS = [
    torch.tensor([scores], dtype=torch.float64)
    for scores in ([1, 3], [5, 4], [1000, 999], [-1e6, -1e6 + 1], [1, -inf], [-inf, -inf])
]
_V = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
_START = (_V[:1] - inf, _V[:1] * 0, _V[:1] * 0)
_RANDN = normal()
_LARGER = [_RANDN(2, 3, n) for n in (1, 6, 8)]  # several queries of two groups
_AFTER = [online_step(*_START, scores, _V) for scores in _BLOCKS]


def _state_of(function: Function, *args: Any) -> dict[str, Any]:
    """Return m, total and out by name."""
    state = function(*args)
    if not isinstance(state, (tuple, list)) or len(state) != 3:
        raise Wrong("Return three tensors: m, total and out.", "a tuple of 3", shape(state))
    return dict(zip(("m", "total", "out"), state, strict=True))


def _divided(function: Function) -> dict[str, Function]:
    """Return known mistakes: a state whose sums are divided too early."""

    def normalised(*args: Any) -> State:
        m, total, out = function(*args)
        return m, total, out / total

    def stored(*args: Any) -> State:
        m, total, out = function(*args)
        return m + total.log(), total / total, out / total

    return {
        "out is divided by total already. Return the sum as it is: it is divided once, at the "
        "end.": normalised,
        "This is an equivalent state, the one that kernels store: (log-sum-exp, 1, out / total). "
        "Here return m, total and out as they are, not divided:": stored,
    }


softmax_step = compared(
    "One multiplication corrects the past, and a block that is masked out changes nothing.",
    [
        *((*state, scores, 2 * _V) for state, scores in product([_START, *_AFTER], _BLOCKS)),
        (_LARGER[0], _LARGER[0].exp(), *_LARGER[1:], _RANDN(2, 8, 6)),
    ],
    name="softmax_step",
    through=_state_of,
    mistakes=_divided(online_step),
    within=1e-5,
)(online_step)
merge_halves = compared(
    "Right for any cut, in either order, with an empty half too. Keep it: it is the split-KV of "
    "notebook 07.",
    [*product([*_AFTER, _START], repeat=2)],
    name="merge_halves",
    through=_state_of,
    mistakes=_divided(merge_states),
    within=1e-5,
)(merge_states)


def _scores(function: Function, heads: int, kv_heads: int, n: int) -> Any:
    """Return scores of random queries and 9 keys, or `Wrong` if keys were repeated in memory."""
    randn = normal()
    q = randn(n, heads, 16)
    k = randn(9, kv_heads, 16)
    scores, largest = largest_tensor(function, q, k)
    repeated = heads * k.numel() // kv_heads
    if heads >= 2 * n * kv_heads and isinstance(scores, Tensor) and largest >= repeated:
        message = "The keys were repeated in memory on the way."
        wanted = f"no tensor larger than k, which has {k.numel():,} elements"
        raise Wrong(message, wanted, f"one of {largest:,}")
    return scores


def _dealt_out(q: Tensor, k: Tensor) -> Tensor:
    """Return the scores if query head h belongs to KV head h % Hkv."""
    group = q.shape[1] // k.shape[1]
    return torch.einsum("ngkd,lkd->kgnl", q.unflatten(1, (group, -1)), k)


@compared(
    "Each query head meets its own KV head, in groups of neighbours, and nothing is repeated.",
    [(2, 1, 1), (4, 2, 1), (6, 3, 1), (4, 4, 1), (4, 2, 3), (28, 4, 5)],
    through=_scores,
    told="scores(q [{2}, {0}, 16], k [9, {1}, 16])",
    why=lambda heads, kv_heads, n: (
        f"Scores are [Hkv, Hq / Hkv, n, L], here {[kv_heads, heads // kv_heads, n, 9]}."
    ),
    mistakes={
        "Your KV heads get the query heads dealt out in turn: head 0 to KV head 0, head 1 to KV "
        "head 1, and so on. Query heads that share a KV head are neighbours.": _dealt_out,
    },
    within=1e-5,
)
def shared_heads(q: Tensor, k: Tensor) -> Tensor:
    """scores(q, k): scores of query heads that share KV heads.

    Shapes: q [n, Hq, D], k [L, Hkv, D] and the scores [Hkv, Hq / Hkv, n, L]. The keys must not be
    repeated in memory.
    """
    return grouped_scores(q, k)
