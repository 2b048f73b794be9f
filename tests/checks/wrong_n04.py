"""Plausible wrong answers to the exercises of notebook 04, and right ones that differ from the solution."""

from pagedlab.blocks import BlockTable

Tables = list[BlockTable]

# Reordering -----------------------------------------------------------------------------------------------------------


def copies_the_numbers_without_counting(tables, parents):
    new = []
    for parent in parents:
        table = BlockTable(tables[parent].pool)
        table.block_ids, table.num_tokens = tables[parent].block_ids[:], tables[parent].num_tokens
        new.append(table)
    return new


def overwrites_while_reading(tables, parents):
    for i, parent in enumerate(parents):
        if parent != i:
            fork = tables[parent].fork()
            tables[i].free()
            tables[i] = fork
    return tables


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


# Counting -------------------------------------------------------------------------------------------------------------


def cached_by_remainder(prompt_tokens, n, block_size):
    """Right: what is left to compute is the rest of the last block, or all of it."""
    rest = prompt_tokens % block_size or block_size
    return (n - 1) * prompt_tokens, (n - 1) * (prompt_tokens - rest)


FREE = "    for table in tables:\n        table.free()\n"
WHOLE = f"    children = [tables[parent].fork() for parent in parents]\n{FREE}    return children"
BLOCKS = "shared + width * (-(-(prompt_tokens + new_tokens) // block_size) - shared)"

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
            "All but the last beam copy that block",
        ),
        ("if new_tokens == 0:", "if width == 0:", "nothing is copied"),
    ],
    "saved_prefill": [
        ("(n - 1) * prompt_tokens, (n - 1) * found", "n * prompt_tokens, n * found"),
        (
            "(prompt_tokens - 1) // block_size",
            "prompt_tokens // block_size",
            "the 3 before it contain 0 full blocks of 4: 1 x 0 tokens are saved",
        ),
        ("(prompt_tokens - 1) // block_size * block_size", "(prompt_tokens - 1) // block_size"),
    ],
}
WRONG = {
    "reorder_beams": [copies_the_numbers_without_counting, overwrites_while_reading],
}
RIGHT = {
    "reorder_beams": [
        first_child_keeps_the_table,
    ],
    "saved_prefill": [
        cached_by_remainder,
    ],
}
