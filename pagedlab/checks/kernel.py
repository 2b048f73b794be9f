"""Checks of notebook 07's puzzles 1 to 7 (launched.py has the eighth): the cases of each, and the mistakes that are known by
their numbers.

Each case is small, and says what it can show. `Mistakes`: the message, and what such a kernel would
have computed. watched.py runs the kernels.
"""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from pagedlab.blocks import blocks_for
from pagedlab.checks.watched import Cases, Mistakes, puzzle

# 1 to 4: one program's share ----------------------------------------------------------------------


puzzle(
    "weights",
    {
        "One tile of 4, full": {"n": 4},
        "Two tiles of 4, both full": {"n": 8},
        "10 scores in three tiles of 4: the last is half empty": {"n": 10},
    },
    {
        "m is not taken off: these are exp(s).": lambda g: g.s.exp(),
        "The exponential is missing: these are s - m.": lambda g: g.s - g.m,
        "The sign is turned round: these are exp(m - s).": lambda g: (g.m - g.s).exp(),
        "These are powers of two, not of e.": lambda g: (g.s - g.m).exp2(),
    },
    "Each program writes its own elements, and no program touches what is past the end.",
)


def _scored(
    g: Any, row: Callable[[Any, Any], Any], query: Any = slice(None), scale: float = 0.0
) -> Any:
    """Scores where the key of token j and head h is row(j, h) of memory; `query`: whose queries are
    taken.
    """
    import torch

    memory = (g.k_cache if "k_cache" in vars(g) else g.k).reshape(-1, g.DIM)
    keys = memory[row(torch.arange(g.n), torch.arange(g.HEADS)[:, None]).clamp(0, len(memory) - 1)]
    return (keys * g.q[query, None]).sum(2) * (scale or g.scale)


puzzle(
    "scores",
    {
        "8 keys of one head, a full tile": {"n": 8, "heads": 1},
        "6 keys of one head in a tile of 8": {"n": 6, "heads": 1},
        "8 keys of two heads: token 0's two rows, then token 1's": {"n": 8},
        "6 keys of three heads": {"heads": 3},
    },
    {
        "The scale is missing.": lambda g: _scored(g, lambda j, h: j * g.HEADS + h, scale=1.0),
        "Every program takes the query of head 0.": lambda g: _scored(
            g, lambda j, h: j * g.HEADS + h, slice(1)
        ),
        "Every program takes the keys of head 0.": lambda g: _scored(
            g, lambda j, h: j * g.HEADS + 0 * h
        ),
        "It steps from token to token as if there were one head: the next row is the next head's, "
        "and a token's rows\n"
        "are HEADS * DIM apart.": lambda g: _scored(g, lambda j, h: j + h),
        "It steps as if all tokens of a head lay together, [HEADS, n, DIM]. In this memory a token's heads do.": (
            lambda g: _scored(g, lambda j, h: h * g.n + j)
        ),
    },
    "A tile of addresses, [TILE, DIM], from a column and a row; and the heads of a token side by "
    "side.",
)


def _step(g: Any, *past: str, **other: Any) -> tuple[Any, ...]:
    """The state after a tile; other numbers than `given`, and of the past not corrected what `past`
    says.
    """
    import torch

    from pagedlab.lessons.puzzles import online_step

    was = {
        name: torch.as_tensor(getattr(g, name)) for name in ("m", "total", "acc", "s", "v")
    } | other
    new = dict(zip(was, online_step(**was), strict=False))
    lost = 1 - (was["m"] - new["m"]).exp()
    return tuple(x + was[name] * lost if name in past else x for name, x in new.items())


def _padded(x: Any, tile: int) -> Any:
    """With zeros behind, up to a whole tile."""
    import torch

    return torch.cat([x, x.new_zeros(-len(x) % tile, *x.shape[1:])])


def _largest_of_tile(g: Any) -> tuple[Any, ...]:
    m, *sums = _step(g)
    return g.s.max()[None], *(x * (m - g.s.max()).exp() for x in sums)


puzzle(
    "online_step",
    {
        "The first tile, full: nothing came before (m is minus infinity)": {"n": 8, "first": True},
        "A full tile, and the largest score came before it": {"n": 8, "past": 5.0},
        "A full tile with a new largest score: the past weighs less now": {"n": 8, "past": -1.0},
        "6 scores in a tile of 8, and the largest came before": {"n": 6, "past": 5.0},
        "6 scores in a tile of 8, all of them far below zero": {
            "n": 6,
            "past": -30.0,
            "shift": -30.0,
        },
    },
    {
        "The sum so far is not corrected: it has to shrink by exp(m - new_m).": lambda g: _step(
            g, "total"
        ),
        "The output so far is not corrected: it has to shrink by exp(m - new_m).": lambda g: _step(
            g, "acc"
        ),
        "Neither the sum nor the output so far is corrected for the new maximum.": lambda g: _step(
            g, "total", "acc"
        ),
        "The tile's largest score is taken for the largest of all: the past may have had a larger one.": (
            _largest_of_tile
        ),
        "Places behind the last score count as scores of 0. They have to be minus infinity.": (
            lambda g: _step(g, s=_padded(g.s, g.TILE), v=_padded(g.v, g.TILE))
        ),
        "The new maximum is not kept.": lambda g: (g.m, *_step(g)[1:]),
        "The past is not there any more: the tile replaces it.": lambda g: _step(
            g, total=0 * g.total, acc=0 * g.acc
        ),
    },
    (
        "A larger score corrects the past, a smaller one is corrected, and what is no score weighs "
        "nothing."
    ),
)


def _slots(g: Any, of: Callable[[Any, Any], Any]) -> Any:
    """Scores of keys in slots of(position, table), as they should not be."""
    return _scored(g, lambda p, h: of(p, g.table.long()) * g.HEADS + h)


puzzle(
    "paged_scores",
    {
        "8 keys of one head in two full pages": {"n": 8, "heads": 1, "tile": 8},
        "10 keys of two heads in three pages; what is behind the last key holds NaN": {},
        "10 keys, and page ids beyond 2^27": {"far": True},
    },
    {
        "The table is not asked: positions are taken for slots.": lambda g: _slots(
            g, lambda p, table: p
        ),
        "It stays in the first page of the table: position p is in page table[p // SIZE].": (
            lambda g: _slots(g, lambda p, table: table[0] * g.SIZE + p % g.SIZE)
        ),
        "It runs on behind the first page: position p is in page table[p // SIZE].": (
            lambda g: _slots(g, lambda p, table: table[0] * g.SIZE + p)
        ),
        "The place in the page is missing: every key is its page's first.": (
            lambda g: _slots(g, lambda p, table: table[p // g.SIZE] * g.SIZE)
        ),
        "The place in the page is p % SIZE, not p // SIZE.": (
            lambda g: _slots(g, lambda p, table: table[p // g.SIZE] * g.SIZE + p // g.SIZE)
        ),
        "A page id is taken for a slot: it has to be multiplied by SIZE.": (
            lambda g: _slots(g, lambda p, table: table[p // g.SIZE] + p % g.SIZE)
        ),
        "The scale is missing.": (
            lambda g: _slots(g, lambda p, table: table[p // g.SIZE] * g.SIZE + p % g.SIZE) / g.scale
        ),
    },
    "Right in one page and in three, and where the offset of an element passes 2^31, as in a large "
    "GPU's cache.",
)

# 5 to 7: whole kernels ----------------------------------------------------------------------------


def _attention(
    g: Any, end: Callable[..., Any] = lambda s, v: s.softmax(0) @ v, head: Callable[[int], int] | None = None,
    row: Callable[[int], int] = int, length: Callable[[int], int] = int, scale: float = 0.0,
) -> Any:  # fmt: skip
    """Attention with a mistake, head by head.

    end                what becomes of one head's scores and values
    head, row, length  which KV head a query head reads, which row of the tables, how many keys
    """
    import torch

    out = torch.zeros_like(g.q)
    for b, n in enumerate(g.seq_lens.tolist()):
        caches = (cache[g.tables[row(b)].long()].flatten(0, 1) for cache in (g.k_cache, g.v_cache))
        k, v = (cache[: length(n)].nan_to_num() for cache in caches)
        for h, query in enumerate(g.q[b]):
            kv = head(h) if head else h // g.GROUP
            out[b, h] = end(k[:, kv] @ query * (scale or g.scale), v[:, kv])
    return out


def _past(g: Any, *kept: str) -> Any:
    """As if the past's total or acc, or both, were not corrected for a new maximum."""

    def end(s: Any, v: Any) -> Any:
        state: tuple[Any, ...] = s.new_tensor(-math.inf), s.new_tensor(0.0), v.new_zeros(g.DIM)
        for part, values in zip(s.split(g.TILE), v.split(g.TILE), strict=True):
            names = zip(("m", "total", "acc", "s", "v"), (*state, part, values), strict=True)
            state = _step(SimpleNamespace(**dict(names)), *kept)
        return state[2] / state[1]

    return _attention(g, end)


OF_ATTENTION: Mistakes = {
    "The scale is missing.": lambda g: _attention(g, scale=1.0),
    "It is not divided by the sum of the weights at the end.": (
        lambda g: _attention(g, lambda s, v: (s - s.max()).exp() @ v)
    ),
    "Query heads are dealt out in turn (h % KV_HEADS). Those that share a KV head lie side by side: h // GROUP.": (
        lambda g: _attention(g, head=lambda h: h % g.KV_HEADS)
    ),
    "Every query head reads KV head 0.": lambda g: _attention(g, head=lambda _: 0),
    "Every sequence reads the first one's table: the next row is table_stride further.": (
        lambda g: _attention(g, row=lambda _: 0)
    ),
    "The last tile is left out where it is not full: round up, and look for a guard that turns NaN into 0.": (
        lambda g: _attention(g, length=lambda n: n // g.TILE * g.TILE or n)
    ),
    "The sum so far is not corrected for a new maximum.": lambda g: _past(g, "total"),
    "The output so far is not corrected for a new maximum.": lambda g: _past(g, "acc"),
    "The past is not corrected for a new maximum.": lambda g: _past(g, "total", "acc"),
    "Places behind the end count as scores of 0. They have to be minus infinity.": (
        lambda g: _attention(g, lambda s, v: _padded(s, g.TILE).softmax(0) @ _padded(v, g.TILE))
    ),
    "Only the first tile is taken in: where is the loop?": lambda g: _attention(
        g, length=lambda n: min(n, g.TILE)
    ),
}
ONE = {"heads": 1, "kv_heads": 1}
THREE = {"splits": 3, **ONE}
WHOLE: Cases = {
    "One sequence of 8 keys: one full tile of 8, two pages of 4": {"lengths": (8,), **ONE},
    "16 keys in two full tiles; the very first scores highest": {
        "lengths": (16,),
        "loudest": 0,
        **ONE,
    },
    "16 keys in two full tiles; the very last scores highest": {
        "lengths": (16,),
        "loudest": 15,
        **ONE,
    },
    "13 keys in tiles of 8; slots behind the end hold NaN": {"lengths": (13,), "loudest": 0, **ONE},
    "8 keys, four query heads on two KV heads": {"lengths": (8,)},
    "Two sequences of 8 keys": {"lengths": (8, 8), **ONE},
    "Three sequences, four query heads on two KV heads": {},
    "9 keys, and page ids beyond 2^27": {"lengths": (9,), "far": True},
}
puzzle(
    "decode",
    {
        **WHOLE,
        "6 keys in pages of 16: a tile of 8 is half a page": {"lengths": (6, 20), "size": 16},
    },
    OF_ATTENTION,
    "A paged decode kernel: ragged lengths, shared heads, pages in any order, offsets beyond 2^31.",
)
puzzle(
    "grouped",
    {**WHOLE, "Three query heads on one KV head, padded to 16 rows": {"heads": 3, "kv_heads": 1}},
    OF_ATTENTION,
    "Each key is loaded once for the whole group, and two products do the arithmetic.",
)


def _merged(g: Any, weight: Callable[[Any, Any], Any], nothing: float = 0.0) -> Any:
    """Thirds put together with weight(log of the sum of the weights, maximum) [3]; `nothing` is an
    empty third.
    """
    import torch

    def end(s: Any, v: Any) -> Any:
        cuts = [third * blocks_for(len(s), g.TILE) // 3 * g.TILE for third in (1, 2)]
        parts = list(zip(s.tensor_split(cuts), v.tensor_split(cuts), strict=True))
        o = torch.stack(
            [s.softmax(0) @ v if len(s) else torch.full((g.DIM,), nothing) for s, v in parts]
        )
        least = [torch.cat([s, torch.tensor([-math.inf])]) for s, _ in parts]
        return (
            weight(
                torch.stack([s.logsumexp(0) for s in least]), torch.stack([s.max() for s in least])
            )
            @ o
        )

    return _attention(g, end)


def merge_mistakes() -> Mistakes:
    """What goes wrong where parts of a sequence are put together."""
    return {
        "The parts are added up: each has to weigh as much as its softmax weights.": (
            lambda g: _merged(g, lambda log, _: 0 * log.exp() + 1)
        ),
        "The parts are averaged: each has to weigh as much as its softmax weights.": (
            lambda g: _merged(g, lambda log, _: 0 * log.exp() + 1 / 3)
        ),
        "The merged sum is not divided by the sum of the weights.": (
            lambda g: _merged(g, lambda log, _: (log - log.max()).exp())
        ),
        "The parts weigh exp(m): how many keys stand behind a maximum is lost. The log is m + log(total).": (
            lambda g: _merged(g, lambda _, m: m.softmax(0))
        ),
        "A split without keys divides 0 by 0, and NaN weighed with 0 is NaN.": (
            lambda g: _merged(g, lambda log, _: log.softmax(0), math.nan)
        ),
    }


puzzle(
    "split",
    {
        "24 keys, one split: its part is the output, so it has to be divided by its sum": {
            "lengths": (24,),
            "splits": 1,
        },
        "24 keys in three tiles of 8, three splits": {"lengths": (24,), **THREE},
        "24 keys, three splits, the last key loudest": {"lengths": (24,), "loudest": 23, **THREE},
        "21 keys, three splits; slots behind the end hold NaN": {"lengths": (21,), **THREE},
        "5 keys, one tile, three splits: two get nothing, and have to weigh nothing": {
            "lengths": (5,),
            **THREE,
        },
        "Three sequences, four query heads on two KV heads, three splits": {"splits": 3},
    },
    merge_mistakes() | OF_ATTENTION,
    "Split and merged, whatever share a program gets. On 132 multiprocessors, one sequence of "
    "16,384 with 8 KV\n"
    "heads gets 49 splits, and 256 sequences with 2 KV heads get 1: they fill the card by themselves.",
)
