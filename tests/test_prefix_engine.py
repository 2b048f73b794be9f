"""The prefix cache under the engine: the same logits, tokens and texts as without it, whatever is shared or evicted.

All in fp32. Every KV cache is full of NaN before it is used, so a hit on a block that was never computed has no
logits at all. "Cold" is an engine without prefix cache; ids are also compared with Hugging Face's `generate`.
"""

import pytest
import torch
from pagedlab_lessons.checks.prefix import A, B, ChecksOwnTokens
from pagedlab_lessons.replay import replay
from pagedlab_lessons.traces import shared_prompts

from pagedlab import LLM, SamplingParams
from pagedlab.model import Model
from pagedlab.prefix import PrefixCache
from pagedlab.recipes.eviction import POOLS
from support import engines
from support.engines import all_ids_of, exactly, poison

TEXT = """A cache is a shelf beside the desk. What was read a moment ago lies there, because it may be wanted again, and
the walk to the library is long. When the shelf is full something has to go back. Nobody knows which book will be asked
for next, so most people put away the one that has not been touched for the longest time. The old clerk at the mill did
it in another way: she kept what many had asked for, and let go what only one had ever wanted. On quiet days both were
right. On market days, when the same farmers came back again and again with one more question, she was wrong."""


class Engine(LLM):
    """An engine with a poisoned cache that remembers the logits of every step, and balances its books after each."""

    def __init__(self, model, num_blocks=256, block_size=16, **options):
        super().__init__(model, num_blocks=num_blocks, block_size=block_size, **options)
        poison(self.cache)
        self.logits = []

    def step(self):
        forward = self.forward

        def remembering(*args):
            self.logits.append(forward(*args))
            return self.logits[-1]

        self.forward = remembering
        try:
            return super().step()
        finally:
            self.forward = forward
            tables = [sequence.table for sequence in self.scheduler.running]
            self.pool.check([table for table in tables if table.block_ids])

    def answer(self, prompt, n=6, salt=None):
        """Token ids of a greedy answer, and the logits [n, V] that they were chosen from."""
        self.logits.clear()
        (done,) = self.generate(prompt, SamplingParams(max_tokens=n), salt=salt)
        return done.outputs[0].token_ids, torch.cat([rows for rows in self.logits if len(rows)])

    @property
    def found(self):
        """Tokens that the last busy spell found; what it computed must be the rest."""
        return self.stats.cached_tokens


def part_of(model, length, offset=0):
    ids = 3 * model.encode(TEXT)
    assert offset + length <= len(ids), "the text is too short"
    return ids[offset : offset + length]


def assert_idle(llm):
    """Nothing runs or waits; every block is free or cached."""
    engines.assert_idle(llm)
    if type(llm.prefix_cache) is PrefixCache:
        assert llm.pool.num_cached == len(llm.prefix_cache)


def evictions(pool):
    """A list that gets each block that the pool evicts from now on."""
    evicted = []
    pool.subscribe(lambda event: evicted.append(event.block_id) if event.kind == "evict" else None)
    return evicted


def difference(one, other):
    """The largest difference of two logits; infinite where one is not a number."""
    return float((one - other).abs().nan_to_num(nan=torch.inf).max())


# Cold and cached --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "block_size"), [("fp64", 1), ("fp64", 4), ("fp32", 16)])
def test_cold_and_cached_logits_are_equal(tiny, exact, hugging_face, block_size, dtype):
    """At every length around a block's edge, for the shared part and for what follows it.

    In fp32 to 1e-5 of the largest logit (about 20): a prompt computed in other pieces is added up in another order.
    In fp64, where that is no excuse, to 1e-12.
    """
    size, tolerance = block_size, 1e-5 if dtype == "fp32" else 1e-12
    if dtype == "fp64":
        tiny = exact
    cold = Engine(tiny, 256, size, prefix_caching=False)
    for shared in sorted({1, size - 1, size, size + 1, 3 * size} - {0}):
        for tail in sorted({0, 1, size}):
            warm = Engine(tiny, 256, size)
            first = part_of(tiny, shared) + part_of(tiny, 2 * size, 200)
            prompt = part_of(tiny, shared) + part_of(tiny, tail, 300)
            warm.answer(first)
            ids, logits = warm.answer(prompt)
            assert warm.found == min(shared, len(prompt) - 1) // size * size
            assert warm.stats.prompt_tokens == len(prompt) - warm.found
            cold_ids, cold_logits = cold.answer(prompt)
            assert difference(logits, cold_logits) < tolerance * cold_logits.abs().max()
            assert ids == cold_ids
            again, logits = warm.answer(prompt)
            assert warm.found == (len(prompt) - 1) // size * size
            assert difference(logits, cold_logits) < tolerance * cold_logits.abs().max()
            assert again == cold_ids
            assert_idle(warm)
    assert ids == hugging_face(tiny, prompt, 6)[: len(ids)]


def test_a_chat_finds_its_own_answers(tiny, hugging_face):
    llm = Engine(tiny, 64, 4)
    past, known = part_of(tiny, 14), 0
    for turn in range(4):
        answer, _ = llm.answer(past, 8)
        assert answer == hugging_face(tiny, past, 8)
        assert llm.found == known // 4 * 4
        known = len(past) + len(answer) - 1  # the token said last was never fed back
        past = past + answer + part_of(tiny, 5, 40 + 7 * turn)
    assert_idle(llm)


def test_the_engine_finds_what_the_cache_alone_would(tiny):
    """Hit for hit the same as `replay`, which serves the same prompts without a model, eviction included."""
    trace = shared_prompts(30, num_systems=3, vocabulary=tiny.vocab_size, seed=5)
    llm = Engine(tiny, 48, 16, block_pool=POOLS["slru"])
    evicted = evictions(llm.pool)
    served, found = [], 0
    for prompt, _ in trace:
        (done,) = llm.generate(prompt, exactly(2))
        served.append((prompt, done.outputs[0].token_ids))
        found += llm.found
    assert len(evicted) > 50
    assert llm.prefix_cache.stats == replay(served, 48, 16, "slru")
    assert found == llm.prefix_cache.stats.hit_tokens > 1000


# Salts -----------------------------------------------------------------------------------------------------


def test_salts(tiny, hugging_face):
    llm, prompt = Engine(tiny, 64, 4), part_of(tiny, 18)
    expected = hugging_face(tiny, prompt, 6)
    for salt, found in [(None, 0), ("a", 0), ("b", 0), ("a", 16), (None, 16), ("", 0), ("b", 16)]:
        assert llm.answer(prompt, salt=salt)[0] == expected
        assert llm.found == found, f"salt {salt!r}"
    assert_idle(llm)


# What goes wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(6))
def test_aborts_leave_only_what_was_computed(tiny, hugging_face, steps):
    llm, prompt = Engine(tiny, 64, 4, max_batch_tokens=6), part_of(tiny, 22)
    request_id = llm.add(prompt, exactly(6))
    for _ in range(steps):
        llm.step()
    llm.abort(request_id)
    assert_idle(llm)
    assert llm.answer(prompt)[0] == hugging_face(tiny, prompt, 6)
    assert llm.found == min(6 * steps, 21) // 4 * 4


def some_work(model, rng):
    """A prompt that begins like others and parts from them somewhere, asked for in one of two ways."""
    parts = part_of(model, 40)
    prompt = [token for i in range(rng.randint(1, 5)) for token in parts[8 * i : 8 * i + rng.choice([8, 8, 8, 3])]]
    prompt += part_of(model, rng.randint(0, 3), rng.randint(60, 62))
    max_tokens = rng.randint(1, 8)
    if rng.random() < 0.4:
        params = SamplingParams(max_tokens=max_tokens, temperature=1.0, n=rng.randint(1, 3), seed=rng.randrange(4))
    else:
        params = SamplingParams(max_tokens=max_tokens)
    return prompt, params, rng.choice([None, None, None, "a"])


@pytest.mark.parametrize(
    ("num_blocks", "block_size", "max_batch_tokens", "eviction"),
    [(40, 4, 16, "lru"), (30, 4, 64, "slru"), (64, 2, 9, "lfu"), (200, 4, 64, "lru")],
)
def test_any_traffic(exact, num_blocks, block_size, max_batch_tokens, eviction, rng):
    """Requests of all kinds come, go and are dropped while blocks are evicted: every finished text is the cold one.

    In fp64, where chance cannot bring two logits so near that rounding decides.
    """
    llm = Engine(exact, num_blocks, block_size, max_batch_tokens=max_batch_tokens, block_pool=POOLS[eviction])
    evicted = evictions(llm.pool)
    cold = Engine(exact, 256, 16, prefix_caching=False)
    work = {}
    known = {}
    finished = 0
    while finished < 15:
        if len(work) < 4 and rng.random() < 0.5:
            prompt, params, salt = some_work(exact, rng)
            work[llm.add(prompt, params, salt=salt)] = prompt, params, salt
        if work and rng.random() < 0.03:
            dropped = rng.choice(list(work))
            llm.abort(dropped)
            del work[dropped]
        for completion in llm.step():
            if completion.finished:
                prompt, params, _ = work.pop(completion.request_id)
                key = repr((prompt, params))
                if key not in known:
                    known[key] = all_ids_of(cold.generate(prompt, params))
                assert all_ids_of([completion]) == known[key]
                finished += 1
    for request_id in work:
        llm.abort(request_id)
    assert_idle(llm)
    assert llm.prefix_cache.stats.hit_tokens > 20 * block_size
    assert evicted or num_blocks == 200


# A real collision, end to end ---------------------------------------------------------------------------------------

T = list(range(100, 116))


@pytest.fixture(scope="module")
def large_vocabulary(tiny):
    """A small Qwen2 with random weights and room for the ids of the colliding blocks."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    options = {"attn_implementation": "pagedlab"}
    config = Qwen2Config(
        vocab_size=151_936,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.5,  # so that attention is not all but uniform
        **options,
    )
    return Model(Qwen2ForCausalLM(config).float().eval(), tiny.tokenizer, "random", "a test asks for its vocabulary")


def serve_collision(model, prefix_caching):
    llm = Engine(model, 32, 16, prefix_caching=prefix_caching)
    answers = [llm.answer([*blocks, 7]) for blocks in ([*A, *T], B, [*B, *T])]
    assert_idle(llm)
    return answers


def test_the_collision_is_harmless(large_vocabulary):
    cold = serve_collision(large_vocabulary, False)
    warm = serve_collision(large_vocabulary, True)
    for (ids, logits), (cold_ids, cold_logits) in zip(warm, cold, strict=True):
        assert ids == cold_ids
        assert difference(logits, cold_logits) < 1e-5 * cold_logits.abs().max()


def test_the_collision_fools_a_cache_that_checks_own_tokens(large_vocabulary):
    cold = serve_collision(large_vocabulary, False)
    naive = serve_collision(large_vocabulary, ChecksOwnTokens)
    far = [difference(logits, cold_logits) for (_, logits), (_, cold_logits) in zip(naive, cold, strict=True)]
    assert max(far[:2]) < 1e-4
    assert far[2] > 0.1
    assert naive[2][0] != cold[2][0]


# One step ----------------------------------------------------------------------------------------------------------


def test_prompts_of_one_step_share_what_they_begin_with(tiny, hugging_face):
    """A burst of sixteen that have 192 tokens in common: the first computes them, and the others find them."""
    shared = part_of(tiny, 192)
    prompts = [[*shared, *part_of(tiny, 20, 50 + i)] for i in range(16)]
    llm = Engine(tiny, 512, 16)
    got = llm.generate(prompts, exactly(4))
    assert llm.stats.cached_tokens == 15 * 192
    assert llm.stats.prompt_tokens == 16 * 212 - 15 * 192
    for prompt, completion in zip(prompts[:3], got, strict=False):
        assert completion.outputs[0].token_ids == hugging_face(tiny, prompt, 4)
    assert_idle(llm)
