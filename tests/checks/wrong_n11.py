"""Plausible wrong answers to the exercises of notebook 11, and right ones that differ from the solution."""

# Each is the folded solution with one place changed. By exercise: old text, new text, and special words of the check.
EDITS = {
    "mlp_part": [
        (
            "down.chunk(size, 1)",
            "down.chunk(size, 0)",
            "A rank holds one part in 2 of each weight: the shapes of gate, up, down.",
        ),
        ("return gate", "rank = 0\n    return gate", "The sum over the ranks has to be the whole MLP's output"),
        ("gate.chunk(size, 0)[rank]", "gate[rank::size]", "The sum over the ranks has to be the whole MLP's output"),
    ],
    "heads_of_rank": [
        ("        return None\n", "        pass\n"),
        (
            "list(range(rank * n, (rank + 1) * n)), list(range(rank * k, (rank + 1) * k))",
            "list(range(rank, num_heads, size)), list(range(rank, num_kv_heads, size))",
        ),
        ("list(range(rank * k, (rank + 1) * k))", "list(range(num_kv_heads))"),
    ],
    "wire_bytes": [
        ("summed = 2 * num_layers", "summed = num_layers"),
        ("summed * 2 * (size - 1) / size", "summed"),
        ("summed * 2 * (size - 1) / size", "summed * (size - 1)"),
    ],
}
# Right: any deal of the columns does if all three weights are dealt alike. A KV head has whole query heads.
RIGHT_EDITS = {
    "mlp_part": [
        (
            "gate.chunk(size, 0)[rank], up.chunk(size, 0)[rank], down.chunk(size, 1)[rank]",
            "gate[rank::size], up[rank::size], down[:, rank::size]",
        )
    ]
}
