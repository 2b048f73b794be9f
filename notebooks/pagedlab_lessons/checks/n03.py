"""Checks of notebook 03: copy-on-write, and tables that become shorter."""

from collections.abc import Sequence
from typing import Any

from pagedlab.blocks import BlockPool, BlockTable
from pagedlab_lessons.broken import CountsForks
from pagedlab_lessons.checks import Wrong, compared, exercise
from pagedlab_lessons.checks.n02 import family, search_tables


@exercise
def copy_on_write(answer: type) -> str:
    """A table with append, fork and free over the real pool, copying on write and only then."""
    search_tables(answer, ("append", "fork", "free"))
    return (
        "Your forks share every block, a write copies at most the last one, and every count "
        "returns to zero.\nNo sequence can overwrite what another one reads."
    )


@compared(
    "The same as counting on the real pool in all {} cases: a full last block is never copied, a\n"
    "partial one once for each sequence but the last, however long the prompt.",
    [
        (num_forks, num_tokens, size)
        for num_forks in (0, 1, 2, 5)
        for num_tokens in (0, 1, 3, 4, 5, 16, 17)
        for size in (4, 1, 3, 16)
    ],
)
def copies_after_forks(num_forks: int, num_tokens: int, block_size: int) -> int:
    """Blocks copied when a sequence is forked and all then append one token.

    The sequence has `num_tokens` tokens and is forked `num_forks` times.
    """
    _, tables = family(num_tokens, block_size, num_forks)
    return sum(len(table.append(1)) for table in tables)


@exercise
def truncate(answer: Any) -> str:
    """truncate(table, num_tokens): keep the first tokens, and release the blocks of the others.

    A length that the table does not have raises ValueError.
    """
    members = {"truncate": answer, "free": BlockTable.free}
    search_tables(type("TableWithYours", (BlockTable,), members), ("append", "fork", "truncate"))
    return (
        "Truncating releases just the blocks that are no longer needed, also when a fork still "
        "reads them."
    )


@exercise
def order_of_frees(answer: Sequence[str]) -> str:
    """An order of freeing a, b, c and d after which a block is free that a table still reads.

    The tables are of `broken.CountsForks`.
    """
    setup = "a.append(8); b = a.fork(); c = b.fork(); d = a.fork()"
    if sorted(answer) != list("abcd"):
        message = "Name each of a, b, c and d once."
        raise Wrong(message, "an order of a, b, c, d", answer, setup=setup)
    names = {"a": CountsForks(BlockPool(4, 4))}
    exec(setup, names)  # noqa: S102 - the line above
    for number, name in enumerate(answer, 1):
        names[name].free()
        for reader in answer[number:]:
            if not all(map(names["a"].pool.refcount, names[reader].block_ids)):
                return (
                    f"After {name} is freed the prompt's blocks are free, and {reader} still reads "
                    "them. It is a fork\nof a fork: a counts b and d, b counts c, and nothing "
                    "counts the readers of a block."
                )
    raise Wrong(
        "With this order the blocks are freed after their last reader.",
        "blocks that are free while a table reads them",
        "blocks that are free when no table reads them",
        [f"{name}.free()" for name in answer],
        setup,
    )
