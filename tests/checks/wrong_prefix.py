"""Plausible wrong answers to the exercises of notebook 05, and right ones that differ from the solution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pagedlab.blocks import BlockPool, BlockTable
from pagedlab.checks.prefix import ChecksOwnTokens, ForgetsThePast
from pagedlab.prefix import PrefixCache, hash_chain

# match and insert ---------------------------------------------------------------------------------------------


class Right:
    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.blocks: dict[bytes, int] = {}
        pool.attach(self.lost)

    def names(self, token_ids: list[int], salt: str | None) -> list[bytes]:
        return hash_chain(token_ids, self.pool.block_size, hash="sha256", salt=salt)

    def lost(self, block_id: int, evicted: bool) -> None:
        self.blocks = {name: block for name, block in self.blocks.items() if block != block_id}

    def match(self, token_ids: list[int], leave: int = 0, salt: str | None = None) -> BlockTable:
        table = BlockTable(self.pool)
        for name in self.names(token_ids[: len(token_ids) - leave], salt):
            if name not in self.blocks:
                break
            table.block_ids.append(self.pool.share(self.blocks[name]))
        table.num_tokens = len(table.block_ids) * self.pool.block_size
        return table

    def insert(self, table: BlockTable, token_ids: list[int], salt: str | None = None) -> None:
        for name, block_id in zip(self.names(token_ids, salt), table.block_ids, strict=False):
            if name not in self.blocks:
                self.pool.keep(block_id)
                self.blocks[name] = block_id


class LatestWins(Right):
    """Puts a second block under a name that is known: the first stays cached, and is found no longer."""

    def insert(self, table: BlockTable, token_ids: list[int], salt: str | None = None) -> None:
        for name, block_id in zip(self.names(token_ids, salt), table.block_ids, strict=False):
            self.pool.keep(block_id)
            self.blocks[name] = block_id


class SkipsOverMisses(Right):
    """Wrong only where a block outlives the one before it: two that begin alike, computed in one step."""

    def match(self, token_ids: list[int], leave: int = 0, salt: str | None = None) -> BlockTable:
        table = BlockTable(self.pool)
        names = self.names(token_ids[: len(token_ids) - leave], salt)
        table.block_ids = [self.pool.share(self.blocks[name]) for name in names if name in self.blocks]
        table.num_tokens = len(table.block_ids) * self.pool.block_size
        return table


class IgnoresLeave(Right):
    def match(self, token_ids: list[int], leave: int = 0, salt: str | None = None) -> BlockTable:
        return super().match(token_ids, 0, salt)


class LeavesByANegativeIndex(Right):
    """Finds nothing with leave=0: token_ids[:-0] is empty."""

    def match(self, token_ids: list[int], leave: int = 0, salt: str | None = None) -> BlockTable:
        return super().match(token_ids[:-leave], 0, salt)


class IgnoresTheSalt(Right):
    def names(self, token_ids: list[int], salt: str | None) -> list[bytes]:
        return super().names(token_ids, None)


class NamesByOwnTokens(Right):
    def names(self, token_ids: list[int], salt: str | None) -> list[bytes]:
        size = self.pool.block_size
        starts = range(0, len(token_ids) // size * size, size)
        return [hash_chain(token_ids[i : i + size], size, "sha256", salt)[0] for i in starts]


class DoesNotShare(Right):
    def match(self, token_ids: list[int], leave: int = 0, salt: str | None = None) -> BlockTable:
        table = super().match(token_ids, leave, salt)
        for block_id in table.block_ids:
            self.pool.release(block_id)
        return table


class DoesNotKeep(Right):
    def insert(self, table: BlockTable, token_ids: list[int], salt: str | None = None) -> None:
        self.blocks |= dict(zip(self.names(token_ids, salt), table.block_ids, strict=False))


class HoldsItsBlocks(Right):
    """Keeps a reference to what it registers: the pool never gets it back."""

    def insert(self, table: BlockTable, token_ids: list[int], salt: str | None = None) -> None:
        for name, block_id in zip(self.names(token_ids, salt), table.block_ids, strict=False):
            if name not in self.blocks:
                self.blocks[name] = self.pool.share(block_id)


class CountsNoTokens(Right):
    def match(self, token_ids: list[int], leave: int = 0, salt: str | None = None) -> BlockTable:
        table = super().match(token_ids, leave, salt)
        table.num_tokens = 0
        return table


class RegistersTheFirstBlockOnly(Right):
    def insert(self, table: BlockTable, token_ids: list[int], salt: str | None = None) -> None:
        super().insert(table, token_ids[: self.pool.block_size], salt)


# leaf before parent -------------------------------------------------------------------------------------------


def oldest(last_used: Mapping[int, int], parent: Mapping[int, int | None]) -> int:
    return min(last_used, key=last_used.__getitem__)


def newest_leaf(last_used: Mapping[int, int], parent: Mapping[int, int | None]) -> int:
    return max((b for b in last_used if b not in parent.values()), key=last_used.__getitem__)


def any_leaf(last_used: Mapping[int, int], parent: Mapping[int, int | None]) -> int:
    return next(b for b in last_used if b not in parent.values())


def oldest_root(last_used: Mapping[int, int], parent: Mapping[int, int | None]) -> int:
    return min((b for b in last_used if parent[b] is None), key=last_used.__getitem__)


def deepest(last_used: Mapping[int, int], parent: Mapping[int, int | None]) -> int:
    def depth(block: int) -> int:
        above = parent[block]
        return 0 if above is None else 1 + depth(above)

    return max(last_used, key=depth)


def by_time_and_depth(last_used: Mapping[int, int], parent: Mapping[int, int | None]) -> int:
    """Right, since a parent is used whenever its child is: only ties are left to decide."""

    def depth(block: int) -> int:
        above = parent[block]
        return 0 if above is None else 1 + depth(above)

    return min(last_used, key=lambda b: (last_used[b], -depth(b)))


WRONG: dict[str, list[Any]] = {
    "prefix_cache": [
        SkipsOverMisses,
        IgnoresLeave,
        LeavesByANegativeIndex,
        LatestWins,
        IgnoresTheSalt,
        NamesByOwnTokens,
        ForgetsThePast,
        DoesNotShare,
        DoesNotKeep,
        HoldsItsBlocks,
        CountsNoTokens,
        RegistersTheFirstBlockOnly,
    ],
    "leaf_first": [oldest, newest_leaf, any_leaf, oldest_root, deepest],
    "foreign_kv": [["A", "B"], ["AT", "BT"], ["AT", "BT", "AT"], ["AT", "A", "AT"], ["TA", "B", "TB"], ["C"], "AT"],
}
RIGHT: dict[str, list[Any]] = {
    "prefix_cache": [Right, PrefixCache, ChecksOwnTokens],  # the last one's flaw needs two that collide
    "leaf_first": [by_time_and_depth],
    "foreign_kv": [["AT", "B", "BT"], ["BT", "A", "AT"], ["AT", "BT", "BT"], ["A", "ATT", "B", "BTT"]],
}
