"""Checks of notebook 02: slots, the block pool, the block table, broken pools.

The walks over pools and tables are those of other notebooks, too.
"""

from collections.abc import Callable, Sequence
from functools import partial
from string import ascii_lowercase
from typing import Any

from pagedlab.blocks import BlockPool, BlockTable, InvariantError, OutOfBlocks
from pagedlab_lessons.broken import POOLS
from pagedlab_lessons.checks import Trial, Wrong, agree, compared, exercise, search, trying
from pagedlab_lessons.readers_code import explain

Names = dict[str, Any]  # variables of the operations
INVARIANTS = {
    "counted": "a block's count is its number of references: allocate gives one, share adds one, "
    "release takes one",
    "exclusive": "allocate never hands out a block that is in use",
    "conserved": "free blocks and blocks in use add up to all blocks: none is lost, none appears "
    "twice",
    "atomic": "an operation that raises an error changes nothing",
}
"""What is true of a right pool after every operation.

Notebook 02 asks which one each of `broken.POOLS` breaks.
"""


def family(num_tokens: int, block_size: int, num_forks: int) -> tuple[BlockPool, list[BlockTable]]:
    """Return a pool with a table of `num_tokens` tokens, and that table with its forks."""
    pool = BlockPool(256, block_size)
    table = BlockTable(pool)
    table.append(num_tokens)
    return pool, [table, *(table.fork() for _ in range(num_forks))]


def _carry_out(line: str, names: Names, expected: type[Exception] | None = None) -> Any:
    """Execute "call" or "name = call", and return the value.

    Args:
        line: the operation.
        names: its variables; gets `name`.
        expected: the error that it must raise, None if it must raise none.

    Raises:
        Wrong: If it does not raise what is expected.
    """
    name, _, call = line.rpartition(" = ")
    try:
        value = names[name] = eval(call, names)  # noqa: S307 - a line that the check put together
        got = f"no error, but the value {value!r}"
    except Exception as error:
        if expected is None or isinstance(error, NotImplementedError):
            raise
        if isinstance(error, expected):
            return None
        got = explain(error)
    if expected:
        raise Wrong(f"{line} must raise {expected.__name__}.", expected.__name__, got)
    return value


def _on_both(operation: str, right: Names, mine: Names) -> tuple[Any, Any, str]:
    """Carry out an operation on the reference and on the answer.

    Args:
        operation: a line of Python.
        right: variables of the reference.
        mine: variables of the answer.

    Returns:
        Both values, None if the operation raises as it should, and how a message about the state
        afterwards begins.
    """
    wanted = raised = None
    when = f"After {operation}"
    try:
        wanted = _carry_out(operation, right)
    except (OutOfBlocks, ValueError) as error:
        raised = type(error)
        when += ", which raises as it should and must change nothing"
    return wanted, _carry_out(operation, mine, raised), when


# The pool -----------------------------------------------------------------------------------------


def pool_trial(
    pool_class: Callable[[int, int], Any],
    num_blocks: int = 3,
    no_blocks: Sequence[int] = (),
    mistakes: bool = True,
) -> Trial:
    """Drive a pool beside a `BlockPool`, which allocates the blocks that the pool chooses.

    Args:
        pool_class: the reader's.
        num_blocks: of the pool.
        no_blocks: ids that no block has, which are tried too.
        mistakes: whether operations that must raise are tried: on a free block, or without one.
    """
    yield f"pool = {getattr(pool_class, '__name__', 'Pool')}({num_blocks}, 4)"
    pool = pool_class(num_blocks, 4)
    reference = BlockPool(num_blocks, 4)
    right: Names = {"pool": reference}
    mine: Names = {"pool": pool}
    variables: list[str] = []  # each names a block
    when = "In a new pool"
    while True:
        expected = _state_of(reference, num_blocks)
        agree(expected, _state_of(pool, num_blocks), f"{when}: counts or num_free differ.")
        known = [name for name in variables if mistakes or reference.refcount(right[name])]
        operations = [
            f"pool.{verb}({name})" for verb in ("share", "release") for name in (*known, *no_blocks)
        ]
        if mistakes or reference.num_free:
            operations.insert(0, f"{ascii_lowercase[len(variables)]} = pool.allocate()")
        operation = yield operations
        wanted, value, when = _on_both(operation, right, mine)
        if "share" in operation:
            agree(wanted, value, f"{when}: share must return the block's id.")
        if "allocate" in operation and wanted is not None:
            reference.release(wanted)
            free = reference.free_ids
            if value not in free:
                message = f"{when}: allocate must hand out a free block."
                raise Wrong(message, f"one of {sorted(free)}", repr(value))
            free.remove(value)
            free.append(value)  # the reference hands it out next
            right[operation[0]] = reference.allocate()
            variables.append(operation[0])


def _state_of(pool: Any, num_blocks: int) -> str:
    counts = [pool.refcount(block_id) for block_id in range(num_blocks)]
    size = f"{pool.num_blocks} blocks of {pool.block_size}"
    return f"{size}, counts {counts}, num_free {pool.num_free}"


# Tables -------------------------------------------------------------------------------------------


def search_tables(table_class: type, verbs: Sequence[str]) -> None:
    """Search for a sequence of operations on which a table class goes wrong."""
    sizes = [(6, 2), (6, 4), (5, 1), (7, 3)]
    search([partial(table_trial, table_class, verbs, *size) for size in sizes])


def table_trial(table_class: type, verbs: Sequence[str], num_blocks: int, block_size: int) -> Trial:
    """Drive a table class beside `BlockTable`, each over its own `BlockPool`.

    A right answer may pick other physical blocks. So the reference's block ids are renamed to the
    answer's as they turn up. A block keeps its name as long as a table lists it.

    Args:
        table_class: the reader's.
        verbs: methods to call.
        num_blocks: of each pool.
        block_size: of each pool.
    """
    maker = f"{table_class.__name__}(pool)"
    yield f"pool = BlockPool({num_blocks}, {block_size}); a = {maker}"
    sides = []
    for kind in (BlockTable, table_class):
        pool = BlockPool(num_blocks, block_size)
        sides.append({"pool": pool, table_class.__name__: kind, "a": kind(pool)})
    right, mine = sides
    tables = ["a"]
    renamed: dict[int, int] = {}  # the answer's name of each block of the reference
    operation = ""
    copies = value = None
    when = "In a new table"
    while True:
        _compare_tables(when, tables, right, mine, renamed)
        if ".append(" in operation and copies is not None:
            wanted = [(renamed[source], renamed[destination]) for source, destination in copies]
            if value is None or [tuple(copy) for copy in value] != wanted:
                message = f"{operation} must return its copies, as (source, destination)."
                raise Wrong(message, wanted, repr(value))
        for name in tables if "slot" in verbs else []:
            ids = list(mine[name].block_ids)
            positions = range(mine[name].num_tokens)
            slots = [mine[name].slot(position) for position in positions]
            message = f"{name} maps blocks {ids}: the slots of its positions 0, 1, ... differ."
            agree([slot(ids, position, block_size) for position in positions], slots, message)
        calls = [call for verb in verbs for call in _CALLS.get(verb, [])]
        many = 2 * block_size + 1
        operations = [f"{name}.{call.format(many)}" for name in tables for call in calls]
        if len(tables) < 5:
            makers = [f"{name}.fork()" for name in tables if "fork" in verbs]
            fresh = ascii_lowercase[len(tables)]
            operations += [f"{fresh} = {made}" for made in (*makers, maker)]
        operation = yield operations
        copies, value, when = _on_both(operation, right, mine)
        if " = " in operation:
            tables.append(operation[0])


_CALLS = {  # of each method, calls to try, some with bad arguments; {} is more than two blocks
    "append": ["append()", "append({})"],
    "truncate": ["truncate(-1)", "truncate(1)", "truncate(3)"],
    "free": ["free()"],
}


def _compare_tables(
    when: str, tables: list[str], right: Names, mine: Names, renamed: dict[int, int]
) -> None:
    """Raise `Wrong` where the tables of both sides differ, or a count is not that of its tables.

    Args:
        when: how a message begins.
        tables: names of the tables.
        right: variables of the reference.
        mine: variables of the answer.
        renamed: the answer's name of each block of the reference; is brought up to date.
    """
    listed = {block_id for name in tables for block_id in right[name].block_ids}
    for gone in renamed.keys() - listed:
        del renamed[gone]
    wanted = []
    have = []
    for name in tables:
        ours, theirs = right[name], mine[name]
        for block_id, other in zip(ours.block_ids, theirs.block_ids, strict=False):
            if other not in renamed.values():
                renamed.setdefault(block_id, other)
        block_ids = [renamed.get(block_id, "new") for block_id in ours.block_ids]
        wanted.append(f"{name} {block_ids} {ours.num_tokens} tokens")
        have.append(f"{name} {[*theirs.block_ids]} {theirs.num_tokens} tokens")
    got = "  ".join(have)
    agree("  ".join(wanted), got, f"{when}: the tables differ.")
    try:
        mine["pool"].check([mine[name] for name in tables])
    except InvariantError as error:
        raise Wrong(f"{when}: {error}.", "a count for each table that lists it", got) from None


# The exercises ------------------------------------------------------------------------------------


def search_pool(pool_class: type) -> None:
    """Search for a sequence of operations on which a pool class goes wrong."""
    # A mistake with ordinary ids is shown before a mistake with ids that no block has.
    for no_blocks in ((), (-1, 8)):
        search([partial(pool_trial, pool_class, size, no_blocks) for size in (3, 2, 8)])
    new = f"{pool_class.__name__}(3, 4)"
    with trying(f"first = {new}; second = {new}", "first.allocate()"):
        first, second = pool_class(3, 4), pool_class(3, 4)
        first.allocate()
        message = "Two pools have the same blocks: __init__ has to make lists of each pool's own."
        agree(_state_of(BlockPool(3, 4), 3), _state_of(second, 3), message)


@exercise
def block_pool(answer: type) -> str:
    """A class with BlockPool's verbs.

    These are num_blocks, block_size, num_free, allocate, share, release and refcount.
    """
    search_pool(answer)
    return (
        "Your pool agrees with the real one on every short sequence of operations that was tried "
        "and on\nrandom longer ones: no block is lost, none is handed out twice, and an "
        "error changes nothing."
    )


@compared(
    "All {} positions tried are found, in blocks anywhere in memory.",
    [
        (block_ids, position, size)
        for size in (2, 16, 4, 3, 1)
        for block_ids in ([0], [1, 0], [5, 12, 3], [4, 9, 2, 6])
        for position in range(len(block_ids) * size)
    ],
    why="Block b begins at slot b times the block size, and {0} lists the blocks.",
)
def slot(block_ids: Sequence[int], position: int, block_size: int) -> int:
    """Physical slot of the token at a position, from a table's block ids and the block size."""
    return block_ids[position // block_size] * block_size + position % block_size


@exercise
def block_table(answer: type) -> str:
    """A table with append, slot and free, over the real pool; nothing is shared yet."""
    search_tables(answer, ("append", "slot", "free"))
    return (
        "Your table always has just enough blocks, allocates all that it needs or none, and "
        "releases each one."
    )


@exercise
def broken_pools(answer: dict[str, str]) -> str:
    """The invariant that each of the three broken pools breaks, by its name in `INVARIANTS`.

    Such as {"A": "counted", "B": ..., "C": ...}.
    """
    for pool, invariant in zip(POOLS, ("conserved", "exclusive", "atomic"), strict=True):
        given = answer.get(pool)
        if given not in INVARIANTS:
            raise Wrong(f"Pool {pool} needs one of the names.", " | ".join(INVARIANTS), repr(given))
        if given == invariant:
            continue
        # The class gets a name that does not say what is wrong with it.
        anonymous = type(f'POOLS["{pool}"]', (POOLS[pool],), {})
        try:
            search([partial(pool_trial, anonymous)])
        except Wrong as found:
            found.message = (
                f"Pool {pool}: another name says better what is wrong. Watch it beside a right "
                f"pool. {found.message}"
            )
            raise
    return "A loses blocks, B hands out a block that is in use, C increments before it validates."
