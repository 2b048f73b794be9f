"""What one operation of the block pool and the block table costs, over the size of the pool.

python benchmarks/allocator.py [--json data/results/allocator_cpu.json]

Nanoseconds of CPU time an operation, median of the repeats, on a pool that is half full, its free blocks in random
order, beside two plain alternatives measured in the same run. "list pool" keeps the free ids in a list: the first
leaves it in O(free blocks), and so does one that is brought back from the middle (revive: a cached block is used
again). "token table" has one entry a token where ours has one a block. The figures depend on the machine; what they
show is which rows stay flat as the pool grows, and the ratios.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machine import record

from pagedlab.blocks import BlockPool, BlockTable, OutOfBlocks, Pool

SIZES = (10**3, 10**4, 10**5, 10**6)
BLOCK_SIZE = 16
FORK_TOKENS = 2048
FORK = f"fork {FORK_TOKENS:,} tokens"


class ListPool:
    """A pool as one writes it first: a list of free ids and a list of counts. Every free block counts as cached."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.free = list(range(num_blocks))
        self.counts = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self.free)

    def allocate(self) -> int:
        if not self.free:
            raise OutOfBlocks("no block is free")
        block_id = self.free.pop(0)
        self.counts[block_id] = 1
        return block_id

    def share(self, block_id: int) -> int:
        if self.counts[block_id] == 0:
            self.free.remove(block_id)
        self.counts[block_id] += 1
        return block_id

    def release(self, block_id: int) -> None:
        if self.counts[block_id] == 0:
            raise ValueError(f"block {block_id} is free already")
        self.counts[block_id] -= 1
        if self.counts[block_id] == 0:
            self.free.append(block_id)

    def refcount(self, block_id: int) -> int:
        return self.counts[block_id]


def half_full(pool: Pool, chance: random.Random) -> list[int]:
    """Free a random half of a pool, so that its free blocks are in no order; return the other half's ids."""
    held = list(range(pool.num_blocks))
    chance.shuffle(held)
    free = held[: len(held) // 2]
    if isinstance(pool, ListPool):  # the same by its own verbs would take minutes
        pool.free, pool.counts = free, [1] * pool.num_blocks
        for block_id in free:
            pool.counts[block_id] = 0
    else:
        for _ in held:
            pool.allocate()
        for block_id in free:
            pool.release(block_id)
    return held[len(free) :]


def nanoseconds(operation: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> float:
    """CPU time of one call, mean over the calls."""
    start = time.process_time_ns()  # not the clock on the wall: the machine may have other work
    for given in arguments:
        operation(*given)
    return (time.process_time_ns() - start) / len(arguments)


def fork_and_free(table: BlockTable) -> None:
    table.fork().free()


def one_repeat(pool: Pool, count: int, chance: random.Random) -> dict[str, float]:
    """Every verb `count` times, append four times as often, fork a hundredth; the pool is then as it was."""
    count = min(count, pool.num_free)
    taken: list[int] = []
    times = {"allocate": nanoseconds(lambda: taken.append(pool.allocate()), [()] * count)}
    chance.shuffle(taken)
    each = [(block_id,) for block_id in taken]
    times["share"] = nanoseconds(pool.share, each)
    times["release"] = nanoseconds(pool.release, each)
    for block_id in taken:
        pool.release(block_id)
    table = BlockTable(pool)
    times["append 1 token"] = nanoseconds(table.append, [()] * min(4 * count, pool.num_free * pool.block_size))
    table.free()
    if FORK_TOKENS <= pool.num_free * pool.block_size:  # noqa: SIM300
        table.append(FORK_TOKENS)
        times[FORK] = nanoseconds(fork_and_free, [(table,)] * max(3, count // 100))
        table.free()
    return times


def revive(pool: Pool, held: list[int], chance: random.Random) -> float:
    """share of a block that nobody holds any more but whose contents are kept; `held` are such blocks for a while."""
    for block_id in held:
        if isinstance(pool, BlockPool):
            pool.keep(block_id)
        pool.release(block_id)
    chance.shuffle(held)
    return nanoseconds(pool.share, [(block_id,) for block_id in held])


def measure(pool: Pool, repeats: int, count: int, chance: random.Random) -> dict[str, float]:
    """Every verb on the pool, half full: medians of `repeats`."""
    held = half_full(pool, chance)
    runs = [one_repeat(pool, count, chance) for _ in range(repeats)]
    for run in runs:  # last, since a block once kept stays so
        run["revive"] = revive(pool, held[:count], chance)
    assert pool.num_free == pool.num_blocks - len(held), "every block came back"
    return {verb: statistics.median(run[verb] for run in runs) for verb in runs[0]}


def show(results: dict[str, dict[str, dict[str, float]]]) -> None:
    """One row a verb and implementation, the alternatives with their ratios to ours."""
    print(f"{'ns an operation':18}" + "".join(f"{size:>14,}" for size in SIZES) + "   blocks in the pool")
    for verb in ("allocate", "share", "revive", "release", "append 1 token", FORK):
        ours = [results["ours"][str(size)][verb] for size in SIZES]
        print(f"{verb:18}" + "".join(f"{value:14,.0f}" for value in ours))
        for name in ("list pool", "token table")[: 2 if " " in verb else 1]:  # the last has our pool
            values = [results[name][str(size)].get(verb) for size in SIZES]
            cells = "".join(f"{value:14,.0f}" if value else f"{'':>14}" for value in values)
            ratios = ", ".join(f"{v / o:,.1f}" if v else "-" for v, o in zip(values, ours, strict=True))
            print(f"  {name:16}{cells}   x {ratios}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    results: dict[str, dict[str, dict[str, float]]] = {name: {} for name in ("ours", "list pool", "token table")}
    gc.disable()
    for size in SIZES:
        few = max(20, min(2000, 10**7 // size))  # where a verb is O(n), fewer of them
        for name, pool, count in (
            ("ours", BlockPool(size, BLOCK_SIZE), 2000),
            ("list pool", ListPool(size, BLOCK_SIZE), few),
            ("token table", BlockPool(size, 1), 2000),
        ):
            results[name][str(size)] = measure(pool, arguments.repeats, count, random.Random(seed))
        gc.collect()
    show(results)
    if arguments.json:
        about = "nanoseconds an operation: implementation, blocks in the pool, verb; see benchmarks/allocator.py"
        rounded = {n: {s: {v: round(t) for v, t in w.items()} for s, w in r.items()} for n, r in results.items()}
        record(arguments.json, about, block_size=BLOCK_SIZE, seed=seed, nanoseconds=rounded)


if __name__ == "__main__":
    main()
