"""Puzzles 1 to 7 of notebook 07: what each kernel has to compute, what it is given, and how it
is launched.

    weights        exp(score - m) for a row of scores, TILE at a time
    scores         a query against a tile of keys, for every head
    online_step    a tile taken into the running maximum, sum and output of online softmax
    paged_scores   as `scores`, with the keys in pages that a block table names
    decode         the whole: a new token of every sequence, a program for each query head
    grouped        the same, a program for each KV head and all query heads that it serves
    split          the same, a sequence cut into splits; `merge` puts them together

A puzzle's `given` are the arguments of a kernel in their order; what lies in memory and is nobody's
is NaN there. Imports no Triton: kernels come from whoever wrote them.
"""

from collections.abc import Callable
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pagedlab.blocks import blocks_for

Given = dict[str, Any]


# What is to be computed ---------------------------------------------------------------------------


def weights(s: Tensor, m: float) -> Tensor:
    return torch.exp(s - m)


def scores(q: Tensor, k: Tensor, scale: float) -> Tensor:
    return (k * q).sum(2).T * scale


def online_step(
    m: Tensor, total: Tensor, acc: Tensor, s: Tensor, v: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    new_m = torch.maximum(m, s.max())
    p, rescale = torch.exp(s - new_m), torch.exp(m - new_m)
    return new_m, total * rescale + p.sum(), acc * rescale + p @ v


def paged_scores(q: Tensor, k_cache: Tensor, table: Tensor, n: int, scale: float) -> Tensor:
    k = k_cache[table.long()].flatten(0, 1)[:n]
    return scores(q, k, scale)


def decode(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Tensor, n: int, scale: float
) -> Tensor:
    group = len(q) // k_cache.shape[2]
    k, v = (
        cache[table.long()].flatten(0, 1)[:n].repeat_interleave(group, 1)
        for cache in (k_cache, v_cache)
    )
    p = torch.softmax(scores(q, k, scale), 1)
    return torch.einsum("hj,jhd->hd", p, v)


def grouped(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, table: Tensor, n: int, scale: float
) -> Tensor:
    k, v = (cache[table.long()].flatten(0, 1)[:n].transpose(0, 1) for cache in (k_cache, v_cache))
    rows = q.unflatten(0, (len(k), -1))
    p = torch.softmax(rows @ k.mT * scale, 2)
    return (p @ v).flatten(0, 1)


def merge(parts: Tensor, logs: Tensor) -> Tensor:
    return torch.softmax(logs, 0) @ parts


# What a kernel is given ---------------------------------------------------------------------------


class Puzzle(NamedTuple):
    """A puzzle of the notebook.

    Args:
        right: computes what the kernel has to; its parameters are some of the kernel's arguments.
        given: takes the parts of a case, returns the kernel's arguments by name.
        grid: takes the arguments, returns how many programs run.
        outputs: names of what `right` returns.
    """

    right: Callable[..., Any]
    given: Callable[..., Given]
    grid: Callable[[Given], tuple[int, ...]]
    outputs: tuple[str, ...] = ("out",)

    def expected(self, given: Given) -> dict[str, Tensor]:
        """Return the right outputs by name."""
        made = self.right(*(given[name] for name in signature(self.right).parameters))
        return dict(zip(self.outputs, made if isinstance(made, tuple) else [made], strict=True))

    def launch(self, answer: Any, given: Given, splits: int = 3, **options: int) -> Any:
        """Run a kernel, or the two of puzzle 7, and return what Triton's compiler made of it."""
        grid = self.grid(given)
        if not isinstance(answer, dict):
            return answer[grid](*given.values(), **options)
        out, *rest = given.values()
        logs = out.new_empty(*out.shape[:2], splits, dtype=torch.float32)
        split = answer["my_split"][(*grid, splits)]
        if splits == 1:  # its part is the answer, and nothing is left to merge
            return split(out, logs, *rest, **options)
        parts = out.new_empty(*logs.shape, given["DIM"], dtype=torch.float32)
        made = split(parts, logs, *rest, **options)
        merge = answer["my_merge"][(logs[..., 0].numel(),)]
        merge(out, parts, logs, splits, given["DIM"], rows_of(splits, 1))
        return made


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def nobodys(*shape: int) -> Tensor:
    return torch.full(shape, torch.nan)


def _weights(n: int = 10, tile: int = 4, shift: float = 0.0) -> Given:
    """`shift` is added to the scores."""
    s = 2 * _normal(n) + shift
    return {"out": nobodys(n), "s": s, "m": float(s.max()), "n": n, "TILE": tile}


def _scores(n: int = 6, heads: int = 2, dim: int = 4, tile: int = 8) -> Given:
    q, k = _normal(heads, dim), _normal(n, heads, dim, seed=1)
    given = {"out": nobodys(heads, n), "q": q, "k": k, "n": n, "scale": dim**-0.5}
    return given | {"HEADS": heads, "DIM": dim, "TILE": tile}


def _step(
    n: int = 6,
    first: bool = False,
    past: float = 0.0,
    shift: float = 0.0,
    dim: int = 4,
    tile: int = 8,
) -> Given:
    """`past` is the maximum of what came before; `first`: nothing did.

    `shift` is added to the scores.
    """
    state = (-torch.inf, 0.0, torch.zeros(dim)) if first else (past, 3.0, _normal(dim, seed=2))
    m, total, acc = (torch.as_tensor(x).reshape(-1).clone() for x in state)
    given = {"m": m, "total": total, "acc": acc}
    tile_of = {"s": _normal(n) + shift, "v": _normal(n, dim, seed=1)}
    return given | tile_of | {"n": n, "DIM": dim, "TILE": tile}


def pages_of(
    lengths: list[int], size: int, kv_heads: int, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """K and V [pages, size, kv_heads, dim], and the tables [sequences, most pages]; pages are not
    in order.
    """
    count = [blocks_for(length, size) for length in lengths]
    generator = torch.Generator().manual_seed(len(lengths))
    ids = torch.randperm(sum(count) + 2, generator=generator).int()
    caches = nobodys(2, len(ids), size, kv_heads, dim)
    tables = torch.zeros(len(lengths), max(count), dtype=torch.int32)
    for b, (length, own) in enumerate(zip(lengths, ids[: sum(count)].split(count), strict=True)):
        tables[b, : len(own)] = own
        position = torch.arange(length)
        slots = own.long()[position // size] * size + position % size
        caches.flatten(1, 2)[:, slots] = _normal(2, length, kv_heads, dim, seed=b + 1)
    return caches[0], caches[1], tables


def _paged_scores(
    n: int = 10, heads: int = 2, size: int = 4, dim: int = 4, tile: int = 16
) -> Given:
    k, _, (table,) = pages_of([n], size, heads, dim)
    given = {"out": nobodys(heads, n), "q": _normal(heads, dim), "k_cache": k, "table": table}
    sizes = {"SIZE": size, "HEADS": heads, "DIM": dim, "TILE": tile}
    return given | {"n": n, "scale": dim**-0.5} | sizes


def _decode(
    lengths: tuple[int, ...] = (13, 6, 9),
    heads: int = 4,
    kv_heads: int = 2,
    size: int = 4,
    dim: int = 16,
    tile: int = 8,
    loudest: int = -1,
    level: float = 0.0,
) -> Given:
    """`loudest`: the position that every query of the first sequence scores highest.

    `level` is what the scores of the even heads are near; those of the odd ones near its double.
    """
    k, v, tables = pages_of(list(lengths), size, kv_heads, dim)
    # Rows of a table are further apart than it is wide.
    tables = torch.nn.functional.pad(tables, (0, 3))[:, :-3]
    q = _normal(len(lengths), heads, dim)
    if level:
        # Quarters: sums of their products are exact, so a large score is no less precise.
        q, k = (q * 4).round() / 4, (k * 4).round() / 4
        q[:, ::2, 0], q[:, 1::2, 0] = dim**0.5, 2 * dim**0.5
        k[..., 0] += level
    if loudest >= 0:
        loud = (8 * q[0].unflatten(0, (kv_heads, -1)).mean(1)).round() / 4
        loud[:, 0] += level
        k[tables[0, loudest // size], loudest % size] = loud
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    return arguments(nobodys(*q.shape), q, k, v, tables, seq_lens, TILE=tile)


BATCH = ("q", "k_cache", "v_cache", "tables", "seq_lens")  # what a whole kernel is called with


def arguments(out: Tensor, /, *batch: Tensor, **more: int) -> Given:
    """The arguments of a whole kernel in their order; `more` are TILE and ROWS."""
    given: Given = {"out": out, **dict(zip(BATCH, batch, strict=True))}
    _, size, kv_heads, dim = given["k_cache"].shape
    given |= {"table_stride": given["tables"].stride(0), "scale": dim**-0.5, "SIZE": size}
    group = out.shape[1] // kv_heads
    return given | {"GROUP": group, "KV_HEADS": kv_heads, "DIM": dim, **more}


def _grouped(**case: Any) -> Given:
    given = _decode(**case)
    return given | {"ROWS": rows_of(given["GROUP"])}


def rows_of(count: int, least: int = 16) -> int:
    """Rows of a tile for so many heads or splits: a power of two, and the tensor core's 16 at
    least.
    """
    return max(least, 1 << (count - 1).bit_length())


def _attended(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, tables: Tensor, seq_lens: Tensor, scale: float
) -> Tensor:
    """The output of each sequence's new token."""
    rows = zip(q, tables, seq_lens.tolist(), strict=True)
    return torch.stack([grouped(one, k_cache, v_cache, table, n, scale) for one, table, n in rows])


def _grid_of_groups(given: Given) -> tuple[int, ...]:
    """A program for each sequence and KV head."""
    return len(given["q"]), given["KV_HEADS"]


PUZZLES = {
    "weights": Puzzle(weights, _weights, lambda given: (blocks_for(given["n"], given["TILE"]),)),
    "scores": Puzzle(scores, _scores, lambda given: (given["HEADS"],)),
    "online_step": Puzzle(online_step, _step, lambda given: (1,), ("m", "total", "acc")),
    "paged_scores": Puzzle(paged_scores, _paged_scores, lambda given: (given["HEADS"],)),
    "decode": Puzzle(_attended, _decode, lambda given: given["q"].shape[:2]),
    "grouped": Puzzle(_attended, _grouped, _grid_of_groups),
    "split": Puzzle(_attended, _grouped, _grid_of_groups),
}


def splits_for(batch: int, kv_heads: int, tokens: int, processors: int) -> int:
    """Splits of each sequence: three programs a multiprocessor at most, pieces of 128 keys, below
    256 keys one.
    """
    return (
        max(1, min(3 * processors // (batch * kv_heads), -(-tokens // 128))) if tokens >= 256 else 1
    )


# What a kernel loads ------------------------------------------------------------------------------

Program = tuple[int, ...]


class Access(NamedTuple):
    """One `tl.load` or `tl.store`.

    `elements` are flat indices into the tensor, masked ones left out.
    """

    program: Program
    step: int  # index of this load (or store) of the tensor within the program
    elements: np.ndarray


class Loads(NamedTuple):
    """What a kernel loads.

    Args:
        given: the tensors, and the kernel's other arguments.
        of: the loads of each tensor.
        stopped: what stopped the kernel, or "".
    """

    given: Given
    of: dict[str, list[Access]]
    stopped: str
