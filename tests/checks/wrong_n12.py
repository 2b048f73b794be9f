"""Plausible wrong answers to the exercises of notebook 12, and right ones that differ from the solution."""

# The rollback -------------------------------------------------------------------------------------------------


def token_by_token(table, drafted, accepted):
    for _ in range(drafted - accepted):
        table.truncate(table.num_tokens - 1)


# The acceptance rule ------------------------------------------------------------------------------------------


def rule_with_numpy(p, q, token):
    import numpy as np

    rest = np.maximum(np.array(p) - q, 0)
    return min(1, p[token] / q[token]), rest / rest.sum() if rest.any() else np.array(p)


# Each is the folded solution with one place changed. By exercise: old text, new text, and special words of the check.
EDITS = {
    "roll_back": [
        (
            "table.num_tokens - (num_drafted - num_accepted)",
            "table.num_tokens - num_drafted",
            "The tokens known before and those accepted are kept, in the blocks that they were in.",
        ),
        (
            "table.truncate(table.num_tokens - (num_drafted - num_accepted))",
            "table.num_tokens -= num_drafted - num_accepted",
            "The tokens known before and those accepted are kept, in the blocks that they were in.",
        ),
        (
            "table.truncate(table.num_tokens - (num_drafted - num_accepted))",
            "table.num_tokens -= num_drafted - num_accepted\n    del table.block_ids[-(-table.num_tokens // 4) :]",
            "The counts are wrong afterwards, with 6 tokens",
        ),
    ],
    "kept_tokens": [
        ("[*drafted[:n], own[n]]", "[a for a, b in zip(drafted, own) if a == b] + [own[-1]]"),
        ("[*drafted[:n], own[n]]", "drafted[:n]"),
        ("[*drafted[:n], own[n]]", "drafted[: n + 1] or own"),
        ("drafted[n] == own[n]", "drafted[n] is own[n]"),
    ],
    "acceptance_rule": [
        ("[x / total for x in rest] if total else p", "rest", "distribution add up to 1?"),
        (
            "min(1.0, p[token] / q[token]), [x / total for x in rest] if total else p",
            "p[token], [x / total for x in rest] if total else rest",
            "The distribution differs.",
        ),
        (
            "[max(0.0, a - b) for a, b in zip(p, q, strict=True)]",
            "[0.0 if i == token else x for i, x in enumerate(p)]",
            "The distribution differs.",
        ),
        (
            "min(1.0, p[token] / q[token])",
            "min(1.0, q[token] / p[token]) if p[token] else 0.0",
            "The share of accepted drafts differs.",
        ),
    ],
}
RIGHT = {"roll_back": [token_by_token], "acceptance_rule": [rule_with_numpy]}
