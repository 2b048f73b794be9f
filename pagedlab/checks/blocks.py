"""Checks of notebooks 00, 02 and 03: positions and slots, the block pool, the block table,
copy-on-write.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from string import ascii_lowercase
from typing import Any

from pagedlab.blocks import BlockCopy, BlockPool, BlockTable, OutOfBlocks
from pagedlab.checks import Trial, Wrong, agree, compared, exercise, explain, search, trying
from pagedlab.lessons.broken import POOLS, CountsForks

Names = dict[str, Any]  # among which operations are carried out
INVARIANTS = {
    "counted": "a block's count is its number of references: allocate gives one, share adds one, release takes one",
    "exclusive": "allocate never hands out a block that is in use",
    "conserved": "free blocks and blocks in use add up to all blocks: none is lost, none appears twice",
    "atomic": "an operation that raises an error changes nothing",
}
"""What holds in a right pool after every operation. Notebook 02 asks which one each of
`broken.POOLS` breaks.
"""


def family(num_tokens: int, block_size: int, num_forks: int) -> tuple[BlockPool, list[BlockTable]]:
    """A pool with a table of so many tokens, and its forks."""
    pool = BlockPool(256, block_size)
    table = BlockTable(pool)
    table.append(num_tokens)
    return pool, [table, *(table.fork() for _ in range(num_forks))]


def _carry_out(line: str, names: Names, expected: type[Exception] | None) -> tuple[Any, str]:
    """Execute "call" or "name = call", `Wrong` unless it raises what is expected: the value, and
    when that was.
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


def pool_trial(
    pool_class: Callable[[int, int], Any],
    num_blocks: int = 3,
    block_size: int = 4,
    unknown_ids: bool = True,
) -> Trial:
    """A pool beside a plain list of counts, one a block, that says what every operation
    should do.

    Args:
        unknown_ids: whether ids that no block has are tried too.
    """
    yield f"pool = {getattr(pool_class, '__name__', 'Pool')}({num_blocks}, {block_size})"
    pool, when = pool_class(num_blocks, block_size), "In a new pool"
    names, counts = {"pool": pool}, [0] * num_blocks
    ids: dict[str, int] = {}  # what each variable of the operations holds
    agree(
        [num_blocks, block_size],
        [pool.num_blocks, pool.block_size],
        "pool.num_blocks or pool.block_size differs.",
    )
    while True:
        free = [b for b, count in enumerate(counts) if count == 0]
        refcounts = [pool.refcount(b) for b in range(num_blocks)]
        off = [
            f"the count of block {b} differs"
            for b, count in enumerate(counts)
            if count != refcounts[b]
        ]
        message = f"{when}: {(off or ['num_free differs'])[0]}."
        agree(
            (counts, len(free)),
            (refcounts, pool.num_free),
            message,
            "counts {0[0]}, num_free {0[1]}".format,
        )

        fresh = [f"{name} = pool.allocate()" for name in ascii_lowercase[len(ids) :][:1]]
        arguments = [*ids, *(("-1", str(num_blocks)) if unknown_ids else ())]
        operation = yield fresh + [
            f"pool.{verb}({name})" for verb in ("share", "release") for name in arguments
        ]
        verb, argument = operation.rpartition("pool.")[2].rstrip(")").split("(")
        block_id = ids.get(argument, -1)
        in_use = block_id >= 0 and counts[block_id] > 0
        allowed, error = (free, OutOfBlocks) if verb == "allocate" else (in_use, ValueError)
        value, when = _carry_out(operation, names, None if allowed else error)
        if allowed and verb == "allocate":
            if type(value) is not int or value not in free:
                raise Wrong(
                    f"{when}: allocate must hand out a free block.", f"one of {free}", repr(value)
                )
            ids[operation[0]], counts[value] = value, 1
        elif allowed:
            counts[block_id] += 1 if verb == "share" else -1
            if verb == "share":
                agree(block_id, value, f"{when}: share must return the block's id.")


def table_trial(
    table_class: type, verbs: Sequence[str], num_blocks: int = 4, block_size: int = 2
) -> Trial:
    """A table class beside `BlockTable`, each over a `BlockPool` of its own, doing the same
    operations.
    """
    new = f"{table_class.__name__}(pool)"
    yield f"pool = BlockPool({num_blocks}, {block_size}); a = {new}"
    pools = BlockPool(num_blocks, block_size), BlockPool(num_blocks, block_size)
    both = zip(pools, (BlockTable, table_class), strict=True)
    right, mine = (
        {"pool": pool, table_class.__name__: made, "a": made(pool)} for pool, made in both
    )
    tables, renamed = ["a"], _compare("In a new table", ["a"], right, mine, {})
    while True:
        operation = yield _choices(
            {name: right[name].num_tokens for name in tables}, verbs, block_size, new
        )
        copies, raised = list[BlockCopy](), None
        try:
            copies, _ = _carry_out(operation, right, None)
        except (OutOfBlocks, ValueError) as error:
            raised = type(error)
        value, when = _carry_out(operation, mine, raised)
        if " = " in operation:
            tables.append(operation[0])
        renamed = _compare(when, tables, right, mine, renamed)
        if ".append(" in operation and not raised:
            wanted = [(renamed[source], renamed[destination]) for source, destination in copies]
            if value is None or [tuple(copy) for copy in value] != wanted:
                raise Wrong(
                    f"{operation} must return its copies, as (source, destination).",
                    wanted,
                    repr(value),
                )
        for name in tables if "slot" in verbs else ():
            ids = list(mine[name].block_ids)
            for p in range(mine[name].num_tokens):
                message = f"{name}.slot({p}) differs; {name} maps blocks {ids}."
                agree(slot(ids, p, block_size), mine[name].slot(p), message)


def _choices(tables: dict[str, int], verbs: Sequence[str], block_size: int, new: str) -> list[str]:
    """Operations on tables of so many tokens. `new` makes another one."""
    lines = []
    for name, tokens in tables.items():
        lengths = [n for n in sorted({tokens - 1, block_size, tokens + 1}) if 0 <= n <= tokens + 1]
        arguments = {"append": (1, 2 * block_size + 1), "truncate": lengths, "free": ("",)}
        lines += [f"{name}.{verb}({n})" for verb in verbs for n in arguments.get(verb, ())]
    makers = (
        [*(f"{name}.fork()" for name in tables if "fork" in verbs), new] if len(tables) < 5 else []
    )
    return lines + [f"{ascii_lowercase[len(tables)]} = {maker}" for maker in makers]


def _compare(
    when: str, tables: list[str], right: Names, mine: Names, renamed: dict[int, int]
) -> dict[int, int]:
    """`Wrong` where the tables of these names differ.

    Takes and returns what our blocks are called by the answer.

    A right answer may pick other physical blocks, so the reference's ids are renamed to the
    answer's as they turn up; a block keeps its name for as long as a table maps it.
    """
    mapped = {b for name in tables for b in right[name].block_ids}
    renamed = {ours: theirs for ours, theirs in renamed.items() if ours in mapped}
    for name in tables:
        for ours, theirs in zip(right[name].block_ids, list(mine[name].block_ids), strict=False):
            if ours not in renamed and theirs not in renamed.values():
                renamed[ours] = theirs
    wanted = {name: [str(renamed.get(b, "new")) for b in right[name].block_ids] for name in tables}
    have = {name: list(map(str, mine[name].block_ids)) for name in tables}
    sides = (right, wanted), (mine, have)
    states = [
        [f"{n} [{', '.join(ids[n])}] {its[n].num_tokens} tokens" for n in tables]
        for its, ids in sides
    ]
    if states[0] != states[1]:
        pairs = [
            (i, name, *two)
            for name in tables
            for i, two in enumerate(zip_longest(wanted[name], have[name]))
        ]
        off = [
            f"logical block {i} of {name} is the first that differs"
            for i, name, *two in pairs
            if len({*two}) > 1
        ]
        widths = [max(map(len, pair)) for pair in zip(*states, strict=True)]
        said = ("  ".join(map(str.ljust, state, widths)).rstrip() for state in states)
        raise Wrong(f"{when}: {(off or ['num_tokens differs'])[0]}.", *said)
    for b in range(mine["pool"].num_blocks):
        counts, users = mine["pool"].refcount(b), sum(have[name].count(str(b)) for name in tables)
        if counts != users:
            said = (
                f"{'  '.join(states[1])}, block {b} counts {count}" for count in (users, counts)
            )
            raise Wrong(f"{when}: block {b} counts {counts}, but {users} tables map it.", *said)
    return renamed


def _search_tables(table_class: type, verbs: Sequence[str]) -> None:
    search(
        [
            partial(table_trial, table_class, verbs, n, size)
            for n, size in ((6, 2), (6, 4), (5, 1), (7, 3))
        ]
    )


@exercise
def block_of(answer: int) -> str:
    """Which physical block holds token 37, for the table [5, 9, 4] and 16 tokens a block?"""
    table = [5, 9, 4]
    if answer == table[37 // 16]:
        return (
            "Token 37 is in logical block 37 // 16 = 2, at offset 37 % 16 = 5. Entry 2 of the "
            "table says: physical block 4."
        )
    reasons = {
        2: "2 is the number of the table's entry. The entry says which block of the memory it is.",
        3: "The table has the entries 0, 1 and 2; there is no entry 3. Divide and round down.",
        5: "Block 5 is the table's first entry: it holds tokens 0 to 15.",
        9: "Block 9 is the table's second entry: it holds tokens 16 to 31.",
        37: "37 is the number of the token. Which entry of the table covers it?",
    }
    said = "The answer is one of the numbers in the table."
    if isinstance(answer, int | float):
        said = reasons.get(answer, said)
        if answer == 37 / 16:
            said = "37 / 16 is not a whole number. Round it down: that is the entry of the table."
    asked = "the block of the memory that holds token 37"
    raise Wrong(said, asked, repr(answer), "table = [5, 9, 4]")


@exercise
def block_pool(answer: type) -> str:
    """A pool with BlockPool's verbs: num_blocks, block_size, num_free, allocate, share, release,
    refcount.
    """
    # A mistake with ordinary ids is shown before a mistake with ids that no block has.
    for unknown_ids in (False, True):
        search([partial(pool_trial, answer, n, unknown_ids=unknown_ids) for n in (3, 2, 8)])
    does = (
        "Your pool does what a plain list of counts says, over every short sequence of operations "
        "tried and over"
    )
    return (
        f"{does}\nrandom longer ones: no block is lost, none is handed out twice, and an error "
        "changes nothing."
    )


_TABLES = [
    ([0], 2),
    ([1], 2),
    ([1, 0], 2),
    ([5, 12, 3], 16),
    ([7, 1], 4),
    ([4, 9, 2, 6], 3),
    ([3, 8, 1], 1),
]


@compared(
    "All {} positions tried are found, in blocks that lie anywhere in memory.",
    [
        (block_ids, position, size)
        for block_ids, size in _TABLES
        for position in range(len(block_ids) * size)
    ],
)
def slot(block_ids: Sequence[int], position: int, block_size: int) -> int:
    """Physical slot of the token at a position, from a table's block ids and the block size."""
    return block_ids[position // block_size] * block_size + position % block_size


@exercise
def block_table(answer: type) -> str:
    """A table with append, slot and free, over the real pool; nothing is shared yet."""
    _search_tables(answer, ("append", "slot", "free"))
    return (
        "Your table always holds just enough blocks, takes all that it needs or none, and gives "
        "every one back."
    )


@exercise
def broken_pools(answer: dict[str, str]) -> str:
    """The invariant, by its name in `INVARIANTS`, that each of the three broken pools breaks
    first.
    """
    if not isinstance(answer, dict):
        wanted = '{"A": ..., "B": ..., "C": ...}'
        raise Wrong("The answer is a dictionary with a name for each pool.", wanted, repr(answer))
    for name, invariant in (("A", "conserved"), ("B", "exclusive"), ("C", "atomic")):
        said = answer.get(name)
        if said not in INVARIANTS:
            raise Wrong(f"Pool {name} needs one of the names.", " | ".join(INVARIANTS), repr(said))
        if said != invariant:
            try:
                # Under a name that says nothing of what is wrong with it.
                search([partial(pool_trial, type(f'POOLS["{name}"]', (POOLS[name],), {}))])
            except Wrong as shown:
                hint = (
                    " Its counts are right as long as no call raises."
                    if said == "counted" and name == "C"
                    else ""
                )
                shown.args = (
                    f"Pool {name} breaks another one.{hint} Watch it here, beside a right pool. "
                    f"{shown}",
                )
                shown.got = f"{shown.got} (pool {name})"
                raise
    return "A loses blocks, B hands out a block that is in use, C increments before it validates."


@exercise
def copy_on_write(answer: type) -> str:
    """A table with append, fork and free over the real pool, copying on write and only then."""
    _search_tables(answer, ("append", "fork", "free"))
    does = (
        "Your forks share every block, a write copies at most the last one, and every count "
        "returns to zero."
    )
    return f"{does}\nNo sequence can write what another one reads."


@compared(
    "The same as counting on the real pool in all {} cases: a full last block is never copied, a\n"
    "partial one once for each sequence but the last, however long the prompt.",
    sorted(
        (n, tokens, b)
        for n in range(4)
        for b in (4, 1, 16)
        for tokens in {0, 1, b - 1, b, b + 1, 2 * b}
    ),
)
def copies_after_forks(num_forks: int, num_tokens: int, block_size: int) -> int:
    """Blocks copied when a sequence of `num_tokens` is forked `num_forks` times and all then append
    one token.
    """
    return sum(len(table.append(1)) for table in family(num_tokens, block_size, num_forks)[1])


@exercise
def truncate(answer: Callable[[Any, int], None]) -> str:
    """`truncate(table, num_tokens)`: forget the tokens from there on and release the blocks that
    held only those.
    """
    table_class = type(
        "TableWithYours", (BlockTable,), {"truncate": answer, "free": BlockTable.free}
    )
    _search_tables(table_class, ("append", "fork", "truncate"))
    names: Names = {"a": table_class(BlockPool(4, 4))}
    with trying("a.append(5)", "a.truncate(-1)"):
        names["a"].append(5)
        _carry_out("a.truncate(-1)", names, ValueError)
    return (
        "Rolling back releases just the blocks that are no longer needed, also when a fork still "
        "reads them."
    )


@exercise
def order_of_frees(answer: Sequence[str]) -> str:
    """An order of freeing a, b, c and d after which `broken.CountsForks` has freed a block that
    somebody reads.
    """
    setup = "a.append(8); b = a.fork(); c = b.fork(); d = a.fork()"
    if sorted(answer) != list("abcd"):
        raise Wrong(
            "Name each of a, b, c and d once.", "an order of a, b, c, d", answer, setup=setup
        )
    names: Names = {"a": CountsForks(BlockPool(4, 4))}
    exec(setup, names)  # noqa: S102 - the line above
    pool, steps = names["a"].pool, []
    for number, name in enumerate(answer, 1):
        names[name].free()
        left = answer[number:]
        if readers := [
            reader for reader in left if any(not pool.refcount(i) for i in names[reader].block_ids)
        ]:
            still = f"{readers[0]} still reads them. It is a fork\nof a fork"
            counts = "a counts b and d, b counts c, and nobody counts who reads the block."
            return f"After {name} is freed the prompt's blocks are free, and {still}: {counts}"
        steps.append(
            f"{name}.free()  # num_free {pool.num_free}, still reading: "
            f"{', '.join(left) or 'nobody'}"
        )
    expected, got = "blocks free while somebody reads them", "blocks free when nobody does"
    raise Wrong(
        "With this order the blocks are freed after their last reader.",
        expected,
        got,
        *steps,
        setup=setup,
    )
