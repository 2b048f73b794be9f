"""Checks of notebooks 00, 02 and 03: positions and slots, the block pool, the block table, copy-on-write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest
from string import ascii_lowercase
from typing import Any

from pagedlab.blocks import BlockPool, BlockTable, OutOfBlocks
from pagedlab.checks import Wrong, attempt, compare, exercise, explain, search
from pagedlab.lessons.broken import POOLS, CountsForks

INVARIANTS = {
    "counted": "a block's count is its number of references: allocate gives one, share adds one, release takes one",
    "exclusive": "allocate never hands out a block that is in use",
    "conserved": "free blocks and blocks in use add up to all blocks: none is lost, none appears twice",
    "atomic": "an operation that raises an error changes nothing",
}
"""What holds in a right pool after every operation. Notebook 02 asks which one each of `broken.POOLS` breaks."""


def _same_outcome(line: str, expected: type[Exception] | None, error: Exception | None, value: Any) -> None:
    if error is not None and expected is None:
        raise Wrong("Your code raises an error.", "no error", explain(error))
    if expected is not None and not isinstance(error, expected):
        got = explain(error) if error else f"no error, but the value {value!r}"
        raise Wrong(f"{line} must raise {expected.__name__}.", expected.__name__, got)


class PoolTrial:
    """A pool beside a plain list of counts, one a block, that says what every operation should do."""

    def __init__(self, pool_class: Callable[[int, int], Any], num_blocks: int = 3, block_size: int = 4) -> None:
        self.setup = f"pool = {getattr(pool_class, '__name__', 'Pool')}({num_blocks}, {block_size})"
        self.names: dict[str, Any] = {"pool": pool_class(num_blocks, block_size)}
        self.ids: dict[str, int] = {}  # what each variable of the operations holds
        self.counts = [0] * num_blocks
        for attribute, expected in (("num_blocks", num_blocks), ("block_size", block_size)):
            if getattr(self.names["pool"], attribute) != expected:
                raise Wrong(f"pool.{attribute} differs.", expected, repr(getattr(self.names["pool"], attribute)))
        self._compare("In a new pool")

    def choices(self) -> Sequence[str]:
        unknown = ["-1", str(len(self.counts))]
        fresh = [f"{name} = pool.allocate()" for name in ascii_lowercase[len(self.ids) :][:1]]
        return fresh + [f"pool.{verb}({name})" for verb in ("share", "release") for name in (*self.ids, *unknown)]

    def do(self, operation: str) -> None:
        verb, argument = operation.rpartition("pool.")[2].rstrip(")").split("(")
        expected: type[Exception] | None = None
        block_id = -1
        if argument:
            block_id = self.ids[argument] if argument in self.ids else int(argument)
            if not (0 <= block_id < len(self.counts) and self.counts[block_id]):
                expected = ValueError
        elif all(self.counts):
            expected = OutOfBlocks
        value, error = attempt(operation, self.names)
        _same_outcome(operation, expected, error, value)
        if verb == "allocate" and not expected:
            free = [b for b, count in enumerate(self.counts) if count == 0]
            if type(value) is not int or value not in free:
                raise Wrong(f"After {operation}: allocate must hand out a free block.", f"one of {free}", repr(value))
            self.ids[operation[0]] = value
            self.counts[value] = 1
        elif not expected:
            self.counts[block_id] += 1 if verb == "share" else -1
            if verb == "share" and value != block_id:
                raise Wrong(f"After {operation}: share must return the block's id.", block_id, repr(value))
        self._compare(f"After {operation}" + (", which raises as it should and must change nothing" if error else ""))

    def _compare(self, when: str) -> None:
        pool = self.names["pool"]
        counts, num_free = [pool.refcount(b) for b in range(len(self.counts))], pool.num_free
        if (counts, num_free) != (self.counts, self.counts.count(0)):
            differing = [b for b, pair in enumerate(zip(self.counts, counts, strict=True)) if pair[0] != pair[1]]
            what = f"the count of block {differing[0]} differs" if differing else "num_free differs"
            state = "counts {}, num_free {}".format
            raise Wrong(f"{when}: {what}.", state(self.counts, self.counts.count(0)), state(counts, num_free))


class TableTrial:
    """A table class beside `BlockTable`, each over a `BlockPool` of its own, doing the same operations.

    A right answer may pick other physical blocks, so the reference's ids are renamed to the answer's as they
    turn up; a block keeps its name for as long as a table maps it.
    """

    def __init__(self, table_class: type, verbs: Sequence[str], num_blocks: int = 4, block_size: int = 2) -> None:
        self.verbs, self.size = verbs, block_size
        self.class_name = table_class.__name__
        self.setup = f"pool = BlockPool({num_blocks}, {block_size}); a = {self.class_name}(pool)"
        self.mine, self.right = (
            {"pool": pool, self.class_name: made, "a": made(pool)}
            for pool, made in ((BlockPool(num_blocks, block_size), t) for t in (table_class, BlockTable))
        )
        self.tables = ["a"]
        self.renamed: dict[int, int] = {}  # the reference's block -> the answer's
        self._compare("In a new table")

    def choices(self) -> Sequence[str]:
        lines = []
        for name in self.tables:
            tokens = self.right[name].num_tokens
            if "append" in self.verbs:
                lines += [f"{name}.append({n})" for n in (1, 2 * self.size + 1)]
            if "truncate" in self.verbs:
                lengths = {tokens - 1, self.size, tokens + 1}
                lines += [f"{name}.truncate({n})" for n in sorted(lengths) if 0 <= n <= tokens + 1]
            if "free" in self.verbs:
                lines.append(f"{name}.free()")
        if len(self.tables) < 5:
            fresh = ascii_lowercase[len(self.tables)]
            lines += [f"{fresh} = {name}.fork()" for name in self.tables if "fork" in self.verbs]
            lines.append(f"{fresh} = {self.class_name}(pool)")
        return lines

    def do(self, operation: str) -> None:
        (value, error), (expected, right_error) = attempt(operation, self.mine), attempt(operation, self.right)
        _same_outcome(operation, type(right_error) if right_error else None, error, value)
        if " = " in operation:
            self.tables.append(operation[0])
        self._compare(f"After {operation}" + (", which raises as it should and must change nothing" if error else ""))
        if ".append(" in operation and not error:
            copies = [(self.renamed[source], self.renamed[destination]) for source, destination in expected]
            if value is None or [tuple(copy) for copy in value] != copies:
                raise Wrong(f"{operation} must return its copies, as (source, destination).", copies, repr(value))

    def _compare(self, when: str) -> None:
        pool, wanted = self.mine["pool"], self._wanted()
        have = {name: list(self.mine[name].block_ids) for name in self.tables}
        references = Counter[Any](b for ids in wanted.values() for b in ids)
        counts = Counter[Any]({b: pool.refcount(b) for b in range(pool.num_blocks)})
        lengths = [(self.right[name].num_tokens, self.mine[name].num_tokens) for name in self.tables]
        pairs = [(n, i, *pair) for n in wanted for i, pair in enumerate(zip_longest(wanted[n], have[n]))]
        if differing := [(name, index) for name, index, expected, got in pairs if expected != got]:
            what = "logical block {1} of {0} is the first that differs".format(*differing[0])
        elif off := [b for b in sorted(counts | references, key=str) if counts[b] != references[b]]:
            what = f"block {off[0]} counts {counts[off[0]]}, but {references[off[0]]} tables map it"
        elif any(right != mine for right, mine in lengths):
            what = "num_tokens differs"
        else:
            return self._compare_slots(have)
        right, mine = zip(*lengths, strict=True) if what == "num_tokens differs" else ((), ())
        pairs_of_text = zip(_state(wanted, right), _state(have, mine), strict=True)
        columns = [[text.ljust(max(map(len, pair))) for text in pair] for pair in pairs_of_text]
        expected, got = map("  ".join, zip(*columns, strict=True))
        raise Wrong(f"{when}: {what}.", expected + _counts(references), got + _counts(counts))

    def _wanted(self) -> dict[str, list[int | str]]:
        """The reference's tables in the answer's block ids; "new" where the answer has yet to take a free block."""
        mapped = {b for name in self.tables for b in self.right[name].block_ids}
        self.renamed = {right: mine for right, mine in self.renamed.items() if right in mapped}
        for name in self.tables:
            for right, mine in zip(self.right[name].block_ids, list(self.mine[name].block_ids), strict=False):
                if right not in self.renamed and mine not in self.renamed.values():
                    self.renamed[right] = mine
        return {name: [self.renamed.get(b, "new") for b in self.right[name].block_ids] for name in self.tables}

    def _compare_slots(self, tables: dict[str, list[int]]) -> None:
        if "slot" in self.verbs:
            for name, ids in tables.items():
                for p in range(self.mine[name].num_tokens):
                    expected, got = slot_of(ids, p, self.size), self.mine[name].slot(p)
                    if got != expected:
                        raise Wrong(f"{name}.slot({p}) differs; {name} maps blocks {ids}.", expected, repr(got))


def _state(tables: dict[str, Any], lengths: Sequence[int]) -> list[str]:
    said = [f"{name} [{', '.join(map(str, ids))}]" for name, ids in tables.items()]
    return [f"{text} {length} tokens" for text, length in zip(said, lengths, strict=True)] if lengths else said


def _counts(counts: Counter[Any]) -> str:
    return "    counts " + ", ".join(f"{b}:{counts[b]}" for b in sorted(counts, key=str) if counts[b])


def _search_tables(table_class: type, verbs: Sequence[str]) -> None:
    sizes = [(6, 2), (6, 4), (5, 1), (7, 3)]
    search([partial(TableTrial, table_class, verbs, n, size) for n, size in sizes])


def slot_of(block_ids: Sequence[int], position: int, block_size: int) -> int:
    """Physical slot of the token at `position`."""
    return block_ids[position // block_size] * block_size + position % block_size


# Notebook 00 --------------------------------------------------------------------------------------------------


@exercise
def block_of(answer: int) -> str:
    """In which logical block does token 37 lie, at 16 tokens a block?"""
    if answer == 37 // 16:
        return "Token 37 lies in logical block 37 // 16 = 2, at offset 37 % 16 = 5. Counting starts at zero."
    blocks = [f"block {i}: tokens {16 * i} to {16 * i + 15}" for i in range(3)]
    expected = "the number of the block where 37 is"
    raise Wrong("Tokens and blocks are counted from zero.", expected, repr(answer), operations=blocks)


# Notebook 02 --------------------------------------------------------------------------------------------------


@exercise
def block_pool(answer: type) -> str:
    """A pool with BlockPool's verbs: num_blocks, block_size, num_free, allocate, share, release, refcount."""
    search([partial(PoolTrial, answer, n) for n in (3, 2, 8)])
    return (
        "Your pool does what a plain list of counts says, over every short sequence of operations tried and over\n"
        "random longer ones: no block is lost, none is handed out twice, and an error changes nothing."
    )


@exercise
def slot(answer: Callable[[Sequence[int], int, int], int]) -> str:
    """Physical slot of the token at a position, from a table's block ids and the block size."""
    tables = [([0], 2), ([1], 2), ([1, 0], 2), ([5, 12, 3], 16), ([7, 1], 4), ([4, 9, 2, 6], 3), ([3, 8, 1], 1)]
    cases = [(ids, position, size) for ids, size in tables for position in range(len(ids) * size)]
    compare(answer, slot_of, cases)
    return f"All {len(cases)} positions tried are found, in blocks that lie anywhere in memory."


@exercise
def block_table(answer: type) -> str:
    """A table with append, slot and free, over the real pool; nothing is shared yet."""
    _search_tables(answer, ("append", "slot", "free"))
    return "Your table always holds just enough blocks, takes all that it needs or none, and gives every one back."


@exercise
def broken_pools(answer: dict[str, str]) -> str:
    """The invariant, by its name in `INVARIANTS`, that each of the three broken pools breaks first."""
    broken = {"A": "conserved", "B": "exclusive", "C": "atomic"}
    for name, invariant in broken.items():
        said = answer.get(name)
        if said not in INVARIANTS:
            raise Wrong(f"Pool {name} needs one of the names.", " | ".join(INVARIANTS), repr(said))
        if said != invariant:
            try:
                search([partial(PoolTrial, POOLS[name])])
            except Wrong as shown:
                hint = " Its counts are right as long as no call raises." if said == "counted" and name == "C" else ""
                message = f"Pool {name} breaks another one.{hint} Watch it here, beside a right pool. {shown}"
                got = f"{shown.got} (pool {name})"
                raise Wrong(message, shown.expected, got, setup=shown.setup, operations=shown.operations) from None
    return "A loses blocks, B hands out a block that is in use, C counts before it looks."


# Notebook 03 --------------------------------------------------------------------------------------------------


@exercise
def copy_on_write(answer: type) -> str:
    """A table with append, fork and free over the real pool, copying on write and only then."""
    _search_tables(answer, ("append", "fork", "free"))
    return (
        "Your forks share every block, a write copies at most the last one, and every count returns to zero.\n"
        "No sequence can write what another one reads."
    )


@exercise
def copies_after_forks(answer: Callable[[int, int, int], int]) -> str:
    """Blocks copied when a sequence of `num_tokens` is forked `num_forks` times and all then append one token."""

    def count(num_forks: int, num_tokens: int, block_size: int) -> int:
        table = BlockTable(BlockPool(64, block_size))
        table.append(num_tokens)
        family = [table, *(table.fork() for _ in range(num_forks))]
        return sum(len(member.append(1)) for member in family)

    sizes = [(size, tokens) for size in (4, 1, 16) for tokens in sorted({0, 1, size - 1, size, size + 1, 2 * size})]
    cases = sorted((forks, tokens, size) for forks in range(4) for size, tokens in sizes)
    compare(answer, count, cases)
    return (
        f"The same as counting on the real pool in all {len(cases)} cases: a full last block is never copied, a\n"
        "partial one once for each sequence but the last, however long the prompt."
    )


@exercise
def truncate(answer: Callable[[Any, int], None]) -> str:
    """`truncate(table, num_tokens)`: forget the tokens from there on and release the blocks that held only those."""
    table_class = type("TableWithYours", (BlockTable,), {"truncate": answer, "free": BlockTable.free})
    _search_tables(table_class, ("append", "fork", "truncate"))
    return "Rolling back releases just the blocks that are no longer needed, also when a fork still reads them."


@exercise
def order_of_frees(answer: Sequence[str]) -> str:
    """An order of freeing a, b, c and d after which `broken.CountsForks` has freed a block that somebody reads."""
    setup = "a.append(8); b = a.fork(); c = b.fork(); d = a.fork()"
    if sorted(answer) != list("abcd"):
        raise Wrong("Name each of a, b, c and d once.", "an order of a, b, c, d", answer, setup=setup)
    names: dict[str, Any] = {"a": CountsForks(BlockPool(4, 4))}
    exec(setup, names)  # noqa: S102 - the line above
    pool, steps = names["a"].pool, []
    for number, name in enumerate(answer, 1):
        names[name].free()
        left = answer[number:]
        if readers := [reader for reader in left if any(not pool.refcount(i) for i in names[reader].block_ids)]:
            return (
                f"After {name} is freed the prompt's blocks are free, and {readers[0]} still reads them. It is a fork\n"
                "of a fork: a counts b and d, b counts c, and nobody counts who reads the block."
            )
        steps.append(f"{name}.free()  # num_free {pool.num_free}, still reading: {', '.join(left) or 'nobody'}")
    expected, got = "blocks free while somebody reads them", "blocks free when nobody does"
    message = "With this order the blocks are freed after their last reader."
    raise Wrong(message, expected, got, setup=setup, operations=steps)
