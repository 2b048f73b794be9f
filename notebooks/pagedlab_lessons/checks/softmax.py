"""Checks of notebook 06: a step of online softmax, the merge of two halves, shared KV heads.

A state is what online softmax keeps of the scores that it has read:

    m      [..., 1]   the largest score
    total  [..., 1]   the sum of exp(score - m)
    out    [..., D]   the sum of exp(score - m) * v

Before the first block it is (-inf, 0, 0). The functions that answers are compared with are here
too; the notebook uses them until the reader's own pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pagedlab.attention.reference import group_heads
from pagedlab_lessons.checks.protocol import Wrong, exercise, first_wrong, say, shape, trying
from pagedlab_lessons.checks.tensors import check_shapes, normal

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


def largest_tensor(function: Callable[..., Any], *args: Any) -> tuple[Any, int]:
    """Call a function and watch the tensors that torch allocates.

    Args:
        function: what to call.
        args: its arguments.

    Returns:
        The value that the function returns, and the number of elements of the largest tensor.
    """
    with _Allocations(args) as allocations:
        result = function(*args)
    return result, allocations.largest


class _Allocations(TorchDispatchMode):
    """Notes the largest tensor that torch allocates; views and the arguments do not count."""

    def __init__(self, args: Sequence[Any]) -> None:
        super().__init__()
        self.largest = 0
        self._given = {x.untyped_storage().data_ptr() for x in args if isinstance(x, Tensor)}

    def __torch_dispatch__(
        self,
        op: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        made = op(*args, **(kwargs or {}))
        # A view, also an expanded one, has the storage of the tensor that it shows.
        if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() not in self._given:
            elements = made.untyped_storage().nbytes() // made.element_size()
            self.largest = max(self.largest, elements)
        return made


# Scores of two blocks, the smallest first: of one query, then of several. A block of `_NONE` is
# masked out.
_NONE = [-inf, -inf]
_ROWS: list[Any] = [
    ([1, 3], [2, 0]),
    ([1, 3], [5, 4]),
    ([2, 2], [2, 1]),
    ([0, 1], [1000, 999]),
    ([1000, 999], [0, 1]),
    ([-1e6, -1e6 + 1], [-1e6 + 2, -1e6]),
    ([1, -inf], [-inf, 2]),
    ([1, 3], _NONE),
    (_NONE, [-1000, -1001]),
    (_NONE, _NONE),
]
_PAIRS = [
    *([[first], [second]] for first, second in _ROWS),
    [[[1, 2], _NONE, [7, 7]], [[3, -inf], [0, 1], _NONE]],
]

Block = tuple[Tensor, Tensor]  # scores and values


def _before(scores: Tensor, v: Tensor) -> State:
    """Return the state before the first block, which has these shapes."""
    m = torch.full_like(scores[..., :1], -inf)
    return m, torch.zeros_like(m), torch.zeros_like(scores @ v)


def _blocks(scores: list[Any]) -> list[Block]:
    """Return blocks of two keys with these scores, each block with other values."""
    v = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    return [(torch.tensor(block, dtype=torch.float64), v * i) for i, block in enumerate(scores, 1)]


def _random_blocks() -> list[list[Block]]:
    """Return walks over larger blocks: of one head, and of groups of heads."""
    randn = normal()
    return [
        [(randn(*rows, keys) * 10, randn(*heads, keys, 6)) for keys in (5, 1, 8)]
        for rows, heads in (((3,), ()), ((2, 4, 3), (2, 1)))
    ]


def _say_state(state: State) -> str:
    named = zip(("m", "total", "out"), state, strict=True)
    return ", ".join(f"{name} {say(x)}" for name, x in named)


def _say_tensor(x: Tensor) -> str:
    return say(x) if x.numel() <= 6 else f"a tensor {shape(x)}"


def _check_state(expected: State, got: Any) -> None:
    """Raise `Wrong` unless `got` is this state, within one part in 10^5, as fp32 gives it."""
    check_shapes(shape(expected), got, "m, total and out have other shapes.")
    m, total, out = expected
    message = ""
    for name, right, yours in zip(("m", "total", "out"), expected, got, strict=True):
        if not message and first_wrong(right, yours, 1e-5):
            message = f"{name} differs after the last of these:"
            if name == "out" and not first_wrong(out / total, yours, 1e-5):
                message = (
                    "out is divided by total already. Return the sum as it is: it is divided once, "
                    "at the end."
                )
    if _are_close((m + total.log(), total / total, out / total), got):
        message = message and (
            "This is an equivalent state, the one that kernels store: (log-sum-exp, 1, out / "
            "total). Here return m, total and out as they are, not divided:"
        )
    if message:
        raise Wrong(message, _say_state(expected), _say_state(got))


def _are_close(expected: State, got: State) -> bool:
    return not any(map(first_wrong, expected, got, [1e-5] * 3))


@exercise
def softmax_step(answer: Any) -> str:
    """step(m, total, out, scores, v): the state of online softmax after one more block."""
    small = [_PAIRS[0][:1], *_PAIRS, [[[1.0, 3.0]], [_NONE], [[2.0, 4.0]]]]
    for blocks in [*map(_blocks, small), *_random_blocks()]:
        lines = ["state = (-inf, 0, 0)"]
        state: Any = _before(*blocks[0])
        expected = state
        for scores, v in blocks:
            lines.append(f"state = step(*state, {_say_tensor(scores)}, {_say_tensor(v)})")
            m, total, out = expected
            expected = online_step(m, total, out, scores, v)
            with trying(*lines):
                state = answer(*deepcopy((*state, scores, v)))
                _check_state(expected, state)
    return "One multiplication corrects the past, and a block that is masked out changes nothing."


@exercise
def merge_halves(answer: Any) -> str:
    """merge(a, b): two states over different blocks as one."""
    for pair in _PAIRS:
        a, b = (online_step(*_before(*block), *block) for block in _blocks(pair))
        with trying(f"a = ({_say_state(a)})", f"b = ({_say_state(b)})", "merge(a, b)"):
            _check_state(merge_states(a, b), answer(*deepcopy((a, b))))
    return (
        "Right for any cut, in either order, with an empty half too. Keep it: it is the split-KV "
        "of notebook 07."
    )


_HEADS = [(2, 1, 1), (4, 2, 1), (6, 3, 1), (4, 4, 1), (4, 2, 3), (28, 4, 5)]  # Hq, Hkv, queries


@exercise
def shared_heads(answer: Any) -> str:
    """scores(q, k): scores of query heads that share KV heads.

    Shapes: q [n, Hq, D], k [L, Hkv, D] and the scores [Hkv, Hq / Hkv, n, L]. The keys must not be
    repeated in memory.
    """
    randn = normal()
    for heads, kv_heads, n in _HEADS:
        q = randn(n, heads, 16)
        k = randn(9, kv_heads, 16)
        with trying(f"scores(q {shape(q)}, k {shape(k)})"):
            got = answer(*deepcopy((q, k)))
            expected = grouped_scores(q, k)
            check_shapes(shape(expected), got, "The scores have another shape.")
            # Another head's score is further off than bf16 rounds.
            at = first_wrong(expected, got, 0.02)
            if at:
                message = _dealt_out_in_turn(q, k, got) + _which_score(q, k, at)
                scores = [f"{x[tuple(at)]:.5g}" for x in (expected, got)]
                raise Wrong(message, *scores)
    _check_memory(answer, randn(1, 8, 16), randn(32, 2, 16))
    return (
        "Each query head meets its own KV head, in groups of neighbours, and nothing is repeated."
    )


def _which_score(q: Tensor, k: Tensor, at: list[int]) -> str:
    """Return which score is at these indices."""
    kv_head, g, query, key = at
    head = kv_head * (q.shape[1] // k.shape[1]) + g
    return f"The score of query {query}, head {head}, with key {key} of KV head {kv_head}:"


def _dealt_out_in_turn(q: Tensor, k: Tensor, got: Tensor) -> str:
    """Say so if query head h was multiplied with KV head h % Hkv, in either order of rows."""
    kv_heads = k.shape[1]
    group = q.shape[1] // kv_heads
    scores = torch.einsum("nhd,lhd->hnl", q, k.repeat(1, group, 1))  # a row for each query head
    by_query_head = scores.unflatten(0, (kv_heads, group))
    by_kv_head = scores.unflatten(0, (group, kv_heads)).transpose(0, 1)
    if all(first_wrong(rows, got, 0.02) for rows in (by_query_head, by_kv_head)):
        return ""
    return (
        "Your KV heads get the query heads dealt out in turn: head 0 to KV head 0, head 1 to KV "
        "head 1, and so on. Query heads that share a KV head are neighbours. "
    )


def _check_memory(answer: Any, q: Tensor, k: Tensor) -> None:
    """Raise `Wrong` if the keys are repeated in memory for each query head."""
    # Without a limit of steps: torch imports a lot for it.
    _, largest = largest_tensor(answer, q, k)
    if largest >= q.shape[1] * k.shape[0] * k.shape[2]:
        message = "The scores are right, but the keys were repeated in memory on the way."
        wanted = f"no tensor larger than k, which has {k.numel():,} elements"
        raise Wrong(message, wanted, f"one of {largest:,}", f"scores(q {shape(q)}, k {shape(k)})")
