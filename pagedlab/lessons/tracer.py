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
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

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

    builder.create_masked_load = noted  # on the instance, in front of the method; unmasked loads come this way too
    try:
        run()
    finally:
        del builder.create_masked_load
    return loads


class Batch(NamedTuple):
    """Shapes of what is traced. Sequence b has `lengths[b]` tokens in shuffled pages, `queries[b]` of them new."""

    lengths: tuple[int, ...]
    queries: tuple[int, ...]
    num_blocks: int = 40
    block_size: int = 16
    heads: int = 4
    kv_heads: int = 2
    dim: int = 16

    def tables(self) -> list[list[int]]:
        """Pages of each sequence, in an order that is shuffled and always the same."""
        ids = iter(torch.randperm(self.num_blocks, generator=torch.Generator().manual_seed(7)).tolist())
        return [[next(ids) for _ in range(-(-length // self.block_size))] for length in self.lengths]

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Arguments of `paged_attention`; all zeros, as addresses do not depend on values."""
        tables = self.tables()
        padded = [table + [0] * (max(map(len, tables)) - len(table)) for table in tables]
        q = torch.zeros(sum(self.queries), self.heads, self.dim)
        k, v = torch.zeros(2, self.num_blocks, self.block_size, self.kv_heads, self.dim)
        starts = torch.tensor([0, *self.queries]).cumsum(0)
        return q, k, v, *(torch.tensor(x, dtype=torch.int32) for x in (padded, self.lengths)), starts.int()


def _decode(rung: Callable[..., torch.Tensor], *args: torch.Tensor) -> torch.Tensor:
    return rung(*args[:5])


def _split(*args: torch.Tensor) -> torch.Tensor:
    q, k_cache, v_cache, tables, seq_lens, starts = args
    plan = choose_plan(q, k_cache, tables)._replace(splits=4)
    return triton_attention(q, k_cache, v_cache, tables, seq_lens, starts, plan=plan)


RUNGS: dict[str, Callable[..., torch.Tensor]] = {
    "1 one page": partial(_decode, one_page),
    "2 a tile of 32": partial(_decode, partial(several_pages, tile=32)),
    "3 heads packed": partial(_decode, partial(packed_heads, tile=32)),
    "4 split": _split,
}


class DecodeTrace(NamedTuple):
    """`steps[i][program]` are the rows of the key cache, slot * kv_heads + head, that it loads in its i-th step."""

    batch: Batch
    steps: list[dict[Program, np.ndarray]]

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


class RaggedTrace(NamedTuple):
    """Queries (rows of q's first axis) and key positions that each program loads, by program."""

    batch: Batch
    queries: dict[Program, np.ndarray]
    keys: dict[Program, np.ndarray]


def trace_decode(rung: str, lengths: Sequence[int]) -> DecodeTrace:
    """Decode one new token each for sequences of these lengths with the kernel of that name in `RUNGS`."""
    if rung not in RUNGS:
        raise ValueError(f"there is no rung {rung!r}: choose one of {', '.join(map(repr, RUNGS))}")
    return _interpreted(_trace_decode, rung, _batch(lengths, [1] * len(lengths)))


def _trace_decode(rung: str, batch: Batch) -> DecodeTrace:
    args = batch.tensors()
    steps: defaultdict[int, dict[Program, np.ndarray]] = defaultdict(dict)
    for load in record(lambda: RUNGS[rung](*args), keys=args[1])["keys"]:
        # Once a row: where the tile is longer than what is left, the kernels of the library repeat the last one.
        steps[load.step][load.program] = np.unique(load.elements // batch.dim)
    return DecodeTrace(batch, [steps[i] for i in range(len(steps))])


def trace_ragged(lengths: Sequence[int], queries: Sequence[int]) -> RaggedTrace:
    """One launch of the library's kernel for sequences of these lengths, the last `queries[b]` tokens of each new."""
    return _interpreted(_trace_ragged, _batch(lengths, queries))


def _trace_ragged(batch: Batch) -> RaggedTrace:
    q, k_cache, v_cache, tables, seq_lens, starts = batch.tensors()
    loads = record(lambda: triton_attention(q, k_cache, v_cache, tables, seq_lens, starts), queries=q, keys=k_cache)
    place = {page: i for table in batch.tables() for i, page in enumerate(table)}  # of a page in its table
    queries: defaultdict[Program, set[int]] = defaultdict(set)
    keys: defaultdict[Program, set[int]] = defaultdict(set)
    for load in loads["queries"]:
        queries[load.program] |= set((load.elements // (batch.heads * batch.dim)).tolist())
    for load in loads["keys"]:
        for slot in np.unique(load.elements // (batch.kv_heads * batch.dim)).tolist():
            keys[load.program].add(place[slot // batch.block_size] * batch.block_size + slot % batch.block_size)
    return RaggedTrace(batch, *({p: np.array(sorted(found[p])) for p in found} for found in (queries, keys)))


def _batch(lengths: Sequence[int], queries: Sequence[int]) -> Batch:
    batch = Batch(tuple(lengths), tuple(queries))
    pages = sum(-(-length // batch.block_size) for length in lengths)
    if len(lengths) != len(queries) or not all(0 < n <= length for n, length in zip(queries, lengths, strict=False)):
        raise ValueError(
            f"each sequence brings one query or more, no more than its length: got {queries} for {lengths}"
        )
    if pages > batch.num_blocks:
        raise ValueError(f"the picture has {batch.num_blocks} pages of {batch.block_size}, and {lengths} need {pages}")
    return batch


def _interpreted(task: Callable[..., Any], *args: Any) -> Any:
    """Call `task` here if Triton is interpreted here, otherwise in a fresh process where it is."""
    if INTERPRETED:
        return task(*args)
    done = subprocess.run(
        [sys.executable, "-c", _CHILD],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        input=pickle.dumps((task, args)),  # by name; between these two processes only
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the interpreter's process failed:\n{done.stderr.decode()}")
    return pickle.loads(done.stdout)  # noqa: S301 - our own child's answer


_CHILD = """
import pickle, sys
task, args = pickle.load(sys.stdin.buffer)
pickle.dump(task(*args), sys.stdout.buffer)
"""
