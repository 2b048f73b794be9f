"""Which slots does each program of a kernel read? Asked of the kernel itself, while Triton's interpreter runs it.

    record          every load of a run: program, step, and the elements of a named tensor that were loaded
    trace_decode    a batch of decodes through one of `RUNGS`: the rows of keys that each program loads, step by step
    trace_ragged    prompts and new tokens in one launch: queries and key positions of each program

In the interpreter, addresses are those of the tensors on the CPU, so an address tells its element. Compiled
kernels keep their addresses to themselves: where there is a GPU, the traces run in a second process, interpreted.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from pagedlab.blocks import blocks_for
from pagedlab.kernels.attention import triton_attention
from pagedlab.kernels.plan import choose_plan
from pagedlab.kernels.runtime import INTERPRETED
from pagedlab.lessons.ladder import one_page, packed_heads, several_pages

Program = tuple[int, ...]


class Load(NamedTuple):
    """One `tl.load`. `elements` are flat indices into the tensor, masked ones left out; `step` counts from 0."""

    program: Program
    step: int  # how manieth load of this tensor in this program
    elements: np.ndarray


def record(run: Callable[[], object], **tensors: torch.Tensor) -> dict[str, list[Load]]:
    """Call `run`, which launches kernels in the interpreter, and note every load from the contiguous `tensors`.

    `ValueError` where Triton compiles, and for tensors that do not lie on the CPU in one piece.
    """
    if not INTERPRETED:
        raise ValueError("compiled kernels cannot be traced: set TRITON_INTERPRET=1 before Python starts")
    if any(tensor.is_cuda or not tensor.is_contiguous() for tensor in tensors.values()):
        raise ValueError("only contiguous tensors on the CPU can be traced: pass tensor.cpu().contiguous()")
    from triton.runtime.interpreter import interpreter_builder as builder

    loads: dict[str, list[Load]] = {name: [] for name in tensors}
    steps: Counter[tuple[str, Program]] = Counter()
    masked_load = builder.create_masked_load

    def noted(pointers: Any, mask: Any, *rest: Any) -> Any:
        addresses = np.atleast_1d(pointers.data)[np.atleast_1d(mask.data)].astype(np.int64)
        for name, tensor in tensors.items():
            offsets = (addresses - tensor.data_ptr()) // tensor.element_size()
            if len(offsets) and 0 <= offsets[0] < tensor.numel():
                program = tuple(builder.grid_idx)
                loads[name].append(Load(program, steps[name, program], offsets))
                steps[name, program] += 1
        return masked_load(pointers, mask, *rest)

    # On the instance, in front of the method; unmasked loads come this way too.
    with patch.object(builder, "create_masked_load", noted):
        run()
    return loads


@dataclass(frozen=True)
class Batch:
    """Shapes of what is traced. Sequence b has `lengths[b]` tokens in shuffled pages, `queries[b]` of them new."""

    lengths: Sequence[int]
    queries: Sequence[int]
    num_blocks: int = 40
    block_size: int = 16
    heads: int = 4
    kv_heads: int = 2
    dim: int = 16

    def __post_init__(self) -> None:
        lengths, queries = self.lengths, self.queries
        if len(lengths) != len(queries) or not all(0 < n <= length for n, length in zip(queries, lengths, strict=True)):
            raise ValueError(f"each sequence brings one query or more, no more than its length: {queries}, {lengths}")
        pages = sum(blocks_for(length, self.block_size) for length in lengths)
        if pages > self.num_blocks:
            raise ValueError(f"there are {self.num_blocks} pages of {self.block_size}, and {lengths} need {pages}")

    def tables(self) -> list[list[int]]:
        """Pages of each sequence, in an order that is shuffled and always the same."""
        ids = iter(torch.randperm(self.num_blocks, generator=torch.Generator().manual_seed(7)).tolist())
        return [list(islice(ids, blocks_for(length, self.block_size))) for length in self.lengths]

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Arguments of `paged_attention`; all zeros, as addresses do not depend on values."""
        q = torch.zeros(sum(self.queries), self.heads, self.dim)
        k, v = torch.zeros(2, self.num_blocks, self.block_size, self.kv_heads, self.dim)
        tables = pad_sequence([torch.tensor(table) for table in self.tables()], batch_first=True)
        starts = torch.tensor([0, *self.queries]).cumsum(0)
        return q, k, v, tables.int(), torch.tensor(self.lengths).int(), starts.int()


RUNGS: dict[str, Callable[..., torch.Tensor]] = {
    "1 one page": lambda *args: one_page(*args[:5]),
    "2 a tile of 32": lambda *args: several_pages(*args[:5], tile=32),
    "3 heads packed": lambda *args: packed_heads(*args[:5], tile=32),
    "4 split": lambda *args: triton_attention(*args, plan=choose_plan(args[0], args[1], args[3])._replace(splits=4)),
}


@dataclass(frozen=True)
class Trace:
    """What each program loads from q and from the key cache in one launch."""

    batch: Batch
    loads: dict[str, list[Load]]  # of "queries" and "keys"

    @cached_property
    def steps(self) -> list[dict[Program, np.ndarray]]:
        """`steps[i][program]` are the rows of the key cache, slot * kv_heads + head, that it loads in its i-th step."""
        steps: defaultdict[int, dict[Program, np.ndarray]] = defaultdict(dict)
        for load in self.loads["keys"]:
            # Once a row: where the tile is longer than what is left, the kernels of the library repeat the last one.
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
        position = np.zeros((self.batch.num_blocks, self.batch.block_size), int)  # of the token in each slot
        for table in self.batch.tables():
            position[table] = np.arange(position[table].size).reshape(-1, self.batch.block_size)
        return self._by_program("keys", self.batch.kv_heads, position.ravel())

    def _by_program(self, name: str, heads: int, meaning: np.ndarray) -> dict[Program, np.ndarray]:
        """What each program loads, whatever the head and the step; `meaning[i]` is what row i stands for."""
        found: defaultdict[Program, list[np.ndarray]] = defaultdict(list)
        for load in self.loads[name]:
            found[load.program].append(meaning[load.elements // (heads * self.batch.dim)])
        return {program: np.unique(np.concatenate(parts)) for program, parts in found.items()}


def trace_decode(rung: str, lengths: Sequence[int]) -> Trace:
    """Decode one new token each for sequences of these lengths with the kernel of that name in `RUNGS`."""
    if rung not in RUNGS:
        raise ValueError(f"there is no rung {rung!r}: choose one of {', '.join(map(repr, RUNGS))}")
    return _trace(rung, Batch(lengths, [1] * len(lengths)))


def trace_ragged(lengths: Sequence[int], queries: Sequence[int]) -> Trace:
    """One launch of the library's kernel for sequences of these lengths, the last `queries[b]` tokens of each new."""
    return _trace(None, Batch(lengths, queries))


def _trace(rung: str | None, batch: Batch) -> Trace:
    """Here if Triton is interpreted here, otherwise in a fresh process where it is."""
    if INTERPRETED:
        kernel: Callable[..., torch.Tensor] = RUNGS[rung] if rung else triton_attention
        args = batch.tensors()
        return Trace(batch, record(lambda: kernel(*args), queries=args[0], keys=args[1]))
    command, task = [sys.executable, "-c", _CHILD], pickle.dumps((rung, batch))  # between these two processes only
    answer = subprocess.check_output(command, input=task, env=os.environ | {"TRITON_INTERPRET": "1"})
    return pickle.loads(answer)  # noqa: S301 - our own child's answer


_CHILD = """
import pickle, sys
from pagedlab.lessons.tracer import _trace
pickle.dump(_trace(*pickle.load(sys.stdin.buffer)), sys.stdout.buffer)
"""
