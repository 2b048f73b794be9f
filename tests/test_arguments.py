"""What an argument must be: every public function, fed with what it is not. One line, ValueError, nothing changed."""

import math

import numpy as np
import pytest

import pagedlab
import pagedlab_fast
from pagedlab import LLM, BlockPool, BlockTable, KVCache, SamplingParams
from pagedlab.prefix import PrefixCache
from pagedlab.recipes.beam import beam_search
from pagedlab.recipes.penalties import Penalties
from pagedlab.recipes.speculative import DraftModel, PromptLookup
from pagedlab.scheduler import Scheduler
from pagedlab_serve.engine_thread import EngineThread
from support.refused import refused

ODD = ["1", b"x", [], [0.5], {}, {1}, object(), 1j, "x" * 5000, (), np.zeros((2, 1))]
NUMBERS = [1.5, math.nan, math.inf, np.float64(2.5)]
NOT = {  # what no argument of that kind may be
    "count": [*ODD, *NUMBERS, None, True, False, 0, -1, -(2**70)],
    "count or none": [*ODD, *NUMBERS, True, False, 0, -1],
    "whole": [*ODD, *NUMBERS, None, True, -1],
    "share": [*ODD, *NUMBERS, None, True, 0, -0.5, 2],
    "number": [*ODD, math.nan, np.float16(math.inf), 10**309, None, True, -1],
    "exponent": [*ODD, math.nan, math.inf, None, True, -11, 11],
    "flag": [*ODD, None, 0, 1, "auto "],
    "text": [5, b"x", 1.5, ["a"], object(), "\ud800"],
    "class": [5, "BlockPool", object(), [], dict],
    "block": [*ODD, *NUMBERS, None, True, -1, 8, 2**70],
    "share or none": [*ODD, *NUMBERS, None, True, -0.1, 1.1],
    "whole or none": [*ODD, *NUMBERS, True, -1],
    "repetition": [*ODD, math.nan, None, 0, -1, 101],
    "penalty": [*ODD, math.nan, None, -2.1, 3],
    "bias": [5, "ab", [3], {1: 101}, {-1: 3}, {"a": 1}, {1.5: 1}],
    "stops": ["", ("a", ""), (1,), 5, b"end", [b"end"]],
    "function or none": [3, "penalties"],
    "sampling": [5, "x", {"max_tokens": 3}, object(), [5]],
    "prompt": [5, None, object(), {1}, b"ab", [1.5], ["a", 1], [[]], "", [], [-1], [10**9], [True], {"role": "x"}],
}


@pytest.fixture(scope="module")
def calls(tiny):
    """Calls with one argument left open: name, function, kind, and what must not change."""
    pool = BlockPool(8, 4)
    cache, table = PrefixCache(pool), BlockTable(pool)
    table.append(9)
    llm = LLM(tiny, num_blocks=16, verbose=False)
    made = []

    def each(names, kind, call, **fixed):
        for name in names.split():
            made.append((f"{call.__name__}.{name}", lambda v, name=name: call(**fixed | {name: v}), kind))

    def state():
        return repr([pool, table, cache.stats, len(cache), llm.pool, llm.num_unfinished])

    for verb in (pool.share, pool.release, pool.keep, pool.refcount):
        each("block_id", "block", verb)
    each("num_blocks block_size", "count", BlockPool, num_blocks=4)
    each("prompt", "prompt", beam_search, llm=llm, width=2)
    each("width max_tokens", "count", beam_search, llm=llm, prompt=[5, 6, 7], width=2)
    each("length_penalty", "exponent", beam_search, llm=llm, prompt=[5, 6, 7], width=2)
    each("n", "whole", table.append)
    each("num_tokens", "whole", table.truncate)
    each("pool", "class", BlockTable)
    each("pool", "class", PrefixCache)
    each("salt", "text", cache.match, token_ids=[5, 6, 7])
    each("k", "count", PromptLookup)
    each("k", "count", DraftModel, model=tiny)
    limits = "max_batch_tokens max_sequences"
    each(limits, "count", Scheduler, pool=pool, **dict.fromkeys(limits.split(), 4))
    sizes = "num_layers num_blocks block_size num_kv_heads head_dim"
    each(sizes, "count", KVCache, **dict.fromkeys(sizes.split(), 1))
    each("prompt", "prompt", llm.add)
    each("salt", "text", llm.add, prompt=[5, 6, 7])
    each("max_waiting", "count", EngineThread, llm=llm)

    def stream(prompt, sampling=None):
        next(llm.stream(prompt, sampling))

    for call, name in ((llm.add, "prompt"), (llm.generate, "prompts"), (stream, "prompt")):
        each("sampling", "sampling", call, **{name: [5, 6, 7]})
    model = {"model": tiny, "num_blocks": 8}
    each("block_size max_sequences", "count", LLM, **model)
    each("num_blocks max_batch_tokens", "count or none", LLM, **model)
    each("seed", "whole", LLM, **model)
    each("block_table scheduler block_pool prefix_caching", "class", LLM, **model)
    each("runner", "function or none", LLM, **model)
    each("max_prompt_tokens", "count or none", pagedlab_fast.LLM, **model)
    each("ranks", "count", pagedlab_fast.LLM, **model)
    each("fused cuda_graphs", "flag", pagedlab_fast.LLM, **model)
    each("max_tokens n", "count", SamplingParams)
    each("top_k", "whole", SamplingParams)
    each("top_p", "share", SamplingParams)
    each("min_p", "share or none", SamplingParams)
    each("seed logprobs", "whole or none", SamplingParams)
    each("stop", "stops", SamplingParams)
    each("adjust", "function or none", SamplingParams)
    each("temperature", "number", SamplingParams)
    each("repetition", "repetition", Penalties)
    each("presence frequency", "penalty", Penalties)
    each("bias", "bias", Penalties)
    each("ignore_eos", "flag", SamplingParams)
    return made, state


@pytest.mark.parametrize("kind", NOT)
def test_bad_arguments_are_refused_in_one_line(calls, kind):
    made, state = calls
    before = state()
    for name, call, takes in made:
        for value in NOT[kind] if takes == kind else ():
            print(name, repr(value)[:200])
            with refused(".") as caught:
                call(value)
            said = str(caught.value)
            assert len(said) < 400
            owner, _, argument = name.partition(".")
            assert argument in said or owner not in ("SamplingParams", "Penalties", "Scheduler", "KVCache")
            assert state() == before


def test_a_misspelled_name_of_the_package():
    with pytest.raises(AttributeError, match=r"^module 'pagedlab' has no attribute 'nothing_alike'$"):
        pagedlab.nothing_alike  # noqa: B018


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_prompt_tokens": -1}, "max_prompt_tokens must be"),
        ({"drafter": "x"}, "drafter is PromptLookup"),
        ({"fused": 1}, "fused must be one of"),
        ({"block_table": dict}, "block_table must be a subclass"),
        ({"attention_backend": 3}, "an attention backend that is no function must be one of .*, got 3"),
        ({"model": ""}, "model must be a folder, a .gguf file or a hub id"),
        ({"device": "gpu"}, "device .*must be one of 'auto', 'cpu'"),
        ({"dtype": "int3"}, "dtype must be one of"),
    ],
)
def test_bad_arguments_are_found_before_a_model_is_loaded(arguments, message, monkeypatch):
    monkeypatch.setattr("pagedlab.model.read_config", lambda *_: pytest.fail("a model was loaded"))
    with refused(message):
        pagedlab_fast.LLM(**arguments)
