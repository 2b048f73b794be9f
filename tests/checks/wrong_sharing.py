"""Plausible wrong answers to the exercises of notebook 04, and right ones that differ from the solution."""

from __future__ import annotations

from typing import Any

from pagedlab.blocks import BlockTable, blocks_for

Tables = list[BlockTable]

# Reordering -----------------------------------------------------------------------------------------------------------


def same_tables_again(tables: Tables, parents: list[int]) -> Tables:
    return [tables[parent] for parent in parents]


def forks_and_forgets(tables: Tables, parents: list[int]) -> Tables:
    return [tables[parent].fork() for parent in parents]


def frees_first(tables: Tables, parents: list[int]) -> Tables:
    for table in tables:
        table.free()
    return [tables[parent].fork() for parent in parents]


def frees_only_the_dropped(tables: Tables, parents: list[int]) -> Tables:
    new = [tables[parent].fork() for parent in parents]
    for i, table in enumerate(tables):
        if i not in parents:
            table.free()
    return new


def copies_the_numbers_without_counting(tables: Tables, parents: list[int]) -> Tables:
    new = []
    for parent in parents:
        table = BlockTable(tables[parent].pool)
        table.block_ids, table.num_tokens = tables[parent].block_ids[:], tables[parent].num_tokens
        new.append(table)
    return new


def takes_fresh_blocks(tables: Tables, parents: list[int]) -> Tables:
    new = []
    for parent in parents:
        table = BlockTable(tables[parent].pool)
        table.append(tables[parent].num_tokens)
        new.append(table)
    for table in tables:
        table.free()
    return new


def overwrites_while_reading(tables: Tables, parents: list[int]) -> Tables:
    for i, parent in enumerate(parents):
        if parent != i:
            fork = tables[parent].fork()
            tables[i].free()
            tables[i] = fork
    return tables


def assigns_children(tables: Tables, parents: list[int]) -> Tables:
    """Takes parents[i] for the child of beam i."""
    new = [tables[parents.index(i) if i in parents else i].fork() for i in range(len(parents))]
    for table in tables:
        table.free()
    return new


def never_ends(tables: Tables, parents: list[int]) -> Tables:
    while len(tables) > 0:
        parents = parents[:]
    return tables


def returns_block_ids(tables: Tables, parents: list[int]) -> Any:
    return [tables[parent].block_ids for parent in parents]


def first_child_keeps_the_table(tables: Tables, parents: list[int]) -> Tables:
    """Right: only the second and further children of a beam are forks."""
    kept: set[int] = set()
    new = []
    for parent in parents:
        new.append(tables[parent].fork() if parent in kept else tables[parent])
        kept.add(parent)
    for i, table in enumerate(tables):
        if i not in kept:
            table.free()
    return new


def by_counts(tables: Tables, parents: list[int]) -> Tables:
    """Right: the pool's verbs, without fork."""
    new = []
    for parent in parents:
        table = BlockTable(tables[parent].pool)
        table.block_ids = [table.pool.share(block_id) for block_id in tables[parent].block_ids]
        table.num_tokens = tables[parent].num_tokens
        new.append(table)
    for table in tables:
        table.free()
    return new


# Counting -------------------------------------------------------------------------------------------------------------


def copied_for_each(prompt_tokens: int, width: int, new_tokens: int, block_size: int) -> int:
    return width * blocks_for(prompt_tokens + new_tokens, block_size)


def tail_shared_for_ever(prompt_tokens: int, width: int, new_tokens: int, block_size: int) -> int:
    return blocks_for(prompt_tokens, block_size) + width * blocks_for(new_tokens, block_size)


def tail_copied_before_a_write(prompt_tokens: int, width: int, new_tokens: int, block_size: int) -> int:
    full = prompt_tokens // block_size
    return full + width * (blocks_for(prompt_tokens + new_tokens, block_size) - full)


def twelve_for_the_well_known_case(prompt_tokens: int, width: int, new_tokens: int, block_size: int) -> int:
    return blocks_for(prompt_tokens, block_size) + width * (1 + new_tokens // block_size)


def by_case(prompt_tokens: int, width: int, new_tokens: int, block_size: int) -> int:
    """Right: the tail is written by all, or by nobody."""
    shared, rest = divmod(prompt_tokens, block_size)
    if new_tokens == 0:
        return shared + (rest > 0)
    return shared + width * -(-(rest + new_tokens) // block_size)


def all_n(prompt_tokens: int, n: int, block_size: int) -> tuple[int, int]:
    return n * prompt_tokens, n * ((prompt_tokens - 1) // block_size * block_size)


def whole_prompt_cached(prompt_tokens: int, n: int, block_size: int) -> tuple[int, int]:
    return (n - 1) * prompt_tokens, (n - 1) * (prompt_tokens // block_size * block_size)


def tail_cached_too(prompt_tokens: int, n: int, block_size: int) -> tuple[int, int]:
    return (n - 1) * prompt_tokens, (n - 1) * (prompt_tokens - 1)


def blocks_instead_of_tokens(prompt_tokens: int, n: int, block_size: int) -> tuple[int, int]:
    return (n - 1) * prompt_tokens, (n - 1) * ((prompt_tokens - 1) // block_size)


def cached_by_remainder(prompt_tokens: int, n: int, block_size: int) -> tuple[int, int]:
    """Right: what is left to compute is the rest of the last block, or all of it."""
    rest = prompt_tokens % block_size or block_size
    return (n - 1) * prompt_tokens, (n - 1) * (prompt_tokens - rest)


def as_a_list(prompt_tokens: int, n: int, block_size: int) -> list[int]:
    """Right: a pair may be written so."""
    return list(cached_by_remainder(prompt_tokens, n, block_size))


WRONG: dict[str, list[Any]] = {
    "reorder_beams": [
        same_tables_again,
        forks_and_forgets,
        frees_first,
        frees_only_the_dropped,
        copies_the_numbers_without_counting,
        takes_fresh_blocks,
        overwrites_while_reading,
        assigns_children,
        never_ends,
        returns_block_ids,
    ],
    "beam_blocks": [
        copied_for_each,
        tail_shared_for_ever,
        tail_copied_before_a_write,
        twelve_for_the_well_known_case,
    ],
    "saved_prefill": [all_n, whole_prompt_cached, tail_cached_too, blocks_instead_of_tokens],
}
RIGHT: dict[str, list[Any]] = {
    "reorder_beams": [first_child_keeps_the_table, by_counts],
    "beam_blocks": [by_case],
    "saved_prefill": [cached_by_remainder, as_a_list],
}
