"""Checks of notebook 15: seven parts of an engine, and the whole.

What earlier notebooks check, their checks do here, too.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pagedlab import (
    LLM,
    BlockPool,
    PrefixCache,
    SamplingParams,
    Scheduler,
    paged_attention,
)
from pagedlab.blocks import BlockEvent, BlockTable
from pagedlab.loading import TINY_MODEL
from pagedlab.model import load_model
from pagedlab.sampling import sample_rows
from pagedlab.scheduler import Plan
from pagedlab_lessons.baseline import generate_baseline
from pagedlab_lessons.checks import (
    Function,
    Wrong,
    agree,
    compare,
    compared,
    exercise,
    normal,
    trying,
)
from pagedlab_lessons.checks.n02 import search_pool, search_tables
from pagedlab_lessons.checks.n05 import Served, search_cache
from pagedlab_lessons.checks.n09 import ToyEngine
from pagedlab_lessons.kernels07.puzzles import pages_of

_KEPT = "pool = MyPool(2, 16); a = pool.allocate(); pool.keep(a); pool.release(a)"


def _heard(pool: BlockPool, kind: str) -> list[tuple[int, int | None]]:
    """Return a list that gets the block and the source of each event of this kind."""
    heard = []

    def note(event: BlockEvent) -> None:
        if event.kind == kind:
            heard.append((event.block_id, event.source))

    pool.subscribe(note)
    return heard


def _free_blocks(pool: Function, line: str) -> str:
    """Return what is free and cached in a pool of two after these operations."""
    names: dict[str, Any] = {"MyPool": pool}
    exec(f"{_KEPT}; {line}", names)  # noqa: S102 - lines of my_pool
    made = names["pool"]
    kept = f"pool.keeps(a) is {made.keeps(names['a'])}"
    return f"{made.num_free} free, {made.num_cached} of them cached; {kept}"


@exercise
def my_pool(answer: Any) -> str:
    """A subclass of `BlockPool` with these five methods of its own."""
    search_pool(answer)
    lines = (
        "",
        "pool.share(a)",
        "pool.share(a); pool.release(a)",
        "b = pool.allocate(); pool.keep(b); pool.release(b); pool.allocate()",
    )
    compare(
        answer,
        BlockPool,
        [(line,) for line in lines],
        "A kept block is cached when it is free: share revives it, allocate evicts it last, and "
        "the oldest first.",
        through=_free_blocks,
        told=f"{_KEPT}\n{{}}",
    )
    return "Counts, free list and cached blocks are right, after every operation that was tried."


@exercise
def my_table(answer: Any) -> str:
    """A subclass of `BlockTable` with fork, append and free of its own."""
    with trying("a.append(2); b = a.block_ids[0]; pool.keep(b)", "a.append(1)", "pool.keeps(b)"):
        pool = BlockPool(1, 4)
        a = answer(pool)
        a.append(2)
        pool.keep(a.block_ids[0])
        a.append(1)
        kept = pool.keeps(a.block_ids[0])
        agree(False, kept, "A block whose contents change must be forgotten.")
    with trying("a.append(2); b = a.fork()", "a.append(1)", "the copies that subscribers hear of"):
        pool = BlockPool(2, 4)
        heard = _heard(pool, "copy")
        a = answer(pool)
        a.append(2)
        b = a.fork()
        a.append(1)
        copies = [(a.block_ids[0], b.block_ids[0])]
        agree(copies, heard, "append emits a copy as its destination and its source.")
    search_tables(answer, ("append", "fork", "free"))
    return "Forks share every block, and a write copies at most the last one."


class _OwnTable(BlockTable):
    """A table of a class that a reader could have written."""


@exercise
def my_cache(answer: Any) -> str:
    """A subclass of `PrefixCache` with match and register of its own."""

    class Collides(answer):
        def names(self, token_ids: Sequence[int], salt: str | None) -> list[bytes]:
            """The same names for all prompts."""
            return [bytes([i]) for i in range(len(token_ids) // self.pool.block_size)]

    prompts = [1, 2, 5, 6, 3], [6, 7, 3], [6, 7, 5, 6, 3]
    with trying("blocks of 2, names that collide", f"serve each of {prompts}, then salt='x'"):
        served = Served(Collides, 8, 2)
        for prompt in prompts:
            served.serve(prompt)
        served.serve([6, 7, 3], salt="x")
    with trying("table.append(4); register(table, [1, 2, 3, 4])", "match([1, 2, 3, 4, 5])"):
        pool = BlockPool(4, 2)
        cache = answer(pool, _OwnTable)
        table = _OwnTable(pool)
        table.append(4)
        cache.register(table, [1, 2, 3, 4])
        heard = _heard(pool, "hit")
        found = cache.match([1, 2, 3, 4, 5])
        agree(_OwnTable, type(found), "match makes a self.block_table, else yours never runs.")
        agree([(i, None) for i in table.block_ids], heard, "match emits a hit for each block.")
        counts = cache.stats.hit_tokens, cache.stats.asked_tokens
        agree((4, 5), counts, "hit_tokens and asked_tokens after a prompt of five:")
    search_cache(answer)
    return "Prompts that begin alike share blocks, and a name that collides is a miss."


def _of_batch(attention: Function, lengths: list[int], new: list[int]) -> Any:
    """Return attention of the last `new` tokens of sequences, in blocks of 4."""
    k, v, tables = pages_of(lengths, 4, 2, 8)
    starts = torch.tensor([0, *new]).cumsum(0).int()
    q = normal()(sum(new), 4, 8)
    return attention(q, k.double(), v.double(), tables, torch.tensor(lengths).int(), starts)


@compared(
    "Right for prompts, chunks and new tokens of several sequences; no empty slot is read.",
    [([3], [1]), ([5], [5]), ([9, 2], [1, 2]), ([7, 12, 4], [3, 1, 4])],
    through=_of_batch,
    told="my_attention(...)  # {0} keys, {1} queries, blocks of 4",
)
def my_attention(*batch: Any) -> Tensor:
    """A function with the arguments of `paged_attention`, for any ragged batch."""
    return paged_attention(*batch, backend="concat")


def _check_plan(plan: Plan, ran: list[Any], waited: list[Any], budget: int) -> None:
    """Raise `Wrong` if a plan breaks a rule for the sequences that ran and waited before it."""
    if plan.preempted:
        agree(ran[-1:], [*plan.preempted][:1], "The youngest running sequence is preempted first.")
        agree({}, plan.admitted, "A step that preempts a sequence admits none.")
    agree(
        waited[: len(plan.admitted)],
        [*plan.admitted],
        "The first waiting sequence is admitted first.",
    )
    planned = [chunk.sequence for chunk in plan.chunks]
    if not planned:
        raise Wrong("A step has no chunk.", "a chunk", f"none; {ran} ran, {waited} waited")
    oldest = [each for each in ran if each in planned]
    agree(oldest, planned[: len(oldest)], "Running sequences go on, oldest first.")
    tokens = sum(chunk.stop - chunk.start for chunk in plan.chunks)
    if tokens > budget:
        raise Wrong("A step stays within its budget.", f"at most {budget} tokens", tokens)


def _run(scheduler: type[Scheduler], num_blocks: int, budget: int) -> list[int]:
    """Return how many steps four texts take, and their lengths at the end."""
    engine = ToyEngine(scheduler, num_blocks, max_batch_tokens=budget, max_sequences=3)
    engine.scheduler.prefix_cache = cache = PrefixCache(engine.pool)
    running, waiting = engine.scheduler.running, engine.scheduler.waiting
    # The third prompt takes the whole pool of 9 blocks.
    sequences = [engine.add(prompt, 36 - prompt) for prompt in (9, 3, 33, 6)]
    steps = 0
    while waiting or running:
        before = list(running), list(waiting)
        _check_plan(engine.step(), *before, budget)
        steps += 1
        if len(running) > 3:
            raise Wrong("Too many run.", "at most 3", len(running))
    if not cache.stats.hit_tokens:
        raise Wrong("The prompts begin alike, and no block is shared: register.", "a hit", "none")
    engine.pool.check([])
    return [steps, *(len(sequence.token_ids) for sequence in sequences)]


@exercise
def my_scheduler(answer: Any) -> str:
    """A subclass of `Scheduler` with `schedule` of its own."""
    compare(
        answer,
        Scheduler,
        [(64, 64), (64, 5), (9, 64), (9, 5)],
        "Steps in all, and the tokens of each text:",
        through=_run,
        told="{0} blocks of 4, {1} tokens a step, prompts of 9, 3, 33 and 6",
    )
    return "Every text is finished: with room, in chunks, and in a pool that is too small for all."


def _tokens(sample: Function, number: float) -> list[int]:
    """Return tokens at temperatures 0, 1, 0.5, 2, 0, 1, for this number and its half by turns."""
    logits = torch.randn(6, 4096, generator=torch.Generator().manual_seed(1)).bfloat16()
    logits[:, 0] = -torch.inf
    params = [SamplingParams(temperature=t) for t in (0, 1, 0.5, 2, 0, 1)]
    return sample(logits, params, [number, number / 2] * 3).tolist()


@compared(
    "The likeliest token at temperature 0, else the token into whose share the number falls.",
    [(0.0,), (0.2,), (0.5,), (1 - 2**-53,)],
    through=_tokens,
    told="my_sample(logits, params, [{0}, {0} / 2] * 3)",
    why="Tokens of temperatures 0, 1, 0.5, 2, 0, 1:",
)
def my_sample(logits: Tensor, params: list[SamplingParams], numbers: list[float]) -> Tensor:
    """A function like `sample_rows`, for temperatures only."""
    return sample_rows(logits, params, numbers)


def _texts(llm: LLM) -> list[list[int]]:
    """Return the tokens of three texts, of which two are samples."""
    asked = [SamplingParams(max_tokens=5), SamplingParams(max_tokens=5, n=2, temperature=1, seed=1)]
    prompts: list[Any] = [[5, 6, 7, 8, 9], [5, 6, 7]]
    done = llm.generate(prompts, asked)
    return [output.token_ids for completion in done for output in completion.outputs]


@exercise
def my_step(answer: Any) -> str:
    """A subclass of `LLM` with `advance` of its own."""
    model = load_model(TINY_MODEL, "cpu", verbose=False)
    ours, mine = (poisoned(kind(model, num_blocks=16, verbose=False)) for kind in (LLM, answer))
    with trying(
        "llm.generate([[5, 6, 7, 8, 9], [5, 6, 7]], ...)", "llm.add([5, 6, 7], ...)", "three steps"
    ):
        agree(_texts(ours), _texts(mine), "The tokens of the three texts:")
        mine.add([5, 6, 7], SamplingParams(max_tokens=2))
        steps = [mine.advance() for _ in range(3)]
        agree([list] * 3, [type(each) for each in steps], "advance returns a list, empty or not.")
        counts = [len(each) for each in steps]
        agree([1, 1, 0], counts, "Completions that steps return: two compute a token, one nothing.")
    return "Plan, copies, batch, forward pass, tokens: a step."


@exercise
def my_engine(answer: Any) -> str:
    """The workbench of the notebook, whose engine has the parts that you wrote."""
    model = load_model(TINY_MODEL, "cpu", "float32", verbose=False)
    prompts = [[7, 8, 9, 200, 30 + i // 2, 31, *range(40, 40 + i)] for i in range(8)]
    asked = SamplingParams(max_tokens=12, ignore_eos=True)
    llm = answer.engine(model, block_size=4, num_blocks=16, max_batch_tokens=16, verbose=False)
    poisoned(llm)
    seen = Counter[str]()
    with trying("generate(prompts)", "generate two samples of [5, 6, 7]", "generate([7] * 62)"):
        llm.pool.subscribe(lambda event: seen.update([event.kind]))
        done = llm.generate(prompts, asked)
        seen["preemption"] = llm.stats.preemptions
        samples = _texts(llm)
        llm.generate([7] * 62, SamplingParams(max_tokens=1))  # takes the whole pool
        right = generate_baseline(model, prompts, 12, ignore_eos=True).token_ids
        for prompt, expected, completion in zip(prompts, right, done, strict=True):
            tokens = completion.outputs[0].token_ids
            agree(expected, tokens, f"The tokens after the prompt {prompt}:")
        ours = LLM(model, num_blocks=16, verbose=False)
        agree(_texts(ours), samples, "Three texts, of which two are samples (see plan.copies):")
        for what, method in {"hit": "match", "copy": "append", "preemption": "schedule"}.items():
            if not seen[what]:
                raise Wrong(
                    f"So small a pool needs a {what}, and none is noted: see {method}.",
                    "at least 1",
                    0,
                )
        llm.prefix_cache.clear()
        llm.pool.check([])
    proves = "Eight answers of transformers, with hits, copies and preemptions; no block is lost."
    return f"{proves}\n{answer}"


def poisoned(llm: LLM) -> LLM:
    """Fill an engine's unused memory with NaN, and return the engine."""
    llm.cache.keys.fill_(torch.nan)
    llm.cache.values.fill_(torch.nan)
    return llm
