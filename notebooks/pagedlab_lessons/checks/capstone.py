"""Checks of notebook 15: seven parts of an engine, and the whole.

What earlier notebooks check, their checks do here, too.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Any

import torch

from pagedlab import LLM, BlockPool, BlockTable, KVCache, SamplingParams, paged_attention
from pagedlab.loading import TINY_MODEL
from pagedlab.model import Model, load_model
from pagedlab.sampling import sample_rows
from pagedlab_lessons.checks import check
from pagedlab_lessons.checks.prefix import Served
from pagedlab_lessons.checks.protocol import (
    Wrong,
    agree,
    exercise,
    exercise_of_methods,
    first_wrong,
    shape,
    trying,
)
from pagedlab_lessons.checks.scheduling import ToyEngine

KEPT = "a = pool.allocate()", "pool.keep(a)", "pool.release(a)"
THEN = (
    ("pool.share(a)", "pool.release(a)"),
    ("b = pool.allocate()", "c = pool.allocate()"),
    ("b = pool.allocate()", "pool.release(b)", "c = pool.allocate()"),
)
CACHED = "A kept block is cached when it is free: share revives it, allocate evicts it last."


def passes(name: str, answer: Any) -> None:
    """Raise `Wrong` if an earlier notebook's check does not pass."""
    result = getattr(check, name)(answer)
    if result.status != "passed":
        raise Wrong(
            result.message, result.expected, result.got, *result.operations, setup=result.setup
        )


@exercise_of_methods("num_free", "refcount", "allocate", "share", "release")
def my_pool(answer: Any) -> str:
    """A subclass of `BlockPool` with these five methods of its own."""
    passes("block_pool", answer)
    for then in THEN:
        lines = *KEPT, *then
        pools = [{"pool": kind(2, 16)} for kind in (answer, BlockPool)]
        for number, line in enumerate(lines, 1):
            with trying(*lines[:number], setup="pool = MyPool(2, 16)"):
                for names in pools:
                    exec(line, names)  # noqa: S102 - a line of KEPT or THEN
                got, expected = (
                    f"{pool.num_free} free, {pool.num_cached} of them cached"
                    for pool in (names["pool"] for names in pools)
                )
                agree(expected, got, CACHED, str)
    return "Counts, free list and cached blocks are right, after every operation that was tried."


@exercise_of_methods("fork", "append", "free")
def my_table(answer: Any) -> str:
    """A subclass of `BlockTable` with fork, append and free of its own."""
    passes("copy_on_write", answer)
    return "Forks share all blocks, and the first writer copies one. No block is lost."


@exercise_of_methods("match", "register")
def my_cache(answer: Any) -> str:
    """A subclass of `PrefixCache` with match and register of its own."""
    passes("prefix_cache", answer)

    class Collides(answer):
        def names(self, token_ids: Sequence[int], salt: str | None) -> list[bytes]:
            """The same names for all prompts."""
            return [bytes([i]) for i in range(len(token_ids) // self.pool.block_size)]

    steps = "serve([1, 2, 3, 4, 5])", "serve([6, 7, 3, 4, 5])"
    with trying(*steps, setup="block size 2, and names that collide"):
        served = Served(Collides, 8, 2)
        served.serve([1, 2, 3, 4, 5])
        served.serve([6, 7, 3, 4, 5])
    return "Prompts that begin alike share blocks, and a name that collides is a miss."


@exercise
def my_attention(answer: Any) -> str:
    """A function with the arguments of `paged_attention`, for any ragged batch."""
    chance = torch.Generator().manual_seed(0)
    for lengths, new in (([3], [1]), ([5], [5]), ([9, 2], [1, 2]), ([7, 12, 4], [3, 1, 4])):
        cache = KVCache(1, 16, 4, 2, 8, torch.float64)
        cache.keys.fill_(torch.nan)
        cache.values.fill_(torch.nan)
        pool = BlockPool(16, 4)
        pool.allocate()  # so that no table is 0, 1, 2, ...
        tables = torch.full((len(lengths), 4), -1, dtype=torch.int32)
        for row, length in zip(tables, lengths, strict=True):
            table = BlockTable(pool)
            table.append(length)
            row[: len(table.block_ids)] = torch.tensor(table.block_ids)
            k, v = torch.randn(2, length, 2, 8, generator=chance, dtype=torch.float64)
            cache.write(0, k, v, torch.tensor(table.slots(0, length)))
        q = torch.randn(sum(new), 4, 8, generator=chance, dtype=torch.float64)
        starts = torch.tensor([0, *new]).cumsum(0).int()
        batch = q, cache.keys[0], cache.values[0], tables, torch.tensor(lengths).int(), starts
        expected = paged_attention(*batch, backend="concat")
        said = f"my_attention(...)  # {lengths} keys, {new} queries, blocks of 4"
        with trying(said):
            got = answer(*batch)
            agree(shape(expected), shape(got), "The result has another shape.")
        if at := first_wrong(expected, got):
            message = f"The first number that differs: row {at[0]}, head {at[1]}, element {at[2]}."
            values = f"{expected[tuple(at)]:.12g}", f"{got[tuple(at)]:.12g}"
            raise Wrong(message, *values, said)
    return "Right for prompts, chunks and new tokens of several sequences; no empty slot is read."


@exercise_of_methods("schedule")
def my_scheduler(answer: Any) -> str:
    """A subclass of `Scheduler` with `schedule` of its own."""
    for num_blocks, budget in ((64, 64), (64, 5), (9, 64), (9, 5)):
        engine = ToyEngine(answer, num_blocks, max_batch_tokens=budget, max_sequences=3)
        scheduler = engine.scheduler
        sequences = [engine.add(prompt, 12) for prompt in (9, 3, 14, 6)]
        setup = f"{num_blocks} blocks of 4, {budget} tokens a step, prompts of 9, 3, 14 and 6"
        for step in count(1):
            if not (scheduler.waiting or scheduler.running):
                break
            youngest = scheduler.running[-1:]
            with trying(f"step {step}", setup=setup):
                plan = engine.step()
                tokens = sum(chunk.stop - chunk.start for chunk in plan.chunks)
                if not 0 < tokens <= budget:
                    raise Wrong("A step computes tokens, within its budget.", budget, tokens)
                if len(scheduler.running) > 3:
                    raise Wrong("Too many run.", "at most 3", len(scheduler.running))
                first = next(iter(plan.preempted), None)
                if first and [first] != youngest and first not in plan.admitted:
                    raise Wrong("The youngest gives way.", youngest[0].name, first.name)
        with trying(setup=setup):
            engine.pool.check([])
            lengths = [len(sequence.token_ids) for sequence in sequences]
            agree([21, 15, 26, 18], lengths, "Every text gets its 12 tokens.")
    return "Every text is finished: with room, in chunks, and in a pool that is too small for all."


@exercise
def my_sample(answer: Any) -> str:
    """A function like `sample_rows`, for temperatures only."""
    logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(1))
    logits[:, 0] = -torch.inf
    params = [SamplingParams(temperature=t) for t in (0, 1, 0.5, 2, 0, 1)]
    for number in (0.0, 0.2, 0.5, 0.999):
        with trying(f"my_sample(logits, params, [{number}] * 6)"):
            got = answer(logits, params, [number] * 6)
            expected = sample_rows(logits, params, [number] * 6)
            agree(expected.tolist(), got.tolist(), "Tokens of temperatures 0, 1, 0.5, 2, 0, 1:")
    return "The likeliest token at temperature 0, else the token into whose share the number falls."


@exercise_of_methods("advance")
def my_step(answer: Any) -> str:
    """A subclass of `LLM` with `advance` of its own."""
    model = load_model(TINY_MODEL, "cpu", verbose=False)
    asked = [SamplingParams(max_tokens=5), SamplingParams(max_tokens=5, n=2, temperature=1, seed=1)]
    prompts: list[Any] = [[5, 6, 7, 8, 9], [5, 6, 7]]
    with trying("MyLLM(...).generate([[5, 6, 7, 8, 9], [5, 6, 7]], ...)"):
        got, expected = (
            [
                output.token_ids
                for completion in poisoned(kind(model, num_blocks=16, verbose=False)).generate(
                    prompts, asked
                )
                for output in completion.outputs
            ]
            for kind in (answer, LLM)
        )
        agree(expected, got, "The tokens of the three texts:")
    return "Plan, copies, batch, forward pass, tokens: a step."


@exercise
def my_engine(answer: Any) -> str:
    """The workbench of the notebook, whose engine has the parts that you wrote."""
    model = load_model(TINY_MODEL, "cpu", "float32", verbose=False)
    prompts = [[7, 8, 9, 200, 30 + i // 2, 31, *range(40, 40 + i)] for i in range(8)]
    asked = SamplingParams(max_tokens=12, ignore_eos=True)
    samples = SamplingParams(max_tokens=8, n=2, temperature=1, seed=3)
    llm = answer.engine(model, block_size=4, num_blocks=16, max_batch_tokens=16, verbose=False)
    poisoned(llm)
    seen = Counter[str]()
    with trying("generate(prompts)", "generate(prompt, SamplingParams(n=2, temperature=1))"):
        llm.pool.subscribe(lambda event: seen.update([event.kind]))
        done = llm.generate(prompts, asked)
        preemptions = llm.stats.preemptions
        one, other = (output.token_ids for output in llm.generate(prompts[3], samples)[0].outputs)
    for prompt, completion in zip(prompts, done, strict=True):
        expected = stock_tokens(model, prompt, 12)
        agree(expected, completion.outputs[0].token_ids, f"The tokens after the prompt {prompt}:")
    if one == other:
        raise Wrong("Two samples with two seeds differ.", "two texts", one)
    for what, number in (
        ("hits in the prefix cache", llm.prefix_cache.stats.hit_tokens),
        ("copies", seen["copy"]),
        ("preemptions", preemptions),
    ):
        if not number:
            raise Wrong(f"In so small a pool an engine has {what}.", "at least 1", number)
    llm.prefix_cache.clear()
    with trying("llm.pool.check([])"):
        llm.pool.check([])
    proves = "Eight answers of transformers, with hits, copies and preemptions; no block is lost."
    return f"{proves}\n{answer}"


def poisoned(llm: LLM) -> LLM:
    """Fill an engine's unused memory with NaN, and return the engine."""
    llm.cache.keys.fill_(torch.nan)
    llm.cache.values.fill_(torch.nan)
    return llm


def stock_tokens(model: Model, prompt: list[int], count: int) -> list[int]:
    """What `generate` of transformers writes."""
    with model.stock_attention() as module, torch.inference_mode():
        ids = torch.tensor([prompt])
        options: dict[str, Any] = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        mask = torch.ones_like(ids)
        out = module.generate(ids, attention_mask=mask, max_new_tokens=count, **options)
    return out[0, len(prompt) :].tolist()
