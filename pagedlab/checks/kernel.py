"""Checks of notebook 07's seven puzzles: a kernel runs in Triton's interpreter, every load and store watched.

Each case is small, and says what it can show. What is wrong gets a name where it can be had: a reach behind a tensor,
an element that nobody or everybody stores, a slot that nobody has written, or numbers that are just those which a
known mistake gives (`Mistakes`: the message, and what such a kernel would have computed).
Where Triton compiles, the check runs in a process of its own. Triton is imported when a kernel is checked.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

from pagedlab.blocks import blocks_for
from pagedlab.checks import StillRunning, Wrong, bounded, check, compare, exercise, explain, first_wrong, normal, say
from pagedlab.checks.blocks import slot

if TYPE_CHECKING:
    import torch

    Given = dict[str, Any]
    Numbers = dict[str, torch.Tensor]

Cases = list[tuple[str, dict[str, Any]]]  # what a case can show, and how it is made
Mistakes = dict[str, Callable[["Given"], Any]]  # what to say, and the outputs that such a kernel gives
FAR = (1 << 27) + 12_345  # added to page ids: their slots fit into 32 bits, the elements' offsets do not


def paged(lengths: Sequence[int], kv_heads: int = 1, size: int = 4, dim: int = 4) -> tuple[torch.Tensor, ...]:
    """K and V [pages, size, kv_heads, dim] of sequences of these lengths, and their tables [sequences, most pages].

    Pages are not in order, the first is nobody's, and a slot that nobody has written holds NaN.
    """
    import torch

    randn, pages = normal(), [blocks_for(length, size) for length in lengths]
    k, v = caches = torch.full((2, sum(pages) + 1, size, kv_heads, dim), torch.nan, dtype=torch.float64)
    tables, ids = torch.zeros(len(lengths), max(pages), dtype=torch.int32), list(range(sum(pages) + 1))
    for table, n, length in zip(tables, pages, lengths, strict=True):
        table[:n] = torch.tensor([ids.pop() for _ in range(n)])
        slots = [slot(table.tolist(), position, size) for position in range(length)]
        caches.flatten(1, 2)[:, slots] = randn(2, length, kv_heads, dim)
    return k, v, tables


@contextmanager
def _running(setup: str, expected: str) -> Iterator[None]:
    try:
        with bounded(100_000):
            yield
    except (Exception, StillRunning) as error:
        said = explain(error.__cause__ or error)  # Triton's interpreter wraps what went wrong
        raise Wrong("Your kernel raises an error.", expected, said, setup=setup) from None


def _index(shape: Any, element: int) -> str:
    places = []
    for n in reversed(shape):
        element, place = divmod(element, n)
        places.append(str(place))
    return f"[{', '.join(reversed(places))}]"


def _try(name: str, answer: Any, said: str, case: dict[str, Any], mistakes: Mistakes) -> None:
    """One launch of a puzzle's kernel; `Wrong`, with a name for the mistake, unless it computes what it should.

    case  the puzzle's arguments; `splits` for the last, and `far`: page ids with `FAR` added
    """
    from pagedlab.lessons.fence import Memory, Outside
    from pagedlab.lessons.puzzles import PUZZLES

    puzzle, case = PUZZLES[name], dict(case)
    options = {"splits": case.pop("splits")} if "splits" in case else {}
    far, setup, memory = case.pop("far", False), f"{said}.", Memory()
    given = puzzle.given(**case)
    expected = puzzle.expected(given)
    table = "tables" if "tables" in given else "table"
    if far:
        offset = FAR * given["k_cache"][0].numel()
        fenced = memory.put_all(given | {table: given[table] + FAR}, k_cache=offset, v_cache=offset)
    else:
        fenced = memory.put_all(given)
    if name == "split":
        options["put"] = lambda label, x: memory.put(label, x.fill_(math.nan))
    try:
        with _running(
            setup, "; ".join(f"{out}{_index(x.shape, 0)} = {say(x.flatten()[0])}" for out, x in expected.items())
        ):
            memory.run(lambda: puzzle.launch(answer, fenced, **options))
    except Outside as error:
        inside, did = f"elements 0 to {error.size - 1} of {error.name}", f"{error.verb}s {error.where}"
        raise Wrong(_reach(error, far), inside, f"program {error.program} {did}", setup=setup) from None
    got = {out: fenced[out] for out in expected}
    _stored(memory, memory.between() | expected, setup)
    wrong = [(out, at) for out, x in expected.items() if (at := first_wrong(x, got[out], within=2e-5))]
    message = _named(given, expected, got, mistakes) if wrong else ""
    if not message and name in ("grouped", "split"):
        _once(memory, given, setup)
    for out, at in wrong:
        message = message or _unnamed(got)
        raise Wrong(message, _row(expected[out], at), _row(got[out], at), _where(out, at), setup=setup)


def _reach(error: Any, far: bool) -> str:
    """What to say of a load or store outside of a tensor."""
    if far:
        wide = "page ids have to become 64 bits wide before they\nare multiplied."
        return f"The offset of an element does not fit into 32 bits: {wide}"
    if error.name in ("table", "tables"):
        return "It loads outside of the table: position p is in page table[p // SIZE], and a mask keeps the rest out."
    if error.element < 0:
        return f"It {error.verb}s before the start of {error.name}: look at the address."
    if error.element > 4 * error.size:
        return f"It {error.verb}s far outside of {error.name}: look at the address."
    return f"It {error.verb}s outside of {error.name}: a mask has to keep that out."


def _row(x: torch.Tensor, at: list[int]) -> str:
    """The row that a number stands in, up to eight numbers around it."""
    first = at[-1] // 8 * 8
    return say(x[tuple(at[:-1])][first : first + 8], 5)


def _where(out: str, at: list[int]) -> str:
    first = at[-1] // 8 * 8
    return f"{out}[{', '.join([*map(str, at[:-1]), f'{first}:{first + 8}' if first else ':8'])}]"


def _stored(memory: Any, expected: Numbers, setup: str) -> None:
    """`Wrong` unless each element of the outputs is stored once."""
    for out, numbers in expected.items():
        programs = dict[int, Any]()
        for access in memory.stores[out]:
            for element in set(access.elements.tolist()):
                if element in programs and programs[element] != access.program:
                    twice = f"programs {programs[element]} and {access.program} both do"
                    one = f"one program stores {out}{_index(numbers.shape, element)}"
                    message = (
                        f"Two programs store the same element of {out}. Each has a share of its own: its number says\n"
                        "which one, and a mask keeps it from its neighbour's."
                    )
                    raise Wrong(message, one, twice, setup=setup)
                programs[element] = access.program
        if len(programs) < numbers.numel():
            element = next(i for i in range(numbers.numel()) if i not in programs)
            every = f"all {numbers.numel()} elements of {out} stored"
            some = f"{len(programs)} are; nobody stores {out}{_index(numbers.shape, element)}"
            raise Wrong(f"Not all of {out} is written.", every, some, setup=setup)


def _named(given: Given, expected: Numbers, got: Numbers, mistakes: Mistakes) -> str:
    """The mistake that gives just these numbers, if there is one."""
    for message, wrong in mistakes.items():
        numbers = wrong(given)
        numbers = dict(zip(expected, numbers, strict=True)) if isinstance(numbers, tuple) else {"out": numbers}
        if all(got[out].isclose(x, rtol=1e-4, atol=1e-5, equal_nan=True).all() for out, x in numbers.items()):
            return message
    return ""


def _unnamed(got: Numbers) -> str:
    if any(x.isnan().any() for x in got.values()):
        return (
            "NaN comes out: a number that nobody has written was taken in. 0 x NaN is NaN, so masking the scores is\n"
            "not enough: the load needs a mask, and other=0.0."
        )
    return "It computes something else. The first row that differs:"


def _all(name: str, answer: Any, cases: Cases, mistakes: Mistakes) -> None:
    for said, case in cases:
        _try(name, answer, said, case, mistakes)


def _puzzle(function: Callable[[Any], str]) -> Callable[[Any], str]:
    """A check that runs where Triton is interpreted, which may be another process."""

    def run(answer: Any) -> str:
        from pagedlab.kernels.runtime import INTERPRETED
        from pagedlab.lessons.tracer import interpreted

        if INTERPRETED:
            return function(answer)
        result = interpreted("pagedlab.checks.kernel:again", function.__name__, answer)
        if result.status != "passed":
            raise Wrong(result.message, result.expected, result.got, *result.operations, setup=result.setup)
        return result.message

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    exercise(run)
    return run


def again(name: str, answer: Any) -> Any:
    """The check of that name, in the process that `_puzzle` asks."""
    return getattr(check, name)(answer)


# 1 to 4: one program's share -------------------------------------------------------------------------------------


@_puzzle
def weights(answer: Any) -> str:
    """A kernel (out, s, m, n, TILE): exp(s - m)."""
    cases: Cases = [
        ("One tile of 4, full", {"n": 4}),
        ("Two tiles of 4, both full", {"n": 8}),
        ("10 scores in three tiles of 4: the last is half empty", {"n": 10}),
    ]
    mistakes: Mistakes = {
        "m is not taken off: these are exp(s).": lambda g: g["s"].exp(),
        "The exponential is missing: these are s - m.": lambda g: g["s"] - g["m"],
        "The sign is turned round: these are exp(m - s).": lambda g: (g["m"] - g["s"]).exp(),
        "These are powers of two, not of e.": lambda g: (g["s"] - g["m"]).exp2(),
    }
    _all("weights", answer, cases, mistakes)
    return "Every program has a tile of its own, and the last one leaves alone what is not its."


def _strided(g: Given, of: Callable[[Any, Any, int], Any]) -> Any:
    """Scores as they would be if the row of token j and head h began at of(j, h, ...)."""
    import torch

    (heads, n), dim = g["out"].shape, g["DIM"]
    memory = torch.cat([g["k"].flatten(), torch.zeros(heads * dim * n)])
    h, j, d = torch.arange(heads)[:, None, None], torch.arange(n)[None, :, None], torch.arange(dim)
    return (memory[of(j, h, n) * dim + d] * g["q"][:, None]).sum(2) * g["scale"]


@_puzzle
def scores(answer: Any) -> str:
    """A kernel (out, q, k, n, scale, HEADS, DIM, TILE): the scores of every head, from k [n, HEADS, DIM]."""
    cases: Cases = [
        ("8 keys of one head, a full tile", {"n": 8, "heads": 1}),
        ("6 keys of one head in a tile of 8", {"n": 6, "heads": 1}),
        ("8 keys of two heads: token 0's two rows, then token 1's", {"n": 8}),
        ("6 keys of three heads", {"heads": 3}),
    ]
    from pagedlab.lessons import puzzles

    mistakes: Mistakes = {
        "The scale is missing.": lambda g: puzzles.scores(g["q"], g["k"], 1.0),
        "Every program takes the query of head 0.": lambda g: puzzles.scores(g["q"][:1], g["k"], g["scale"]),
        "Every program takes the keys of head 0.": lambda g: puzzles.scores(g["q"], g["k"][:, :1], g["scale"]),
        "It steps from token to token as if there were one head: the next row is the next head's, and a token's rows\n"
        "are HEADS * DIM apart.": lambda g: _strided(g, lambda j, h, _: j + h),
        "It steps as if all tokens of a head lay together, [HEADS, n, DIM]. In this memory a token's heads do.": (
            lambda g: _strided(g, lambda j, h, n: h * n + j)
        ),
    }
    _all("scores", answer, cases, mistakes)
    return "A tile of addresses, [TILE, DIM], from a column and a row; and the heads of a token side by side."


@_puzzle
def online_step(answer: Any) -> str:
    """A kernel (m, total, acc, s, v, n, DIM, TILE) that takes n scores and values into the state."""
    import torch

    cases: Cases = [
        ("The first tile, full: nothing came before (m is minus infinity)", {"n": 8, "first": True}),
        ("A full tile, and the largest score came before it", {"n": 8, "past": 5.0}),
        ("A full tile with a new largest score: the past weighs less now", {"n": 8, "past": -1.0}),
        ("6 scores in a tile of 8, and the largest came before", {"n": 6, "past": 5.0}),
        ("6 scores in a tile of 8, all of them far below zero", {"n": 6, "past": -30.0, "shift": -30.0}),
    ]

    def state(g: Given, past: float | None, correct: tuple[bool, bool] = (True, True), s: Any = None) -> Any:
        """What a step gives whose new maximum is not the larger of both, or that corrects only one of the two."""
        s, v = (g["s"], g["v"]) if s is None else (s, torch.cat([g["v"], torch.zeros(len(s) - g["n"], g["DIM"])]))
        new_m = torch.maximum(g["m"], s.max()) if past is None else torch.full((1,), past)
        p, rescale = (s - new_m).exp(), (g["m"] - new_m).exp()
        total = g["total"] * (rescale if correct[0] else 1) + p.sum()
        return new_m, total, g["acc"] * (rescale if correct[1] else 1) + p @ v

    mistakes: Mistakes = {
        "The sum so far is not corrected: it has to shrink by exp(m - new_m).": lambda g: state(g, None, (False, True)),
        "The output so far is not corrected: it has to shrink by exp(m - new_m).": (
            lambda g: state(g, None, (True, False))
        ),
        "Neither the sum nor the output so far is corrected for the new maximum.": (
            lambda g: state(g, None, (False, False))
        ),
        "The tile's largest score is taken for the largest of all: the past may have had a larger one.": (
            lambda g: state(g, float(g["s"].max()))
        ),
        "Places behind the last score count as scores of 0. They have to be minus infinity.": (
            lambda g: state(g, None, s=torch.cat([g["s"], torch.zeros(g["TILE"] - g["n"])]))
        ),
        "The new maximum is not kept.": lambda g: (g["m"], *state(g, None)[1:]),
        "The past is not there any more: the tile replaces it.": lambda g: state(
            g | {"total": 0 * g["total"], "acc": 0 * g["acc"]}, None
        ),
    }
    _all("online_step", answer, cases, mistakes)
    return "A larger score corrects the past, a smaller one is corrected, and what is no score weighs nothing."


@_puzzle
def paged_scores(answer: Any) -> str:
    """A kernel (out, q, k_cache, table, n, scale, SIZE, HEADS, DIM, TILE)."""
    from pagedlab.lessons import puzzles

    def slots(g: Given, of: Callable[[Any, Any, int], Any]) -> Any:
        """Scores of keys in other slots than they should be."""
        import torch

        k, p = g["k_cache"].flatten(0, 1), torch.arange(g["n"])
        table = torch.cat([g["table"].long(), torch.zeros(g["n"], dtype=torch.long)])
        return puzzles.scores(g["q"], k[of(p, table, g["SIZE"]).clamp(0, len(k) - 1)], g["scale"])

    cases: Cases = [
        ("8 keys of one head in two full pages", {"n": 8, "heads": 1, "tile": 8}),
        ("10 keys of two heads in three pages; what is behind the last key holds NaN", {}),
        ("10 keys, and page ids beyond 2^27", {"far": True}),
    ]
    mistakes: Mistakes = {
        "The table is not asked: positions are taken for slots.": lambda g: slots(g, lambda p, _, size: p),
        "It stays in the first page of the table: position p is in page table[p // SIZE].": (
            lambda g: slots(g, lambda p, table, size: table[0] * size + p % size)
        ),
        "It runs on behind the first page: position p is in page table[p // SIZE].": (
            lambda g: slots(g, lambda p, table, size: table[0] * size + p)
        ),
        "The place in the page is missing: every key is its page's first.": (
            lambda g: slots(g, lambda p, table, size: table[p // size] * size)
        ),
        "The place in the page is p % SIZE, not p // SIZE.": (
            lambda g: slots(g, lambda p, table, size: table[p // size] * size + p // size)
        ),
        "The page is table[p // SIZE], not table[p % SIZE].": (
            lambda g: slots(g, lambda p, table, size: table[p % size] * size + p % size)
        ),
        "A page id is taken for a slot: it has to be multiplied by SIZE.": (
            lambda g: slots(g, lambda p, table, size: table[p // size] + p % size)
        ),
        "The scale is missing.": lambda g: puzzles.paged_scores(g["q"], g["k_cache"], g["table"], g["n"], 1.0),
    }
    _all("paged_scores", answer, cases, mistakes)
    return "Right in one page and in three, and where the offset of an element passes 2^31, as in a large GPU's cache."


# 5 to 7: whole kernels -------------------------------------------------------------------------------------------


def _attended(
    g: Given, head: Callable[[int], int] | None = None, table: Callable[[int], int] | None = None,
    length: Callable[[int], int] = int, scale: float | None = None, zeros: int = 0, divided: bool = True,
    tile: int = 0, forget: tuple[bool, bool] = (False, False),
) -> Any:  # fmt: skip
    """Attention with a mistake, head by head and tile by tile.

    head, table, length  which KV head a query head reads, which row of the tables, how many keys
    zeros                multiples up to which places behind the end count as scores of 0
    forget               whether sum and output are left as they are when a tile brings a new maximum
    """
    import torch

    out = torch.zeros_like(g["q"])
    for b, n in enumerate(g["seq_lens"].tolist()):
        n = length(n)
        row = g["tables"][table(b) if table else b].long()
        pages = [cache[row].flatten(0, 1)[:n].nan_to_num() for cache in (g["k_cache"], g["v_cache"])]
        for h in range(g["q"].shape[1]):
            kv = head(h) if head else h // g["GROUP"]
            s = pages[0][:, kv] @ g["q"][b, h] * (g["scale"] if scale is None else scale)
            m, total, acc = torch.tensor(-math.inf), torch.tensor(0.0), torch.zeros(g["DIM"])
            behind = -len(s) % zeros if zeros else 0
            s, v = torch.cat([s, torch.zeros(behind)]), torch.cat([pages[1][:, kv], torch.zeros(behind, g["DIM"])])
            for part, values in zip(s.split(tile or g["TILE"]), v.split(tile or g["TILE"]), strict=True):
                new_m = torch.maximum(m, part.max())
                p, rescale = (part - new_m).exp(), (m - new_m).exp()
                total = total * (1 if forget[0] else rescale) + p.sum()
                acc = acc * (1 if forget[1] else rescale) + p @ values
                m = new_m
            out[b, h] = acc / total if divided else acc
    return out


def _of_attention() -> Mistakes:
    whole = "The last tile is left out where it is not full: round up."
    return {
        "The scale is missing.": lambda g: _attended(g, scale=1.0),
        "It is not divided by the sum of the weights at the end.": lambda g: _attended(g, divided=False),
        "Query heads are dealt out in turn (h % KV_HEADS). Those that share a KV head lie side by side: h // GROUP.": (
            lambda g: _attended(g, head=lambda h: h % g["KV_HEADS"])
        ),
        "Every query head reads KV head 0.": lambda g: _attended(g, head=lambda _: 0),
        "Every sequence reads the first one's table: the next row is table_stride further.": (
            lambda g: _attended(g, table=lambda _: 0)
        ),
        whole: lambda g: _attended(g, length=lambda n: n // g["TILE"] * g["TILE"] or n),
        "The sum so far is not corrected for a new maximum.": lambda g: _attended(g, forget=(True, False)),
        "The output so far is not corrected for a new maximum.": lambda g: _attended(g, forget=(False, True)),
        "The past is not corrected for a new maximum.": lambda g: _attended(g, forget=(True, True)),
        "Places behind the end count as scores of 0. They have to be minus infinity.": (
            lambda g: _attended(g, zeros=g["TILE"])
        ),
        "Only the first tile is taken in: where is the loop?": (
            lambda g: _attended(g, length=lambda n: min(n, g["TILE"]))
        ),
    }


ONE = {"heads": 1, "kv_heads": 1}
_WHOLE: Cases = [
    ("One sequence of 8 keys: one full tile of 8, two pages of 4", {"lengths": (8,), **ONE}),
    ("16 keys in two full tiles; the very first scores highest", {"lengths": (16,), "loudest": 0, **ONE}),
    ("16 keys in two full tiles; the very last scores highest", {"lengths": (16,), "loudest": 15, **ONE}),
    ("13 keys in tiles of 8; slots behind the end hold NaN", {"lengths": (13,), "loudest": 0, **ONE}),
    ("8 keys, four query heads on two KV heads", {"lengths": (8,)}),
    ("Two sequences of 8 keys", {"lengths": (8, 8), **ONE}),
    ("Three sequences, four query heads on two KV heads", {}),
]
_BEYOND: Cases = [("9 keys, and page ids beyond 2^27", {"lengths": (9,), "far": True})]


@_puzzle
def decode(answer: Any) -> str:
    """A kernel (out, q, k_cache, v_cache, tables, seq_lens, table_stride, scale, SIZE, GROUP, KV_HEADS, DIM, TILE)."""
    small: Cases = [("6 keys in pages of 16: a tile of 8 is half a page", {"lengths": (6, 20), "size": 16})]
    _all("decode", answer, _WHOLE + small + _BEYOND, _of_attention())
    return "A paged decode kernel: ragged lengths, shared heads, pages in any order, offsets beyond 2^31."


@_puzzle
def grouped(answer: Any) -> str:
    """As `decode`, one program a KV head, with ROWS behind TILE."""
    odd: Cases = [("Three query heads on one KV head, padded to 16 rows", {"heads": 3, "kv_heads": 1})]
    _all("grouped", answer, _WHOLE + odd + _BEYOND, _of_attention())
    return "Each key is loaded once for the whole group, and two products do the arithmetic."


def _once(memory: Any, given: Given, setup: str) -> None:
    """`Wrong` if several programs load an element of the keys."""
    by = Counter(i for access in memory.loads["k_cache"] for i in set(access.elements.tolist()))
    element, most = max(by.items(), key=lambda item: item[1], default=(0, 0))
    if most > 1:
        message = (
            "Several programs load the same keys. Each has some of its own: those of its KV head, and of its split."
        )
        some = f"{most} of them load k_cache{_index(given['k_cache'].shape, element)}"
        raise Wrong(message, "one program for each element of the keys", some, setup=setup)


@_puzzle
def split(answer: Any) -> str:
    """{"my_split": kernel, "my_merge": kernel, "my_splits": function}."""
    from pagedlab.lessons.puzzles import splits_for

    _rule(answer["my_splits"], splits_for)

    def merged(g: Given, weight: Callable[[Any, Any], Any], nothing: float = 0.0) -> Any:
        """Thirds put together with weight(log of the sum of the weights, maximum) [3]; `nothing` is an empty third."""
        import torch

        out = torch.zeros_like(g["q"])
        for (b, n), h in product(enumerate(g["seq_lens"].tolist()), range(g["q"].shape[1])):
            k, v = (
                g[name][g["tables"][b].long()].flatten(0, 1)[:n, h // g["GROUP"]] for name in ("k_cache", "v_cache")
            )
            s, tiles = k @ g["q"][b, h] * g["scale"], blocks_for(n, g["TILE"])
            ends = [third * tiles // 3 * g["TILE"] for third in (0, 1, 2, 3)]
            parts = [(s[i:j], v[i:j]) for i, j in pairwise(ends)]
            o = torch.stack([s.softmax(0) @ v if len(s) else torch.full((g["DIM"],), nothing) for s, v in parts])
            least = [torch.cat([s, torch.tensor([-math.inf])]) for s, _ in parts]
            weights = weight(torch.stack([s.logsumexp(0) for s in least]), torch.stack([s.max() for s in least]))
            out[b, h] = weights @ o
        return out

    mistakes: Mistakes = {
        "The parts are added up: each has to weigh as much as its softmax weights.": (
            lambda g: merged(g, lambda log, _: 0 * log.exp() + 1)
        ),
        "The parts are averaged: each has to weigh as much as its softmax weights.": (
            lambda g: merged(g, lambda log, _: 0 * log.exp() + 1 / 3)
        ),
        "The merged sum is not divided by the sum of the weights.": (
            lambda g: merged(g, lambda log, _: (log - log.max()).exp())
        ),
        "The parts weigh exp(m): how many keys stand behind a maximum is lost. The log is m + log(total).": (
            lambda g: merged(g, lambda _, m: m.softmax(0))
        ),
        "A split without keys divides 0 by 0, and NaN weighed with 0 is NaN.": (
            lambda g: merged(g, lambda log, _: log.softmax(0), math.nan)
        ),
        **_of_attention(),
    }
    one = "24 keys, one split: its part is the output, so it has to be divided by its sum"
    empty = "5 keys, one tile, three splits: two get nothing, and have to weigh nothing"
    cases: Cases = [
        (one, {"lengths": (24,), "splits": 1}),
        ("24 keys in three tiles of 8, three splits", {"lengths": (24,), "splits": 3, **ONE}),
        ("24 keys, three splits, the last key loudest", {"lengths": (24,), "splits": 3, "loudest": 23, **ONE}),
        ("21 keys, three splits; slots behind the end hold NaN", {"lengths": (21,), "splits": 3, **ONE}),
        (empty, {"lengths": (5,), "splits": 3, **ONE}),
        ("Three sequences, four query heads on two KV heads, three splits", {"splits": 3}),
    ]
    _all("split", answer, cases, mistakes)
    return (
        "Split and merged, whatever share a program gets. On 132 multiprocessors, one sequence of 16,384 with 8 KV\n"
        "heads gets 49 splits, and 256 sequences with 2 KV heads get 1: they fill the card by themselves."
    )


def _rule(answer: Any, right: Callable[..., int]) -> None:
    cases = [(1, 8, 16_384, 132), (256, 2, 1_024, 132), (1, 2, 100, 132), (1, 2, 255, 132), (32, 8, 4_096, 132)]
    cases += [(7, 4, 4_096, 132), (1, 1, 131_072, 108), (200, 2, 512, 108), (1, 2, 256, 132), (5, 2, 700, 132)]
    compare(answer, right, cases)
