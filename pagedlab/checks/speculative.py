"""Checks of notebook 12: the rollback, how much of a draft is kept, the rule that keeps the
distribution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from pagedlab.blocks import blocks_for
from pagedlab.checks import Wrong, agree, compared, exercise, say, trying
from pagedlab.checks.blocks import family


@exercise
def roll_back(answer: Callable[[Any, int, int], None]) -> str:
    """The table of a text of `known` tokens behind which a draft was checked: keep the accepted
    ones.
    """
    drafts = [
        (5, 3, 0),
        (5, 3, 3),
        (6, 4, 1),
        (4, 4, 0),
        (1, 8, 2),
        (8, 1, 0),
        (16, 5, 4),
        (3, 0, 0),
        (7, 9, 9),
    ]
    for forks, (known, drafted, accepted) in product((0, 1), drafts):
        pool, (table, *siblings) = family(known, 4, forks)
        table.append(drafted)
        expected = known + accepted, table.block_ids[: blocks_for(known + accepted, 4)]
        lines = [f"table.append({known})", *["sibling = table.fork()" for _ in siblings]]
        lines += [
            f"table.append({drafted})  # a draft of {drafted}",
            f"roll_back(table, {drafted}, {accepted})",
        ]
        with trying(*lines, message="The books do not balance afterwards."):
            answer(table, drafted, accepted)
            pool.check([table, *siblings])
            message = (
                "Kept are the tokens known before and those accepted, in the blocks that they were "
                "in."
            )
            agree(
                expected,
                (table.num_tokens, table.block_ids),
                message,
                "{0[0]} tokens in blocks {0[1]}".format,
            )
    return "Rejected tokens leave no slot and no block behind, and nobody else's block is touched."


@compared(
    "Every token is one that the model itself would have written: greedy text is the same with any "
    "draft.",
    [([], [7]), ([5], [5, 6]), ([5], [4, 6]), ([1, 2, 3], [1, 2, 3, 4])],
    [
        ([1, 2, 3], [1, 9, 3, 4])
    ],  # what comes behind a difference does not count, though it is equal again
    [([1, 2, 3], [9, 2, 3, 4]), ([1, 1, 1, 1], [1, 1, 2, 1, 1])],
)
def kept_tokens(drafted: Sequence[int], own: Sequence[int]) -> list[int]:
    """The tokens that a step adds: the drafted ones up to the first that is not the model's own,
    and its own there.
    """
    n = next((i for i, token in enumerate(drafted) if token != own[i]), len(drafted))
    return [*drafted[:n], own[n]]


@exercise
def acceptance_rule(
    answer: Callable[[list[float], list[float], int], tuple[float, list[float]]],
) -> str:
    """Chance of acceptance and distribution of the replacement, so that the outcome is p and
    acceptance the most.
    """
    pairs = [
        ([1.0, 0.0], [0.5, 0.5]),
        ([0.5, 0.5], [1.0, 0.0]),
        ([0.3, 0.7], [0.3, 0.7]),
        ([0.6, 0.4], [0.2, 0.8]),
    ]
    pairs += [([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]), ([0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1])]
    pairs += [([0.0, 0.25, 0.75], [0.5, 0.25, 0.25])]
    for p, q in pairs:
        with trying(f"acceptance_rule(p={p}, q={q}, token)"):
            # drafts accepted; the distribution of the token that comes out
            taken, outcome = (
                0.0,
                [0.0] * len(p),
            )
            for token, chance in [(token, chance) for token, chance in enumerate(q) if chance]:
                pair = answer(p[:], q[:], token)
                if not (
                    isinstance(pair, (tuple, list)) and len(pair) == 2 and len(pair[1]) == len(p)
                ):
                    wanted = f"(a probability, a list of {len(p)} probabilities)"
                    raise Wrong(f"Return two things, here for token {token}.", wanted, repr(pair))
                accept, other = pair
                if not -1e-9 <= accept <= 1 + 1e-9:
                    wanted = f"for token {token}, a probability between 0 and 1"
                    raise Wrong("What you return first is no probability.", wanted, f"{accept:.3g}")
                if accept < 1 - 1e-9 and abs(sum(other) - 1) > 1e-9:
                    message = (
                        "The replacement needs a distribution: its probabilities must sum to 1."
                    )
                    raise Wrong(message, f"for token {token}, sum 1", f"sum {sum(other):.3g}")
                outcome = [
                    x + chance * (1 - accept) * float(y)
                    for x, y in zip(outcome, other, strict=True)
                ]
                outcome[token] += chance * accept
                taken += chance * accept
            if not all(abs(a - b) <= 1e-9 for a, b in zip(outcome, p, strict=True)):
                message = (
                    "Drafts drawn from q and put through your rule must come out distributed as p."
                )
                raise Wrong(message, say(p, 3), say(outcome, 3))
            most = sum(min(a, b) for a, b in zip(p, q, strict=True))
            if taken < most - 1e-9:
                shares = [f"{share:.3f} of all drafts accepted" for share in (most, taken)]
                raise Wrong("The outcome is p, but your rule accepts less than it could.", *shares)
    return (
        "Whatever the draft proposes, what comes out is distributed as p, and no rule accepts more."
    )
