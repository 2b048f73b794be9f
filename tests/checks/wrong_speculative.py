"""Plausible wrong answers to the exercises of notebook 12, and right ones that differ from the solution."""

from __future__ import annotations

from typing import Any

# The rollback -------------------------------------------------------------------------------------------------


def token_by_token(table: Any, drafted: int, accepted: int) -> None:
    for _ in range(drafted - accepted):
        table.truncate(table.num_tokens - 1)


def keeps_nothing(table: Any, drafted: int, accepted: int) -> None:
    table.truncate(table.num_tokens - drafted)


def counts_from_the_start(table: Any, drafted: int, accepted: int) -> None:
    table.truncate(accepted)


def forgets_the_accepted_only(table: Any, drafted: int, accepted: int) -> None:
    table.truncate(table.num_tokens - accepted)


def only_the_number(table: Any, drafted: int, accepted: int) -> None:
    table.num_tokens -= drafted - accepted


def drops_blocks_without_release(table: Any, drafted: int, accepted: int) -> None:
    table.num_tokens -= drafted - accepted
    del table.block_ids[-(-table.num_tokens // 4) :]


# How much is kept ---------------------------------------------------------------------------------------------


def kept_by_loop(drafted: list[int], own: list[int]) -> list[int]:
    kept = []
    for i, token in enumerate(own):
        kept.append(token)
        if i < len(drafted) and drafted[i] != token:
            break
    return kept


def kept_all_that_are_equal(drafted: list[int], own: list[int]) -> list[int]:
    return [a for a, b in zip(drafted, own, strict=False) if a == b] + [own[-1]]


def kept_without_the_bonus(drafted: list[int], own: list[int]) -> list[int]:
    n = next((i for i, token in enumerate(drafted) if token != own[i]), len(drafted))
    return drafted[:n]


def kept_with_the_wrong_one(drafted: list[int], own: list[int]) -> list[int]:
    n = next((i for i, token in enumerate(drafted) if token != own[i]), len(drafted))
    return drafted[: n + 1] or own


def kept_the_last_own(drafted: list[int], own: list[int]) -> list[int]:
    n = next((i for i, token in enumerate(drafted) if token != own[i]), len(drafted))
    return [*drafted[:n], own[-1]]


# The acceptance rule ------------------------------------------------------------------------------------------

Rule = tuple[float, list[float]]


def _rest(p: list[float], q: list[float]) -> list[float]:
    rest = [max(0.0, a - b) for a, b in zip(p, q, strict=True)]
    return [x / sum(rest) for x in rest] if sum(rest) else p


def rule_with_numpy(p: list[float], q: list[float], token: int) -> Any:
    import numpy as np

    rest = np.maximum(np.array(p) - q, 0)
    return min(1, p[token] / q[token]), rest / rest.sum() if rest.any() else np.array(p)


def redraws_from_p(p: list[float], q: list[float], token: int) -> Rule:
    return min(1.0, p[token] / q[token]), p


def accepts_with_p(p: list[float], q: list[float], token: int) -> Rule:
    return p[token], _rest(p, q)


def redraws_without_the_token(p: list[float], q: list[float], token: int) -> Rule:
    rest = [0.0 if i == token else x for i, x in enumerate(p)]
    return min(1.0, p[token] / q[token]), [x / sum(rest) for x in rest] if sum(rest) else p


def accepts_the_other_way(p: list[float], q: list[float], token: int) -> Rule:
    return min(1.0, q[token] / p[token]) if p[token] else 0.0, _rest(p, q)


def accepts_the_likeliest(p: list[float], q: list[float], token: int) -> Rule:
    return float(p[token] == max(p)), _rest(p, q)


def never_accepts(p: list[float], q: list[float], token: int) -> Rule:
    return 0.0, p


WRONG = {
    "roll_back": [
        keeps_nothing,
        counts_from_the_start,
        forgets_the_accepted_only,
        only_the_number,
        drops_blocks_without_release,
    ],
    "kept_tokens": [kept_all_that_are_equal, kept_without_the_bonus, kept_with_the_wrong_one, kept_the_last_own],
    "acceptance_rule": [
        redraws_from_p,
        accepts_with_p,
        redraws_without_the_token,
        accepts_the_other_way,
        accepts_the_likeliest,
        never_accepts,
    ],
}
RIGHT = {"roll_back": [token_by_token], "kept_tokens": [kept_by_loop], "acceptance_rule": [rule_with_numpy]}
