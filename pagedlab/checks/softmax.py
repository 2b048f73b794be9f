"""Checks of notebook 06: one step of online softmax, the merge of two halves, query heads that share KV heads.

A state is what online softmax keeps of the scores it has read: m [..., 1], the largest; total [..., 1], the sum of
exp(score - m); out [..., D], the sum of exp(score - m) * v. Before the first block it is (-inf, 0, 0). The functions
that answers are compared with stand here too; the notebook uses them until the reader's own pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from pagedlab.checks import Wrong, exercise, trying

if TYPE_CHECKING:
    import torch

    State = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def online_step(
    m: torch.Tensor, total: torch.Tensor, out: torch.Tensor, scores: torch.Tensor, v: torch.Tensor
) -> State:
    """The state after one more block, scores [..., n, b] and values [..., b, D]; a score of -inf does not count."""
    new_m = m.maximum(scores.amax(dim=-1, keepdim=True))
    base = new_m.masked_fill(new_m == -inf, 0)  # nothing seen yet: (-inf) - 0 is -inf, (-inf) - (-inf) would be NaN
    rescale, p = (m - base).exp(), (scores - base).exp()
    return new_m, total * rescale + p.sum(dim=-1, keepdim=True), out * rescale + p @ v


def merge_states(a: State, b: State) -> State:
    """The state of two halves read as one, whichever came first; a half that saw nothing changes nothing."""
    m = a[0].maximum(b[0])
    base = m.masked_fill(m == -inf, 0)
    rescale_a, rescale_b = (a[0] - base).exp(), (b[0] - base).exp()
    return m, a[1] * rescale_a + b[1] * rescale_b, a[2] * rescale_a + b[2] * rescale_b


def grouped_scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """q [n, Hq, D] and k [L, Hkv, D] -> q k^T [Hkv, G, n, L], G = Hq / Hkv: a group's heads as rows of one product."""
    n, num_heads, head_dim = q.shape
    group = num_heads // k.shape[1]
    rows = q.reshape(n, k.shape[1], group, head_dim).permute(1, 2, 0, 3).flatten(1, 2)  # [Hkv, G * n, D]
    return (rows @ k.permute(1, 2, 0)).unflatten(1, (group, n))


def largest_tensor(function: Callable[..., Any], *args: Any) -> tuple[Any, int]:
    """What the call returns, and the elements of the largest tensor that torch puts into memory on the way."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    given = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            made = op(*args, **(kwargs or {}))
            # A view, expanded ones included, lies in the storage of what it looks at.
            if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() not in given:
                largest = max(largest, made.untyped_storage().nbytes() // made.element_size())
            return made

    with Watch():
        result = function(*args)
    return result, largest


# Saying what differs ------------------------------------------------------------------------------------------


def _say(x: Any) -> str:
    """A small tensor as a person would write it: [[1, 3.5]]."""
    if isinstance(x, (list, tuple)):
        return f"[{', '.join(map(_say, x))}]"
    return f"{x:.5g}" if isinstance(x, (int, float)) else _say(x.tolist())


def _say_state(state: Sequence[Any]) -> str:
    return ", ".join(f"{name} {_say(x)}" for name, x in zip(("m", "total", "out"), state, strict=True))


def _shape(x: Any) -> Any:
    return list(x.shape) if hasattr(x, "shape") else type(x).__name__


def _called(answer: Callable[..., Any], *args: Any) -> Any:
    """What the answer returns for these arguments; it may work in place."""
    from torch.utils._pytree import tree_map

    return answer(*tree_map(lambda x: x.clone(), args))


def _check_state(expected: State, got: Any) -> None:
    """`Wrong` unless `got` is this state, within one part in 10^9."""
    import torch

    shapes = [list(x.shape) for x in expected]
    if not isinstance(got, (tuple, list)) or [_shape(x) for x in got] != shapes:
        said = [_shape(x) for x in got] if isinstance(got, (tuple, list)) else type(got).__name__
        raise Wrong("m, total and out have other shapes.", shapes, said)
    for name, right, yours in zip(("m", "total", "out"), expected, got, strict=True):
        equal = torch.isclose(yours.to(right.dtype), right, rtol=1e-9, atol=1e-12)
        if not equal.all():
            expects, found = _say_state(expected), _say_state(got)
            if right.numel() > 4:
                at = tuple((~equal).nonzero()[0].tolist())
                expects, found = f"{name}{list(at)} = {right[at]:.5g}", f"{yours[at]:.5g}"
            raise Wrong(f"{name} differs after the last of these:", expects, found)


# The exercises ------------------------------------------------------------------------------------------------

# Scores of blocks, one query each unless there are two rows; the smallest first.
_NONE = [[-inf, -inf]]
_STEPS: list[list[list[list[float]]]] = [
    [[[1, 3]]],
    [[[1, 3]], [[2, 0]]],
    [[[1, 3]], [[5, 4]]],
    [[[0, 1]], [[1000, 999]]],
    [[[1000, 999]], [[0, 1]]],
    [[[-1e6, -1e6 + 1]], [[-1e6 + 2, -1e6]]],
    [[[1, -inf]], [[-inf, 2]]],
    [[[1, 3]], _NONE, [[2, 4]]],
    [_NONE, [[-1000, -1001]]],
    [_NONE, _NONE],
    [[[1, 2], [-inf, -inf]], [[3, -inf], [0, 1]]],
]


@exercise
def softmax_step(answer: Callable[..., Any]) -> str:
    """One more block for the running state of online softmax."""
    import torch

    def walk(blocks: Sequence[torch.Tensor], values: Sequence[torch.Tensor], small: bool) -> None:
        rows = blocks[0].shape[:-1]
        m = torch.full((*rows, 1), -inf, dtype=torch.float64)
        expected: State = (m, torch.zeros_like(m), torch.zeros((*rows, values[0].shape[-1]), dtype=torch.float64))
        state: Any = expected
        lines = ["state = (-inf, 0, 0)"]
        for scores, v in zip(blocks, values, strict=True):
            written = (_say(scores), _say(v)) if small else (f"scores {list(scores.shape)}", f"v {list(v.shape)}")
            lines.append(f"state = step(*state, {', '.join(written)})")
            expected = online_step(*expected, scores, v)
            with trying(*lines):
                state = _called(answer, *state, scores, v)
                _check_state(expected, state)

    two = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    for case in _STEPS:
        blocks = [torch.tensor(scores, dtype=torch.float64) for scores in case]
        walk(blocks, [two * (i + 1) for i in range(len(case))], small=True)
    generator = torch.Generator().manual_seed(0)
    for shape in [(3,), (2, 3), (2, 4, 3)]:
        sizes = [5, 1, 8]
        blocks = [torch.randn(*shape, b, dtype=torch.float64, generator=generator) * 10 for b in sizes]
        lead = (*shape[:1], *[1] * (len(shape) - 2)) if len(shape) > 1 else ()
        values = [torch.randn(*lead, b, 6, dtype=torch.float64, generator=generator) for b in sizes]
        walk(blocks, values, small=False)
    return "The past is corrected by one multiplication, and a block that shows nothing changes nothing."


@exercise
def merge_halves(answer: Callable[..., Any]) -> str:
    """Two states over different blocks as one."""
    import torch

    def state_of(scores: list[list[float]]) -> State:
        s = torch.tensor(scores, dtype=torch.float64)
        m = torch.full((len(s), 1), -inf, dtype=torch.float64)
        v = torch.arange(1, s.shape[1] + 1, dtype=torch.float64)[:, None] + s[:, :1].nan_to_num(neginf=0).mean() / 8
        return online_step(m, torch.zeros_like(m), torch.zeros_like(m), s, v)

    halves: list[tuple[list[list[float]], list[list[float]]]] = [
        ([[1, 3]], [[2, 0]]),
        ([[1, 3]], [[5, 4]]),
        ([[2, 2]], [[2, 1]]),
        ([[0, 1]], [[1000, 999]]),
        ([[1000, 999]], [[0, 1]]),
        ([[-1e6, -1e6 + 1]], [[-1e6 + 2, -1e6]]),
        ([[1, 3]], _NONE),
        (_NONE, [[-1000, -1001]]),
        (_NONE, _NONE),
        ([[1, 2], [-inf, -inf], [7, 7]], [[3, 0], [0, 1], [-inf, -inf]]),
    ]
    for left, right in halves:
        a, b = state_of(left), state_of(right)
        lines = [f"a = ({_say_state(a)})", f"b = ({_say_state(b)})", "merge(a, b)"]
        with trying(*lines):
            _check_state(merge_states(a, b), _called(answer, a, b))
    return "Any cut, either order, an empty half included: keep it, it is the split-KV of notebook 07."


@exercise
def shared_heads(answer: Callable[[torch.Tensor, torch.Tensor], Any]) -> str:
    """Scores of query heads that share KV heads, without repeating the keys in memory."""
    import torch

    generator = torch.Generator().manual_seed(0)
    for heads, kv_heads, n in [(2, 1, 1), (4, 2, 1), (6, 3, 1), (4, 4, 1), (4, 2, 3), (14, 2, 2), (28, 4, 5)]:
        q = torch.randn(n, heads, 16, dtype=torch.float64, generator=generator)
        k = torch.randn(9, kv_heads, 16, dtype=torch.float64, generator=generator)
        with trying(f"scores(q {list(q.shape)}, k {list(k.shape)})"):
            got, expected = _called(answer, q, k), grouped_scores(q, k)
            if _shape(got) != _shape(expected):
                raise Wrong("The scores have another shape.", _shape(expected), _shape(got))
            got = got.to(expected.dtype)
            right = torch.isclose(got, expected, rtol=1e-9, atol=1e-12)
            if not right.all():
                kv, g, i, key = (~right).nonzero()[0].tolist()
                head = kv * (heads // kv_heads) + g
                other = (torch.einsum("d,hd->h", q[i, head], k[key]) - got[kv, g, i, key]).abs() < 1e-9
                read = f", the score with KV head {int(other.nonzero()[0])}" if other.any() else ""
                wanted = f"[{kv}, {g}, {i}, {key}] = {expected[kv, g, i, key]:.5g}"
                said = f"The score of query {i}, head {head}, with key {key} of KV head {kv}:"
                raise Wrong(said, wanted, f"{got[kv, g, i, key]:.5g}{read}")
    q, k = torch.randn(1, 8, 16), torch.randn(32, 2, 16)
    _, largest = largest_tensor(answer, q, k)  # not bounded: torch imports a lot for it
    if largest >= 8 * 32 * 16:
        message = "The scores are right, but the keys were repeated in memory on the way."
        wanted = f"no tensor larger than k, which has {k.numel():,} elements"
        steps = [f"scores(q {list(q.shape)}, k {list(k.shape)})"]
        raise Wrong(message, wanted, f"one of {largest:,}", operations=steps)
    return "Each group of query heads is the rows of one product with its KV head; nothing is repeated."
