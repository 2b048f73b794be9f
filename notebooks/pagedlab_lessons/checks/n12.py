"""Checks of notebook 12: the rollback, the part of a draft that is kept, the acceptance rule."""

from collections.abc import Sequence
from typing import Any

from pagedlab.blocks import BlockTable
from pagedlab_lessons.checks import Function, compared, trying
from pagedlab_lessons.checks.n02 import family


def _after_draft(
    roll_back: Function, known: int, drafted: int, accepted: int, num_forks: int
) -> str:
    """Return what a table holds after a draft and its rollback."""
    pool, (table, *siblings) = family(known, 4, num_forks)
    table.append(drafted)
    roll_back(table, drafted, accepted)
    kept = f"{table.num_tokens} tokens in blocks {table.block_ids}"
    with trying(message=f"The counts are wrong afterwards, with {kept}."):
        pool.check([table, *siblings])
    return kept


@compared(
    "Rejected tokens keep no slot and no block, and no other sequence's block is touched.",
    [
        (known, drafted, accepted, num_forks)
        for num_forks in (0, 1)
        for drafted in (3, 4, 0, 9)
        for known in (5, 6, 4)
        for accepted in range(drafted + 1)
    ],
    through=_after_draft,
    told="table.append({0})  # then {3} forks\ntable.append({1})  # a draft\n"
    "roll_back(table, {1}, {2})",
    why="The tokens known before and those accepted are kept, in the blocks that they were in.",
)
def roll_back(table: BlockTable, drafted: int, accepted: int) -> None:
    """Keep the accepted tokens of a draft, which is at the end of a sequence's table."""
    table.truncate(table.num_tokens - (drafted - accepted))


@compared(
    "Every token is one that the model itself would have written: greedy text is the same with any "
    "draft.",
    [
        ([], [7]),
        ([5], [4, 6]),
        ([1, 2, 3], [1, 2, 3, 4]),
        ([1, 2, 3], [1, 9, 3, 4]),  # tokens after a difference do not count, even if equal
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


def _outcome(rule: Function, p: list[float], q: list[float]) -> dict[str, Any]:
    """Return how the outcome of a rule is distributed, and the share of drafts that it accepts."""
    accepted = 0.0
    outcome = [0.0] * len(p)
    for token, chance in enumerate(q):
        if not chance:
            continue
        accept, replacement = rule(p[:], q[:], token)
        accepted += chance * accept
        outcome[token] += chance * accept
        for other, share in enumerate(replacement):
            outcome[other] += chance * (1 - accept) * float(share)
    return {"The distribution": outcome, "The share of accepted drafts": accepted}


@compared(
    "Whatever the draft proposes, the outcome is distributed as p, and no rule accepts more.",
    [
        ([1.0, 0.0], [0.5, 0.5]),
        ([0.3, 0.7], [0.3, 0.7]),
        ([0.6, 0.4], [0.2, 0.8]),
        ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]),
        ([0.0, 0.25, 0.75], [0.5, 0.25, 0.25]),
    ],
    through=_outcome,
    told="acceptance_rule(p={0}, q={1}, token)  # for each token of q",
    why="Drafts drawn from q and put through your rule must come out distributed as p, and it must "
    "accept all that it can. Does the replacement's distribution add up to 1?",
)
def acceptance_rule(p: list[float], q: list[float], token: int) -> tuple[float, list[float]]:
    """Chance of acceptance, and distribution of the replacement, for a token from q.

    The outcome must be distributed as p, and no rule may accept more.
    """
    rest = [max(0.0, right - drafted) for right, drafted in zip(p, q, strict=True)]
    return min(1.0, p[token] / q[token]), [x / (sum(rest) or 1) for x in rest]
