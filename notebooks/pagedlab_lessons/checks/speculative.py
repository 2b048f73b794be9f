"""Checks of notebook 12: the rollback, the part of a draft that is kept, the acceptance rule."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from pagedlab.blocks import blocks_for
from pagedlab_lessons.checks.blocks import family
from pagedlab_lessons.checks.protocol import Wrong, agree, compared, exercise, say, trying

# Tokens known before the draft, drafted tokens, accepted tokens.
_DRAFTS = [
    (known, drafted, accepted)
    for drafted in (3, 4, 1, 0, 9)
    for known in (5, 6, 4, 1)
    for accepted in range(drafted + 1)
]


@exercise
def roll_back(answer: Any) -> str:
    """roll_back(table, drafted, accepted): keep the accepted tokens of a draft.

    The draft is at the end of the table of a sequence.
    """
    for num_forks, (known, drafted, accepted) in product((0, 1), _DRAFTS):
        pool, (table, *siblings) = family(known, 4, num_forks)
        table.append(drafted)
        kept = known + accepted
        expected = kept, table.block_ids[: blocks_for(kept, 4)]
        lines = [
            f"table.append({known})",
            *["sibling = table.fork()" for _ in siblings],
            f"table.append({drafted})  # a draft of {drafted}",
            f"roll_back(table, {drafted}, {accepted})",
        ]
        with trying(*lines, message="The counts are wrong afterwards."):
            answer(table, drafted, accepted)
            pool.check([table, *siblings])
            message = (
                "The tokens known before and those accepted are kept, in the blocks that they were "
                "in."
            )
            words = "{0[0]} tokens in blocks {0[1]}".format
            agree(expected, (table.num_tokens, table.block_ids), message, words)
    return "Rejected tokens keep no slot and no block, and no other sequence's block is touched."


@compared(
    "Every token is one that the model itself would have written: greedy text is the same with any "
    "draft.",
    [
        ([], [7]),
        ([5], [5, 6]),
        ([5], [4, 6]),
        ([1, 2, 3], [1, 2, 3, 4]),
        ([1, 2, 3], [1, 9, 3, 4]),  # tokens after a difference do not count, even if equal
        ([1, 2, 3], [9, 2, 3, 4]),
        ([1, 1, 1, 1], [1, 1, 2, 1, 1]),
        ([50_000], [int("50000"), 6]),  # equal, and another object
    ],
)
def kept_tokens(drafted: Sequence[int], own: Sequence[int]) -> list[int]:
    """The tokens that a step adds: the right ones of the draft, then one of the model's own.

    Drafted tokens are right up to the first that is not the model's own.
    """
    right = 0
    while right < len(drafted) and drafted[right] == own[right]:
        right += 1
    return [*drafted[:right], own[right]]


_DISTRIBUTIONS = [
    ([1.0, 0.0], [0.5, 0.5]),
    ([0.5, 0.5], [1.0, 0.0]),
    ([0.3, 0.7], [0.3, 0.7]),
    ([0.6, 0.4], [0.2, 0.8]),
    ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]),
    ([0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]),
    ([0.0, 0.25, 0.75], [0.5, 0.25, 0.25]),
]


@exercise
def acceptance_rule(answer: Any) -> str:
    """acceptance_rule(p, q, token): chance of acceptance, and distribution of the replacement.

    The token comes from q. The outcome must be distributed as p, and no rule may accept more.
    """
    for p, q in _DISTRIBUTIONS:
        with trying(f"acceptance_rule(p={p}, q={q}, token)"):
            _check_rule(answer, p, q)
    return "Whatever the draft proposes, the outcome is distributed as p, and no rule accepts more."


def _check_rule(answer: Any, p: list[float], q: list[float]) -> None:
    """Raise `Wrong` unless the outcome is p and as many drafts as possible are accepted."""
    accepted = 0.0  # share of drafts
    outcome = [0.0] * len(p)
    for token, chance in enumerate(q):
        if not chance:
            continue
        accept, replacement = _decision(answer, p, q, token)
        accepted += chance * accept
        outcome[token] += chance * accept
        for other, share in enumerate(replacement):
            outcome[other] += chance * (1 - accept) * float(share)
    if not _close(outcome, p):
        message = "Drafts drawn from q and put through your rule must come out distributed as p."
        raise Wrong(message, say(p, 3), say(outcome, 3))
    most = sum(map(min, p, q))
    if accepted < most - 1e-9:
        message = "The outcome is p, but your rule accepts less than it could."
        shares = [f"{share:.3f} of all drafts accepted" for share in (most, accepted)]
        raise Wrong(message, *shares)


def _decision(answer: Any, p: list[float], q: list[float], token: int) -> Any:
    """Return the chance of acceptance and the distribution of the replacement, if they are such."""
    pair = answer(p[:], q[:], token)
    is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
    if not is_pair or len(pair[1]) != len(p):
        wanted = f"(a probability, a list of {len(p)} probabilities)"
        raise Wrong(f"Return two things, here for token {token}.", wanted, repr(pair))
    accept, replacement = pair
    if not -1e-9 <= accept <= 1 + 1e-9:
        wanted = f"for token {token}, a probability between 0 and 1"
        raise Wrong("What you return first is no probability.", wanted, f"{accept:.3g}")
    total = sum(map(float, replacement))
    if accept < 1 - 1e-9 and abs(total - 1) > 1e-9:
        message = "The replacement's probabilities do not add up to 1."
        if p == q:
            message = "p and q are the same here, so every draft is right: accept it with 1."
        raise Wrong(message, f"for token {token}, a sum of 1", f"{total:.3g}")
    return pair


def _close(a: Sequence[float], b: Sequence[float]) -> bool:
    return all(abs(x - y) <= 1e-9 for x, y in zip(a, b, strict=True))
