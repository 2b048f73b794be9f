"""Checks of notebook 06: one step of online softmax, the merge of two halves, query heads that
share KV heads.

A state is what online softmax keeps of the scores it has read: m [..., 1], the largest; total [...,
1], the sum of exp(score - m); out [..., D], the sum of exp(score - m) * v. Before the first block
it is (-inf, 0, 0). The functions that answers are compared with stand here too; the notebook uses
them until the reader's own pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from math import inf
from typing import TYPE_CHECKING, Any

from pagedlab.checks import Wrong, agree, exercise, first_wrong, normal, say, shape, trying

if TYPE_CHECKING:
    import torch

    State = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def online_step(
    m: torch.Tensor, total: torch.Tensor, out: torch.Tensor, scores: torch.Tensor, v: torch.Tensor
) -> State:
    """The state after one more block, scores [..., n, b] and values [..., b, D]; a score of -inf
    does not count.
    """
    new_m = m.maximum(scores.amax(dim=-1, keepdim=True))
    # nothing seen yet: (-inf) - 0 is -inf, (-inf) - (-inf) would be NaN
    base = new_m.masked_fill(new_m == -inf, 0)
    rescale, p = (m - base).exp(), (scores - base).exp()
    return new_m, total * rescale + p.sum(dim=-1, keepdim=True), out * rescale + p @ v


def merge_states(a: State, b: State) -> State:
    """The state of two halves read as one, whichever came first; a half that saw nothing changes
    nothing.
    """
    m = a[0].maximum(b[0])
    base = m.masked_fill(m == -inf, 0)
    rescale_a, rescale_b = (a[0] - base).exp(), (b[0] - base).exp()
    return m, a[1] * rescale_a + b[1] * rescale_b, a[2] * rescale_a + b[2] * rescale_b


def grouped_scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """q [n, Hq, D] and k [L, Hkv, D] -> q k^T [Hkv, G, n, L], G = Hq / Hkv: a group's heads as rows
    of one product.
    """
    from pagedlab.attention.reference import group_heads

    grouped = group_heads(q, k.shape[1])  # [Hkv, G, n, D]
    return (grouped.flatten(1, 2) @ k.permute(1, 2, 0)).unflatten(1, grouped.shape[1:3])


def largest_tensor(function: Callable[..., Any], *args: Any) -> tuple[Any, int]:
    """What the call returns, and the elements of the largest tensor that torch puts into memory on
    the way.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    given = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal largest
            made = op(*args, **(kwargs or {}))
            # A view, expanded ones included, lies in the storage of what it looks at.
            if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() not in given:
                largest = max(largest, made.untyped_storage().nbytes() // made.element_size())
            return made

    with Watch():
        result = function(*args)
    return result, largest


# Scores of two blocks, the smallest first: of one query, then of several. A block of `_NONE` shows
# nothing.
_NONE: list[float] = [-inf, -inf]
_ROWS: list[tuple[list[float], list[float]]] = [
    ([1, 3], [2, 0]),
    ([1, 3], [5, 4]),
    ([2, 2], [2, 1]),
]
_ROWS += [
    ([0, 1], [1000, 999]),
    ([1000, 999], [0, 1]),
    ([-1e6, -1e6 + 1], [-1e6 + 2, -1e6]),
    ([1, -inf], [-inf, 2]),
]
_ROWS += [([1, 3], _NONE), (_NONE, [-1000, -1001]), (_NONE, _NONE)]
_PAIRS: list[list[list[list[float]]]] = [[[a], [b]] for a, b in _ROWS] + [
    [[[1, 2], _NONE], [[3, -inf], [0, 1]]]
]
_PAIRS += [[[[1, 2], _NONE, [7, 7]], [[3, 0], [0, 1], _NONE]]]


def _before(scores: torch.Tensor, v: torch.Tensor) -> State:
    """The state before the first block, which is such a one."""
    m = scores[..., :1].new_full((*scores.shape[:-1], 1), -inf)
    return m, m.new_zeros(m.shape), m.new_zeros(*m.shape[:-1], v.shape[-1])


def _blocks(scores: list[list[list[float]]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Blocks of two keys, each with other values."""
    import torch

    v = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    return [(torch.tensor(block, dtype=torch.float64), v * i) for i, block in enumerate(scores, 1)]


def _say_state(state: Sequence[Any]) -> str:
    return ", ".join(
        f"{name} {say(x)}" for name, x in zip(("m", "total", "out"), state, strict=True)
    )


def _check_state(expected: State, got: Any) -> None:
    """`Wrong` unless `got` is this state, within one part in 10^5: who computes in fp32 may."""
    agree(shape(expected), shape(got), "m, total and out have other shapes.", str)
    for name, right, yours in zip(("m", "total", "out"), expected, got, strict=True):
        if at := first_wrong(right, yours, 1e-5):
            expects, found = _say_state(expected), _say_state(got)
            if right.numel() > 4:
                expects, found = f"{name}{at} = {right[tuple(at)]:.5g}", f"{yours[tuple(at)]:.5g}"
            raise Wrong(f"{name} differs after the last of these:", expects, found)


def _check_not_normalised(expected: State, got: Any) -> None:
    """`Wrong` with a word of its own for the state (log-sum-exp, 1, out / total), which is
    equivalent.
    """
    m, total, out = expected
    if shape(expected) != shape(got) or not bool((total > 0).all()):
        return
    normalised = m + total.log(), total / total, out / total
    alike = all(not first_wrong(a, b, 1e-5) for a, b in zip(normalised, got, strict=True))
    if alike and first_wrong(m, got[0], 1e-5):
        raise Wrong(
            "This is an equivalent state, the one that kernels store: (log-sum-exp, 1, out / "
            "total). Here return m, total and out as they are, not divided:",
            _say_state(expected),
            _say_state(got),
        )


@exercise
def softmax_step(answer: Callable[..., Any]) -> str:
    """One more block for the running state of online softmax."""
    walks = [
        _blocks(scores)
        for scores in [_PAIRS[0][:1], *_PAIRS, [[[1.0, 3.0]], [_NONE], [[2.0, 4.0]]]]
    ]
    randn = normal()
    for rows, heads in [((3,), ()), ((2, 3), (2,)), ((2, 4, 3), (2, 1))]:
        walks.append([(randn(*rows, keys) * 10, randn(*heads, keys, 6)) for keys in (5, 1, 8)])
    for blocks in walks:
        lines = ["state = (-inf, 0, 0)"]
        state = expected = _before(*blocks[0])
        for scores, v in blocks:
            written = (say(x) if x.numel() <= 6 else f"a tensor {shape(x)}" for x in (scores, v))
            lines.append(f"state = step(*state, {', '.join(written)})")
            expected = online_step(*expected, scores, v)
            with trying(*lines):
                state = answer(*deepcopy((*state, scores, v)))
                _check_state(expected, state)
    return (
        "The past is corrected by one multiplication, and a block that shows nothing changes "
        "nothing."
    )


@exercise
def merge_halves(answer: Callable[..., Any]) -> str:
    """Two states over different blocks as one."""
    for pair in _PAIRS:
        a, b = (online_step(*_before(*block), *block) for block in _blocks(pair))
        with trying(f"a = ({_say_state(a)})", f"b = ({_say_state(b)})", "merge(a, b)"):
            expected, got = merge_states(a, b), answer(*deepcopy((a, b)))
            _check_not_normalised(expected, got)
            _check_state(expected, got)
    return (
        "Any cut, either order, an empty half included: keep it, it is the split-KV of notebook 07."
    )


@exercise
def shared_heads(answer: Callable[[torch.Tensor, torch.Tensor], Any]) -> str:
    """Scores of query heads that share KV heads, without repeating the keys in memory."""
    randn = normal()
    for heads, kv_heads, n in [
        (2, 1, 1),
        (4, 2, 1),
        (6, 3, 1),
        (4, 4, 1),
        (4, 2, 3),
        (14, 2, 2),
        (28, 4, 5),
    ]:
        q, k = randn(n, heads, 16), randn(9, kv_heads, 16)
        with trying(f"scores(q {shape(q)}, k {shape(k)})"):
            got, expected = answer(*deepcopy((q, k))), grouped_scores(q, k)
            agree(shape(expected), shape(got), "The scores have another shape.", str)
            if at := first_wrong(
                expected, got, 0.02
            ):  # another head's score is further off than bf16 rounds
                kv, g, i, key = at
                head, score = kv * (heads // kv_heads) + g, got[kv, g, i, key]
                other = ((k[key] @ q[i, head] - score).abs() < 1e-3).nonzero()
                read = f", the score with KV head {int(other[0])}" if len(other) else ""
                said = f"The score of query {i}, head {head}, with key {key} of KV head {kv}:"
                raise Wrong(said, f"{at} = {expected[kv, g, i, key]:.5g}", f"{score:.5g}{read}")
    q, k = randn(1, 8, 16), randn(32, 2, 16)
    _, largest = largest_tensor(answer, q, k)  # not bounded: torch imports a lot for it
    if largest >= 8 * 32 * 16:
        message = "The scores are right, but the keys were repeated in memory on the way."
        wanted = f"no tensor larger than k, which has {k.numel():,} elements"
        raise Wrong(message, wanted, f"one of {largest:,}", f"scores(q {shape(q)}, k {shape(k)})")
    return (
        "Each group of query heads is the rows of one product with its KV head; nothing is "
        "repeated."
    )
