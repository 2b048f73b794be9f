"""Checks of notebook 07's puzzles: the cases of each, and mistakes known by their numbers.

Each case is small, and its name says what it can show. A known mistake is a message and a function
of the puzzle's arguments `g`: it computes what a kernel with this mistake would compute. kernels.py
runs the kernels.
"""

import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import pad

from pagedlab.blocks import blocks_for
from pagedlab_lessons.checks import Function
from pagedlab_lessons.checks.kernels import Cases, Mistakes, puzzle
from pagedlab_lessons.kernels07.puzzles import PUZZLES, scores

NO_MAXIMUM = (
    "exp of a number near 1,000 is infinite, or 0 near -1,000: subtract the largest one first. The "
    "largest score so\nfar begins at minus infinity, not at 0. A merge subtracts the largest log."
)

# Puzzle 1: weights --------------------------------------------------------------------------------

puzzle(
    "weights",
    {
        "One tile of 4, full": {"n": 4},
        "Two tiles of 4, both full": {"n": 8},
        "10 scores in three tiles of 4: the last is half empty": {"n": 10},
        "10 scores in two tiles of 8": {"n": 10, "tile": 8},
        "4 scores near 1,000": {"n": 4, "shift": 1000.0},
    },
    {
        "m is not subtracted: these are exp(s).": lambda g: g.s.exp(),
        "The exponential is missing: these are s - m.": lambda g: g.s - g.m,
        NO_MAXIMUM: lambda g: g.s.exp() / torch.tensor(g.m).exp(),
    },
    "Each program writes its own elements, and no program touches what is past the end.",
)

# Puzzle 2: scores ---------------------------------------------------------------------------------

puzzle(
    "scores",
    {
        "8 keys of one head, a full tile": {"n": 8, "heads": 1},
        "6 keys of one head in a tile of 8": {"n": 6, "heads": 1},
        "8 keys of two heads: token 0's two rows, then token 1's": {"n": 8},
        "6 keys of three heads": {"heads": 3},
        "9 keys of two heads with 16 dimensions, in a tile of 16": {"n": 9, "dim": 16, "tile": 16},
    },
    {
        "The scale is missing.": lambda g: scores(g.q, g.k, 1.0),
        "Every program takes the query of head 0.": lambda g: scores(g.q[:1], g.k, g.scale),
        "It steps from token to token as if there were one head: the next row is the next "
        "head's, and a token's rows\nare HEADS * DIM apart.": lambda g: scores(
            g.q, g.k.as_strided(g.k.shape, (g.DIM, g.DIM, 1)), g.scale
        ),
    },
    "A tile of addresses, [TILE, DIM], made of a column and a row; the heads of a token are side "
    "by side.",
)

# Puzzle 3: a step of online softmax ---------------------------------------------------------------


def _after(
    g: Any, new_m: Any = None, corrects_total: bool = True, corrects_acc: bool = True
) -> tuple[Any, ...]:
    """Return m, total and acc after the tile of `g`, corrected for the new maximum."""
    if new_m is None:
        new_m = _largest(g)
    rescale = (g.m - new_m).exp()
    p = (g.s - new_m).exp()
    total = g.total * rescale if corrects_total else g.total
    acc = g.acc * rescale if corrects_acc else g.acc
    return new_m, total + p.sum(), acc + p @ g.v


def _largest(g: Any) -> Any:
    return g.m.maximum(g.s.max())


def _padded(g: Any) -> Any:
    """Return `g` with zeros after its scores and values, up to a whole tile."""
    after = -len(g.s) % g.TILE
    padded = {"s": pad(g.s, (0, after)), "v": pad(g.v, (0, 0, 0, after))}
    return SimpleNamespace(**vars(g) | padded)


OF_STEP: Mistakes = {
    "The sum so far is not corrected: multiply it by exp(m - new_m).": partial(
        _after, corrects_total=False
    ),
    "The output so far is not corrected: multiply it by exp(m - new_m).": partial(
        _after, corrects_acc=False
    ),
    "Neither the sum nor the output so far is corrected for the new maximum.": partial(
        _after, corrects_total=False, corrects_acc=False
    ),
    "The tile's largest score is taken for the largest of all: an earlier tile may have had a "
    "larger one.": lambda g: _after(g, g.s.max()[None]),
    "Places after the last score count as scores of 0. They have to be minus infinity.": (
        lambda g: _after(_padded(g))
    ),
    NO_MAXIMUM: lambda g: (_largest(g), g.total * math.nan, g.acc * math.nan),
}
puzzle(
    "online_step",
    {
        "The first tile, full: nothing came before (m is minus infinity)": {"n": 8, "first": True},
        "A full tile, and the largest score came before it": {"n": 8, "past": 5.0},
        "A full tile with a new largest score: the earlier tiles weigh less now": {
            "n": 8,
            "past": -1.0,
        },
        "6 scores in a tile of 8, and the largest came before": {"n": 6, "past": 5.0},
        "6 scores near 1,000, and the largest came before": {
            "n": 6,
            "past": 1005.0,
            "shift": 1000.0,
        },
        "13 scores in a tile of 16, values of 8 dimensions": {"n": 13, "dim": 8, "tile": 16},
    },
    OF_STEP,
    "A larger score corrects the earlier tiles, a smaller one is corrected, and masked places "
    "weigh nothing.",
)

# Puzzle 4: scores in pages ------------------------------------------------------------------------


def _in_slots(slot_of: Function, g: Any) -> Any:
    """Return the scores of keys read from slot_of(g, position, its page)."""
    position = torch.arange(g.n)
    slots = slot_of(g, position, g.table.long()[position // g.SIZE])
    return scores(g.q, g.k_cache.flatten(0, 1)[slots], g.scale)


puzzle(
    "paged_scores",
    {
        "8 keys of one head in two full pages": {"n": 8, "heads": 1, "tile": 8},
        "10 keys of two heads in three pages; slots after the last key hold NaN": {},
        "13 keys of three heads with 16 dimensions, in pages of 8": {
            "n": 13,
            "heads": 3,
            "size": 8,
            "dim": 16,
        },
        "10 keys, and page ids beyond 2^27": {"far": True},
    },
    {
        "The kernel does not read the table: it uses positions as slots.": partial(
            _in_slots, lambda g, p, page: p
        ),
        "It stays in the first page of the table: position p is in page table[p // SIZE].": partial(
            _in_slots, lambda g, p, page: page[0] * g.SIZE + p % g.SIZE
        ),
        "The offset in the page is missing: every key is its page's first.": partial(
            _in_slots, lambda g, p, page: page * g.SIZE
        ),
        "A page id is used as a slot: it has to be multiplied by SIZE.": partial(
            _in_slots, lambda g, p, page: page + p % g.SIZE
        ),
    },
    "Right in one page and in three, and where the offset of an element passes 2^31, as in a large "
    "GPU's cache.",
)

# Puzzles 5 to 7: whole kernels --------------------------------------------------------------------


def _given(g: Any, **other: Any) -> Any:
    """Return the right output for other arguments."""
    return PUZZLES["grouped"].expected(vars(g) | other)["out"]


def _in_turn(g: Any) -> Any:
    """Return the output if query head h reads KV head h % KV_HEADS."""
    heads = [h % g.KV_HEADS for h in range(g.q.shape[1])]
    return _given(g, k_cache=g.k_cache[:, :, heads], v_cache=g.v_cache[:, :, heads])


def _by_head(end: Function, g: Any) -> Any:
    """Return the output if `end` makes it from the scores and values of each head."""
    out = torch.empty_like(g.q)
    for b, n in enumerate(g.seq_lens.tolist()):
        caches = [x[g.tables[b].long()].flatten(0, 1)[:n] for x in (g.k_cache, g.v_cache)]
        keys, values = (x.repeat_interleave(g.GROUP, 1) for x in caches)
        for h, row in enumerate(scores(g.q[b], keys, g.scale)):
            out[b, h] = end(row, values[:, h])
    return out


def _tile_by_tile(step: Function, g: Any) -> Any:
    """Return the output if `step` takes each tile into the running maximum, sum and output."""

    def end(scores: Any, values: Any) -> Any:
        m, total, acc = torch.tensor([-math.inf]), torch.zeros(1), torch.zeros(g.DIM)
        for s, v in zip(scores.split(g.TILE), values.split(g.TILE), strict=True):
            tile = SimpleNamespace(m=m, total=total, acc=acc, s=s, v=v, TILE=g.TILE)
            m, total, acc = step(tile)
        return acc / total

    return _by_head(end, g)


OF_ATTENTION: Mistakes = {
    **{said: partial(_tile_by_tile, step) for said, step in OF_STEP.items()},
    NO_MAXIMUM: partial(_by_head, lambda s, v: s.exp() @ v / s.exp().sum()),
    "The scale is missing.": partial(_given, scale=1.0),
    "It is not divided by the sum of the weights at the end.": partial(
        _by_head, lambda s, v: (s - s.max()).exp() @ v
    ),
    "Query heads are dealt out in turn (h % KV_HEADS). Those that share a KV head are neighbours: "
    "h // GROUP.": _in_turn,
    "Every sequence reads the first one's table: the next row is table_stride further.": (
        lambda g: _given(g, tables=g.tables[:1].expand_as(g.tables))
    ),
    "The rows of the table are tables.stride(0) elements apart, not tables.shape[1].": (
        lambda g: _given(g, tables=g.tables.as_strided(g.tables.shape, (g.tables.shape[1], 1)))
    ),
}


ONE_HEAD = {"heads": 1, "kv_heads": 1}
TWO_TILES = {"lengths": (16,), **ONE_HEAD}
# The scores of the second head are twice as large.
LOUD = {"lengths": (11,), "heads": 2, "kv_heads": 1, "level": 1000.0}
WHOLE: Cases = {
    "One sequence of 8 keys: one full tile of 8, two pages of 4": {"lengths": (8,), **ONE_HEAD},
    "16 keys in two full tiles; the very first scores highest": {"loudest": 0, **TWO_TILES},
    "16 keys in two full tiles; the very last scores highest, and corrects what came before": {
        "loudest": 15,
        **TWO_TILES,
    },
    "13 keys in tiles of 8; slots after the end hold NaN": {
        "lengths": (13,),
        "loudest": 0,
        **ONE_HEAD,
    },
    "8 keys, four query heads on two KV heads": {"lengths": (8,)},
    "Two sequences of 8 keys": {"lengths": (8, 8), **ONE_HEAD},
    "Three sequences, four query heads on two KV heads": {},
    "Six query heads on three KV heads": {"lengths": (5,), "heads": 6, "kv_heads": 3},
    "11 keys, all scores near 1,000; the very first scores highest": {**LOUD, "loudest": 0},
    "11 keys, all scores near 1,000; the very last scores highest": {**LOUD, "loudest": 10},
    "11 keys, all scores near -1,000": {**LOUD, "level": -1000.0},
    "20 and 3 keys of 32 dimensions in tiles of 16, pages of 8": {
        "lengths": (20, 3),
        "heads": 2,
        "size": 8,
        "dim": 32,
        "tile": 16,
    },
    "6 and 20 keys in pages of 16: a tile of 8 is half a page": {"lengths": (6, 20), "size": 16},
    "18 query heads on one KV head": {"lengths": (3,), "heads": 18, "kv_heads": 1},
    "9 keys, and page ids beyond 2^27": {"lengths": (9,), "far": True},
}
puzzle(
    "decode",
    WHOLE,
    OF_ATTENTION,
    "A paged decode kernel: ragged lengths, shared heads, pages in any order, offsets beyond 2^31.",
)
puzzle(
    "grouped",
    WHOLE,
    OF_ATTENTION,
    "Each key is loaded once for the whole group, and two products do the arithmetic.",
)

# Puzzle 7: splits and their merge -----------------------------------------------------------------


def _merged(weights: Function, g: Any) -> Any:
    """Return attention over thirds of each sequence, merged with other weights.

    Args:
        weights: takes the scores of each third that has keys, and returns a weight for each.
        g: the puzzle's arguments.
    """

    def end(scores: Any, values: Any) -> Any:
        tiles = blocks_for(len(scores), g.TILE)
        cuts = [third * tiles // 3 * g.TILE for third in (1, 2)]
        thirds = scores.tensor_split(cuts), values.tensor_split(cuts)
        parts = [(s, v) for s, v in zip(*thirds, strict=True) if len(s)]
        outputs = torch.stack([s.softmax(0) @ v for s, v in parts])
        return weights([s for s, _ in parts]) @ outputs

    return _by_head(end, g)


OF_SPLIT: Mistakes = {
    "The parts are averaged: each has to weigh as much as its softmax weights.": partial(
        _merged, lambda parts: torch.full((len(parts),), 1 / 3)
    ),
    "The parts weigh exp(m), which loses their number of keys. A log-sum-exp is "
    "m + log(total).": partial(
        _merged, lambda parts: torch.stack([s.max() for s in parts]).softmax(0)
    ),
    **OF_ATTENTION,
}
puzzle(
    "split",
    {
        "24 keys, one split: its part is the output, so it has to be divided by its sum": {
            "lengths": (24,),
            "splits": 1,
        },
        "24 keys in three tiles of 8, three splits": {"lengths": (24,), **ONE_HEAD},
        "5 keys, one tile, three splits: two get nothing, and have to weigh nothing": {
            "lengths": (5,),
            **ONE_HEAD,
        },
        **{f"{title}, three splits": case for title, case in WHOLE.items()},
    },
    OF_SPLIT,
    "Split and merged, whatever share a program gets. On 132 multiprocessors, one sequence of "
    "16,384 with 8 KV\nheads gets 49 splits, and 256 sequences with 2 KV heads get 1: they fill "
    "the card by themselves.",
)

# Puzzle 8: the reader's own kernels, and the function that launches them --------------------------

LONG = {"size": 16, "heads": 2, "kv_heads": 1}
puzzle(
    "launch",
    {
        **WHOLE,
        "700 keys; the very last scores highest": {"lengths": (700,), "loudest": 699, **LONG},
        "700 keys and 5 keys: most splits of the short sequence have no keys": {
            "lengths": (700, 5),
            **LONG,
        },
    },
    OF_SPLIT,
    "Kernel, merge and launch: attention over pages from nothing but torch and triton. A long\n"
    "sequence is shared by several programs, and each key is loaded once.",
)
