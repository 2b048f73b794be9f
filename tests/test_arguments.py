"""What an argument must be: every public function, fed with what it is not. One line, ValueError, nothing changed."""

import math

import numpy as np
import pytest

import pagedlab
import pagedlab_fast
from pagedlab import LLM, BlockPool, BlockTable, KVCache, SamplingParams
from pagedlab.arguments import a_function, integer, one_of, real, valid_text
from pagedlab.prefix import PrefixCache
from pagedlab.recipes.speculative import DraftModel, PromptLookup
from pagedlab.scheduler import Scheduler
from support.operations import OPERATIONS
from support.refused import refused

ODD = ["1", b"x", 1.5, math.nan, math.inf, [], {}, {1}, object(), 1j, np.float64(2.5), "x" * 5000, ()]
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


def bad(kind, rng):
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


SIZES = "num_layers num_blocks block_size num_kv_heads head_dim"


def calls(tiny):
    """Name, a call with one argument left open, its kind, and what must not change."""
    pool = BlockPool(8, 4)
    cache = PrefixCache(pool)
    table = BlockTable(pool)
    table.append(9)
    llm = LLM(tiny, num_blocks=16, verbose=False)
    made = []

    def nothing():
        return None

    def books():
        return repr(pool), repr(table), repr(cache.stats), len(cache)

    def engine():
        return repr(llm.pool), llm.num_unfinished, len(llm.scheduler.waiting)

    def each(names, kind, call, state=nothing, **fixed):
        """One argument after the other, the others as given."""
        for name in names.split():
            made.append((f"{call.__name__}.{name}", lambda v, name=name: call(**fixed | {name: v}), kind, state))

    each("num_blocks block_size", "count", BlockPool, num_blocks=4)
    for verb in (pool.share, pool.release, pool.keep, pool.refcount):
        each("block_id", "block", verb, books)
    each("n", "whole", table.append, books)
    each("pool", "class", BlockTable)
    each("pool", "class", PrefixCache)
    each("num_tokens", "whole", table.truncate, books)
    ids = {"token_ids": [5, 6, 7]}
    each("salt", "text", cache.match, books, **ids)
    each("k", "count", PromptLookup)
    each("k", "count", DraftModel, model=tiny)
    limits = {"max_batch_tokens": 4, "max_sequences": 4}
    each("max_batch_tokens max_sequences", "count", Scheduler, books, pool=pool, **limits)
    each(SIZES, "count", KVCache, **dict.fromkeys(SIZES.split(), 1))
    each("prompt", "prompt", llm.add, engine)
    each("salt", "text", llm.add, engine, prompt=[5, 6, 7])
    each("stream", "flag", llm.add, engine, prompt=[5, 6, 7])
    for call, name in ((llm.add, "prompt"), (llm.generate, "prompts"), (llm.stream, "prompt")):
        each("sampling", "sampling", call, engine, **{name: [5, 6, 7]})
    model = {"model": tiny, "num_blocks": 8}
    each("block_size max_sequences", "count", LLM, **model)
    each("num_blocks max_batch_tokens", "count or none", LLM, **model)
    each("max_prompt_tokens", "count or none", pagedlab_fast.LLM, **model)
    each("ranks", "count", pagedlab_fast.LLM, **model)
    each("fused cuda_graphs", "flag", pagedlab_fast.LLM, **model)
    each("seed", "whole", LLM, **model)
    each("block_table scheduler", "class", LLM, **model)
    each("max_tokens n", "count", SamplingParams)
    each("top_k", "whole", SamplingParams)
    each("top_p", "share", SamplingParams)
    each("temperature", "number", SamplingParams)
    each("ignore_eos", "flag", SamplingParams)
    return made


def test_bad_arguments_are_refused_in_one_line(tiny, rng):
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
        if name.startswith(("SamplingParams.", "Scheduler.", "KVCache.")):
            assert name.partition(".")[2] in said, (name, value)
        assert "\n" not in said, (name, value)
        assert len(said) < 400, (name, value)
        assert state() == before, (name, value, kind)


def test_the_ways_to_ask():
    assert integer("n", np.int64(3), 1) == 3
    assert real("t", 1, 0) == 1.0
    assert one_of("how", "a", ("a", "b")) == "a"
    assert valid_text("salt", None) is None
    assert a_function("callback", print, "that takes text") is print
    for call, message in (
        (lambda: integer("n", 9, 1, 8), "n must be a whole number from 1 to 8, got 9"),
        (lambda: integer("n", True, 1), "n must be a whole number of at least 1, got True"),
        (lambda: real("p", 0, 0, 1, above=True), "p must be a number above 0 and at most 1, got 0"),
        (lambda: real("t", math.nan, 0), "t must be a number of at least 0, got nan"),
        (lambda: one_of("how", 1, (True, "b")), "how must be one of True, 'b', got 1"),
        (lambda: integer("n", np.zeros((2, 1)), 1), "n must be a whole number of at least 1, got array([[0.], [0.]])"),
        (lambda: a_function("callback", 5, "that takes text"), "callback must be a function that takes text, got 5"),
    ):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole message is compared
            call()
        assert str(caught.value) == message


def test_a_misspelled_name_of_the_package():
    with pytest.raises(AttributeError, match=r"^module 'pagedlab' has no attribute 'nothing_alike'$"):
        pagedlab.nothing_alike  # noqa: B018


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_blocks": 0}, "num_blocks must be a whole number of at least 1, got 0"),
        ({"num_blocks": "x"}, "num_blocks must be a whole number of at least 1, got 'x'"),
        ({"max_batch_tokens": 0}, "max_batch_tokens must be a whole number of at least 1, got 0"),
        ({"max_prompt_tokens": -1}, "max_prompt_tokens must be a whole number of at least 1, got -1"),
        ({"drafter": "x"}, r"drafter is PromptLookup\(k=4\), DraftModel\(model, k=4\) or None, got 'x'"),
        ({"fused": 1}, "fused must be one of True, False, 'auto', got 1"),
        ({"cuda_graphs": "on"}, "cuda_graphs must be one of True, False, 'auto', got 'on'"),
        ({"attention_backend": 3}, "there is no attention backend 3: choose one of 'auto'"),
        ({"model": ""}, "model must be a folder, a .gguf file or a hub id like Qwen"),
        ({"model": 3}, "model must be a folder, a .gguf file or a hub id like .*, got 3"),
        ({"device": "gpu"}, "device must be one of 'auto', 'cpu'"),
        ({"dtype": "int3"}, "dtype must be one of"),
    ],
)
def test_bad_arguments_are_found_before_a_model_is_loaded(arguments, message, monkeypatch):
    monkeypatch.setattr("pagedlab.model.read_config", lambda *_: pytest.fail("a model was loaded"))
    with refused(message):
        pagedlab_fast.LLM(**arguments)
