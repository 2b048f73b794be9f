"""What an argument must be: every public function, fed with what it is not. One line, ValueError, nothing changed."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import OPERATIONS

from pagedlab import LLM, BlockPool, BlockTable, SamplingParams
from pagedlab.model import Model
from pagedlab.prefix import PrefixCache, hash_chain
from pagedlab.scheduler import Scheduler
from pagedlab.speculative import DraftModel, PromptLookup
from pagedlab.validation import integer, one_of, real, valid_text, with_methods

ODD: list[Any] = ["1", b"x", 1.5, math.nan, math.inf, [], {}, {1}, object(), 1j, np.float64(2.5), "x" * 5000, ()]
NOT = {  # what no argument of that kind may be
    "count": [*ODD, None, True, False, 0, -1, -(2**70)],
    "count or none": [*ODD, True, False, 0, -1],
    "whole": [*ODD, None, True, -1],
    "share": [*ODD[:2], *ODD[3:10], None, True, 0, -0.5, 1.5, 2],
    "number": [*ODD[:2], *ODD[3:10], None, True, -1, -math.inf],
    "flag": [*ODD, None, 0, 1, "auto "],
    "text": [5, b"x", 1.5, ["a"], object(), "\ud800"],
    "class": [5, "BlockPool", object(), [], 1.5, dict],
    "block": [*ODD, None, True, -1, 8, 2**70],
    "sampling": [5, "x", {"max_tokens": 3}, object(), 1.5, 0],
    "prompt": [
        5,
        None,
        1.5,
        object(),
        {1, 2},
        b"ab",
        [1.5],
        ["a", 1],
        [[]],
        "",
        [],
        [-1],
        [10**9],
        [True],
        {"role": "x"},
    ],
}


def bad(kind: str, rng: random.Random) -> Any:
    """A value of this kind's list, or one that is drawn: of another type, below what is allowed, or part of a list."""
    far = rng.randrange(1, 2 ** rng.randrange(1, 90))
    text = "".join(chr(rng.randrange(32, 0x300)) for _ in range(rng.randrange(9))) + "\ud8ff"
    strange = [text, text.encode(errors="replace"), [text], {text: far}, {far}, complex(far, 1), object, iter([far])]
    drawn = {
        "count": [*strange, -far, far + 0.5, -1 / far, [far]],
        "count or none": [*strange, -far, far + 0.5, (far,)],
        "whole": [*strange, -far, far + 0.5, np.float32(far % 100 + 0.5)],
        "share": [*strange, -1 / far, 1 + 1 / (far % 2**40), -far, [0.5]],
        "number": [*strange, -1 / far, -far, [far]],
        "flag": [*strange, far + 1, -1 / far, [True]],
        "text": [text, text.encode(errors="replace"), [text], far, 1 / far],
        "class": [*strange[:6], far, 1 / far],
        "block": [*strange, -far, far + 7, far + 0.5],
        "sampling": [*strange, far, [far]],
        "prompt": [*strange[4:7], far, 1 / far, [far, text], [far, 0.5], [-far], [2**20 + far], [[far], far]],
    }
    return rng.choice([*NOT[kind], *drawn[kind]])


def calls(tiny: Model) -> list[tuple[str, Callable[[Any], object], str, Callable[[], object]]]:
    """Name, a call with one argument left open, its kind, and what must not change."""
    pool = BlockPool(8, 4)
    cache = PrefixCache(pool)
    table = BlockTable(pool)
    table.append(9)
    llm = LLM(tiny, num_blocks=16, verbose=False)
    books = lambda: (repr(pool), repr(table), repr(cache.stats), len(cache))  # noqa: E731
    engine = lambda: (repr(llm.pool), llm.num_unfinished, len(llm.scheduler.waiting))  # noqa: E731
    nothing = lambda: None  # noqa: E731
    ids = [5, 6, 7]
    of_llm = {
        "count": ["block_size", "max_sequences", "tensor_parallel"],
        "count or none": ["num_blocks", "max_batch_tokens"],
        "whole": ["seed"],
        "class": ["block_table", "scheduler"],
        "flag": ["fused", "cuda_graphs"],
    }
    of_params = {
        "count": ["max_tokens", "n"],
        "whole": ["top_k", "beam_width"],
        "share": ["top_p"],
        "number": ["temperature"],
        "flag": ["ignore_eos"],
    }
    made: list[tuple[str, Callable[[Any], object], str, Callable[[], object]]] = [
        ("BlockPool", lambda v: BlockPool(v), "count", nothing),
        ("BlockPool.block_size", lambda v: BlockPool(4, v), "count", nothing),
        *[(f"pool.{verb}", getattr(pool, verb), "block", books) for verb in ("share", "release", "keep", "refcount")],
        ("table.append", table.append, "whole", books),
        ("table.truncate", table.truncate, "whole", books),
        ("cache.match", lambda v: cache.match(ids, leave=v), "whole", books),
        ("cache.match.salt", lambda v: cache.match(ids, salt=v), "text", books),
        ("hash_chain", lambda v: hash_chain(ids, v), "count", nothing),
        ("PromptLookup", lambda v: PromptLookup(v), "count", nothing),
        ("DraftModel", lambda v: DraftModel(tiny, v), "count", nothing),
        ("Scheduler", lambda v: Scheduler(pool, v, 4), "count", books),
        ("llm.add", lambda v: llm.add(ids, v), "sampling", engine),
        ("llm.add.prompt", llm.add, "prompt", engine),
        ("llm.add.salt", lambda v: llm.add(ids, salt=v), "text", engine),
        ("llm.generate", lambda v: llm.generate(ids, v), "sampling", engine),
        ("llm.stream", lambda v: llm.stream(ids, v), "sampling", engine),
    ]
    for kind, names in of_llm.items():
        made += [(f"LLM.{n}", lambda v, n=n: LLM(tiny, **{"num_blocks": 8, n: v}), kind, nothing) for n in names]
    for kind, names in of_params.items():
        made += [(f"SamplingParams.{n}", lambda v, n=n: SamplingParams(**{n: v}), kind, nothing) for n in names]
    return made


def test_bad_arguments_are_refused_in_one_line(tiny: Model, seed: int) -> None:
    rng = random.Random(seed)
    those = calls(tiny)
    todo = [(call, value) for call in those for value in NOT[call[2]]]
    todo += [(call, bad(call[2], rng)) for call in rng.choices(those, k=(OPERATIONS or 1000) - len(todo))]
    for (name, call, kind, state), value in rng.sample(todo, len(todo)):
        before = state()
        print(name, repr(value)[:200])
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is looked at below
            call(value)
        said = str(caught.value)
        assert said, (name, value)
        assert "\n" not in said, (name, value)
        assert len(said) < 400, (name, value)
        assert state() == before, (name, value, kind)


def test_the_ways_to_ask() -> None:
    assert integer("n", np.int64(3), 1) == 3
    assert real("t", 1, 0) == 1.0
    assert one_of("how", "a", ("a", "b")) == "a"
    assert with_methods("pool", [], ("append",)) == []
    assert valid_text("salt", None) is None
    for call, message in (
        (lambda: integer("n", 9, 1, 8), "n must be a whole number from 1 to 8, got 9"),
        (lambda: integer("n", True, 1), "n must be a whole number of at least 1, got True"),
        (lambda: real("p", 0, 0, 1, above=True), "p must be a number above 0 and at most 1, got 0"),
        (lambda: real("t", math.nan, 0), "t must be a number of at least 0, got nan"),
        (lambda: one_of("how", 1, (True, "b")), "how must be one of True, 'b', got 1"),
        (lambda: with_methods("pool", 5, ("share",)), "pool must have the methods share, and int lacks share"),
    ):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole message is compared
            call()
        assert str(caught.value) == message
