"""Checks of notebook 07's puzzles 1 to 7: the cases of each, and mistakes known by their numbers.

Each case is small, and its name says what it can show. A known mistake is a message and a function
of the puzzle's arguments `g`: it computes what a kernel with this mistake would compute. watched.py
runs the kernels; launched.py has the check of puzzle 8.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

from pagedlab.blocks import blocks_for
from pagedlab_lessons.checks.watched import EMPTY_SPLIT, Cases, Mistakes, puzzle
from pagedlab_lessons.kernels07.puzzles import PUZZLES, online_step, paged_scores, scores

NO_MAXIMUM = (
    "exp of a number near 1,000 is infinite, or 0 near -1,000: subtract the largest one first. The "
    "largest score so\nfar begins at minus infinity, not at 0. A merge subtracts the largest log."
)


# Puzzle 1: weights --------------------------------------------------------------------------------

OF_WEIGHTS: Mistakes = {
    "m is not subtracted: these are exp(s).": lambda g: g.s.exp(),
    "The exponential is missing: these are s - m.": lambda g: g.s - g.m,
    "The sign is turned round: these are exp(m - s).": lambda g: (g.m - g.s).exp(),
    NO_MAXIMUM: lambda g: g.s.exp() / torch.tensor(g.m).exp(),
}
puzzle(
    "weights",
    {
        "One tile of 4, full": {"n": 4},
        "Two tiles of 4, both full": {"n": 8},
        "10 scores in three tiles of 4: the last is half empty": {"n": 10},
        "10 scores in two tiles of 8": {"n": 10, "tile": 8},
        "4 scores near 1,000": {"n": 4, "shift": 1000.0},
    },
    OF_WEIGHTS,
    "Each program writes its own elements, and no program touches what is past the end.",
)

# Puzzle 2: scores ---------------------------------------------------------------------------------

OF_SCORES: Mistakes = {
    "The scale is missing.": lambda g: scores(g.q, g.k, 1.0),
    "Every program takes the query of head 0.": lambda g: scores(g.q[:1], g.k, g.scale),
    "Every program takes the keys of head 0.": lambda g: scores(g.q, g.k[:, :1], g.scale),
    "It steps from token to token as if there were one head: the next row is the "
    "next head's, and a token's rows\nare HEADS * DIM apart.": lambda g: scores(
        g.q, g.k.as_strided(g.k.shape, (g.DIM, g.DIM, 1)), g.scale
    ),
    "It steps as if all tokens of a head lay together, [HEADS, n, DIM]. In this "
    "memory a token's heads do.": lambda g: scores(
        g.q, g.k.view(g.HEADS, g.n, g.DIM).transpose(0, 1), g.scale
    ),
}
puzzle(
    "scores",
    {
        "8 keys of one head, a full tile": {"n": 8, "heads": 1},
        "6 keys of one head in a tile of 8": {"n": 6, "heads": 1},
        "8 keys of two heads: token 0's two rows, then token 1's": {"n": 8},
        "6 keys of three heads": {"heads": 3},
        "9 keys of two heads with 16 dimensions, in a tile of 16": {"n": 9, "dim": 16, "tile": 16},
    },
    OF_SCORES,
    "A tile of addresses, [TILE, DIM], made of a column and a row; the heads of a token are side "
    "by side.",
)

# Puzzle 3: a step of online softmax ---------------------------------------------------------------


def _step(
    m: Any,
    total: Any,
    acc: Any,
    s: Any,
    v: Any,
    uncorrected: str = "",
) -> tuple[Any, ...]:
    """Return m, total and acc after one more tile.

    Args:
        m: of the tiles so far.
        total: of the tiles so far.
        acc: of the tiles so far.
        s: scores of the tile.
        v: values of the tile.
        uncorrected: names those of total and acc that are not corrected for a new maximum.
    """
    new_m, *right = online_step(m, total, acc, s, v)
    _, *of_tile = online_step(m, 0 * total, 0 * acc, s, v)
    new_total = total + of_tile[0] if "total" in uncorrected else right[0]
    new_acc = acc + of_tile[1] if "acc" in uncorrected else right[1]
    return new_m, new_total, new_acc


def _after(g: Any, uncorrected: str = "") -> tuple[Any, ...]:
    return _step(g.m, g.total, g.acc, g.s, g.v, uncorrected)


def _padded(x: Any, tile: int) -> Any:
    """Return x with zeros appended up to a whole tile."""
    return torch.cat([x, x.new_zeros(-len(x) % tile, *x.shape[1:])])


def _largest_of_tile(g: Any) -> Any:
    m, total, acc = _after(g)
    largest = g.s.max()
    rescale = (m - largest).exp()
    return largest[None], total * rescale, acc * rescale


def _without_the_maximum(g: Any) -> Any:
    m, total, acc = _after(g)
    return m, total * math.nan, acc * math.nan


OF_STEP: Mistakes = {
    "The sum so far is not corrected: multiply it by exp(m - new_m).": lambda g: _after(g, "total"),
    "The output so far is not corrected: multiply it by exp(m - new_m).": lambda g: _after(
        g, "acc"
    ),
    "Neither the sum nor the output so far is corrected for the new maximum.": lambda g: _after(
        g, "total, acc"
    ),
    "The tile's largest score is taken for the largest of all: an earlier tile may "
    "have had a larger one.": _largest_of_tile,
    "Places after the last score count as scores of 0. They have to be minus infinity.": lambda g: (
        _step(g.m, g.total, g.acc, _padded(g.s, g.TILE), _padded(g.v, g.TILE))
    ),
    "The new maximum is not kept.": lambda g: (g.m, *_after(g)[1:]),
    NO_MAXIMUM: _without_the_maximum,
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
        "6 scores near -1,000, and the largest came before": {
            "n": 6,
            "past": -995.0,
            "shift": -1000.0,
        },
        "13 scores in a tile of 16, values of 8 dimensions": {"n": 13, "dim": 8, "tile": 16},
    },
    OF_STEP,
    "A larger score corrects the earlier tiles, a smaller one is corrected, and masked places "
    "weigh nothing.",
)

# Puzzle 4: scores in pages ------------------------------------------------------------------------


def _in_slots(g: Any, slot_of: Callable[[Any, Any], Any]) -> Any:
    """Return the scores of keys read from slot_of(position, its page)."""
    position = torch.arange(g.n)
    slots = slot_of(position, g.table.long()[position // g.SIZE])
    return scores(g.q, g.k_cache.flatten(0, 1)[slots], g.scale)


OF_PAGED_SCORES: Mistakes = {
    "The kernel does not read the table: it uses positions as slots.": lambda g: _in_slots(
        g, lambda p, page: p
    ),
    "It stays in the first page of the table: position p is in page table[p // SIZE].": lambda g: (
        _in_slots(g, lambda p, page: page[0] * g.SIZE + p % g.SIZE)
    ),
    "The offset in the page is missing: every key is its page's first.": lambda g: _in_slots(
        g, lambda p, page: page * g.SIZE
    ),
    "The offset in the page is p % SIZE, not p // SIZE.": lambda g: _in_slots(
        g, lambda p, page: page * g.SIZE + p // g.SIZE
    ),
    "A page id is used as a slot: it has to be multiplied by SIZE.": lambda g: _in_slots(
        g, lambda p, page: page + p % g.SIZE
    ),
    "The scale is missing.": lambda g: paged_scores(g.q, g.k_cache, g.table, g.n, 1.0),
}
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
    OF_PAGED_SCORES,
    "Right in one page and in three, and where the offset of an element passes 2^31, as in a large "
    "GPU's cache.",
)

# Puzzles 5 to 7: whole kernels --------------------------------------------------------------------


def _given(g: Any, **other: Any) -> Any:
    """Return the right output for other arguments."""
    return PUZZLES["grouped"].expected(vars(g) | other)["out"]


def _heads(g: Any, kv_head: Callable[[int], int]) -> Any:
    """Return the output if each query head reads this KV head."""
    heads = [min(kv_head(h), g.KV_HEADS - 1) for h in range(g.q.shape[1])]
    return _given(g, k_cache=g.k_cache[:, :, heads], v_cache=g.v_cache[:, :, heads])


def _by_head(g: Any, end: Callable[[Any, Any], Any]) -> Any:
    """Return the output if `end` makes it from the scores and values of each head."""
    out = torch.empty_like(g.q)
    for b, n in enumerate(g.seq_lens.tolist()):
        caches = [x[g.tables[b].long()].flatten(0, 1)[:n] for x in (g.k_cache, g.v_cache)]
        keys, values = (x.repeat_interleave(g.GROUP, 1) for x in caches)
        for h, row in enumerate(scores(g.q[b], keys, g.scale)):
            out[b, h] = end(row, values[:, h])
    return out


def _uncorrected(g: Any, names: str) -> Any:
    """Return the output if total or acc, or both, are not corrected for a new maximum."""

    def end(scores: Any, values: Any) -> Any:
        state = (torch.tensor(-math.inf), torch.tensor(0.0), torch.zeros(g.DIM))
        for tile in zip(scores.split(g.TILE), values.split(g.TILE), strict=True):
            state = _step(*state, *tile, names)
        _, total, acc = state
        return acc / total

    return _by_head(g, end)


OF_ATTENTION: Mistakes = {
    NO_MAXIMUM: lambda g: _by_head(g, lambda s, v: s.exp() @ v / s.exp().sum()),
    "The scale is missing.": lambda g: _given(g, scale=1.0),
    "It is not divided by the sum of the weights at the end.": lambda g: _by_head(
        g, lambda s, v: (s - s.max()).exp() @ v
    ),
    "Query heads are dealt out in turn (h % KV_HEADS). Those that share a KV head "
    "are neighbours: h // GROUP.": lambda g: _heads(g, lambda h: h % g.KV_HEADS),
    "Query heads are divided by the wrong number (h // KV_HEADS). A KV head has "
    "GROUP of them: h // GROUP.": lambda g: _heads(g, lambda h: h // g.KV_HEADS),
    "Every query head reads KV head 0.": lambda g: _heads(g, lambda _: 0),
    "Every sequence reads the first one's table: the next row is table_stride further.": lambda g: (
        _given(g, tables=g.tables[:1].expand_as(g.tables))
    ),
    "The last tile is left out where it is not full: round up, and look for a "
    "guard that turns NaN into 0.": lambda g: _given(
        g, seq_lens=torch.tensor([n // g.TILE * g.TILE or n for n in g.seq_lens.tolist()])
    ),
    "The sum so far is not corrected for a new maximum.": lambda g: _uncorrected(g, "total"),
    "The output so far is not corrected for a new maximum.": lambda g: _uncorrected(g, "acc"),
    "Neither the sum nor the output so far is corrected for a new maximum.": lambda g: _uncorrected(
        g, "total, acc"
    ),
    "Places after the end count as scores of 0. They have to be minus infinity.": lambda g: (
        _by_head(g, lambda s, v: _padded(s, g.TILE).softmax(0) @ _padded(v, g.TILE))
    ),
    "Only the first tile is read: where is the loop?": lambda g: _given(
        g, seq_lens=g.seq_lens.clamp(max=g.TILE)
    ),
}


ELEVEN_KEYS = {"lengths": (11,), "heads": 2, "kv_heads": 1}
ONE_HEAD = {"heads": 1, "kv_heads": 1}
LARGE_GROUP = {"lengths": (3,), "heads": 18, "kv_heads": 1}
TILE_OF_16 = {
    "lengths": (20, 3),
    "heads": 2,
    "size": 8,
    "dim": 32,
    "tile": 16,
}
LOUD: Cases = {  # the scores of the second head are twice as large
    "11 keys, all scores near 1,000; the very first scores highest": {
        "loudest": 0,
        "level": 1000.0,
        **ELEVEN_KEYS,
    },
    "11 keys, all scores near 1,000; the very last scores highest": {
        "loudest": 10,
        "level": 1000.0,
        **ELEVEN_KEYS,
    },
    "11 keys, all scores near -1,000": {"level": -1000.0, **ELEVEN_KEYS},
}
GROUPS: Cases = {
    "Six query heads on three KV heads": {"lengths": (5,), "heads": 6, "kv_heads": 3},
    "Two sequences, six query heads on two KV heads": {"lengths": (5, 3), "heads": 6},
    "Eight query heads on two KV heads": {"lengths": (5,), "heads": 8},
}
THREE_SPLITS = {"splits": 3, **ONE_HEAD}
WHOLE: Cases = {
    "One sequence of 8 keys: one full tile of 8, two pages of 4": {"lengths": (8,), **ONE_HEAD},
    "16 keys in two full tiles; the very first scores highest": {
        "lengths": (16,),
        "loudest": 0,
        **ONE_HEAD,
    },
    "16 keys in two full tiles; the very last scores highest": {
        "lengths": (16,),
        "loudest": 15,
        **ONE_HEAD,
    },
    "13 keys in tiles of 8; slots after the end hold NaN": {
        "lengths": (13,),
        "loudest": 0,
        **ONE_HEAD,
    },
    "8 keys, four query heads on two KV heads": {"lengths": (8,)},
    "Two sequences of 8 keys": {"lengths": (8, 8), **ONE_HEAD},
    "Three sequences, four query heads on two KV heads": {},
    **GROUPS,
    **LOUD,
    "20 and 3 keys of 32 dimensions in tiles of 16, pages of 8": TILE_OF_16,
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
    {**WHOLE, "18 query heads on one KV head: 32 rows": LARGE_GROUP},
    OF_ATTENTION,
    "Each key is loaded once for the whole group, and two products do the arithmetic.",
)

# Puzzle 7: splits and their merge -----------------------------------------------------------------


def _merged(g: Any, weights: Callable[[Any, Any], Any], of_nothing: float = 0.0) -> Any:
    """Return attention over thirds of each sequence, merged with other weights.

    Args:
        g: the puzzle's arguments.
        weights: takes the logs of the thirds' sums of weights and their maxima, both [3].
        of_nothing: the output of an empty third.
    """

    def end(scores: Any, values: Any) -> Any:
        tiles = blocks_for(len(scores), g.TILE)
        cuts = [third * tiles // 3 * g.TILE for third in (1, 2)]
        parts = scores.tensor_split(cuts)
        outputs = [
            s.softmax(0) @ v if len(s) else torch.full((g.DIM,), of_nothing)
            for s, v in zip(parts, values.tensor_split(cuts), strict=True)
        ]
        logs = torch.stack([s.logsumexp(0) for s in parts])
        maxima = torch.stack([s.max() if len(s) else torch.tensor(-math.inf) for s in parts])
        return weights(logs, maxima) @ torch.stack(outputs)

    return _by_head(g, end)


OF_SPLIT: Mistakes = {
    # First, as both give NaN: a large score is the reason, not an empty split.
    NO_MAXIMUM: OF_ATTENTION[NO_MAXIMUM],
    "The parts are averaged: each has to weigh as much as its softmax weights.": lambda g: _merged(
        g, lambda log, _: torch.full_like(log, 1 / 3)
    ),
    "The merged sum is not divided by the sum of the weights.": lambda g: _merged(
        g, lambda log, _: (log - log.max()).exp()
    ),
    "The parts weigh exp(m): this loses how many keys a part has. The log is m + "
    "log(total).": lambda g: _merged(g, lambda _, m: m.softmax(0)),
    "The logs lack the maximum: a part's log is m + log(total).": lambda g: _merged(
        g, lambda log, m: torch.where(log.isinf(), log, log - m).softmax(0)
    ),
    EMPTY_SPLIT: lambda g: _merged(g, lambda log, _: log.softmax(0), of_nothing=math.nan),
}
puzzle(
    "split",
    {
        "24 keys, one split: its part is the output, so it has to be divided by its sum": {
            "lengths": (24,),
            "splits": 1,
        },
        "24 keys in three tiles of 8, three splits": {"lengths": (24,), **THREE_SPLITS},
        "21 keys, three splits; slots after the end hold NaN": {"lengths": (21,), **THREE_SPLITS},
        "5 keys, one tile, three splits: two get nothing, and have to weigh nothing": {
            "lengths": (5,),
            **THREE_SPLITS,
        },
        "Three sequences, four query heads on two KV heads, three splits": {"splits": 3},
        **{
            f"{title}, two splits": {**case, "splits": 2} for title, case in (GROUPS | LOUD).items()
        },
        "20 and 3 keys of 32 dimensions in tiles of 16, pages of 8, two splits": {
            **TILE_OF_16,
            "splits": 2,
        },
        "18 query heads on one KV head, two splits": {**LARGE_GROUP, "splits": 2},
    },
    OF_SPLIT | OF_ATTENTION,
    "Split and merged, whatever share a program gets. On 132 multiprocessors, one sequence of "
    "16,384 with 8 KV\nheads gets 49 splits, and 256 sequences with 2 KV heads get 1: they fill "
    "the card by themselves.",
)
