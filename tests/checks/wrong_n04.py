"""Plausible wrong answers to the exercises of notebook 04, and right ones that differ from the solution."""


def first_child_keeps_the_table(tables, parents):
    """Right: only the second and further children of a beam are forks."""
    kept = set()
    new = []
    for parent in parents:
        new.append(tables[parent].fork() if parent in kept else tables[parent])
        kept.add(parent)
    for i, table in enumerate(tables):
        if i not in kept:
            table.free()
    return new


FREE = "    for table in tables:\n        table.free()\n"
WHOLE = f"    children = [tables[parent].fork() for parent in parents]\n{FREE}    return children"
BLOCKS = "shared + width * (blocks_for(prompt_tokens + new_tokens, block_size) - shared)"

# Each is the folded solution with one place changed. By exercise: old text, new text, and special words of the check.
EDITS = {
    "reorder_beams": [
        (
            WHOLE,
            "    return [tables[parent] for parent in parents]",
            "Two beams are one and the same table: what one appends, the other has too.",
        ),
        (FREE, "", "The counts do not match the new beams."),
        (
            WHOLE,
            FREE + "    return [tables[parent].fork() for parent in parents]",
            "The new beams do not hold their parents' blocks.",
        ),
        (
            "tables[parent].fork() for parent in parents",
            "tables[parents.index(i) if i in parents else i].fork() for i in range(len(parents))",
            "The new beams do not hold their parents' blocks.",
        ),
        (
            "return children",
            "return [child.block_ids for child in children]",
            "Return a list of block tables, one for each parent.",
        ),
    ],
    "beam_blocks": [
        ("    shared = prompt_tokens // block_size\n", "    shared = 0\n", "stored once"),
        (
            BLOCKS,
            "-(-prompt_tokens // block_size) + width * -(-new_tokens // block_size)",
            "all but the last beam copy that block",
        ),
        ("if new_tokens == 0:", "if width == 0:", "nothing is copied"),
    ],
    "saved_prefill": [
        ("(n - 1) * prompt_tokens, (n - 1) * found", "n * prompt_tokens, n * found"),
        (
            "(prompt_tokens - 1) // block_size",
            "prompt_tokens // block_size",
            "only full blocks of 4 before it are found",
        ),
        ("(prompt_tokens - 1) // block_size * block_size", "(prompt_tokens - 1) // block_size"),
    ],
}
RIGHT = {"reorder_beams": [first_child_keeps_the_table]}
