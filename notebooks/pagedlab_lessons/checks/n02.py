"""Checks of notebook 02: slots, the block pool, the block table, broken pools.

The walks over pools and tables are those of other notebooks, too.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from string import ascii_lowercase
from typing import Any

from pagedlab.blocks import BlockCopy, BlockPool, BlockTable, OutOfBlocks
from pagedlab_lessons.broken import POOLS
from pagedlab_lessons.checks.protocol import (
    Trial,
    Wrong,
    agree,
    compared,
    exercise,
    exercise_of_methods,
    search,
    trying,
)
from pagedlab_lessons.readers_code import explain

Names = dict[str, Any]  # variables of the operations
INVARIANTS = {
    "counted": "as long as no call raises, a block's count is its number of references: allocate "
    "gives one, share adds one, release takes one",
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


def _carry_out(line: str, names: Names, expected: type[Exception] | None) -> tuple[Any, str]:
    """Execute "call" or "name = call".

    Args:
        line: the operation.
        names: its variables; gets `name`.
        expected: the error that it must raise, None if it must raise none.

    Returns:
        The value, and how a message about the state after it begins.

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
            return None, f"After {line}, which raises as it should and must change nothing"
        got = explain(error)
    if expected is not None:
        raise Wrong(f"{line} must raise {expected.__name__}.", expected.__name__, got)
    return value, f"After {line}"


# The pool -----------------------------------------------------------------------------------------


def pool_trial(
    pool_class: Callable[[int, int], Any],
    num_blocks: int = 3,
    block_size: int = 4,
    unknown_ids: bool = True,
    mistakes: bool = True,
) -> Trial:
    """Drive a pool beside a plain list of counts, one for each block.

    Args:
        pool_class: the reader's.
        num_blocks: of the pool.
        block_size: of the pool.
        unknown_ids: whether ids that no block has are tried too.
        mistakes: whether operations that must raise are tried: on a free block, or without one.
    """
    no_blocks = ("-1", str(num_blocks)) if unknown_ids else ()
    yield f"pool = {getattr(pool_class, '__name__', 'Pool')}({num_blocks}, {block_size})"
    pool = pool_class(num_blocks, block_size)
    names: Names = {"pool": pool}
    counts = [0] * num_blocks
    ids: dict[str, int] = {}  # the block that each variable holds
    sizes = "pool.num_blocks or pool.block_size differs."
    agree([num_blocks, block_size], [pool.num_blocks, pool.block_size], sizes)
    when = "In a new pool"
    while True:
        _check_counts(when, pool, counts)
        arguments = [name for name, block_id in ids.items() if mistakes or counts[block_id]]
        operations = [
            f"pool.{verb}({argument})"
            for verb in ("share", "release")
            for argument in (*arguments, *no_blocks)
        ]
        if len(ids) < len(ascii_lowercase) and (mistakes or 0 in counts):
            operations.insert(0, f"{ascii_lowercase[len(ids)]} = pool.allocate()")
        operation = yield operations
        if operation.endswith("allocate()"):
            free = [block_id for block_id, count in enumerate(counts) if count == 0]
            value, when = _carry_out(operation, names, None if free else OutOfBlocks)
            if free:
                if type(value) is not int or value not in free:
                    message = f"{when}: allocate must hand out a free block."
                    raise Wrong(message, f"one of {free}", repr(value))
                ids[operation[0]] = value
                counts[value] = 1
            continue
        verb, argument = operation.removeprefix("pool.").rstrip(")").split("(")
        block_id = ids.get(argument, -1)
        in_use = block_id >= 0 and counts[block_id] > 0
        value, when = _carry_out(operation, names, None if in_use else ValueError)
        if in_use:
            counts[block_id] += 1 if verb == "share" else -1
        if in_use and verb == "share":
            agree(block_id, value, f"{when}: share must return the block's id.")


def _check_counts(when: str, pool: Any, counts: list[int]) -> None:
    """Raise `Wrong` unless the pool's counts and its number of free blocks are right."""
    refcounts = [pool.refcount(block_id) for block_id in range(len(counts))]
    wrong = [i for i, count in enumerate(counts) if count != refcounts[i]]
    differs = f"the count of block {wrong[0]} differs" if wrong else "num_free differs"
    expected, got = (
        f"counts {each}, num_free {free}"
        for each, free in ((counts, counts.count(0)), (refcounts, pool.num_free))
    )
    agree(expected, got, f"{when}: {differs}.")


# Tables -------------------------------------------------------------------------------------------


def search_tables(table_class: type, verbs: Sequence[str]) -> None:
    """Search for a sequence of operations on which a table class goes wrong.

    Raises:
        Wrong: If it finds one, or the answer is no class.
    """
    if not isinstance(table_class, type):
        raise Wrong("Give the class itself.", "a class", repr(table_class))
    sizes = [(6, 2), (6, 4), (5, 1), (7, 3)]
    search([partial(table_trial, table_class, verbs, *size) for size in sizes])


def table_trial(table_class: type, verbs: Sequence[str], num_blocks: int, block_size: int) -> Trial:
    """Drive a table class beside `BlockTable`, each over its own `BlockPool`.

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
    renamed = _compare_tables("In a new table", tables, right, mine, {})
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
        copies: list[BlockCopy] = []
        raised = None
        try:
            copies, _ = _carry_out(operation, right, None)
        except (OutOfBlocks, ValueError) as error:
            raised = type(error)
        value, when = _carry_out(operation, mine, raised)
        if " = " in operation:
            tables.append(operation[0])
        renamed = _compare_tables(when, tables, right, mine, renamed)
        if ".append(" in operation and not raised:
            wanted = [(renamed[source], renamed[destination]) for source, destination in copies]
            if value is None or [tuple(copy) for copy in value] != wanted:
                message = f"{operation} must return its copies, as (source, destination)."
                raise Wrong(message, wanted, repr(value))
        if "slot" in verbs:
            for name in tables:
                _check_slots(name, mine[name], block_size)


def _table_operations(name: str, tokens: int, verbs: Sequence[str], size: int) -> list[str]:
    """Return calls to try on a table of so many tokens, with bad arguments too."""
    lengths = {-1, tokens - 1, size, tokens + 1}
    arguments: dict[str, list[Any]] = {
        "append": [1 if name == "a" else "", 2 * size + 1],  # "" is as if it were 1
        "truncate": sorted(n for n in lengths if n <= tokens + 1),
        "free": [""],
    }
    return [f"{name}.{verb}({each})" for verb in verbs for each in arguments.get(verb, [])]


def _check_slots(name: str, table: Any, block_size: int) -> None:
    """Raise `Wrong` unless the table's `slot` is right at all positions."""
    ids = list(table.block_ids)
    for position in range(table.num_tokens):
        message = f"{name}.slot({position}) differs; {name} maps blocks {ids}."
        agree(slot(ids, position, block_size), table.slot(position), message)


def _compare_tables(
    when: str,
    tables: list[str],
    right: Names,
    mine: Names,
    renamed: dict[int, int],
) -> dict[int, int]:
    """Compare the tables of both sides, and the reader's counts with the reader's tables.

    A right answer may pick other physical blocks. So the reference's block ids are renamed to the
    answer's as they turn up. A block keeps its name as long as a table lists it.

    Args:
        when: how a message begins.
        tables: names of the tables.
        right: variables of the reference.
        mine: variables of the answer.
        renamed: the answer's name of each block of the reference.

    Returns:
        `renamed`, up to date.

    Raises:
        Wrong: Where the two differ.
    """
    mapped = {block_id for name in tables for block_id in right[name].block_ids}
    renamed = {ours: theirs for ours, theirs in renamed.items() if ours in mapped}
    for name in tables:
        for ours, theirs in zip(right[name].block_ids, list(mine[name].block_ids), strict=False):
            if ours not in renamed and theirs not in renamed.values():
                renamed[ours] = theirs
    wanted = {name: [renamed.get(i, "new") for i in right[name].block_ids] for name in tables}
    have = {name: list(mine[name].block_ids) for name in tables}
    expected, got = (
        "  ".join(
            f"{name} [{', '.join(map(str, ids))}] {names[name].num_tokens} tokens"
            for name, ids in blocks.items()
        )
        for names, blocks in ((right, wanted), (mine, have))
    )
    agree(expected, got, f"{when}: {_first_difference(wanted, have)}.")
    for block_id in range(mine["pool"].num_blocks):
        count = mine["pool"].refcount(block_id)
        users = sum(blocks.count(block_id) for blocks in have.values())
        lists = "1 table lists it" if users == 1 else f"{users} tables list it"
        message = f"{when}: block {block_id} counts {count}, but {lists}."
        state = f"{got}, block {block_id} counts"
        agree(f"{state} {users}", f"{state} {count}", message)
    return renamed


def _first_difference(wanted: dict[str, list[Any]], have: dict[str, list[Any]]) -> str:
    """Return which logical block differs first, in words."""
    for name in wanted:
        for i, (right, yours) in enumerate(zip_longest(wanted[name], have[name])):
            if right != yours:
                return f"logical block {i} of {name} is the first that differs"
    return "num_tokens differs"


# The exercises ------------------------------------------------------------------------------------


@exercise_of_methods("num_free", "refcount", "allocate", "share", "release")
def block_pool(answer: type) -> str:
    """A class with BlockPool's verbs.

    These are num_blocks, block_size, num_free, allocate, share, release and refcount.
    """
    # A mistake with ordinary ids is shown before a mistake with ids that no block has.
    for unknown_ids in (False, True):
        search([partial(pool_trial, answer, n, unknown_ids=unknown_ids) for n in (3, 2, 8)])
    new = f"{answer.__name__}(3, 4)"
    with trying(f"first = {new}; second = {new}", "first.allocate()"):
        first, second = answer(3, 4), answer(3, 4)
        first.allocate()
        message = "Two pools have the same blocks: __init__ has to make lists of each pool's own."
        agree([2, 3], [first.num_free, second.num_free], message)
        agree([0, 0, 0], [second.refcount(block_id) for block_id in range(3)], message)
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


@exercise_of_methods("append", "slot", "free")
def block_table(answer: type) -> str:
    """A table with append, slot and free, over the real pool; nothing is shared yet."""
    search_tables(answer, ("append", "slot", "free"))
    return (
        "Your table always has just enough blocks, allocates all that it needs or none, and "
        "releases each one."
    )


@exercise
def broken_pools(answer: dict[str, str]) -> str:
    """The invariant that each of the three broken pools breaks first, by its name in `INVARIANTS`.

    Such as {"A": "counted", "B": ..., "C": ...}.
    """
    if not isinstance(answer, dict):
        wanted = '{"A": ..., "B": ..., "C": ...}'
        raise Wrong("The answer is a dictionary with a name for each pool.", wanted, repr(answer))
    for pool, invariant in (("A", "conserved"), ("B", "exclusive"), ("C", "atomic")):
        given = answer.get(pool)
        if given not in INVARIANTS:
            raise Wrong(f"Pool {pool} needs one of the names.", " | ".join(INVARIANTS), repr(given))
        if given != invariant:
            _show_broken_pool(pool, given)
    return "A loses blocks, B hands out a block that is in use, C increments before it validates."


def _show_broken_pool(pool: str, given: str) -> None:
    """Raise `Wrong` with the shortest sequence of operations on which a pool goes wrong."""
    # The class gets a name that does not say what is wrong with it.
    anonymous = type(f'POOLS["{pool}"]', (POOLS[pool],), {})
    hint = ""
    if pool == "C" and given == "counted":
        hint = " Its counts are right as long as no call raises."
    try:
        search([partial(pool_trial, anonymous)])
    except Wrong as found:
        words = f"Pool {pool} breaks another one.{hint} Watch it here, beside a right pool. {found}"
        found.args = (words,)
        found.got = f"{found.got} (pool {pool})"
        raise
