"""Checks of notebook 02: slots, the block pool, the block table, broken pools.

The walks over pools and tables are those of other notebooks, too.
"""

from collections.abc import Callable, Sequence
from functools import partial
from string import ascii_lowercase
from typing import Any

from pagedlab.blocks import BlockPool, BlockTable, InvariantError, OutOfBlocks
from pagedlab_lessons.broken import POOLS
from pagedlab_lessons.checks.protocol import Trial, Wrong, agree, compared, exercise, search, trying
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


def _after(line: str, raised: type[Exception] | None) -> str:
    """Return how a message about the state after an operation begins."""
    return f"After {line}{', which raises as it should and must change nothing' if raised else ''}"


# The pool -----------------------------------------------------------------------------------------


def pool_trial(
    pool_class: Callable[[int, int], Any],
    num_blocks: int = 3,
    no_blocks: Sequence[int] = (),
    mistakes: bool = True,
) -> Trial:
    """Drive a pool beside a plain list of counts, one for each block.

    Args:
        pool_class: the reader's.
        num_blocks: of the pool.
        no_blocks: ids that no block has, which are tried too.
        mistakes: whether operations that must raise are tried: on a free block, or without one.
    """
    yield f"pool = {getattr(pool_class, '__name__', 'Pool')}({num_blocks}, 4)"
    pool = pool_class(num_blocks, 4)
    names: Names = {"pool": pool}
    counts = [0] * num_blocks
    held: dict[str, int] = {}  # the block that each variable names
    when = "In a new pool"
    while True:
        expected = _in_words(num_blocks, 4, counts, counts.count(0))
        agree(expected, _state_of(pool, num_blocks), f"{when}: counts or num_free differ.")
        known = [name for name, block_id in held.items() if mistakes or counts[block_id]]
        operations = [
            f"pool.{verb}({name})" for verb in ("share", "release") for name in (*known, *no_blocks)
        ]
        if mistakes or 0 in counts:
            operations.insert(0, f"{ascii_lowercase[len(held)]} = pool.allocate()")
        operation = yield operations
        allocates = operation.endswith("allocate()")
        # of the block: "a" in "a = pool.allocate()" and in "pool.share(a)"
        name = operation[0] if allocates else operation.partition("(")[2][:-1]
        free = [block_id for block_id, count in enumerate(counts) if count == 0]
        error: type[Exception] | None = None
        if allocates and not free:
            error = OutOfBlocks
        elif not allocates and not (name in held and counts[held[name]]):
            error = ValueError
        value = _carry_out(operation, names, error)
        when = _after(operation, error)
        if error:
            continue
        if allocates:
            if type(value) is not int or value not in free:
                raise Wrong(
                    f"{when}: allocate must hand out a free block.", f"one of {free}", repr(value)
                )
            held[name] = value
            counts[value] = 1
        elif "share" in operation:
            counts[held[name]] += 1
            agree(held[name], value, f"{when}: share must return the block's id.")
        else:
            counts[held[name]] -= 1


def _state_of(pool: Any, num_blocks: int) -> str:
    counts = [pool.refcount(block_id) for block_id in range(num_blocks)]
    return _in_words(pool.num_blocks, pool.block_size, counts, pool.num_free)


def _in_words(num_blocks: int, block_size: int, counts: list[int], num_free: int) -> str:
    return f"{num_blocks} blocks of {block_size}, counts {counts}, num_free {num_free}"


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
    class_name = table_class.__name__
    yield f"pool = BlockPool({num_blocks}, {block_size}); a = {class_name}(pool)"
    sides: list[Names] = []
    for kind in (BlockTable, table_class):
        pool = BlockPool(num_blocks, block_size)
        sides.append({"pool": pool, class_name: kind, "a": kind(pool)})
    right, mine = sides
    tables = ["a"]
    renamed: dict[int, int] = {}  # the answer's name of each block of the reference
    _compare_tables("In a new table", tables, right, mine, renamed)
    while True:
        operations = [
            line
            for name in tables
            for line in _table_operations(name, right[name].num_tokens, verbs, block_size)
        ]
        if len(tables) < 5:
            forks = [f"{name}.fork()" for name in tables if "fork" in verbs]
            fresh = ascii_lowercase[len(tables)]
            operations += [f"{fresh} = {maker}" for maker in (*forks, f"{class_name}(pool)")]
        operation = yield operations
        raised = None
        try:
            copies = _carry_out(operation, right)
        except (OutOfBlocks, ValueError) as error:
            raised = type(error)
        value = _carry_out(operation, mine, raised)
        if " = " in operation:
            tables.append(operation[0])
        _compare_tables(_after(operation, raised), tables, right, mine, renamed)
        if ".append(" in operation and not raised:
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


def _table_operations(name: str, tokens: int, verbs: Sequence[str], size: int) -> list[str]:
    """Return calls to try on a table of so many tokens, with bad arguments too."""
    arguments: dict[str, list[Any]] = {
        "append": ["", 2 * size + 1],  # "" is as if it were 1
        "truncate": [-1, tokens // 2, tokens + 1],
        "free": [""],
    }
    return [f"{name}.{verb}({each})" for verb in verbs for each in arguments.get(verb, [])]


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
    for name in tables:
        for ours, theirs in zip(right[name].block_ids, mine[name].block_ids, strict=False):
            if theirs not in renamed.values():
                renamed.setdefault(ours, theirs)
    wanted = [
        f"{name} {[renamed.get(block_id, 'new') for block_id in right[name].block_ids]} "
        f"{right[name].num_tokens} tokens"
        for name in tables
    ]
    have = [f"{name} {[*mine[name].block_ids]} {mine[name].num_tokens} tokens" for name in tables]
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
        agree(_in_words(3, 4, [0, 0, 0], 3), _state_of(second, 3), message)


@exercise
def block_pool(answer: type) -> str:
    """A class with BlockPool's verbs.

    These are num_blocks, block_size, num_free, allocate, share, release and refcount.
    """
    search_pool(answer)
    return (
        "Your pool agrees with a plain list of counts on every short sequence of operations tried "
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
    named = answer if isinstance(answer, dict) else {}
    for pool, invariant in (("A", "conserved"), ("B", "exclusive"), ("C", "atomic")):
        given = named.get(pool)
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
