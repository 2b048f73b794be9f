"""Record which slots each program of a kernel reads, while Triton's interpreter runs the kernel.

trace_rungs     a batch of decodes through each of `RUNGS`: the rows of keys that each program
                loads, step by step
trace_ragged    prompts and new tokens in one launch: queries and key positions of each program
trace_own       as trace_rungs, for a reader's kernel
interpreted     call a function where Triton is interpreted: in this process, or in another one
                if Triton compiles here
"""

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from multiprocessing import get_context
from pkgutil import resolve_name
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from pagedlab.blocks import blocks_for
from pagedlab.kernels.attention import triton_attention
from pagedlab.kernels.runtime import INTERPRETED
from pagedlab_lessons import ladder
from pagedlab_lessons.fence import Access, Memory, Program, define, source_of
from pagedlab_lessons.puzzles import decoder


@dataclass(frozen=True)
class Batch:
    """Shapes of what is traced.

    Sequence b has `lengths[b]` tokens in shuffled pages, `queries[b]` of them new.
    """

    lengths: Sequence[int]
    queries: Sequence[int]
    num_blocks: int = 40
    block_size: int = 16
    heads: int = 4
    kv_heads: int = 2
    dim: int = 16

    def __post_init__(self) -> None:
        lengths, queries = self.lengths, self.queries
        if len(lengths) != len(queries) or not all(
            0 < n <= length for n, length in zip(queries, lengths, strict=True)
        ):
            raise ValueError(
                f"each sequence brings one query or more, no more than its length: {queries}, "
                f"{lengths}"
            )
        pages = sum(blocks_for(length, self.block_size) for length in lengths)
        if pages > self.num_blocks:
            raise ValueError(
                f"there are {self.num_blocks} pages of {self.block_size}, and {lengths} need "
                f"{pages}"
            )

    def tables(self) -> list[list[int]]:
        """Pages of each sequence, in an order that is shuffled and always the same."""
        ids = iter(
            torch.randperm(self.num_blocks, generator=torch.Generator().manual_seed(7)).tolist()
        )
        return [list(islice(ids, blocks_for(length, self.block_size))) for length in self.lengths]

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Arguments of `paged_attention`; all zeros, as addresses do not depend on values."""
        q = torch.zeros(sum(self.queries), self.heads, self.dim)
        k, v = torch.zeros(2, self.num_blocks, self.block_size, self.kv_heads, self.dim)
        tables = pad_sequence([torch.tensor(table) for table in self.tables()], batch_first=True)
        starts = torch.tensor([0, *self.queries]).cumsum(0)
        return q, k, v, tables.int(), torch.tensor(self.lengths).int(), starts.int()


RUNGS: dict[str, Callable[..., torch.Tensor]] = {
    "1 one page at a time": ladder.RUNGS["rung 1, one page at a time"],
    "2 a tile of 32 keys": ladder.RUNGS["rung 2, a tile of several pages"],
    "3 heads share a load": ladder.RUNGS["rung 4, tensor cores"],  # as in 3, 5 and 6
    "7 four splits": decoder({**ladder.SPLIT, "my_splits": lambda *_: 4}, tile=32),
}


@dataclass(frozen=True)
class Trace:
    """What each program loads from q and from the key cache in one launch."""

    batch: Batch
    loads: dict[str, list[Access]]  # of "queries" and "keys"

    @cached_property
    def steps(self) -> list[dict[Program, np.ndarray]]:
        """`steps[i][program]` are the rows of the key cache, slot * kv_heads + head, that it loads
        in its i-th step.
        """
        steps: defaultdict[int, dict[Program, np.ndarray]] = defaultdict(dict)
        for load in self.loads["keys"]:
            # Once a row: where the tile is longer than what is left, the kernels of the library
            # repeat the last one.
            steps[load.step][load.program] = np.unique(load.elements // self.batch.dim)
        return list(steps.values())

    @property
    def programs(self) -> int:
        return len({program for step in self.steps for program in step})

    @property
    def rows_loaded(self) -> int:
        """Rows of keys that were loaded, a row counted each time."""
        return sum(len(rows) for step in self.steps for rows in step.values())

    @property
    def rows_stored(self) -> int:
        """Rows of keys that there are: one a token and KV head."""
        return sum(self.batch.lengths) * self.batch.kv_heads

    @cached_property
    def queries(self) -> dict[Program, np.ndarray]:
        """Rows of q's first axis that each program loads."""
        return self._by_program("queries", self.batch.heads, np.arange(sum(self.batch.queries)))

    @cached_property
    def keys(self) -> dict[Program, np.ndarray]:
        """Key positions that each program loads."""
        # of the token in each slot
        position = np.zeros((self.batch.num_blocks, self.batch.block_size), int)
        for table in self.batch.tables():
            position[table] = np.arange(position[table].size).reshape(-1, self.batch.block_size)
        return self._by_program("keys", self.batch.kv_heads, position.ravel())

    def _by_program(self, name: str, heads: int, meaning: np.ndarray) -> dict[Program, np.ndarray]:
        """What each program loads, whatever the head and the step; `meaning[i]` is what row i
        stands for.
        """
        found: defaultdict[Program, list[np.ndarray]] = defaultdict(list)
        for load in self.loads[name]:
            found[load.program].append(meaning[load.elements // (heads * self.batch.dim)])
        return {program: np.unique(np.concatenate(parts)) for program, parts in found.items()}


def trace_rungs(lengths: Sequence[int], num_blocks: int = 40) -> dict[str, Trace]:
    """One new token each for sequences of these lengths, by every kernel in `RUNGS`."""
    return interpreted(
        "pagedlab_lessons.tracer:_trace_rungs", Batch(lengths, [1] * len(lengths), num_blocks)
    )


def trace_own(answer: Any, lengths: Sequence[int], num_blocks: int = 40) -> Trace:
    """As `trace_rungs`, for a reader's kernel of puzzle 5, 6 or 7 (`puzzles.decoder`)."""
    return interpreted(
        "pagedlab_lessons.tracer:_trace_own", answer, Batch(lengths, [1] * len(lengths), num_blocks)
    )


def trace_ragged(lengths: Sequence[int], queries: Sequence[int]) -> Trace:
    """One launch of the library's kernel for sequences of these lengths, the last `queries[b]`
    tokens of each new.
    """
    return interpreted("pagedlab_lessons.tracer:_trace_ragged", Batch(lengths, queries))


def _trace(run: Callable[..., Any], batch: Batch, count: int = 5) -> Trace:
    memory = Memory(strict=False)
    q, k, *rest = batch.tensors()[:count]
    args = memory.put("queries", q), memory.put("keys", k), *rest
    memory.run(lambda: run(*args))
    return Trace(batch, {"queries": [], "keys": [], **memory.loads})


def _trace_rungs(batch: Batch) -> dict[str, Trace]:
    return {name: _trace(rung, batch) for name, rung in RUNGS.items()}


def _trace_own(answer: Any, batch: Batch) -> Trace:
    return _trace(decoder(answer, tile=32), batch)


def _trace_ragged(batch: Batch) -> Trace:
    return _trace(triton_attention, batch, count=6)


# Where Triton is interpreted ----------------------------------------------------------------------


class _Text(NamedTuple):
    name: str
    source: str


def _packed(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _packed(value) for key, value in item.items()}
    return _Text(getattr(item, "fn", item).__name__, source_of(item)) if callable(item) else item


def _unpacked(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _unpacked(value) for key, value in item.items()}
    return define(item.source)[item.name] if isinstance(item, _Text) else item


def interpreted(place: str, *args: Any) -> Any:
    """Call "module:function" with Triton interpreted: here, or where it compiles here in a process
    of its own.
    """
    if INTERPRETED:
        return _called(place, *args)
    # not run again there
    alone = patch.multiple(sys.modules["__main__"], create=True, __file__=None, __spec__=None)
    with (
        patch.dict(os.environ, TRITON_INTERPRET="1"),
        alone,
        ProcessPoolExecutor(1, get_context("spawn")) as child,
    ):
        return child.submit(_called, place, *map(_packed, args)).result()


def _called(place: str, *args: Any) -> Any:
    return resolve_name(place)(*map(_unpacked, args))
