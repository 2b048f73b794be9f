"""Checks of notebook 12: the rollback, how much of a draft is kept, the rule that keeps the distribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pagedlab.blocks import BlockPool, BlockTable, blocks_for
from pagedlab.checks import Wrong, compare, exercise, trying

HISTORIES = [(5, 3, 0), (5, 3, 3), (6, 4, 1), (4, 4, 0), (1, 8, 2), (8, 1, 0), (16, 5, 4), (3, 0, 0), (7, 9, 9)]


@exercise
def roll_back(answer: Callable[[Any, int, int], None]) -> str:
    """The table of a text of `known` tokens behind which a draft was checked: keep the accepted ones."""
    for forks in (0, 1):
        for known, drafted, accepted in HISTORIES:
            pool = BlockPool(16, 4)
            table = BlockTable(pool)
            table.append(known)
            sibling = table.fork() if forks else None
            table.append(drafted)
            expected = table.block_ids[: blocks_for(known + accepted, 4)]
            lines = [f"table.append({known})", *(["sibling = table.fork()"] if forks else [])]
            lines += [f"table.append({drafted})  # a draft of {drafted}", f"roll_back(table, {drafted}, {accepted})"]
            with trying(*lines, message="The books do not balance afterwards."):
                answer(table, drafted, accepted)
                pool.check([table, *([sibling] if sibling else [])])
                got = (table.num_tokens, table.block_ids)
                if got != (known + accepted, expected):
                    message = "Kept are the tokens known before and those accepted, in the blocks that they were in."
                    say = "{} tokens in blocks {}".format
                    raise Wrong(message, say(known + accepted, expected), say(*got))
    return "Rejected tokens leave no slot and no block behind, and nobody else's block is touched."


def kept_reference(drafted: Sequence[int], own: Sequence[int]) -> list[int]:
    """The drafted tokens up to the first that differs from the model's own, and the model's own there."""
    n = next((i for i, token in enumerate(drafted) if token != own[i]), len(drafted))
    return [*drafted[:n], own[n]]


@exercise
def kept_tokens(answer: Callable[[list[int], list[int]], list[int]]) -> str:
    """The tokens that a step adds, from a certain draft and what the model says at each of its places."""
    cases = [
        ([], [7]),
        ([5], [5, 6]),
        ([5], [4, 6]),
        ([1, 2, 3], [1, 2, 3, 4]),
        ([1, 2, 3], [1, 9, 3, 4]),  # what comes behind a difference does not count, though it is equal again
        ([1, 2, 3], [9, 2, 3, 4]),
        ([1, 1, 1, 1], [1, 1, 2, 1, 1]),
    ]
    compare(answer, kept_reference, cases)
    return "Every token is one that the model itself would have written: greedy text is the same with any draft."


PAIRS = [
    ([1.0, 0.0], [0.5, 0.5]),
    ([0.5, 0.5], [1.0, 0.0]),
    ([0.3, 0.7], [0.3, 0.7]),
    ([0.6, 0.4], [0.2, 0.8]),
    ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]),
    ([0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]),
    ([0.0, 0.25, 0.75], [0.5, 0.25, 0.25]),
]


def outcome(rule: Callable[..., tuple[float, Sequence[float]]], p: Sequence[float], q: Sequence[float]) -> list[float]:
    """The distribution of the token that comes out, when drafts are drawn from q and `rule` decides."""
    out = [0.0] * len(p)
    for token, chance in enumerate(q):
        if chance:
            accept, other = rule(p, q, token)
            out[token] += chance * accept
            out = [x + chance * (1 - accept) * y for x, y in zip(out, other, strict=True)]
    return out


@exercise
def acceptance_rule(answer: Callable[[list[float], list[float], int], tuple[float, list[float]]]) -> str:
    """Chance of acceptance and distribution of the replacement, so that the outcome is p and acceptance the most."""
    for p, q in PAIRS:
        with trying(f"acceptance_rule(p={p}, q={q}, token)"):
            returned = {token: answer(p[:], q[:], token) for token, chance in enumerate(q) if chance}
            for token, pair in returned.items():
                if not (isinstance(pair, (tuple, list)) and len(pair) == 2 and len(pair[1]) == len(p)):
                    wanted = f"(a probability, a list of {len(p)} probabilities)"
                    raise Wrong(f"Return two things, here for token {token}.", wanted, repr(pair))
                if not -1e-9 <= pair[0] <= 1 + 1e-9:
                    wanted = f"for token {token}, a probability between 0 and 1"
                    raise Wrong("What you return first is no probability.", wanted, f"{pair[0]:.3g}")
            accepts = [accept for accept, _ in returned.values()]
            got = outcome(lambda p, q, token, returned=returned: returned[token], p, q)
            if any(abs(a - b) > 1e-9 for a, b in zip(got, p, strict=True)):
                message = "Drafts drawn from q and put through your rule must come out distributed as p."
                raise Wrong(message, _say(p), _say(got))
            taken = sum(a * x for a, x in zip(accepts, filter(None, q), strict=True))
            most = sum(min(a, b) for a, b in zip(p, q, strict=True))
            if taken < most - 1e-9:
                say = "{:.3f} of all drafts accepted".format
                raise Wrong("The outcome is p, but your rule accepts less than it could.", say(most), say(taken))
    return "Whatever the draft proposes, what comes out is distributed as p, and no rule accepts more."


def _say(x: Sequence[float]) -> str:
    return f"[{', '.join(f'{value:.3g}' for value in x)}]"
