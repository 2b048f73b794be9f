"""Plausible wrong answers to the exercises of notebook 01, and right ones that differ from the solution."""

# Each is the folded solution with one place changed. By exercise: old text, new text, and special words of the check.
EDITS = {
    "users_that_fit": [
        (
            "memory * 9 // 10 - weights",
            "memory - weights",
            "A tenth of the memory stays free, 1,073,741,824 bytes are weights",
        ),
        ("memory * 9 // 10 - weights", "memory * 9 // 10"),
        ("max(0, memory * 9 // 10 - weights)", "memory * 9 // 10 - weights"),
        (
            "return for_kv // (bytes_per_token * max_length)",
            "return for_kv and max(1, for_kv // (bytes_per_token * max_length))",
        ),
    ],
    "last_block_waste": [
        ("-num_tokens % block_size", "block_size - num_tokens % block_size", "A full block wastes nothing."),
        ("-num_tokens % block_size", "num_tokens % block_size", "Blocks have 4 slots"),
        ("-num_tokens % block_size", "(block_size - 1) / 2"),
    ],
    "largest_block": [
        ("            best = size", "            return size"),
        ("empty < limit", "empty <= limit", "It must be below 25.00%."),
        ("sum(-n % size for n in lengths)", "(size - 1) / 2 * len(lengths)"),
    ],
}
WRONG = {"useless_holes": [list(range(12)), list(range(0, 20, 2)), [0, 0, *range(1, 11)]]}
RIGHT = {"useless_holes": [[0, 1, 3, 4, 6, 7, 9, 10, 12, 13, 15, 16], [19, 17, 16, 14, 13, 11, 10, 8, 7, 5, 4, 2]]}
