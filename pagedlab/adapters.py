"""Adapters: they check the classes that a reader passes to `LLM`, before the engine is built.

A reader can write their own block pool, block table, prefix cache or scheduler. The constants below
are the contract of each. A missing method raises a `ValueError` of one line.

An error in such a class ends the step that called it. All requests are dropped, and the engine
makes new objects of these classes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from pagedlab.blocks import BlockPool, BlockTable, Pool
from pagedlab.prefix import PrefixCache
from pagedlab.scheduler import Scheduler
from pagedlab.validation import a_class, one_of, with_methods

POOL_METHODS = ("allocate", "share", "release", "refcount")
POOL_ATTRIBUTES = ("num_blocks", "block_size", "num_free")
TABLE_METHODS = ("append", "fork", "truncate", "free", "slots")
TABLE_ATTRIBUTES = ("pool", "block_ids", "num_tokens")
CACHE_METHODS = ("match", "insert")
SCHEDULER_METHODS = ("check", "add", "schedule", "remove")
SCHEDULER_ATTRIBUTES = (
    "pool",
    "max_batch_tokens",
    "max_sequences",
    "running",
    "waiting",
    "swapped",
)

CacheFactory = Callable[[Any], Any]


class Parts(NamedTuple):
    """What an engine plans with. A reset makes new ones."""

    pool: Pool
    prefix_cache: PrefixCache | None
    scheduler: Scheduler


@dataclass(frozen=True)
class Classes:
    """The classes of an engine's parts.

    Args:
        block_pool: the class of the block pool; None for `BlockPool`.
        block_table: the class of the block tables.
        prefix_caching: True, False, a class, or a function that makes a prefix cache over a pool.
        scheduler: the class of the scheduler.

    Raises:
        ValueError: If something is no class, or if a class lacks methods. It names both.
    """

    block_pool: Any
    block_table: Any
    prefix_caching: Any
    scheduler: Any

    def __post_init__(self) -> None:
        _check_classes(self.block_pool, self.block_table, self.prefix_caching, self.scheduler)

    def make(self, num_blocks: int, block_size: int, *limits: int, **options: Any) -> Parts:
        """Return new parts.

        Args:
            num_blocks: blocks of the pool.
            block_size: tokens a block.
            limits: `max_batch_tokens` and `max_sequences` of the scheduler.
            options: of the scheduler; those that are None are left out.
        """
        pool = make_pool(self.block_pool, num_blocks, block_size)
        check_table(self.block_table, pool)
        prefix_cache = make_prefix_cache(self.prefix_caching, pool, self.block_table)
        given = {name: value for name, value in options.items() if value is not None}
        return Parts(
            pool, prefix_cache, make_scheduler(self.scheduler, pool, *limits, prefix_cache, **given)
        )


def _check_classes(block_pool: Any, block_table: Any, prefix_caching: Any, scheduler: Any) -> None:
    """Check the methods of each class, before any object is made."""
    if block_pool is not None:
        with_methods("block_pool", a_class("block_pool", block_pool, BlockPool), POOL_METHODS)
    a_class("block_table", block_table, BlockTable)
    a_class("scheduler", scheduler, Scheduler)
    with_methods("block_table", block_table, TABLE_METHODS)
    with_methods("scheduler", scheduler, SCHEDULER_METHODS)
    if isinstance(prefix_caching, type):
        with_methods("prefix_caching", prefix_caching, CACHE_METHODS)
    elif not callable(prefix_caching):
        one_of("prefix_caching", prefix_caching, (True, False))
    if callable(prefix_caching) and block_table is not BlockTable:
        _check_takes_table(prefix_caching)


def make_pool(block_pool: type[Any] | None, num_blocks: int, block_size: int) -> Pool:
    """Return a pool of the reader's class, or a `BlockPool`."""
    pool = (block_pool or BlockPool)(num_blocks, block_size)
    return with_methods("block_pool", pool, (*POOL_ATTRIBUTES, *POOL_METHODS))


def check_table(block_table: type[Any], pool: Pool) -> None:
    """Check the attributes of an empty table."""
    with_methods("block_table", block_table(pool), (*TABLE_ATTRIBUTES, *TABLE_METHODS))


def make_prefix_cache(
    prefix_caching: bool | CacheFactory, pool: Any, block_table: type[BlockTable]
) -> PrefixCache | None:
    """Return the prefix cache, or None if it is off or the pool cannot keep unused blocks.

    Args:
        prefix_caching: True, False, a class, or a function that makes a prefix cache over a pool.
        pool: the block pool.
        block_table: the class of the tables that the cache returns.
    """
    if not prefix_caching or not hasattr(pool, "attach"):
        return None
    make: Callable[..., Any] = prefix_caching if callable(prefix_caching) else PrefixCache
    options = {} if block_table is BlockTable else {"block_table": block_table}
    return with_methods("prefix_caching", make(pool, **options), CACHE_METHODS)


def make_scheduler(scheduler: type[Scheduler], *positional: Any, **options: Any) -> Scheduler:
    """Return a scheduler of this class."""
    return with_methods(
        "scheduler", scheduler(*positional, **options), (*SCHEDULER_ATTRIBUTES, *SCHEDULER_METHODS)
    )


def _check_takes_table(prefix_caching: CacheFactory) -> None:
    """Raise `ValueError` if the cache does not accept the class of its tables."""
    try:
        parameters = inspect.signature(prefix_caching).parameters
    except (TypeError, ValueError):  # a class of an extension module may hide its signature
        return
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    if "block_table" not in parameters and not takes_any:
        name = getattr(prefix_caching, "__name__", type(prefix_caching).__name__)
        raise ValueError(
            f"prefix_caching={name} takes no block_table=, so its tables would not be of the class "
            "that block_table names: let it take that argument, as PrefixCache does"
        )
