"""Which test would have found which bug? Every planted bug of the block pool and table, before four judges.

    python tools/mutants.py data/results/mutants.json

The bugs are those of tests/broken.py and tests/test_blocks.py, one class each. For each of them the same
random programs run, of 50 operations on a small pool; an operation may refuse (OutOfBlocks, ValueError). The judges:

    end       when every table is freed and every reference given back, every block is free
    books     `pool.check(tables)` after every operation: counts and free list
    contents  every slot remembers its token: each table reads back what it wrote, after every operation
    model     the exact reference model, `BlockMachine` in tests/test_blocks.py

Written for each: after how many operations the bug was found, or null if it was not within the budget. An error of
another kind counts for every judge.
"""

from __future__ import annotations

import json
import random
import sys
from datetime import date
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import broken  # noqa: E402
from test_blocks import POOL_MUTANTS, TABLE_MUTANTS, BlockMachine  # noqa: E402

from pagedlab import BlockPool, BlockTable, OutOfBlocks  # noqa: E402

PROGRAMS, STEPS = 1000, 50
POOLS = [broken.FreesSharedBlock, *broken.POOLS.values(), *POOL_MUTANTS]
TABLES = [broken.NeverCopies, broken.LeaksOnFork, broken.CopiesEagerly, broken.CopiesWholeTable, broken.CountsForks]
BUGS: list[type] = [*POOLS, *TABLES, *TABLE_MUTANTS]
REFUSALS = (OutOfBlocks, ValueError)


class Program:
    """Random operations on a pool and its tables, and a memory in which every slot remembers what was written."""

    def __init__(self, rng: random.Random, bug: type) -> None:
        num_blocks, self.size = rng.randint(1, 14), rng.choice([4, 3, 2, 1])
        self.rng = rng
        self.pool = (bug if issubclass(bug, BlockPool) else BlockPool)(num_blocks, self.size)
        self.new_table = bug if issubclass(bug, BlockTable) else BlockTable
        self.memory = [[0] * self.size for _ in range(num_blocks)]
        self.tables: list[tuple[Any, list[int]]] = []
        self.held: list[tuple[int, list[int]]] = []  # references taken by hand, and what the block held then

    def operate(self) -> None:
        """One operation of a table or, by hand, of the pool."""
        rng = self.rng
        if rng.random() < 0.3:
            self.by_hand(rng.choice(["allocate", "share", "release", "keep", "forget"]))
        elif len(self.tables) < 2 or (rng.random() < 0.1 and len(self.tables) < 6):
            self.tables.append((self.new_table(self.pool), []))
            self.append(-1, rng.randint(0, 9))
        else:
            i = rng.randrange(len(self.tables))
            table, tokens = self.tables[i]
            verb = rng.choice(["append", "append", "write", "write", "fork", "truncate", "free"])
            if verb == "fork" and len(self.tables) < 6:
                self.tables.append((table.fork(), tokens[:]))
            elif verb == "truncate":
                length = rng.randint(0, len(tokens))
                table.truncate(length)
                del tokens[length:]
            elif verb == "free":
                del self.tables[i]
                table.free()
            else:
                self.append(i, 1 if verb == "write" else rng.randint(0, 9))

    def append(self, i: int, n: int) -> None:
        table, tokens = self.tables[i]
        for source, destination in table.append(n):
            self.memory[destination] = self.memory[source][:]
        new = [self.rng.randrange(1, 1 << 30) for _ in range(n)]
        for slot, token in zip(table.slots(len(tokens), len(tokens) + n), new, strict=True):
            self.memory[slot // self.size][slot % self.size] = token
        tokens += new

    def by_hand(self, verb: str) -> None:
        if verb == "allocate":
            block_id = self.pool.allocate()
            self.memory[block_id] = [self.rng.randrange(1, 1 << 30) for _ in range(self.size)]
            self.held.append((block_id, self.memory[block_id][:]))
        elif verb == "release" and self.held:
            self.pool.release(self.held.pop(self.rng.randrange(len(self.held)))[0])
        else:
            block_id = self.rng.randrange(-1, len(self.memory) + 1)
            if verb != "release" or self.pool.refcount(block_id) == 0:  # twice too often: must be refused
                getattr(self.pool, verb)(block_id)
            if verb == "share":
                self.held.append((block_id, self.memory[block_id][:]))

    # the judges: each raises if it sees something wrong

    def books(self) -> None:
        by_hand = BlockTable(self.pool)
        by_hand.block_ids = [block_id for block_id, _ in self.held]
        self.pool.check([*(table for table, _ in self.tables), by_hand])

    def contents(self) -> None:
        for table, tokens in self.tables:
            slots = [table.slot(position) for position in range(table.num_tokens)]
            assert [self.memory[slot // self.size][slot % self.size] for slot in slots] == tokens
        assert all(self.memory[block_id] == held for block_id, held in self.held)

    def end(self) -> None:
        for table, _ in self.tables:
            table.free()
        for block_id, _ in self.held:
            self.pool.release(block_id)
        assert (self.pool.num_used, self.pool.num_free) == (0, len(self.memory))


def sees(judge: Any) -> bool:
    try:
        judge()
    except Exception:
        return True
    return False


def search(bug: type, seed: int) -> dict[str, int | None]:
    """After how many operations each of the three judges that need no model finds the bug."""
    rng, done = random.Random(seed), 0
    found: dict[str, int | None] = dict.fromkeys(("end", "books", "contents"))
    for _ in range(PROGRAMS):
        program = Program(rng, bug)
        for _ in range(STEPS):
            done += 1
            crashed = False
            try:
                program.operate()
            except REFUSALS:
                pass
            except Exception:
                crashed = True
            for name in found:
                if found[name] is None and (crashed or (name != "end" and sees(getattr(program, name)))):
                    found[name] = done
            if crashed:
                break
        else:
            if found["end"] is None and sees(program.end):
                found["end"] = done
        if None not in found.values():
            break
    return found


def search_with_model(bug: type) -> int | None:
    """After how many operations the reference model finds the bug."""
    done = 0

    class Counting(BlockMachine):
        @invariant()
        def count(self) -> None:
            nonlocal done
            done += 1

    setattr(Counting, "pool_class" if issubclass(bug, BlockPool) else "table_class", bug)
    budget = settings(
        max_examples=PROGRAMS,
        stateful_step_count=STEPS,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    return done if sees(lambda: run_state_machine_as_test(Counting, settings=budget)) else None


def main() -> None:
    seed = 0
    for right in (BlockPool, BlockTable):
        assert set(search(right, seed).values()) == {None}, "a judge complains where there is no bug"
    rows = []
    for bug in BUGS:
        found = search(bug, seed) | {"model": search_with_model(bug)}
        kind = "pool" if issubclass(bug, BlockPool) else "table"
        rows.append({"bug": bug.__name__, "of": kind, "found": found})
        print(rows[-1], flush=True)
    result = {"date": date.today().isoformat(), "seed": seed, "programs": PROGRAMS, "steps": STEPS, "bugs": rows}
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
